"""What a driver does beside its batches: work that decides nothing, such as letting old checkpoints go.

Rules:
- One piece at a time, and at most one is waiting to be looked at: whoever brings the next one waits for the last.
- What a piece failed with is raised to the next who comes: at the latest before the next record is decided.
- It ends with the query, before the stores are closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from stateline.environment import Environment
from stateline.errors import UnavailableError

__all__ = ["Upkeep"]

_LOGGER: Final = logging.getLogger(__name__)


class Upkeep:
    """A thread of one run of a query. The coordinators of the run share it.

    Args:
        environment: Threads.
    """

    def __init__(self, environment: Environment) -> None:
        self._executor = environment.executors.executor("upkeep", 1)
        self._last: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begins a piece of work, or does it where no thread is; raises what the last one failed with, before that."""
        self.settle()
        try:
            self._last = self._executor.submit(work)
        except UnavailableError:  # No thread is to be had: the system has none, or Python 3.12 is about to end.
            self._last = _done(work)

    def settle(self) -> None:
        """Waits for the last piece, and raises what it failed with, once."""
        if self._last is not None:
            error = self._last.exception()
            self._last = None
            if error is not None:
                raise error

    def close(self) -> None:
        """Waits for the last piece. What it failed with is logged: nobody comes any more. Idempotent."""
        try:
            self.settle()
        except Exception as error:
            message = "old checkpoints could not be let go; the next start of the query goes on with that"
            _LOGGER.error(message, exc_info=error)
        self._executor.close()


def _done(work: Callable[[], None]) -> Future[None]:
    """The piece of work, done here."""
    future: Future[None] = Future()
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whoever comes next raises it
        future.set_exception(error)
    else:
        future.set_result(None)
    return future
