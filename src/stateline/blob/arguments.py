"""What callers give to a store, checked before anything happens, the same on every store."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from stateline.blob.api import Buffer
from stateline.blob.names import check_staged_name
from stateline.errors import InvalidInputError
from stateline.handles import Part

__all__ = ["check_range", "checked_names", "checked_parts", "own_bytes", "plain_bytes", "staged_parts"]


def plain_bytes(data: Buffer, operation: str, subject: str) -> Buffer:
    """The bytes with one item per byte, so that their length is that of the object. Nothing is copied.

    Raises:
        InvalidInputError: Not contiguous bytes. A number is refused too: ``bytes(5)`` would make five zero bytes.
    """
    if isinstance(data, bytes | bytearray):
        return data
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else b""  # Python cannot cast an empty view of other types.
    except TypeError as error:
        raise InvalidInputError(
            f"{type(data).__name__} is not contiguous bytes ({error})",
            operation=operation,
            subject=subject,
            hint="Encode text, and copy views with gaps",
        ) from error


def own_bytes(data: Buffer, operation: str, subject: str) -> bytes:
    """As :func:`plain_bytes`, as bytes that nobody changes: a copy, unless they are such already.

    For a store whose SDK may keep what it was given, if only in the traceback of an error that a retry has cured: a
    view of the caller's buffer would forbid the caller to change its size.
    """
    return bytes(plain_bytes(data, operation, subject))


def checked_names(names: Iterable[str]) -> list[str]:
    """The names to delete. A single text is refused: its letters would be names."""
    return _items(names, str, "delete", "names", "Give names relative to the root, in a list")


def checked_parts(parts: Iterable[Part], operation: str) -> list[Part]:
    """The pieces of a call."""
    return _items(parts, Part, operation, "parts", "Give what `stage` returned, in a list")


def staged_parts(parts: Iterable[Part], operation: str) -> list[Part]:
    """The pieces of a call on a store that stages below its root."""
    checked = checked_parts(parts, operation)
    for part in checked:
        check_staged_name(part.name)
    return checked


def check_range(name: str, start: int, end: int) -> None:
    """Refuses what is not a half-open range."""
    if not isinstance(start, Integral) or not isinstance(end, Integral) or not 0 <= start <= end:
        raise InvalidInputError(
            f"[{start!r}, {end!r}) is not a range", operation="get_range", subject=name, hint="Give 0 <= start <= end"
        )


def _items(given: Iterable[Any], kind: type, operation: str, subject: str, hint: str) -> list[Any]:
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        items = list(given)
        wrong = [f"one of {type(item).__name__}" for item in items if not isinstance(item, kind)]
        if not wrong:
            return items
    else:
        wrong = [type(given).__name__]
    raise InvalidInputError(
        f"expected a collection of {kind.__name__}, got {wrong[0]}", operation=operation, subject=subject, hint=hint
    )
