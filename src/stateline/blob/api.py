"""A store of immutable bytes under names: what every store promises.

Everything above this layer names an object once, writes it once and never changes it.

Promises (the suite ``stateline.testing.blob_conformance`` checks them):

- **Whole or not at all.** No reader ever sees part of an object. An object that was acknowledged survives power loss.
- **Three outcomes.** A call that returns has happened. A call that raises :class:`UnavailableError`,
  :class:`AccessDeniedError`, :class:`StorageFullError` or :class:`TooManyOpenFilesError` has not. A call that raises
  :class:`OutcomeUnknownError` may have: stores resolve lost answers by reading back (length, CRC32C, nonce) and raise
  it only when that failed too.
- **Create-if-absent has one winner** per name, for as long as the name is not deleted. Never free a name that fences.
- **Strong consistency.** What was acknowledged is seen by every later ``get``, ``head`` and ``list``, from any
  process. The order of ``list`` means nothing.
- **Safe from any thread.** Stores are also picklable: a copy opens its own connections and holds no secret.
- **Closed means closed.** ``close`` gives back what a store holds, and it cannot be used any more. A store is a context
  manager, which closes it.

Names are relative, ``/``-separated, and checked by :func:`stateline.blob.names.check_name`: they cannot leave the root.

Life of a large object, written by one process and published by another::

    part_1 = store.stage("out/f.parquet", first_bytes)      # durable, invisible, under a name that nobody else can have
    part_2 = store.stage("out/f.parquet", more_bytes)
    parts = store.prepare("out/f.parquet", [part_1, part_2], nonce)  # once, when nothing more will follow
    ...                                                      # the parts travel inside a checkpoint record
    store.publish("out/f.parquet", parts, nonce)             # create-if-absent; repeat as often as you like
    store.discard(parts)                                     # by exact name, after the publication
    ...                                                      # only now is the file told of, and may be moved away
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stateline.blob.names import STAGING_PREFIX, is_staged_name
from stateline.environment import Closable
from stateline.errors import ClosedError
from stateline.handles import Part

__all__ = ["BlobStore", "Buffer", "ObjectInfo", "closed_store"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes. A store never keeps a reference to a mutable buffer after the call returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a store tells about one object.

    Attributes:
        name: Relative name.
        size: Bytes.
        modified_at: Store time of the last change, seconds since the epoch. For ages only, never for order.
        crc32c: CRC32C of the bytes, where the store knows it without reading them.
        version: Generation or ETag, where the store has one.
        nonce: The nonce given to :meth:`BlobStore.publish`, where the store keeps one.
        container: As :attr:`Part.container`.
    """

    name: str
    size: int
    modified_at: float
    crc32c: int | None = None
    version: str = ""
    nonce: str = ""
    container: str = ""


class BlobStore(Closable):
    """A store, with the promises of :mod:`stateline.blob.api`.

    Every method may raise, besides what it lists: :class:`InvalidInputError` (a name that is not one),
    :class:`AccessDeniedError`, :class:`UnavailableError`, :class:`StorageFullError`,
    :class:`TooManyOpenFilesError`, and after :meth:`close` :class:`ClosedError`. Every method that changes something
    may raise :class:`OutcomeUnknownError`: the answer was lost, and reading back failed.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the root, without credentials; ``open_store(url)`` opens the same place."""

    @abstractmethod
    def put(self, name: str, data: Buffer) -> ObjectInfo:
        """Writes a whole object, replacing any of that name. For names that are unique anyway; idempotent."""

    @abstractmethod
    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        """Creates an object, or finds that exactly these bytes are there already.

        Two callers with **equal** bytes both succeed: give each attempt bytes of its own (a nonce inside) where only
        one may win. A lost answer is resolved by comparing what is there with ``data``.

        Raises:
            AlreadyExistsError: The name holds other bytes.
        """

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:  # noqa: ARG002
        """As :meth:`put_if_absent` of the concatenation of ``pieces``, which some stores write without joining them.

        ``read_soon`` says that this host will read the object within seconds, so that its page cache should have it.
        The returned info need not have a checksum: whoever makes large objects has checksums of its own inside.
        """
        return self.put_if_absent(name, b"".join(pieces))

    @abstractmethod
    def get(self, name: str) -> bytes:
        """All bytes of an object.

        Raises:
            NotFoundError: There is no such object.
        """

    @abstractmethod
    def get_range(self, name: str, start: int, end: int) -> bytes:
        """The bytes of the half-open range ``[start, end)``: exactly ``end - start`` of them.

        Raises:
            NotFoundError: There is no such object.
            CorruptDataError: The object ends before ``end``.
            InvalidInputError: ``start < 0`` or ``end < start``.
        """

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several half-open ranges of one object, in the order asked. They may be fetched in parallel."""
        return [self.get_range(name, start, end) for start, end in ranges]

    @abstractmethod
    def head(self, name: str) -> ObjectInfo:
        """Size and version without the bytes.

        Raises:
            NotFoundError: There is no such object.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose name starts with ``prefix``, in no promised order, fetched in pages.

        ``prefix`` is compared as text: ``"chk-1"`` finds ``chk-1/x`` and ``chk-12/x``; end it with ``/`` for a folder.
        Objects created or deleted while listing may or may not appear; all others appear exactly once.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects by exact name. Missing names are no error, so it may be repeated.

        Raises:
            OutcomeUnknownError: Some may still be there. Repeat.
        """

    @property
    def copies_cheaply(self) -> bool:
        """Whether :meth:`copy` moves no bytes through this process."""
        return False

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Creates ``target`` with the bytes of ``source``, within this store; idempotent.

        Raises:
            NotFoundError: There is no ``source``.
            AlreadyExistsError: ``target`` holds other bytes.
        """
        return self.put_if_absent(target, self.get(source))

    @abstractmethod
    def stage(self, target: str, data: Buffer) -> Part:
        """Makes one durable piece of a future ``target``, under a fresh name that no other call can produce.

        It may fit no other target: on Azure a long piece is a block of that very blob. Readers that list the root's
        visible folders do not see it. A call that fails leaves at most garbage, which the sweep finds; the name is
        never used again.
        """

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:  # noqa: ARG002
        """Makes the publication of ``target`` one step of the store, and returns the parts that name this step.

        Called once for each file, by whoever ends it, before a durable record names the parts. Publishing what it
        returns has its effect at most once, whoever repeats it and however long one of them sleeps inside it: also if
        the target has been moved away since, provided that the parts were discarded before that. Parts that were not
        prepared can be published, too; then somebody who sleeps inside ``publish`` may create the target once more.

        What it returns has the bytes of ``parts``. Parts of length 0 in it are there for the store: to be published
        and discarded with the others, not to be read. Nothing becomes visible, and ``parts`` stay as they are until
        the result is discarded. The default suits stores whose ``publish`` is one step anyway.

        Args:
            target: Name of the object to be.
            parts: Pieces from :meth:`stage`, in order: all of the object.
            nonce: As for :meth:`publish`.

        Raises:
            DataLossError: A piece is gone.
            CorruptDataError: A piece is not what its part says.
            OutcomeUnknownError: The answer was lost. Repeat: what the first call left is garbage.
        """
        return tuple(parts)

    @abstractmethod
    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        """Creates ``target`` as the concatenation of ``parts``: all at once, create-if-absent, verified.

        Idempotent, from any process, concurrently, also after the parts were discarded, as long as ``target`` is there.
        No parts make an empty object. Bytes are moved by the store itself where it can.

        Args:
            target: Name of the object to create.
            parts: What :meth:`prepare` returned, or pieces from :meth:`stage`, in order. Exactly these versions are
                published.
            nonce: Unique to the writer of this object; kept with it where the store can.

        Raises:
            ConflictError: ``target`` holds something else: another length, CRC32C or nonce. It was not touched.
            DataLossError: Neither ``target`` nor all of ``parts`` exist.
            CorruptDataError: A piece or the result is not what the parts say. Nothing was published.
        """

    @abstractmethod
    def discard(self, parts: Iterable[Part]) -> None:
        """Deletes staged pieces by exact name. Missing ones are no error, so it may be repeated."""

    def read_staged(self, part: Part) -> bytes | None:
        """The bytes of a staged piece, or ``None`` where the store cannot read that piece before it is published.

        The caller compares length and CRC32C with what the part says.

        Raises:
            NotFoundError: The piece is gone.
        """
        return self.get(part.name)

    def list_staged(self) -> Iterator[ObjectInfo]:
        """Everything that :meth:`stage` and unfinished calls left behind, in no promised order, fetched in pages.

        For the sweep, so only what has a name that this store gives. Pieces that vanish by themselves (uncommitted
        blocks on Azure) are not listed.
        """
        return (info for info in self.list(STAGING_PREFIX) if is_staged_name(info.name))

    @property
    def rests_on_conditions(self) -> bool:
        """Whether create-if-absent rests on a condition in a request, which a service may ignore."""
        return False

    def local_path(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol, not its use
        """The file that holds an object, where this host can memory-map it; ``None`` elsewhere. Never write to it."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Gives back what the store holds: descriptors, connections, threads. Idempotent; never fails.

        Every later use of this store raises :class:`ClosedError`; so may calls that are under way in other threads, and
        whether those have happened is unknown. What tells of a store (:attr:`url`) still does. Other stores on the same
        root, copies by pickle among them, are open on their own.

        Whoever opens a store closes it: what is only given a store leaves it open. A store that is forgotten gives
        everything back, too, when it is collected.
        """


def closed_store(url: str) -> ClosedError:
    """The error of a call on a store after :meth:`BlobStore.close`."""
    return ClosedError("the store is closed", operation="use", subject=url, hint="Open it again with open_store")
