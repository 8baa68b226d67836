"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading

from stateline.errors import InvalidInputError

__all__ = ["ManualClock"]


class ManualClock:
    """Virtual time, safe from any thread; satisfies :class:`stateline.environment.Clock`.

    Wall-clock time may jump in both directions, as it does on real machines. Monotonic time never goes back.

    Args:
        start: Wall-clock seconds since the epoch at the beginning.
        step_per_read: Added to the wall clock after each :meth:`now`; negative for a clock that runs backwards.
    """

    def __init__(self, start: float = 1_700_000_000.0, *, step_per_read: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._wall = start
        self._elapsed = 0.0
        self._step_per_read = step_per_read

    def now(self) -> float:
        """Wall-clock time: seconds since the epoch."""
        with self._lock:
            self._wall += self._step_per_read
            return self._wall

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        """Advances the clock by ``seconds`` and returns at once: whoever sleeps is the only one there is."""
        self.advance(max(seconds, 0.0))

    def advance(self, seconds: float) -> None:
        """Lets time pass on both clocks.

        Raises:
            InvalidInputError: ``seconds`` is negative: monotonic time never goes back.
        """
        if seconds < 0:
            raise InvalidInputError(
                f"cannot advance by {seconds} s", operation="advance", hint="Use jump() to set the wall clock back"
            )
        with self._lock:
            self._elapsed += seconds
            self._wall += seconds

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward, or back where ``seconds`` is negative; no time passes."""
        with self._lock:
            self._wall += seconds
