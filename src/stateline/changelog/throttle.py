"""How many bytes may be on their way: the arithmetic, without threads.

Owns the sum. Does not own the lock or the waiting: the scheduler calls it under its monitor.

Invariant: the bytes in flight never exceed the limit. A request above the limit is as large as the limit, so that it
goes when nothing else is on its way, and alone.
"""

from __future__ import annotations

from stateline.errors import InternalError, InvalidInputError
from stateline.options import parse_int, parse_size

__all__ = ["UploadThrottle"]


class UploadThrottle:
    """A strict limit of bytes in flight. Not safe to use from two threads at once.

    Args:
        max_in_flight: Bytes, or text such as ``"5MB"``; 1 or more.
    """

    __slots__ = ("_in_flight", "max_in_flight")

    def __init__(self, max_in_flight: int | str) -> None:
        self.max_in_flight = parse_size(max_in_flight, "max_in_flight")
        if self.max_in_flight < 1:
            raise InvalidInputError(f"{max_in_flight} is no limit", subject="max_in_flight", hint="Give 1 byte or more")
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Bytes that were seized and not released."""
        return self._in_flight

    @property
    def has_capacity(self) -> bool:
        """Whether anything more may be seized."""
        return self._in_flight < self.max_in_flight

    def fits(self, size: int) -> bool:
        """Whether :meth:`seize` of ``size`` bytes would stay within the limit."""
        return self._in_flight + min(size, self.max_in_flight) <= self.max_in_flight

    def seize(self, n: int) -> None:
        """Takes ``n`` bytes of the limit, at most all of it.

        Raises:
            InternalError: They do not fit; the caller had to wait.
            InvalidInputError: It is no whole number.
        """
        size = parse_int(n, "n")
        if size < 0 or not self.fits(size):
            raise InternalError(
                f"{size} bytes do not fit beside {self._in_flight} of {self.max_in_flight}", operation="seize"
            )
        self._in_flight += min(size, self.max_in_flight)

    def release(self, n: int) -> None:
        """Gives back what :meth:`seize` took for the same ``n``."""
        counted = min(parse_int(n, "n"), self.max_in_flight)
        if not 0 <= counted <= self._in_flight:
            raise InternalError(f"{n} bytes were never seized", operation="release")
        self._in_flight -= counted
