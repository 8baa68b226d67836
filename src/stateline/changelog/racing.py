"""A store whose late requests are raced: a stalled connection costs its timeout, not the caller's time.

Owns when a request is sent once more, which answer counts, and what a failure means while others are under way. Does
not own what a request does (the store beneath, with the retries of its SDK). Large objects are written by whoever gives
each attempt a name of its own (:meth:`RacingStore.begin`); ``put_all_if_absent`` by itself is not raced.

Rules:
- A request that is late is not given up: another one goes beside it, and the first answer counts. So racing never fails
  what would have succeeded, however slow the store.
- "There is none", "there is one already" and "it holds something else" are answers: each was true during the call.
- Any other error is told only when **every** attempt has ended, so nothing is under way that could take effect after
  it. It says "not done" only if each attempt said so; otherwise the outcome is unknown.
- A loser may end minutes later, so only that is raced which does no harm then: reads; creations of the same bytes,
  where a name that fences is not freed unless a floor covers it; overwriting with the same bytes; deletions of names
  that are never used again; publications, which are prepared; pieces under fresh names, discarded where they lost.
- A loser never sees bytes that the caller changes: it has bytes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from stateline.blob.api import BlobStore, Buffer, ObjectInfo, closed_store
from stateline.blob.arguments import checked_names, checked_parts, own_bytes
from stateline.blob.instrumented import StoreDecorator
from stateline.changelog.upload_table import RetryPolicy
from stateline.environment import Environment, Executor, system_environment
from stateline.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    StatelineError,
    StorageFullError,
    TooManyOpenFilesError,
    UnavailableError,
)
from stateline.handles import Part

__all__ = ["Race", "RacingStore", "raced"]

T = TypeVar("T")

_ANSWERS: Final = (NotFoundError, AlreadyExistsError, ConflictError)
_NOT_DONE: Final = (UnavailableError, AccessDeniedError, StorageFullError, TooManyOpenFilesError)

_BYTES_IN_TIME: Final = 8 * 1024 * 1024
_OBJECTS_IN_TIME: Final = 32
"""How much one request may move or touch within its timeout; more has more time."""

_RANGES_AT_ONCE: Final = 8

_ATTEMPTS_MAX: Final = 64
"""Attempts of one store under way at a time. Threads start when they are needed."""

_CLOCK_SECONDS: Final = 0.001
"""So much may be left of a wait that is over, by the rounding of clocks."""

_ON_THIS_HOST: Final = ("file:", "memory:")


def raced(store: BlobStore, policy: RetryPolicy, environment: Environment) -> BlobStore:
    """The store with late requests raced; the store itself where it is this host's, or where the policy races nothing.

    Args:
        store: Any store. What is returned closes it.
        policy: How many attempts there are, and when one is late. Its delay is not used: stores retry by themselves.
        environment: Clock and threads.
    """
    never = policy.timeout_seconds is None or policy.max_attempts == 1
    return store if never or store.url.startswith(_ON_THIS_HOST) else RacingStore(store, policy, environment)


class RacingStore(StoreDecorator):
    """See the module docstring. For stores whose deleted names are never used again.

    Args:
        inner: The store that answers; closed with this one.
        policy: As for :func:`raced`.
        environment: Clock and threads.
    """

    def __init__(self, inner: BlobStore, policy: RetryPolicy, environment: Environment | None = None) -> None:
        super().__init__(inner)
        self._policy = policy
        self._environment = environment or system_environment()
        self._executor = self._environment.executors.executor("request", _ATTEMPTS_MAX)

    def __repr__(self) -> str:
        return f"RacingStore({self.inner!r}, {self._policy!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self._policy, self._environment)

    def close(self) -> None:
        """See :meth:`BlobStore.close`. Attempts that are under way are left to their end."""
        self.inner.close()
        self._executor.close(wait=False)

    # -- whole objects --------------------------------------------------------------------------------------------

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        own = own_bytes(data, "put", name)
        return self._race(lambda: self.inner.put(name, own), size=len(own))

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        """See :meth:`BlobStore.put_if_absent`: equal bytes are as good as ours, so a second attempt finds the first."""
        own = own_bytes(data, "put_if_absent", name)
        return self._race(lambda: self.inner.put_if_absent(name, own), size=len(own))

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:
        """See :meth:`BlobStore.put_all_if_absent`. Not raced: who writes so much does it under fresh names."""
        return self.inner.put_all_if_absent(name, pieces, read_soon=read_soon)

    def get(self, name: str) -> bytes:
        return self._race(lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        return self._range(name, start, end).answer()

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See :meth:`BlobStore.get_ranges`. Each range races by itself."""
        races: list[Race[bytes]] = []
        found: list[bytes] = []
        for start, end in ranges:
            if len(races) - len(found) == _RANGES_AT_ONCE:
                found.append(races[len(found)].answer())
            races.append(self._range(name, start, end))
        return [*found, *(race.answer() for race in races[len(found) :])]

    def head(self, name: str) -> ObjectInfo:
        return self._race(lambda: self.inner.head(name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See :meth:`BlobStore.list`. All at once: pages of two attempts would not fit together."""
        yield from self._race(lambda: [*self.inner.list(prefix)])

    def delete(self, names: Iterable[str]) -> None:
        own = checked_names(names)
        self._race(lambda: self.inner.delete(own), objects=len(own))

    # -- pieces of files ------------------------------------------------------------------------------------------

    def stage(self, target: str, data: Buffer) -> Part:
        """See :meth:`BlobStore.stage`: each attempt makes a piece of its own."""
        own = own_bytes(data, "stage", target)
        return self._race(lambda: self.inner.stage(target, own), lambda lost: self.inner.discard([lost]), size=len(own))

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:
        """See :meth:`BlobStore.prepare`: what a loser made beside the pieces is discarded."""
        own = checked_parts(parts, "prepare")
        return self._race(
            lambda: self.inner.prepare(target, own, nonce),
            lambda lost: self.inner.discard([part for part in lost if part not in own]),
            size=sum(part.length for part in own),
            objects=len(own),
        )

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        own = checked_parts(parts, "publish")
        return self._race(
            lambda: self.inner.publish(target, own, nonce), size=sum(part.length for part in own), objects=len(own)
        )

    def discard(self, parts: Iterable[Part]) -> None:
        own = checked_parts(parts, "discard")
        self._race(lambda: self.inner.discard(own), objects=len(own))

    def read_staged(self, part: Part) -> bytes | None:
        return self._race(lambda: self.inner.read_staged(part), size=part.length)

    def begin(
        self,
        request: Callable[[], T],
        discard: Callable[[T], None] | None = None,
        *,
        size: int = 0,
        objects: int = 1,
    ) -> Race[T]:
        """Sends the first attempt of any request on the store beneath; others follow while somebody waits for it.

        Args:
            request: One attempt. It must do no harm if it takes effect at any time, beside others and after them.
            discard: Gets what an attempt made that was not the first to end.
            size: Bytes that it moves.
            objects: Objects that it touches.
        """
        shares = 1 + max(size // _BYTES_IN_TIME, objects // _OBJECTS_IN_TIME)
        race = Race(self._environment, self._executor, self._policy, shares, request, discard)
        try:
            race.start()
        except StatelineError:
            raise
        except RuntimeError as error:
            raise closed_store(self.url) from error
        return race

    # -- races ----------------------------------------------------------------------------------------------------

    def _range(self, name: str, start: int, end: int) -> Race[bytes]:
        size = end - start if isinstance(start, int) and isinstance(end, int) else 0  # The store refuses what is none.
        return self.begin(lambda: self.inner.get_range(name, start, end), size=size)

    def _race(
        self,
        request: Callable[[], T],
        discard: Callable[[T], None] | None = None,
        *,
        size: int = 0,
        objects: int = 1,
    ) -> T:
        return self.begin(request, discard, size=size, objects=objects).answer()


class Race(Generic[T]):
    """One request over all its attempts."""

    def __init__(
        self,
        environment: Environment,
        executor: Executor,
        policy: RetryPolicy,
        shares: int,
        request: Callable[[], T],
        discard: Callable[[T], None] | None,
    ) -> None:
        self._clock = environment.clock
        self._monitor = environment.executors.monitor()
        self._executor = executor
        self._attempts_left = policy.max_attempts
        self._late_after = (policy.timeout_seconds or 0.0) * shares
        self._request = request
        self._discard = discard
        self._began: float | None = None
        self._running = 0
        self._errors: list[BaseException] = []
        self._decided: Callable[[], T] | None = None

    def start(self) -> None:
        """Sends an attempt.

        Raises:
            RuntimeError: The executor takes no work; an ``UnavailableError``, too, where there is no thread.
        """
        with self._monitor:
            self._attempts_left -= 1
            self._running += 1
            self._began = None
        try:
            self._executor.submit(self._run)
        except RuntimeError:
            with self._monitor:
                self._running -= 1
            raise

    def answer(self) -> T:
        """The first answer; sends further attempts while there is none."""
        while True:
            with self._monitor:
                self._monitor.wait_for(self._is_decided, self._patience())
                if self._decided is not None:
                    return self._decided()
                is_late = self._patience() == 0
            if is_late:
                try:
                    self.start()
                except RuntimeError:  # What is under way goes on alone.
                    self._attempts_left = 0

    def _is_decided(self) -> bool:
        return self._decided is not None

    def _patience(self) -> float | None:
        """Seconds until the newest attempt is late, from its real start; ``None`` if no other may follow it."""
        if not self._attempts_left:
            return None
        left = self._late_after - (0.0 if self._began is None else self._clock.monotonic() - self._began)
        return left if left > _CLOCK_SECONDS else 0.0

    def _run(self) -> None:
        with self._monitor:
            if self._decided is not None:
                self._running -= 1
                return
            self._began = self._clock.monotonic()
        try:
            found = self._request()
        except BaseException as error:
            self._failed(error)
            if not isinstance(error, Exception):
                raise
            return
        with self._monitor:
            self._running -= 1
            lost = self._decided is not None
            if not lost:
                self._decide(lambda: found)
        if lost and self._discard is not None:
            self._discard(found)  # What fails here leaves garbage, which the sweep finds.

    def _failed(self, error: BaseException) -> None:
        with self._monitor:
            self._running -= 1
            self._errors.append(error)
            if self._decided is None and (self._running == 0 or isinstance(error, _ANSWERS)):
                uncertain = (one for one in self._errors if not isinstance(one, _NOT_DONE))
                told = error if isinstance(error, _ANSWERS) else next(uncertain, error)
                self._decide(lambda: _raise(told))

    def _decide(self, decided: Callable[[], T]) -> None:
        self._decided = decided
        self._monitor.notify_all()


def _raise(error: BaseException) -> Any:
    raise error
