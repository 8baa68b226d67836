"""What callers give to a store, checked before anything happens: bytes, names, pieces.

Owns the refusal of other types, the same on every backend. Does not own what a name may be (``names``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stateline.blob.api import Buffer
from stateline.errors import InvalidInputError
from stateline.handles import Part

__all__ = ["checked_names", "checked_parts", "own_bytes", "plain_bytes"]


def plain_bytes(data: Buffer, operation: str, subject: str) -> Buffer:
    """The bytes with one item per byte, so that their length is that of the object. Nothing is copied.

    Raises:
        InvalidInputError: They are no contiguous bytes. A number is none: ``bytes(5)`` would make five.
    """
    if isinstance(data, bytes | bytearray):
        return data
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else b""  # Python casts no empty view of other types.
    except TypeError as error:
        raise InvalidInputError(
            f"{type(data).__name__} is not contiguous bytes ({error})",
            operation=operation,
            subject=subject,
            hint="Encode text, and copy views with gaps",
        ) from error


def own_bytes(data: Buffer, operation: str, subject: str) -> bytes:
    """As :func:`plain_bytes`, as bytes that nobody changes: a copy, unless they are such already.

    For a backend whose SDK may keep what it was given, if only in the traceback of an error that a retry has cured: a
    view of the caller's buffer would forbid the caller to change its size.
    """
    return bytes(plain_bytes(data, operation, subject))


def checked_names(names: Iterable[str]) -> list[str]:
    """The names to delete. A single text is refused: its letters would be names.

    Raises:
        InvalidInputError: It is no collection of texts.
    """
    return _items(names, str, "delete", "names")


def checked_parts(parts: Iterable[Part], operation: str) -> list[Part]:
    """The pieces of a call.

    Raises:
        InvalidInputError: It is no collection of parts.
    """
    return _items(parts, Part, operation, "parts")


def _items(given: Iterable[Any], kind: type, operation: str, subject: str) -> list[Any]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise InvalidInputError(
            f"{type(given).__name__} is no collection of {kind.__name__}",
            operation=operation,
            subject=subject,
            hint="Give a list, also of one",
        )
    items = list(given)
    for item in items:
        if not isinstance(item, kind):
            raise InvalidInputError(
                f"{type(item).__name__} is no {kind.__name__}",
                operation=operation,
                subject=subject,
                hint="Give what `stage` returned" if kind is Part else "Give names relative to the root",
            )
    return items
