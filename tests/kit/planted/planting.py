"""Other code in the place of real code, for a time: how bugs are planted, and bounds that scenarios need small."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from stateline.errors import InternalError

__all__ = ["replaced"]


@contextlib.contextmanager
def replaced(owner: Any, attribute: str, value: Any) -> Iterator[None]:
    """Replaces one attribute of a class or module.

    Raises:
        InternalError: A function takes other arguments than the one that it replaces, so that each call of it would
            fail: a bug, but not the one that was planted.
    """
    own = attribute in vars(owner)
    before = vars(owner).get(attribute)
    _check_fits(getattr(owner, attribute), value, f"{owner.__name__}.{attribute}")
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, attribute, before)
        else:
            delattr(owner, attribute)


def _check_fits(original: Any, value: Any, subject: str) -> None:
    if not (inspect.isfunction(original) and inspect.isfunction(value)):
        return
    parameters = inspect.signature(original).parameters.values()
    named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    placed = [
        1 for parameter in parameters if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    try:
        inspect.signature(value).bind(*placed, **dict.fromkeys(named))
    except TypeError as error:
        raise InternalError(
            f"what replaces it does not take its arguments: {error}", operation="plant", subject=subject
        ) from error
