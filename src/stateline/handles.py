"""What a checkpoint remembers: frozen values that name durable objects. No I/O happens here.

Their encodings are in ``stateline.checkpoint.metadata``, ``stateline.recoverable.serializers`` and
``stateline.changelog.handle``.

Rules:
- A handle names an object by its **exact, relative name** inside a store and carries its length and CRC32C, so that
  what is read can be proved to be what was written.
- A handle is created only after the object it names is durable.
- Fields are only ever added, with defaults, and a new format version where an old reader would misread them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stateline.key_groups import KeyGroupRange

__all__ = [
    "CommitPoint",
    "FinishedFile",
    "OpenFile",
    "Part",
    "ResumePoint",
    "RowsHandle",
    "RunHandle",
    "SectionHandle",
    "SectionIdentity",
]

SectionIdentity: TypeAlias = tuple[str, int, bytes, int]
"""A name, an offset, bytes without a name, a checkpoint: see :attr:`SectionHandle.identity`."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One staged piece of a future object: durable, immutable, invisible to readers, named by nobody else.

    A part of length 0 may also name something that only the store needs: see :meth:`BlobStore.prepare`. Whoever reads
    pieces leaves parts of length 0 out.

    Attributes:
        name: The exact name of the piece in its store. For Azure: the block id.
        length: Bytes.
        crc32c: CRC32C of the bytes, unsigned.
        version: The store's own version of the piece (GCS generation, S3 ETag), empty where a store has none. What is
            published is exactly this version.
        container: The bucket or container that holds the piece, where it is not the store's own.
    """

    name: str
    length: int
    crc32c: int
    version: str = ""
    container: str = ""


class CommitPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is needed to publish one file, from any process, any number of times.

    Attributes:
        target: Relative name of the file to be.
        parts: Its pieces, in order, and parts of length 0. An empty file has no others.
        length: Bytes of the whole file: the sum of the pieces.
        crc32c: CRC32C of the whole file.
        nonce: Unique to the writer of this file; tells our own file from a foreign one with equal bytes.
    """

    target: str
    parts: tuple[Part, ...]
    length: int
    crc32c: int
    nonce: str


class ResumePoint(CommitPoint, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A commit point from which writing can also go on, at offset ``length``.

    Attributes:
        superseded: Pieces made by earlier persists of this file whose bytes were folded into a later piece. No longer
            needed once no retained record holds an older resume point; the sweep or ``cleanup`` frees them.
        closed: The stream had been closed: the point can be committed, not written to.
    """

    superseded: tuple[Part, ...] = ()
    closed: bool = False


class SectionHandle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One section of a segment; or, where it is small, the bytes of the section themselves.

    Attributes:
        name: Relative name of the segment in the store of the checkpoint root; empty for inline bytes.
        offset: First byte of the section in it; 0 for inline bytes.
        length: Bytes of the section.
        crc32c: CRC32C of them.
        data: The bytes, where no object holds them: they travel with the handle.
        made_as: The place, ``<name>@<offset>``, that an inline section was made for. The name is fresh, so the section
            has an identity of its own, also after it is packed into a segment. The host that made it may have a copy
            under this name. Empty for sections made in an object, and for inline ones of early versions.
    """

    name: str
    offset: int
    length: int
    crc32c: int
    data: bytes = b""
    made_as: str = ""

    @property
    def is_inline(self) -> bool:
        """Whether the handle is the section, and names no object."""
        return not self.name

    @property
    def end(self) -> int:
        """The first byte after the section in its segment."""
        return self.offset + self.length

    @property
    def identity(self) -> SectionIdentity:
        """What tells a section from all others of its root: handles of parts of one section have it in common.

        Bytes identify an inline section only where an early version made it: such a section has no name.
        """
        return (self.made_as, 0, b"", 0) if self.made_as else (self.name, self.offset, self.data, 0)

    @property
    def place(self) -> str:
        """Where the section is, for errors."""
        return f"{self.name}[{self.offset}:{self.end}]" if self.name else f"{self.length} inline bytes"


class RunHandle(SectionHandle, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One immutable sorted run of keyed state.

    Attributes:
        rows: Rows in the run, tombstones included.
        tombstones: Rows that delete their key.
        first_key_group: Lowest key group (inclusive) that the run was written for.
        last_key_group: Highest key group (inclusive). A subtask that owns fewer reads only its slice.
        checkpoint_id: The checkpoint that first named the run.
    """

    rows: int
    first_key_group: int
    last_key_group: int
    checkpoint_id: int
    tombstones: int = 0

    @property
    def identity(self) -> SectionIdentity:
        """See :attr:`SectionHandle.identity`.

        Early versions gave one place to runs with equal bytes. Such runs differ in their checkpoint.
        """
        if self.made_as:
            return self.made_as, 0, b"", 0
        return self.name, self.offset, self.data, self.checkpoint_id

    @property
    def key_groups(self) -> KeyGroupRange:
        """The inclusive range of key groups that the run was written for."""
        return KeyGroupRange(self.first_key_group, self.last_key_group)


class RowsHandle(SectionHandle, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rows that wait: those of one open file until it rolls, or those of one subtask until they are delivered.

    Attributes:
        rows: Rows in the section.
    """

    rows: int


class OpenFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An output file that is still growing; it may span any number of checkpoints.

    Attributes:
        target: Relative name that the file will have in the output store; carries a UUID.
        subtask: The subtask that writes it. After a change of parallelism, any one may go on.
        layout: Digest of the schema, format and partition columns. Rows of another layout go to another file.
        opened_at: Wall-clock time of the first row, seconds since the epoch. For rolling by age only.
        written_at: Wall-clock time of the newest row. For rolling by inactivity only.
        rows: Rows so far.
        bytes: Bytes so far, as rolling by size counts them.
        pending: The rows so far, in order; they are encoded once, when the file rolls.
    """

    target: str
    subtask: int
    layout: str
    opened_at: float
    written_at: float
    rows: int
    bytes: int
    pending: tuple[RowsHandle, ...] = ()


class FinishedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output file that is complete and waits for its checkpoint, or has been published by it."""

    commit: CommitPoint
    rows: int
