"""What a driver finds missing because its successor has let go of it: then it is fenced, and nothing is lost. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from stateline.errors import DataLossError

__all__ = ["fenced_if_overtaken"]


class _Driver(Protocol):
    def check_not_overtaken(self) -> None: ...


D = TypeVar("D", bound=_Driver)
P = ParamSpec("P")
R = TypeVar("R")


def fenced_if_overtaken(method: Callable[Concatenate[D, P], R]) -> Callable[Concatenate[D, P], R]:
    """Of a driver's step that finds data gone: looks whether another driver went on, whose retention then deleted it.

    Raises:
        FencedError: So it is. Without that, the loss stands.
    """

    @wraps(method)
    def step(driver: D, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(driver, *args, **kwargs)
        except DataLossError:
            driver.check_not_overtaken()
            raise

    return step
