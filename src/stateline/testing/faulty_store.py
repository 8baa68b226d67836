"""A store whose calls fail as the plan says, and a model of a backend above such a store.

``FaultyStore`` stands where a backend stands that already keeps the rules of ``blob.outcome``: a lost answer reaches
the caller as :class:`OutcomeUnknownError`. ``ResolvingStore(FaultyStore(...))`` models how such a backend resolves a
lost answer, by reading back, so that protocols are tested with both: callers that are told "unknown", and callers that
are told what the read-back found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeVar

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.checksum import crc32c
from stateline.blob.instrumented import StoreDecorator
from stateline.blob.names import STAGING_PREFIX
from stateline.blob.outcome import Fingerprint, already_exists
from stateline.errors import (
    AccessDeniedError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    StorageFullError,
    UnavailableError,
)
from stateline.handles import Part
from stateline.testing.faults import ActorKilled, Fault, FaultKind, FaultPlan
from stateline.testing.seeds import Dice

__all__ = ["FaultyStore", "ResolvingStore", "StoreHistory"]

T = TypeVar("T")
R = TypeVar("R", bytes, bytes | None)

_REFUSALS: Final[dict[FaultKind, type[StatelineError]]] = {
    FaultKind.UNAVAILABLE: UnavailableError,
    FaultKind.ACCESS_DENIED: AccessDeniedError,
    FaultKind.STORAGE_FULL: StorageFullError,
    FaultKind.LOST_REQUEST: OutcomeUnknownError,
}
_STALE_WINDOW: Final = 6
"""How many of the newest changes a stale listing does not show."""


class StoreHistory:
    """What was made and deleted in one place, in order."""

    def __init__(self) -> None:
        self._infos: dict[str, ObjectInfo] = {}
        self._changes: deque[tuple[bool, ObjectInfo]] = deque(maxlen=_STALE_WINDOW)

    def created(self, info: ObjectInfo) -> None:
        """Notes a new object."""
        self._infos[info.name] = info
        self._changes.append((True, info))

    def deleted(self, names: Iterable[str]) -> None:
        """Notes that objects are gone."""
        for name in names:
            if name in self._infos:
                self._changes.append((False, self._infos.pop(name)))

    def newest_first(self) -> list[str]:
        """The names of the objects that exist, the newest first."""
        return list(reversed(self._infos))

    def before(self, found: Iterable[ObjectInfo], prefix: str) -> list[ObjectInfo]:
        """The listing ``found`` as it was before the newest changes."""
        names = {info.name: info for info in found}
        for created, info in reversed(self._changes):
            if created:
                names.pop(info.name, None)
            elif info.name.startswith(prefix):
                names[info.name] = info
        return list(names.values())


class FaultyStore(StoreDecorator):
    """Injects the faults of ``plan`` into the calls on ``inner``.

    Works without a simulator, too: a crash then raises :class:`ActorKilled`, and so does every later call until
    :meth:`revive`.

    Args:
        inner: The store that works.
        plan: Which fault hits which call; may be shared by several stores.
        actor: Who calls through this store, for faults that hit one actor.
        crash: Kills the caller; raises :class:`ActorKilled`.
        history: What stale listings and swapped reads are made from; share it between the stores of one place.
        beneath: The store in which pieces expire and change; ``inner`` by default. Give the bottom one where ``inner``
            watches what is done to it.
    """

    def __init__(
        self,
        inner: BlobStore,
        plan: FaultPlan,
        actor: str = "",
        crash: Callable[[], NoReturn] | None = None,
        history: StoreHistory | None = None,
        beneath: BlobStore | None = None,
    ) -> None:
        super().__init__(inner)
        self.plan = plan
        self._actor = actor
        self._crash = crash or self._die
        self._dead = False
        self._history = history or StoreHistory()
        self._beneath = beneath or inner

    def revive(self) -> None:
        """Forgets that the caller died: another process uses the store from here on."""
        self._dead = False

    # -- writes -----------------------------------------------------------------------------------------------------

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        kept = bytes(data)
        return self._created(self._write("put", name, lambda: self.inner.put(name, kept)))

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        kept = bytes(data)
        return self._created(self._write("put_if_absent", name, lambda: self.inner.put_if_absent(name, kept)))

    def stage(self, target: str, data: Buffer) -> Part:
        kept = bytes(data)
        return self._write("stage", target, lambda: self.inner.stage(target, kept))

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        kept = list(parts)

        def effect() -> ObjectInfo:
            return self.inner.publish(target, kept, nonce)

        fault = self._strike("publish", target)
        if fault is not None and fault.kind is FaultKind.PARTS_EXPIRED:
            self._beneath.discard(kept)
            return effect()
        if fault is not None and fault.kind is FaultKind.DAMAGED_PART:
            for part in kept[:1]:
                self._damage(part)
            return effect()
        return self._created(self._struck(fault, "publish", target, effect))

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)
        self._remove("delete", wanted, wanted, self.inner.delete)
        self._history.deleted(wanted)

    def discard(self, parts: Iterable[Part]) -> None:
        wanted = list(parts)
        self._remove("discard", wanted, [part.name for part in wanted], self.inner.discard)

    # -- reads ------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        return self._read("get", name, lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        return self._read("get_range", name, lambda: self.inner.get_range(name, start, end))

    def head(self, name: str) -> ObjectInfo:
        fault = self._strike("head", name)
        if fault is not None and fault.kind is FaultKind.MISSING:
            raise _missing("head", name)
        return self._struck(fault, "head", name, lambda: self.inner.head(name))

    def read_staged(self, part: Part) -> bytes | None:
        return self._read("get", part.name, lambda: self.inner.read_staged(part))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._listed(prefix, self.inner.list)

    def list_staged(self) -> Iterator[ObjectInfo]:
        return self._listed(STAGING_PREFIX, lambda _: self.inner.list_staged())

    def _listed(self, prefix: str, listing: Callable[[str], Iterator[ObjectInfo]]) -> Iterator[ObjectInfo]:
        fault = self._strike("list", prefix)
        found = self._struck(fault, "list", prefix, lambda: list(listing(prefix)))
        kind = None if fault is None else fault.kind
        if kind is FaultKind.STALE_LIST:
            found = self._history.before(found, prefix)
        elif kind is FaultKind.UNORDERED_LIST:
            found = Dice(self.plan.total, prefix).shuffled(found)
        elif kind is FaultKind.BROKEN_OFF:
            return self._broken_off(found, prefix)
        return iter(found)

    # -- what faults do ---------------------------------------------------------------------------------------------

    def _strike(self, operation: str, subject: str) -> Fault | None:
        if self._dead:
            raise ActorKilled(f"{operation} {subject}")
        fault = self.plan.strike(operation, self._actor)
        if fault is not None and fault.kind is FaultKind.CRASH_BEFORE:
            self._crash()
        return fault

    def _write(self, operation: str, subject: str, effect: Callable[[], T]) -> T:
        return self._struck(self._strike(operation, subject), operation, subject, effect)

    def _struck(self, fault: Fault | None, operation: str, subject: str, effect: Callable[[], T]) -> T:
        """Runs ``effect`` as the fault lets it: before it, after it, later, twice."""
        if fault is None:
            return effect()
        kind = fault.kind
        if kind in _REFUSALS:
            raise _refusal(kind, operation, subject)
        if kind is FaultKind.LANDS_LATER:
            self.plan.postpone(fault, lambda: _silently(effect))
            raise _refusal(FaultKind.LOST_REQUEST, operation, subject)
        if kind is FaultKind.CRASH_IN_FLIGHT:
            self.plan.postpone(fault, lambda: _silently(effect))
            self._crash()
        result = effect()
        if kind is FaultKind.LOST_ANSWER:
            raise _refusal(FaultKind.LOST_REQUEST, operation, subject)
        if kind is FaultKind.CRASH_AFTER:
            self._crash()
        if kind is FaultKind.DELIVERED_TWICE:
            self.plan.postpone(fault, lambda: _silently(effect))
        return result

    def _remove(
        self, operation: str, items: Sequence[T], names: Sequence[str], remove: Callable[[Sequence[T]], None]
    ) -> None:
        subject = names[0] if names else ""
        fault = self._strike(operation, subject)
        if fault is not None and fault.kind in (FaultKind.PARTIAL, FaultKind.CRASH_INSIDE):
            remove(items[: (len(items) + 1) // 2])
            if fault.kind is FaultKind.CRASH_INSIDE:
                self._crash()
            raise _refusal(FaultKind.LOST_REQUEST, operation, subject)
        self._struck(fault, operation, subject, lambda: remove(items))

    def _read(self, operation: str, name: str, read: Callable[[], R]) -> R | bytes:
        fault = self._strike(operation, name)
        kind = None if fault is None else fault.kind
        if kind is FaultKind.MISSING:
            raise _missing(operation, name)
        data = self._struck(fault, operation, name, read)
        if not isinstance(data, bytes):  # A piece that the store cannot read.
            return data
        if kind is FaultKind.TRUNCATED:
            return data[: len(data) // 2]
        if kind is FaultKind.FLIPPED_BIT and data:
            return _flipped(data, Dice(self.plan.total, name))
        if kind is FaultKind.SWAPPED:
            return self._other_bytes(name, data)
        return data

    def _other_bytes(self, name: str, data: bytes) -> bytes:
        """The bytes of the newest other object, cut to this one's length where it is longer."""
        for other in self._history.newest_first():
            if other != name:
                try:
                    return self.inner.get(other)[: len(data)]
                except NotFoundError:
                    continue
        return data

    def _damage(self, part: Part) -> None:
        try:
            data = self._beneath.get(part.name)
        except NotFoundError:
            return
        self._beneath.put(part.name, _flipped(data, Dice(self.plan.total, part.name)))

    def _broken_off(self, found: Sequence[ObjectInfo], prefix: str) -> Iterator[ObjectInfo]:
        yield from found[: len(found) // 2]
        raise _refusal(FaultKind.UNAVAILABLE, "list", prefix)

    def _created(self, info: ObjectInfo) -> ObjectInfo:
        self._history.created(info)
        return info

    def _die(self) -> NoReturn:
        self._dead = True
        raise ActorKilled(self._actor or "the caller")


class ResolvingStore(StoreDecorator):
    """A model of a backend: resolves the lost answers of ``inner`` by reading back, with the rules of ``blob.outcome``.

    Only what reading back proves becomes a success or a conflict; otherwise the outcome stays unknown.
    """

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        try:
            return self.inner.put_if_absent(name, data)
        except OutcomeUnknownError as unknown:
            found = self._read_back(name, unknown)
            if not Fingerprint.of_bytes(data).matches(found):
                raise already_exists(name) from unknown
            return found

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        try:
            return self.inner.publish(target, parts, nonce)
        except OutcomeUnknownError as unknown:
            found = self._read_back(target, unknown)
            ours = Fingerprint.of_parts(parts, nonce)
            if not ours.matches(found):
                raise ours.conflict(target, found) from unknown
            return found

    def _read_back(self, name: str, unknown: OutcomeUnknownError) -> ObjectInfo:
        """What is there, with its checksum.

        Raises ``unknown`` where nothing is (the request may still be under way) or where it cannot be told.
        """
        try:
            info = self.inner.head(name)
            if info.crc32c is not None:
                return info
            data = self.inner.get(name)
        except StatelineError as error:
            raise unknown from error
        return ObjectInfo(name=name, size=len(data), modified_at=info.modified_at, crc32c=crc32c(data))


def _refusal(kind: FaultKind, operation: str, subject: str) -> StatelineError:
    return _REFUSALS[kind]("an injected fault", operation=operation, subject=subject, hint="This is a test")


def _missing(operation: str, name: str) -> NotFoundError:
    return NotFoundError("an injected fault", operation=operation, subject=name)


def _flipped(data: bytes, dice: Dice) -> bytes:
    if not data:
        return data
    position = dice.below(len(data))
    return data[:position] + bytes([data[position] ^ 1 << dice.below(8)]) + data[position + 1 :]


def _silently(effect: Callable[[], Any]) -> None:
    """A request whose caller is gone: nobody hears what comes of it."""
    try:
        effect()
    except StatelineError:
        return
