"""The rounds of a ``stateline_files`` stream: files whose time has come are finished while no rows come.

Spark calls the sink only for a batch, in a process of its own. So a timer in the driver looks at the newest record when
a file may be due, and finishes it in one more record. What fails there is logged and tried again: no row is lost, and
the next batch, which meets the same, says so to whoever waits for the query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from stateline.environment import Environment
from stateline.errors import StatelineError
from stateline.pipeline.idle import QuietRounds

__all__ = ["FilesRounds"]

_LOGGER: Final = logging.getLogger(__name__)
_QUIET_SECONDS: Final = 1.0


class FilesRounds:
    """The rounds of one run of a query.

    Args:
        environment: Clock, threads.
        interval_seconds: From one batch to the next, as the trigger says.
        roll_seconds: No file is due sooner than this after its newest row.
        is_active: Whether the query still runs.
        roll: ``roll(quiet_seconds)`` makes a round if the newest record is so old, and returns when the next file is
            due; ``None`` if none is open.
    """

    def __init__(
        self,
        environment: Environment,
        interval_seconds: float,
        roll_seconds: float,
        is_active: Callable[[], bool],
        roll: Callable[[float], float | None],
    ) -> None:
        self._clock = environment.clock
        self._quiet_seconds = interval_seconds + _QUIET_SECONDS
        self._roll_seconds = roll_seconds
        self._is_active = is_active
        self._roll = roll
        self._next_look = self._clock.now()  # An earlier run may have left files open.
        self._rounds = QuietRounds(environment, self._quiet_seconds, lambda: self._next_look, self._look, _nothing)

    def start(self) -> None:
        """Begins."""
        self._rounds.start()

    def close(self) -> None:
        """Ends; waits for a round that is being made. Idempotent."""
        self._rounds.close()

    def _look(self) -> bool:
        if not self._is_active():
            return False
        due: float | None = None
        try:
            due = self._roll(self._quiet_seconds)
        except StatelineError:
            _LOGGER.warning("open files whose time has come could not be finished; this is tried again", exc_info=True)
        # A file that is begun from now on is not due before that.
        self._next_look = self._clock.now() + self._roll_seconds if due is None else due
        return True


def _nothing() -> None:
    """Leaves the query alone."""
