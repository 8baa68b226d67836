"""Errors that leave a block of code as other errors: what stores put around each call.

It is a class, because what a generator of ``contextlib`` raises in place of another error is in a cycle with the frames
of all its callers, from Python 3.12 on: whatever those hold, such as the bytes to be written or a connection, would
live on until the next garbage collection. "There is no such object" is an answer that every new object begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

__all__ = ["Translated"]


class Translated:
    """Around a block of code: an error leaves it as another one, whose cause it is.

    Args:
        translate: Maps what was raised to what is raised in its place; ``None`` lets it pass. A cause that the new
            error has stays.
    """

    __slots__ = ("_translate",)

    def __init__(self, translate: Callable[[Exception], Exception | None]) -> None:
        self._translate = translate

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        other = self._translate(error) if isinstance(error, Exception) else None
        if other is not None:
            try:
                raise other from other.__cause__ or error
            finally:
                del other  # Its traceback holds this frame.
