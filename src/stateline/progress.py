"""How far long work is, for a log: what recovers in the background of a query says it there.

Short work says nothing. What takes long is told after a few seconds, every few seconds from then on, and at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from stateline.environment import Clock
from stateline.quantities import count_text, duration_text, share_text
from stateline.threads import new_lock

__all__ = ["ProgressLog"]

_EVERY_SECONDS: Final = 5.0


class ProgressLog:
    """Tells how far one piece of work is. Safe from any thread.

    Args:
        logger: Where it goes, as information.
        what: The work, as the beginning of a sentence: ``"fetching state of s3://bucket/root"``.
        clock: For the rate.
        number: How amounts are written.
    """

    def __init__(
        self, logger: logging.Logger, what: str, clock: Clock, number: Callable[[float | None], str] = count_text
    ) -> None:
        self._logger = logger
        self._what = what
        self._clock = clock
        self._number = number
        self._lock = new_lock()
        self._began = self._told_at = clock.monotonic()
        self._done = 0.0
        self._is_told = False

    def advance(self, amount: float, in_all: float) -> None:
        """Adds to what is done; ``in_all`` is how much there is."""
        with self._lock:
            self._done += amount
            done = self._done
        self.tell(done, in_all)

    def tell(self, done: float, in_all: float) -> None:
        """Says that ``done`` of ``in_all`` is done, if it is time to."""
        now = self._clock.monotonic()
        is_end = done >= in_all
        with self._lock:
            is_due = now - self._told_at >= _EVERY_SECONDS
            if not is_due and not (is_end and self._is_told):
                return
            self._told_at, self._is_told = now, not is_end
        took = now - self._began
        if is_end:
            self._logger.info("%s: done, %s in %s", self._what, self._number(in_all), duration_text(took))
            return
        rate = done / took if took > 0 else 0.0
        self._logger.info(
            "%s: %s of %s (%s), %s/s, about %s left",
            self._what,
            self._number(done),
            self._number(in_all),
            share_text(done, in_all),
            self._number(rate),
            duration_text((in_all - done) / rate if rate else None),
        )
