"""From sections to durable segments: the write path of state rows, rows that wait, and rows to be delivered.

One writer serves one subtask in one checkpoint, or one driver::

    handle = writer.add(section, RowsHandle, rows=5)     # where the section will be: not durable yet
    placement = writer.finish()                          # everything is durable, or small enough to travel inline
    handle = placement.of(handle)                        # goes into the record

Rules:
- Whatever was added lies in **one** object, unless it is more than :attr:`Segments.segment_bytes`: then several,
  each of which is on its way while the next one is being filled, at most :data:`_ON_THEIR_WAY` at a time. So memory is
  bounded, and uploads overlap with the work that makes the next sections.
- Where the store races, an attempt that is late is raced by another one, under a fresh name: the first answer wins, and
  a loser is deleted, or is garbage that the sweep finds. A name is never used for two attempts.
- Sections that take no more than ``inline_bytes`` together become no object: their handles carry them, and say by
  which fresh name each of them is known. Equal bytes are not the same section.
- A copy for this host is kept at the moment of the upload, which never fails it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.changelog.host_cache import Extent, HostCache
from stateline.changelog.racing import Answer, RacingStore
from stateline.changelog.segment import SECTION_ALIGNMENT, EncodedSegment, Section, SectionKind, encode_segment
from stateline.environment import Environment, Ids
from stateline.errors import InternalError
from stateline.handles import SectionHandle
from stateline.sizes import sizes

__all__ = [
    "SEGMENTS_PREFIX",
    "SEGMENT_SUFFIX",
    "Placement",
    "SegmentWriter",
    "Segments",
    "segment_name",
]

H = TypeVar("H", bound=SectionHandle)

SEGMENTS_PREFIX: Final = "shared/"
"""Where segments lie in the store of a checkpoint root."""

SEGMENT_SUFFIX: Final = ".segment"
"""How their names end."""

_ON_THEIR_WAY: Final = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where the sections of a writer are in the end.

    Attributes:
        names: The name of each segment, by the name under which its sections were added.
        inline: The bytes of sections that are in no segment, by name and offset of their handles.
        bytes_written: Bytes of all segments.
    """

    names: dict[str, str]
    inline: dict[tuple[str, int], bytes]
    bytes_written: int

    def of(self, handle: H) -> H:
        """The handle as it is now; one that the writer did not make stays as it is."""
        data = self.inline.get((handle.name, handle.offset))
        if data is not None:
            return replace(handle, name="", offset=0, data=data, made_as=f"{handle.name}@{handle.offset}")
        name = self.names.get(handle.name, handle.name)
        return handle if name == handle.name else replace(handle, name=name)


@dataclasses.dataclass(frozen=True, slots=True)
class Segments:
    """Where the segments of a checkpoint root go, and how.

    Attributes:
        store: The store of the root; a :class:`RacingStore` races late uploads.
        environment: Ids for names.
        copies: Where to keep copies of what goes to a store that is not this host's disk; ``None`` for none.
        segment_bytes: Above so many bytes in memory a segment is uploaded, and another one begun.
    """

    store: BlobStore
    environment: Environment
    copies: HostCache | None = None
    segment_bytes: int = dataclasses.field(default_factory=lambda: sizes().segment_bytes)

    def writer(self, inline_bytes: int = 0) -> SegmentWriter:
        """A writer; sections of at most so many bytes in all travel with their handles."""
        return SegmentWriter(self, inline_bytes)


class SegmentWriter:
    """See the module docstring. Made by :meth:`Segments.writer`. Not safe to use from two threads."""

    def __init__(self, segments: Segments, inline_bytes: int) -> None:
        self.environment = segments.environment
        self._store = segments.store
        self._inline_bytes = inline_bytes
        self._segment_bytes = segments.segment_bytes
        self._uploads: list[_Upload] = []
        self._name = segment_name(self.environment.ids)
        self._copies = segments.copies if segments.store.local_path(self._name) is None else None
        self._sections: list[Section] = []
        self._handles: list[SectionHandle] = []
        self._end = 0

    def add(self, section: Section, kind: Callable[..., H], **fields: Any) -> H:
        """Takes a section.

        Args:
            section: Its bytes; they must not change before :meth:`finish` has returned.
            kind: The class of its handle.
            fields: What the handle says besides where the section is.

        Returns:
            The handle as the writer knows it: :meth:`Placement.of` tells where the section is in the end.

        Raises:
            StatelineError: An earlier segment could not be written.
        """
        if self._sections and self._end + section.length > self._segment_bytes:
            self._flush()
        offset = -(-self._end // SECTION_ALIGNMENT) * SECTION_ALIGNMENT
        self._end = offset + section.length
        handle = kind(name=self._name, offset=offset, length=section.length, crc32c=section.crc32c, **fields)
        self._sections.append(section)
        self._handles.append(handle)
        return handle

    def finish(self) -> Placement:
        """Makes everything durable that does not travel inline.

        Raises:
            StatelineError: What the store raises, of the last attempt, once no upload is under way any more. At most
                garbage is left.
        """
        inline: dict[tuple[str, int], bytes] = {}
        if not self._uploads and sum(section.length for section in self._sections) <= self._inline_bytes:
            for handle, section in zip(self._handles, self._sections, strict=True):
                data = inline[handle.name, handle.offset] = b"".join(section.pieces)
                if self._copies is not None:
                    extents = [Extent(0, data)]
                    self._copies.save(self._store.url, handle.name, handle.offset, handle.length, extents)
        elif self._sections:
            self._flush()
        names = {upload.name: upload.result() for upload in self._ended_uploads()}
        size = sum(upload.size for upload in self._uploads)
        return Placement(names, inline, size)

    def _ended_uploads(self) -> list[_Upload]:
        """The uploads, once each has ended; raises what the first one that failed raised."""
        errors = []
        for upload in self._uploads:
            try:
                upload.result()
            except Exception as error:  # noqa: BLE001 - the first one is raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return self._uploads

    def _flush(self) -> None:
        """Starts the upload of what is there. What it holds in memory goes with its end."""
        if len(self._uploads) >= _ON_THEIR_WAY:
            try:
                self._uploads[-_ON_THEIR_WAY].result()
            except Exception:
                self._ended_uploads()  # Raises it again, when nothing is under way any more.
                raise
        encoded = encode_segment(self._sections)
        if encoded.offsets != tuple(handle.offset for handle in self._handles):
            raise InternalError("sections are not where their handles say", operation="write", subject=self._name)
        runs = sum(section.length for section in self._sections if section.kind is SectionKind.RUN)
        # The next checkpoint looks into runs; rows that wait are read much later, once.
        read_soon = 2 * runs >= encoded.size
        self._uploads.append(_Upload(self._store, self._name, encoded, self.environment, self._copies, read_soon))
        self._name = segment_name(self.environment.ids)
        self._sections, self._handles, self._end = [], [], 0


class _Upload:
    """One segment on its way. Attempts share nothing but its bytes."""

    def __init__(
        self,
        store: BlobStore,
        name: str,
        encoded: EncodedSegment,
        environment: Environment,
        copies: HostCache | None,
        read_soon: bool,
    ) -> None:
        self.name = name
        self._read_soon = read_soon
        self.size = encoded.size
        self._unused = [name]
        self._pieces = encoded.pieces
        self._ids = environment.ids
        self._store = store
        self._won = name
        self._copies = copies
        self._copy = None if copies is None else copies.start(store, name, encoded.pieces)
        self._race: Answer[str] | None = None
        try:
            if isinstance(store, RacingStore):
                self._race = store.begin(self._attempt, self._discard, name="segment", size=encoded.size)
            else:
                self._attempt()
                self._pieces = ()
        except BaseException:
            self._abandon_copy()
            raise

    def result(self) -> str:
        """Waits for the winner, and a moment for its copy.

        Returns:
            The name of the segment.
        """
        if self._race is not None:
            try:
                self._won = self._race()
            except BaseException:
                self._abandon_copy()
                raise
            self._race = None
            if self._won != self.name and self._copies is not None:
                self._abandon_copy()
                self._copy = self._copies.start(self._store, self._won, self._pieces)
            self._pieces = ()
        if self._copy is not None:
            self._copy.wait()
            self._copy = None
        return self._won

    def _attempt(self) -> str:
        try:
            name = self._unused.pop()
        except IndexError:
            name = segment_name(self._ids)
        self._store.put_all_if_absent(name, self._pieces, read_soon=self._read_soon)
        return name

    def _discard(self, name: str) -> None:
        self._store.delete([name])  # What fails here leaves garbage, which the sweep finds.

    def _abandon_copy(self) -> None:
        if self._copy is not None:
            self._copy.abandon()
            self._copy = None


def segment_name(ids: Ids) -> str:
    """A fresh name of a segment."""
    return f"{SEGMENTS_PREFIX}{ids.new_id()}{SEGMENT_SUFFIX}"
