"""What really changed in a store: the view of the oracles, below every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.checksum import crc32c
from stateline.blob.instrumented import StoreDecorator
from stateline.handles import Part
from tests.kit.invariants import require

__all__ = ["Contents", "Effect", "ObservedStore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One call that took effect.

    Attributes:
        store: The store's name in its world.
        operation: The call.
        names: The objects that it made or deleted.
    """

    store: str
    operation: str
    names: tuple[str, ...]


class Contents:
    """The checksum of each object of one place: proof that nothing is overwritten."""

    def __init__(self) -> None:
        self._checksums: dict[str, int] = {}
        self._replacements: Counter[str] = Counter()

    def replaced(self, name: str) -> None:
        """Notes that ``name`` is about to be overwritten, and may be."""
        self._checksums.pop(name, None)
        self._replacements[name] += 1

    def replacements(self, name: str) -> int:
        """How often it was. An answer to a call that began before may tell of what was there then."""
        return self._replacements[name]

    def holds(self, name: str, checksum: int | None, invariant: str) -> None:
        """Notes what ``name`` holds now.

        Raises:
            InvariantViolation: It held something else.
        """
        if checksum is None:
            return
        before = self._checksums.setdefault(name, checksum)
        require(before == checksum, invariant, f"{name} held {before:08x} and holds {checksum:08x} now")

    def gone(self, names: Iterable[str]) -> None:
        """Notes that objects were deleted."""
        for name in names:
            self._checksums.pop(name, None)


class ObservedStore(StoreDecorator):
    """Tells ``notice`` of every effect on ``inner``, and checks that no name ever changes what it holds.

    Args:
        inner: The store itself.
        name: Its name in its world.
        contents: Shared by all stores of one place.
        notice: Called after each effect, by whomever it was caused.
        may_replace: Which overwrites, by name and new bytes, the system under test documents as safe.
    """

    def __init__(
        self,
        inner: BlobStore,
        name: str,
        contents: Contents,
        notice: Callable[[Effect], None],
        may_replace: Callable[[str, Buffer], bool],
    ) -> None:
        super().__init__(inner)
        self._name = name
        self._contents = contents
        self._notice = notice
        self._may_replace = may_replace

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        """See :meth:`BlobStore.put`."""
        if self._may_replace(name, data):
            self._contents.replaced(name)
        self._contents.holds(name, crc32c(data), "A5")
        return self._made("put", self.inner.put(name, data), "A5")

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        """See :meth:`BlobStore.put_if_absent`."""
        before = self._contents.replacements(name)
        info = self.inner.put_if_absent(name, data)
        if self._contents.replacements(name) != before:  # Created, replaced by somebody else, and only now answered.
            self._tell("put_if_absent", (name,))
            return info
        return self._made("put_if_absent", info, "A1")

    def stage(self, target: str, data: Buffer) -> Part:
        """See :meth:`BlobStore.stage`."""
        part = self.inner.stage(target, data)
        self._contents.holds(part.name, part.crc32c, "A5")
        self._tell("stage", (part.name,))
        return part

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        """See :meth:`BlobStore.publish`."""
        return self._made("publish", self.inner.publish(target, parts, nonce), "C4")

    def delete(self, names: Iterable[str]) -> None:
        """See :meth:`BlobStore.delete`."""
        wanted = tuple(names)
        self.inner.delete(wanted)
        self._contents.gone(wanted)
        self._tell("delete", wanted)

    def discard(self, parts: Iterable[Part]) -> None:
        """See :meth:`BlobStore.discard`."""
        wanted = tuple(parts)
        self.inner.discard(wanted)
        names = tuple(part.name for part in wanted)
        self._contents.gone(names)
        self._tell("discard", names)

    def _made(self, operation: str, info: ObjectInfo, invariant: str) -> ObjectInfo:
        self._contents.holds(info.name, info.crc32c, invariant)
        self._tell(operation, (info.name,))
        return info

    def _tell(self, operation: str, names: tuple[str, ...]) -> None:
        self._notice(Effect(store=self._name, operation=operation, names=names))
