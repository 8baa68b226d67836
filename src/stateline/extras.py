"""Modules that need the packages of an extra."""

from __future__ import annotations

import importlib
from typing import Any

from stateline.errors import NotInstalledError

__all__ = ["extra_module"]


def extra_module(name: str, extra: str, *, subject: str, operation: str | None = None) -> Any:
    """Loads a module when it is needed.

    Args:
        name: The module.
        extra: What brings the packages that it needs.
        subject: What needs it, for the error.
        operation: The call that needs it, for the error.

    Raises:
        NotInstalledError: A package is missing; the hint names the ``pip install``.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotInstalledError(
            f"the package {error.name} is missing",
            operation=operation,
            subject=subject,
            hint=f"pip install 'stateline[{extra}]'",
        ) from error
