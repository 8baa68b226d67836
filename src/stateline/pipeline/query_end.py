"""What is left to do when a query has ended, done once, however many wait for it.

The listener of the session, whoever waits for the query, and whoever stops it may all come here, in any order.

Rules:
- The first who comes does it; the others wait until it is done.
- Stores are closed in any case, and last.
- What fails is logged, for nobody may be waiting, and kept for everybody who is. It is not tried again: the files stay
  open, and the next start of the query, or ``finish_files``, goes on with them.
- Whoever is interrupted while doing it (Control-C) leaves it to the next who comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from stateline.environment import Environment

__all__ = ["QueryEnd"]

_LOGGER: Final = logging.getLogger(__name__)


class QueryEnd:
    """The end of one run of a query.

    Args:
        environment: Waiting.
        place: Where its files are finished by hand, for the log.
        finish: Finishes what is open; ``None`` where files stay open. Not called for a query that has failed.
        close: Gives back what the query held.
    """

    def __init__(
        self,
        environment: Environment,
        place: str,
        finish: Callable[[], object] | None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._monitor = environment.executors.monitor()
        self._place = place
        self._finish = finish
        self._close = close
        self._is_running = False
        self._is_done = False
        self.failure: Exception | None = None

    def run(self, *, failed: bool) -> None:
        """Does it, or waits for who does. Never raises what it failed with: see :attr:`failure`.

        Args:
            failed: Whether the query has: its files stay open for the next start.
        """
        with self._monitor:
            self._monitor.wait_for(lambda: not self._is_running)
            if self._is_done:
                return
            self._is_running = True
        done = False
        try:
            self._run(failed=failed)
            done = True
        finally:
            with self._monitor:
                self._is_running, self._is_done = False, done
                self._monitor.notify_all()

    @property
    def is_running(self) -> bool:
        """Whether somebody is doing it."""
        with self._monitor:
            return self._is_running

    def wait(self) -> None:
        """Waits for who is doing it."""
        with self._monitor:
            self._monitor.wait_for(lambda: not self._is_running)

    def _run(self, *, failed: bool) -> None:
        try:
            if self._finish is not None and not failed:
                self._finish()
        except Exception as error:
            _LOGGER.exception("the open files of %s could not be finished; call finish_files()", self._place)
            self.failure = error
        self._close()
