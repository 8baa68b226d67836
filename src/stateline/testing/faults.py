"""What can go wrong at a store call or a system call, and when: the vocabulary of faults and the plans.

``faulty_store`` does to a :class:`~stateline.blob.BlobStore` what a fault says, ``system_calls`` does it to the ``os``
module of a backend.

The model of a store call is three moments: the request is sent, the store acts, the answer arrives. A fault hits one:

| kinds | the store acts | the caller sees |
|---|---|---|
| ``unavailable`` ``access_denied`` ``storage_full`` | no | that error |
| ``lost_request`` | no | ``OutcomeUnknownError`` |
| ``lost_answer`` | yes | ``OutcomeUnknownError`` |
| ``partial`` (deletes) | on some of the names | ``OutcomeUnknownError`` |
| ``lands_later`` | after other calls, of anybody | ``OutcomeUnknownError``, now |
| ``delivered_twice`` | now, and again after other calls | success |
| ``parts_expired`` ``damaged_part`` (publish) | after its pieces vanished or changed | what the store says |
| ``truncated`` ``flipped_bit`` ``swapped`` ``missing`` (reads) | yes | other bytes, or ``NotFoundError`` |
| ``stale_list`` ``unordered_list`` ``broken_off`` (list) | yes | an old, shuffled or unfinished listing |
| ``crash_before`` ``crash_inside`` ``crash_after`` | no, partly, yes | nothing: it is dead |
| ``crash_in_flight`` | after other calls, of anybody | nothing: it is dead |
| ``io_error`` ``no_space`` ``no_access`` (system calls) | no | ``OSError`` |
| ``io_error_after`` (system calls) | yes | ``OSError`` |
| ``short_write`` (``os.write``) | in part | how much was written |
| ``error_in_body`` ``in_progress`` (requests to a cloud) | no | 200 with an error inside; 409 |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stateline.testing.seeds import Dice

__all__ = [
    "APPLIES_TO",
    "FAULT_RATES",
    "REQUEST_OPERATIONS",
    "STORE_OPERATIONS",
    "SYSTEM_OPERATIONS",
    "ActorKilled",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "NoFaults",
    "RandomFaults",
    "ScriptedFaults",
]


class ActorKilled(BaseException):
    """Unwinds the code of a process that a fault has killed. Only the test kit raises and catches it."""


class FaultKind(StrEnum):
    """See the table in the module docstring."""

    UNAVAILABLE = "unavailable"
    ACCESS_DENIED = "access_denied"
    STORAGE_FULL = "storage_full"
    LOST_REQUEST = "lost_request"
    LOST_ANSWER = "lost_answer"
    PARTIAL = "partial"
    LANDS_LATER = "lands_later"
    DELIVERED_TWICE = "delivered_twice"
    PARTS_EXPIRED = "parts_expired"
    DAMAGED_PART = "damaged_part"
    TRUNCATED = "truncated"
    FLIPPED_BIT = "flipped_bit"
    SWAPPED = "swapped"
    MISSING = "missing"
    STALE_LIST = "stale_list"
    UNORDERED_LIST = "unordered_list"
    BROKEN_OFF = "broken_off"
    CRASH_BEFORE = "crash_before"
    CRASH_INSIDE = "crash_inside"
    CRASH_AFTER = "crash_after"
    CRASH_IN_FLIGHT = "crash_in_flight"
    IO_ERROR = "io_error"
    IO_ERROR_AFTER = "io_error_after"
    NO_SPACE = "no_space"
    NO_ACCESS = "no_access"
    SHORT_WRITE = "short_write"
    ERROR_IN_BODY = "error_in_body"
    IN_PROGRESS = "in_progress"

    @property
    def is_crash(self) -> bool:
        """Whether the caller dies of it."""
        return self.name.startswith("CRASH")

    @property
    def lasts(self) -> bool:
        """Whether the harm outlives the fault: what it destroyed stays destroyed."""
        return self in (FaultKind.PARTS_EXPIRED, FaultKind.DAMAGED_PART)


_CREATES: Final = frozenset({"put", "put_if_absent", "stage", "publish"})
_DELETES: Final = frozenset({"delete", "discard"})
_WRITES: Final = _CREATES | _DELETES
_READS: Final = frozenset({"get", "get_range", "head"})
_CONTENTS: Final = frozenset({"get", "get_range"})

STORE_OPERATIONS: Final = _WRITES | _READS | {"list"}
"""The calls of a :class:`~stateline.blob.BlobStore`."""

_SYSTEM_WRITES: Final = frozenset(
    {"os.create", "os.write", "os.fsync", "os.link", "os.rename", "os.unlink", "os.mkdir", "os.rmdir"}
)
SYSTEM_OPERATIONS: Final = _SYSTEM_WRITES | {"os.open", "os.scandir"}
"""The system calls of a local backend that ``system_calls`` intercepts."""

_REQUESTS_THAT_MAKE: Final = frozenset({"request.create", "request.put", "request.part", "request.join"})
_REQUESTS_THAT_CHANGE: Final = _REQUESTS_THAT_MAKE | {"request.delete"}
_REQUESTS_THAT_LAND_LATER: Final = _REQUESTS_THAT_CHANGE - {"request.put", "request.part"}
"""A piece that is put once more after it was joined or discarded is beyond what any store can be made to refuse."""

REQUEST_OPERATIONS: Final = _REQUESTS_THAT_CHANGE | {"request.get", "request.head", "request.list"}
"""The requests of a cloud store's client, by what they do."""

APPLIES_TO: Final[Mapping[FaultKind, frozenset[str]]] = {
    FaultKind.UNAVAILABLE: STORE_OPERATIONS | REQUEST_OPERATIONS,
    FaultKind.ACCESS_DENIED: STORE_OPERATIONS | REQUEST_OPERATIONS,
    FaultKind.STORAGE_FULL: _CREATES,
    FaultKind.LOST_REQUEST: _WRITES | REQUEST_OPERATIONS,
    FaultKind.LOST_ANSWER: _WRITES | _REQUESTS_THAT_CHANGE,
    FaultKind.PARTIAL: _DELETES,
    FaultKind.LANDS_LATER: _WRITES | _REQUESTS_THAT_LAND_LATER,
    FaultKind.DELIVERED_TWICE: _WRITES - {"stage"} | _REQUESTS_THAT_LAND_LATER,
    FaultKind.PARTS_EXPIRED: frozenset({"publish", "request.join"}),
    FaultKind.DAMAGED_PART: frozenset({"publish"}),
    FaultKind.TRUNCATED: _CONTENTS | {"request.get"},
    FaultKind.FLIPPED_BIT: _CONTENTS,
    FaultKind.SWAPPED: _CONTENTS,
    FaultKind.MISSING: _READS,
    FaultKind.STALE_LIST: frozenset({"list"}),
    FaultKind.UNORDERED_LIST: frozenset({"list"}),
    FaultKind.BROKEN_OFF: frozenset({"list"}),
    FaultKind.CRASH_BEFORE: STORE_OPERATIONS | SYSTEM_OPERATIONS | REQUEST_OPERATIONS,
    FaultKind.CRASH_INSIDE: _DELETES,
    FaultKind.CRASH_AFTER: STORE_OPERATIONS | SYSTEM_OPERATIONS | REQUEST_OPERATIONS,
    FaultKind.CRASH_IN_FLIGHT: _WRITES | _REQUESTS_THAT_CHANGE,
    FaultKind.IO_ERROR: SYSTEM_OPERATIONS,
    FaultKind.IO_ERROR_AFTER: _SYSTEM_WRITES - {"os.write", "os.create"},
    FaultKind.NO_SPACE: frozenset({"os.create", "os.write", "os.fsync", "os.link", "os.rename", "os.mkdir"}),
    FaultKind.NO_ACCESS: frozenset({"os.create", "os.open", "os.link", "os.rename", "os.unlink", "os.mkdir"}),
    FaultKind.SHORT_WRITE: frozenset({"os.write"}),
    FaultKind.ERROR_IN_BODY: frozenset({"request.join"}),
    FaultKind.IN_PROGRESS: frozenset({"request.create", "request.join"}),
}
"""The operations at which each kind can be injected."""

FAULT_RATES: Final = (0.001, 0.3)
"""Rates of a swarm are drawn from here, log-uniformly."""

_MAX_TOTAL_RATE: Final = 0.2
"""The rates of one seed are scaled down to this sum: where everything fails, nothing is tested."""

_STREAKS: Final = (1, 2, 4, 1_000_000)
"""How often a fault that lasts strikes again; the last means: for ever."""

_ON_SHARE: Final = 0.55
"""Each kind is on in this share of the seeds."""

_DESTRUCTIVE_SHARE: Final = 0.6
_LASTING_SHARE: Final = 0.9
"""Kinds that destroy data are on in this share of those seeds in which any may be; the others must lose nothing."""

_OCCURRENCES_MAX: Final = 8

_CRASH_SHARE: Final = 0.1
"""Crashes are this much rarer: a process that dies at every third call shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan.

    Attributes:
        kind: What happens.
        at: The ordinal (from 0) of the first operation it may hit, among those that match ``operation`` and ``actor``;
            among all operations of the world where neither is given. It hits the first one there or later to which the
            kind applies.
        times: How many operations it hits, one after the other; ``None`` for ever, until :meth:`FaultPlan.heal`.
        delay: For kinds that land later: after how many further operations of anybody. ``None`` for the end of the run.
        operation: Only this operation.
        actor: Only this actor's operations.
    """

    kind: FaultKind
    at: int = 0
    times: int | None = 1
    delay: int | None = 1
    operation: str | None = None
    actor: str | None = None

    def __str__(self) -> str:
        where = " ".join(part for part in (self.operation, self.actor) if part)
        times = "for ever" if self.times is None else "once" if self.times == 1 else f"{self.times} times"
        lands = self.kind in (FaultKind.LANDS_LATER, FaultKind.DELIVERED_TWICE, FaultKind.CRASH_IN_FLIGHT)
        late = "" if not lands else ", lands last" if self.delay is None else f", lands {self.delay} operations later"
        return f"{self.kind} at operation {self.at}{f' of {where}' if where else ''} {times}{late}"


class FaultPlan(ABC):
    """Decides for each operation which fault hits it, counts everything, and keeps the requests that land later.

    Subclasses say which fault: :class:`ScriptedFaults`, :class:`RandomFaults`.

    Attributes:
        operations: How many operations were asked about, by name.
        exposed: Which of them occurred while faults could strike.
        activations: How many faults fired, by (operation, kind).
        struck: Every fault that fired, as one that fires once, at the same operation: the script of this run.
        total: Operations so far; the ordinal of the next one.
        suspended: Nothing strikes and nothing is counted meanwhile.
    """

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.exposed: set[str] = set()
        self.activations: Counter[tuple[str, FaultKind]] = Counter()
        self.struck: list[Fault] = []
        self.total = 0
        self.suspended = False
        self._healed = False
        self._pending: list[tuple[int | None, Callable[[], None]]] = []

    def strike(self, operation: str, actor: str = "") -> Fault | None:
        """The fault that hits the next operation, if any; first lands the requests that are due."""
        if self.suspended:
            return None
        ordinal = self.total
        self.total += 1
        self.operations[operation] += 1
        if self._pending:
            self._land(lambda due: due is not None and due <= ordinal)
        if self._healed:
            return None
        self.exposed.add(operation)
        fault = self._choose(ordinal, operation, actor)
        if fault is not None:
            self.activations[operation, fault.kind] += 1
            self.struck.append(Fault(kind=fault.kind, at=ordinal, delay=fault.delay))
        return fault

    def postpone(self, fault: Fault, request: Callable[[], None]) -> None:
        """Keeps a request that the store will act on later."""
        self._pending.append((None if fault.delay is None else self.total + fault.delay, request))

    @property
    def under_way(self) -> int:
        """How many requests have not reached the store yet."""
        return len(self._pending)

    def land_all(self) -> None:
        """Lets every request that is still under way reach the store."""
        self._land(lambda _: True)

    def heal(self) -> None:
        """No more faults. Requests under way stay under way."""
        self._healed = True

    @abstractmethod
    def _choose(self, ordinal: int, operation: str, actor: str) -> Fault | None: ...

    def _land(self, is_due: Callable[[int | None], bool]) -> None:
        due = [request for when, request in self._pending if is_due(when)]
        self._pending = [(when, request) for when, request in self._pending if not is_due(when)]
        for request in due:
            request()


class _Armed:
    """A fault of a script, and how far it is."""

    __slots__ = ("fault", "fired", "seen")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0
        self.fired = 0

    def hits(self, operation: str, actor: str) -> bool:
        fault = self.fault
        if (fault.operation is not None and fault.operation != operation) or (
            fault.actor is not None and fault.actor != actor
        ):
            return False
        self.seen += 1
        if self.seen <= fault.at or operation not in APPLIES_TO[fault.kind]:
            return False
        return fault.times is None or self.fired < fault.times


class NoFaults(FaultPlan):
    """Nothing goes wrong; the operations are noted in order.

    Attributes:
        sequence: The name of every operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sequence: list[str] = []

    def _choose(self, ordinal: int, operation: str, actor: str) -> Fault | None:  # noqa: ARG002 - the protocol
        self.sequence.append(operation)
        return None


class ScriptedFaults(FaultPlan):
    """Exactly the given faults, and nothing else.

    Args:
        faults: Where several hit one operation, the first listed wins.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        super().__init__()
        self._armed = [_Armed(fault) for fault in faults]

    def add(self, fault: Fault) -> None:
        """One more fault; its ``at`` counts from now."""
        self._armed.append(_Armed(fault))

    def _choose(self, ordinal: int, operation: str, actor: str) -> Fault | None:  # noqa: ARG002 - the protocol
        chosen = None
        for armed in self._armed:
            if armed.hits(operation, actor) and chosen is None:
                armed.fired += 1
                chosen = armed.fault
        return chosen


class RandomFaults(FaultPlan):
    """A swarm: each kind is on in about half of the seeds, with a rate of its own, and lasts once, a while or for ever.

    A kind that is on also fires once for sure, at a random occurrence of an operation it applies to, where the run is
    long enough: a rate alone would leave kinds of rare operations untested. Where ``expected`` says how often the
    operations of a kind occur, the occurrence is drawn from so many, and at most from eight.

    Args:
        seed: Decides everything.
        kinds: The kinds to draw from.
        rates: Bounds of the rates, drawn log-uniformly.
        expected: How often each operation occurs in a run without faults.
    """

    def __init__(
        self,
        seed: int,
        kinds: Iterable[FaultKind] = tuple(FaultKind),
        rates: tuple[float, float] = FAULT_RATES,
        expected: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self._dice = Dice(seed, "faults")
        self._by_operation: dict[str, list[_Knob]] = {}
        destructive = self._dice.chance(_DESTRUCTIVE_SHARE)
        chosen = [
            (
                kind,
                self._dice.log_uniform(*rates) * (_CRASH_SHARE if kind.is_crash else 1.0),
                self._dice.below(_occurrences(kind, expected)),
            )
            for kind in sorted(kinds)
            if self._dice.chance(_LASTING_SHARE if kind.lasts else _ON_SHARE) and (not kind.lasts or destructive)
        ]
        scale = min(1.0, _MAX_TOTAL_RATE / max(sum(rate for _, rate, _ in chosen), 1e-9))
        for kind, rate, countdown in chosen:
            knob = _Knob(kind, rate * scale, countdown)
            for operation in sorted(APPLIES_TO[kind]):
                self._by_operation.setdefault(operation, []).append(knob)

    def _choose(self, ordinal: int, operation: str, actor: str) -> Fault | None:  # noqa: ARG002 - the protocol
        knobs = self._by_operation.get(operation)
        if not knobs:
            return None
        first = self._dice.below(len(knobs))  # So that no kind stands behind another for ever.
        for knob in (*knobs[first:], *knobs[:first]):
            if knob.is_due(self._dice):
                return Fault(kind=knob.kind, at=ordinal, delay=self._delay())
        return None

    def _delay(self) -> int | None:
        return None if self._dice.chance(0.2) else self._dice.below(30)


def _occurrences(kind: FaultKind, expected: Mapping[str, int] | None) -> int:
    """From how many occurrences of its operations the one is drawn at which a kind fires for sure."""
    if expected is None:
        return _OCCURRENCES_MAX
    return min(max(sum(expected.get(operation, 0) for operation in APPLIES_TO[kind]), 1), _OCCURRENCES_MAX)


class _Knob:
    """One kind of a swarm."""

    __slots__ = ("countdown", "kind", "rate", "run")

    def __init__(self, kind: FaultKind, rate: float, countdown: int) -> None:
        self.kind = kind
        self.rate = rate
        self.countdown = countdown
        self.run = 0

    def is_due(self, dice: Dice) -> bool:
        """Whether it fires now: as the rest of a streak, by its countdown, or by its rate."""
        if self.run:
            self.run -= 1
            return True
        self.countdown -= 1
        if self.countdown == -1 or dice.chance(self.rate):
            if not self.kind.is_crash and dice.chance(0.1):
                self.run = dice.pick(_STREAKS)
            return True
        return False
