"""A store whose late requests are raced: a stalled connection costs its timeout, not the caller's time.

``upload_table`` says when an attempt is followed by another, which answer counts, and what a failure means. Large
objects are written by whoever gives each attempt a name of its own (:meth:`RacingStore.begin`); ``put_all_if_absent``
by itself is not raced.

Rules:
- A loser may end minutes later, so only that is raced which does no harm then: reads; creations of the same bytes,
  where a name that fences is not freed unless a floor covers it; overwriting with the same bytes; deletions of names
  that are never used again; publications, which are prepared; pieces under fresh names, discarded where they lost.
- A loser never sees bytes that the caller changes: it has bytes of its own.
- A request that takes as long as others of its kind is not late: a slow link is not given everything several times.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final, TypeAlias, TypeVar

from stateline.blob.api import BlobStore, Buffer, ObjectInfo, closed_store
from stateline.blob.arguments import checked_names, checked_parts, own_bytes
from stateline.blob.instrumented import StoreDecorator
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.retry import Race, Track
from stateline.changelog.upload_table import Attempts, RetryPolicy
from stateline.environment import Environment, system_environment
from stateline.handles import Part

__all__ = ["Answer", "RacingStore", "raced"]

T = TypeVar("T")

Answer: TypeAlias = Callable[[], T]
"""Waits for a request that is under way, and gives its result or raises its error."""

_LOG: Final = logging.getLogger(__name__)

_BYTES_IN_TIME: Final = 8 * 1024 * 1024
_OBJECTS_IN_TIME: Final = 32
"""How much one request may move or touch within its timeout; more has more time, by its share."""

_LARGE_BYTES: Final = 256 * 1024
"""The time of smaller requests is that of the way, of larger ones that of their bytes."""

_ANSWERS_SEEN: Final = 15
_ANSWERS_MIN: Final = 3
_USUAL_TIMES: Final = 3.0
"""A request is not late before so many times what others of its kind have taken."""

_RANGES_AT_ONCE: Final = 8

_ATTEMPTS_MAX: Final = 64
"""Attempts of one store under way at a time. Threads start when they are needed."""

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
    """A store that races its late requests. For stores whose deleted names are never used again.

    Args:
        inner: The store that answers; closed with this one.
        policy: As for :func:`raced`.
        environment: Clock and threads.
    """

    def __init__(self, inner: BlobStore, policy: RetryPolicy, environment: Environment | None = None) -> None:
        super().__init__(inner)
        self._policy = policy
        self._environment = environment or system_environment()
        self._usual = _UsualSeconds()
        executor = self._environment.executors.executor("request", _ATTEMPTS_MAX)
        self._track = Track(executor, self._environment.clock, ChangelogMetrics(), partial(closed_store, inner.url))

    def __repr__(self) -> str:
        return f"RacingStore({self.inner!r}, {self._policy!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self._policy, self._environment)

    def close(self) -> None:
        """Closes the store beneath. Attempts that are under way are left to their end."""
        self.inner.close()
        self._track.executor.close(wait=False)

    # -- whole objects --------------------------------------------------------------------------------------------

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        own = own_bytes(data, "put", name)
        return self._race("put", lambda: self.inner.put(name, own), size=len(own))

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        """Equal bytes are as good as ours, so a second attempt finds the first."""
        own = own_bytes(data, "put_if_absent", name)
        return self._race("put_if_absent", lambda: self.inner.put_if_absent(name, own), size=len(own))

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:
        """Not raced: who writes so much does it under fresh names."""
        return self.inner.put_all_if_absent(name, pieces, read_soon=read_soon)

    def get(self, name: str) -> bytes:
        return self._race("get", lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        return self._range(name, start, end)()

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Each range races by itself."""
        races: list[Answer[bytes]] = []
        found: list[bytes] = []
        for start, end in ranges:
            if len(races) - len(found) == _RANGES_AT_ONCE:
                found.append(races[len(found)]())
            races.append(self._range(name, start, end))
        return [*found, *(race() for race in races[len(found) :])]

    def head(self, name: str) -> ObjectInfo:
        return self._race("head", lambda: self.inner.head(name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All at once: pages of two attempts would not fit together."""
        yield from self._race("list", lambda: [*self.inner.list(prefix)])

    def delete(self, names: Iterable[str]) -> None:
        own = checked_names(names)
        self._race("delete", lambda: self.inner.delete(own), objects=len(own))

    # -- pieces of files ------------------------------------------------------------------------------------------

    def stage(self, target: str, data: Buffer) -> Part:
        """Each attempt makes a piece of its own."""
        own = own_bytes(data, "stage", target)
        return self._race(
            "stage", lambda: self.inner.stage(target, own), lambda lost: self.inner.discard([lost]), size=len(own)
        )

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:
        """What a loser made beside the pieces is discarded."""
        own = checked_parts(parts, "prepare")
        return self._race(
            "prepare",
            lambda: self.inner.prepare(target, own, nonce),
            lambda lost: self.inner.discard([part for part in lost if part not in own]),
            size=sum(part.length for part in own),
            objects=len(own),
        )

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        own = checked_parts(parts, "publish")
        return self._race(
            "publish",
            lambda: self.inner.publish(target, own, nonce),
            size=sum(part.length for part in own),
            objects=len(own),
        )

    def discard(self, parts: Iterable[Part]) -> None:
        own = checked_parts(parts, "discard")
        self._race("discard", lambda: self.inner.discard(own), objects=len(own))

    def read_staged(self, part: Part) -> bytes | None:
        return self._race("read_staged", lambda: self.inner.read_staged(part), size=part.length)

    def begin(
        self,
        request: Callable[[], T],
        discard: Callable[[T], None] | None = None,
        *,
        name: str,
        size: int = 0,
        objects: int = 1,
    ) -> Answer[T]:
        """Starts any request on the store beneath.

        Args:
            request: One attempt. It must do no harm if it takes effect at any time, beside others and after them.
            discard: Gets what an attempt made that was not the first to end.
            name: What it is; those of one name take about the same time.
            size: Bytes that it moves.
            objects: Objects that it touches.
        """
        shares = max(1.0, size / _BYTES_IN_TIME, objects / _OBJECTS_IN_TIME)
        kind, timeout, clock = (name, size >= _LARGE_BYTES), self._policy.timeout_seconds, self._track.clock
        if timeout is not None:
            timeout = shares * max(timeout, _USUAL_TIMES * self._usual.of(kind))
        attempts = Attempts(RetryPolicy(self._policy.max_attempts, timeout, 0), is_request=True)

        def timed() -> T:
            began = clock.monotonic()
            result = request()
            if not attempts.has_ended:  # A loser tells what stalls take.
                self._usual.saw(kind, (clock.monotonic() - began) / shares)
            return result

        race = Race(
            self._track,
            attempts,
            _Request(timed, discard),
            self._environment.executors.monitor(),
        )
        race.due()
        return race.answer

    def _range(self, name: str, start: int, end: int) -> Answer[bytes]:
        size = end - start if isinstance(start, int) and isinstance(end, int) else 0  # The store refuses other types.
        return self.begin(lambda: self.inner.get_range(name, start, end), name="get_range", size=size)

    def _race(
        self,
        name: str,
        request: Callable[[], T],
        discard: Callable[[T], None] | None = None,
        **amount: int,
    ) -> T:
        return self.begin(request, discard, name=name, **amount)()


class _UsualSeconds:
    """What requests of one kind take. Used by many threads: each step is one of a ``deque``'s own."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[str, bool], deque[float]] = defaultdict(lambda: deque(maxlen=_ANSWERS_SEEN))

    def saw(self, kind: tuple[str, bool], seconds: float) -> None:
        """Notes one that was answered."""
        self._seen[kind].append(seconds)

    def of(self, kind: tuple[str, bool]) -> float:
        """The median of the last ones; 0 while there are few."""
        seen = self._seen[kind].copy()
        return median(seen) if len(seen) >= _ANSWERS_MIN else 0.0


@dataclass(frozen=True, slots=True)
class _Request:
    """The action of one request."""

    try_execute: Callable[[], object]
    undo: Callable[[Any], None] | None

    def discard(self, result: object) -> None:
        if self.undo is None:
            return
        try:
            self.undo(result)
        except OSError as error:
            _LOG.debug("what a late attempt made stays for the sweep: %s", error)

    def complete(self, result: object) -> None:
        """Whoever waits for the answer gets it."""

    def fail(self, error: BaseException) -> None:
        """Whoever waits for the answer gets it."""
