"""How upload threads talk to the owner of a writer.

Rules:
- A callback is posted by any thread and run by the owner only, so the writer needs no lock. It leaves the queue when it
  has ended; one that was interrupted runs again from its start.
- Futures are completed when no callback is left. So whoever is told, and may call the writer, finds it in order.
- After :meth:`Mailbox.close` there is no owner: a late callback runs in the thread that brings it, and touches nothing
  that belonged to the owner.
- The owner runs callbacks whenever it calls a method of the writer, and while it waits for a persist. Another thread
  that waits for a persist only waits: the owner has to come by.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, cast

from stateline.changelog.api import SnapshotResult
from stateline.environment import Clock, Environment

__all__ = ["Mailbox", "PersistFuture"]

T = TypeVar("T")


class Mailbox:
    """Callbacks that wait for their owner.

    Attributes:
        letters: The queue. Its truth value is cheap enough to be looked at on every append.
        monitor: Notified when a callback or a result arrives.
        settled: Futures whose outcome is known and that nobody was told of.
        clock: For timeouts.
    """

    __slots__ = ("_closed", "clock", "letters", "monitor", "settled")

    def __init__(self, environment: Environment) -> None:
        self._closed = False
        self.letters: deque[Callable[[], None]] = deque()
        self.settled: deque[PersistFuture] = deque()
        self.monitor = environment.executors.monitor()
        self.clock: Clock = environment.clock

    def post(self, callback: Callable[[], None]) -> None:
        """Leaves a callback for the owner, or runs it if there is no owner any more. From any thread."""
        with self.monitor:
            closed = self._closed
            if not closed:
                self.letters.append(callback)
                self.monitor.notify_all()
        if closed:
            callback()

    def run(self) -> int:
        """Runs what is there, in order, and returns how many callbacks that were. By the owner only.

        Who is told of a future may come back here, so whatever is first in a queue may be gone after it ran.
        """
        count = 0
        while self.letters or self.settled:
            if self.letters:
                letter = self.letters[0]
                letter()
                _leave(self.letters, letter)
                count += 1
            else:
                future = self.settled[0]
                future.tell()
                _leave(self.settled, future)
        return count

    def close(self) -> None:
        """The owner leaves; it runs what is there a last time."""
        with self.monitor:
            self._closed = True
        self.run()


class PersistFuture(Future[SnapshotResult]):
    """The future of one persist. It cannot be cancelled; closing the writer fails it.

    ``result()`` and ``exception()`` run the writer's callbacks while they wait, if they are called by the thread that
    called ``persist``. ``done()`` only looks: call ``writer.run_callbacks()`` first where nobody waits.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._mailbox = mailbox
        self._outcome: SnapshotResult | BaseException | None = None
        self._owner = threading.get_ident()

    def result(self, timeout: float | None = None) -> SnapshotResult:
        """The snapshot.

        Raises:
            TimeoutError: It is not there within ``timeout`` seconds; the persist goes on.
            OSError: An upload failed for good. The changes are kept, and the next persist sends them again.
            ClosedError: The writer was closed before.
        """
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, if the persist failed, once it is done; see :meth:`result`."""
        self._wait(timeout)
        return super().exception(0)

    def settle(self, outcome: SnapshotResult | BaseException) -> None:
        """For the writer only: what the future will say, once the owner has run all callbacks."""
        if self._outcome is None:
            self._outcome = outcome
        self._mailbox.settled.append(self)

    def tell(self) -> None:
        """For the mailbox only: completes the future, if it is not, and runs what its users gave it."""
        if not self.done():
            if isinstance(self._outcome, BaseException):
                self.set_exception(self._outcome)
            else:
                self.set_result(cast("SnapshotResult", self._outcome))
        with self._mailbox.monitor:
            self._mailbox.monitor.notify_all()

    def _wait(self, timeout: float | None) -> None:
        mailbox = self._mailbox
        owner = threading.get_ident() == self._owner
        deadline = None if timeout is None else mailbox.clock.monotonic() + timeout
        while True:
            if owner:
                mailbox.run()
            if self.done():
                return
            left = None if deadline is None else max(deadline - mailbox.clock.monotonic(), 0.0)
            with mailbox.monitor:
                woken = mailbox.monitor.wait_for(lambda: self.done() or (owner and bool(mailbox.letters)), left)
            if not woken:
                raise TimeoutError(f"the persist is not done after {timeout} s")


def _leave(queue: deque[T], item: T) -> None:
    """Takes the first of a queue away, unless somebody did meanwhile."""
    if queue and queue[0] is item:
        queue.popleft()
