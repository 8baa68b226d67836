"""Copies of objects and sections, on their way to this host's disk: nice to have, never in the way.

A slow, full, broken or hanging disk costs whoever waits at most the timeout. A copy holds its bytes until it is
written, so only a few are under way, and more are skipped, not queued.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stateline.changelog.metrics import ChangelogMetrics
from stateline.environment import Environment

__all__ = ["Copier", "LocalCopy"]

_LOG = logging.getLogger(__name__)

_MAX_PENDING: Final = 4


class Copier:
    """Writes copies, one after the other. Safe from any thread.

    Args:
        timeout: Seconds that anybody waits for a copy.
        metrics: Where to count.
        environment: The world.
    """

    def __init__(self, timeout: float, metrics: ChangelogMetrics, environment: Environment) -> None:
        self.timeout = timeout
        self.monitor = environment.executors.monitor()
        self._metrics = metrics
        self._executor = environment.executors.executor("stateline-local-copy", 1)
        self._pending = 0

    def start(self, write: Callable[[], object], delete: Callable[[], None]) -> LocalCopy:
        """Begins a copy; never fails and never waits.

        Call :meth:`LocalCopy.wait` once its original is durable, so that the next reader on this host finds the copy,
        or :meth:`LocalCopy.abandon` when there will be no original.

        Args:
            write: Writes the copy. An ``OSError`` or ``ValueError`` only means that there is none.
            delete: Deletes it.
        """
        copy = LocalCopy(self, delete)
        with self.monitor:
            skip = self._pending >= _MAX_PENDING
            self._pending += 1
        try:
            if not skip:
                self._executor.submit(self._run, copy, write)
        except RuntimeError:  # No thread is to be had.
            skip = True
        if skip:
            self._end(copy, done=False)
        return copy

    def undo(self, copy: LocalCopy) -> None:
        """Deletes a copy soon; it stays, within the bound, where no thread is to be had."""
        with suppress(RuntimeError):
            self._executor.submit(copy.delete)

    def close(self) -> None:
        """Ends the thread. Copies stay for the next process on this host."""
        self._executor.close(wait=False)

    def _run(self, copy: LocalCopy, write: Callable[[], object]) -> None:
        done = False
        try:
            if not copy.abandoned:
                write()
                done = True
        except (OSError, ValueError) as error:
            _LOG.debug("no local copy: %s", error)
        finally:
            self._end(copy, done=done)

    def _end(self, copy: LocalCopy, *, done: bool) -> None:
        self._metrics.counter("local_copies" if done else "local_copies_skipped").increment()
        with self.monitor:
            self._pending -= 1
            copy.done = done
            late = done and copy.abandoned
            self.monitor.notify_all()
        if late:
            copy.delete()


class LocalCopy:
    """One copy on its way."""

    def __init__(self, copier: Copier, delete: Callable[[], None]) -> None:
        self.delete = delete
        self.done: bool | None = None
        self.abandoned = False
        self._copier = copier

    def wait(self) -> bool:
        """Whether the copy is complete, at the latest after the timeout."""
        with self._copier.monitor:
            self._copier.monitor.wait_for(lambda: self.done is not None, self._copier.timeout)
            return self.done is True

    def abandon(self) -> None:
        """Nobody needs the copy: it is deleted, now or when it lands."""
        with self._copier.monitor:
            self.abandoned = True
            done = self.done is True
        if done:
            self._copier.undo(self)
