"""A stream without rows: what time alone asks for is done all the same.

Spark runs batches without rows only for operators of its own. So between two batches a timer of this process waits
until something is due and the stream has been quiet for a while. A round is one more checkpoint of the newest batch,
by the same protocol: it competes for the same slot as any other driver, and a replay of the batch finds it decided.

Rules:
- A stream with rows needs no rounds: each batch does what is due. So a round comes only after a pause without batches.
- Rounds and batches exclude each other. After :meth:`QuietRounds.close` no round runs or begins.
- A round that fails ends the query; what it raised is :attr:`QuietRounds.failure`. Nothing of it is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from stateline.environment import Cancellable, Environment

__all__ = ["QuietRounds"]

_LOGGER: Final = logging.getLogger(__name__)


class QuietRounds:
    """Makes the rounds of one run of a query.

    Args:
        environment: Clock, threads.
        pause_seconds: How long a stream must be without a batch.
        due_at: The time, in seconds since the epoch, from which there is something to do; ``None`` for never, as far
            as is known now.
        act: Makes one round; whether the query goes on. One that has failed is told to nobody else here.
        stop: Called when a round has failed: ends a query that cannot go on without it.
    """

    def __init__(
        self,
        environment: Environment,
        pause_seconds: float,
        due_at: Callable[[], float | None],
        act: Callable[[], bool],
        stop: Callable[[], None],
    ) -> None:
        self._clock = environment.clock
        self._monitor = environment.executors.monitor()
        self._executor = environment.executors.executor("stateline-quiet", 1)
        self._pause_seconds = pause_seconds
        self._due_at = due_at
        self._act = act
        self._stop = stop
        self._occupied = False
        self._begun = False
        self._waking: Cancellable | None = None
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begins. Without it there are no rounds: a stream that ends by itself has its own way to do what is due."""
        with self._monitor:
            self._begun = True
            if not self._occupied:
                self._plan()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """While a batch runs. Waits for a round that is being made.

        Raises:
            Exception: The failure of the last round.
        """
        self._enter()
        try:
            if self.failure is not None:
                raise self.failure
            yield
        finally:
            self._leave()

    def close(self) -> None:
        """Ends the rounds; waits for one that is being made. Idempotent."""
        with self._monitor:
            self._begun = False
        self._executor.close()

    def _enter(self) -> None:
        with self._monitor:
            self._monitor.wait_for(lambda: not self._occupied)
            self._occupied = True
            if self._waking is not None:
                self._waking.cancel()
                self._waking = None

    def _leave(self) -> None:
        with self._monitor:
            self._occupied = False
            self._monitor.notify_all()
            self._plan()

    def _plan(self) -> None:
        """Has the next round made when it is due. The caller holds the lock."""
        due = self._due_at() if self._begun and self.failure is None else None
        if due is not None:
            delay = max(due - self._clock.now(), self._pause_seconds)
            self._waking = self._executor.call_later(delay, self._wake)

    def _wake(self) -> None:
        with self._monitor:
            if not self._begun:
                return
            try:
                self._executor.submit(self._round)
            except RuntimeError as error:  # No thread is to be had just now.
                _LOGGER.debug("the round comes after another pause", exc_info=error)
                self._waking = self._executor.call_later(self._pause_seconds, self._wake)

    def _round(self) -> None:
        with self._monitor:
            if not self._begun or self._occupied:
                return  # The batch plans the next round when it ends.
            self._occupied = True
        try:
            if not self._act():
                self._begun = False
        except Exception as error:  # noqa: BLE001 - kept for whoever waits for the query
            _LOGGER.error("A round without rows failed, and no other is made: %s", error)
            self.failure = error
        finally:
            self._leave()
        if self.failure is not None:
            self._stop()
