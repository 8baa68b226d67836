"""From sections to durable segments: the write path of state rows, rows that wait, and rows to be delivered.

Owns the place of every section, the upload of the segment it is in, and which sections need no object at all. Does not
own the bytes of sections (``segment``, and whoever encodes them).

One writer serves one subtask in one checkpoint, or one driver::

    handle = writer.add(section, RowsHandle, rows=5)     # where the section will be: not durable yet
    placement = writer.finish()                          # everything is durable, or small enough to travel inline
    handle = placement.of(handle)                        # goes into the record

Rules:
- Whatever was added lies in **one** object, unless it is more than :attr:`SegmentSettings.segment_bytes`: then several,
  each of which is on its way while the next one is being filled, at most :data:`_ON_THEIR_WAY` at a time. So memory is
  bounded, and uploads overlap with the work that makes the next sections.
- An attempt that is later than the timeout is raced by another one, under a fresh name: the first answer wins, the
  loser is garbage that the sweep finds. A name is never used for two attempts.
- Sections that take no more than ``inline_bytes`` together become no object: their handles carry them.
- A copy for this host is kept at the moment of the upload, which never fails it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.changelog.copier import LocalCopy
from stateline.changelog.host_cache import Extent, HostCache
from stateline.changelog.racing import is_raced, scaled
from stateline.changelog.retry import shared_uploads
from stateline.changelog.segment import SECTION_ALIGNMENT, EncodedSegment, Section, encode_segment
from stateline.changelog.upload_table import RetryPolicy
from stateline.environment import Environment, Ids
from stateline.errors import InternalError, StatelineError
from stateline.handles import SectionHandle

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
_SEGMENT_BYTES: Final = 64 * 1024 * 1024


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
        store: The store of the root.
        environment: Ids for names, and monitors.
        policy: When a late upload is raced, and how often; on this host there is one attempt, by the caller.
        copies: Where to keep copies of what goes to a store that is not this host's disk; ``None`` for none.
        segment_bytes: Above so many bytes in memory a segment is uploaded, and another one begun.
    """

    store: BlobStore
    environment: Environment
    policy: RetryPolicy = dataclasses.field(default_factory=RetryPolicy.none)
    copies: HostCache | None = None
    segment_bytes: int = _SEGMENT_BYTES

    def writer(self, inline_bytes: int = 0) -> SegmentWriter:
        """A writer; sections of at most so many bytes in all travel with their handles."""
        return SegmentWriter(self, inline_bytes)


class SegmentWriter:
    """See the module docstring. Made by :meth:`Segments.writer`. Not safe to use from two threads."""

    def __init__(self, segments: Segments, inline_bytes: int) -> None:
        self.environment = segments.environment
        self._store = segments.store
        self._policy = segments.policy if is_raced(segments.store, segments.policy) else None
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
            StatelineError: What the store raises, of the last attempt. At most garbage is left.
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
        names = {upload.name: upload.result() for upload in self._uploads}
        return Placement(names, inline, sum(upload.size for upload in self._uploads))

    def _flush(self) -> None:
        """Starts the upload of what is there. What it holds in memory goes with its end."""
        if len(self._uploads) >= _ON_THEIR_WAY:
            self._uploads[-_ON_THEIR_WAY].result()
        encoded = encode_segment(self._sections)
        if encoded.offsets != tuple(handle.offset for handle in self._handles):
            raise InternalError("sections are not where their handles say", operation="write", subject=self._name)
        upload = _Upload(self._store, self._name, encoded, self.environment, self._copies)
        upload.start(self._policy)
        self._uploads.append(upload)
        self._name = segment_name(self.environment.ids)
        self._sections, self._handles, self._end = [], [], 0


class _Upload:
    """One segment on its way. An action of a :class:`RetryingExecutor`: attempts share nothing but its bytes."""

    def __init__(
        self,
        store: BlobStore,
        name: str,
        encoded: EncodedSegment,
        environment: Environment,
        copies: HostCache | None,
    ) -> None:
        self.name = name
        self.size = encoded.size
        self._store = store
        self._pieces = encoded.pieces
        self._environment = environment
        self._monitor = environment.executors.monitor()
        self._is_named = False
        self._future: Future[Any] | None = None
        self._won = name
        self._copies = copies
        self._copy: LocalCopy | None = None

    def start(self, policy: RetryPolicy | None) -> None:
        """Starts the first attempt, or makes the only one; and the copy, which is written meanwhile."""
        self._start_copy()
        if policy is None:
            try:
                self.complete(self.try_execute())
            except BaseException:
                self._abandon_copy()
                raise
        else:
            self._future = shared_uploads(self._environment).execute(scaled(policy, self.size), self)
            self._future.add_done_callback(self._wake)

    def result(self) -> str:
        """Waits for the winner, and a moment for its copy.

        Returns:
            The name of the segment.
        """
        future = self._future
        if future is not None:
            with self._monitor:
                self._monitor.wait_for(future.done)
            future.result()
        if self._copy is not None:
            self._copy.wait()
        return self._won

    def try_execute(self) -> str:
        """See :meth:`RetriableAction.try_execute`."""
        with self._monitor:
            name = segment_name(self._environment.ids) if self._is_named else self.name
            self._is_named = True
        self._store.put_all_if_absent(name, self._pieces)
        return name

    def discard(self, result: object) -> None:
        """See :meth:`RetriableAction.discard`: a delete that fails leaves garbage for the sweep."""
        try:
            self._store.delete([str(result)])
        except (StatelineError, OSError):
            return

    def complete(self, result: object) -> None:
        """See :meth:`RetriableAction.complete`."""
        self._won = str(result)
        if self._won != self.name:
            self._abandon_copy()
            self._start_copy()
        self._pieces = ()

    def fail(self, error: BaseException) -> None:  # noqa: ARG002 - the future tells it
        """See :meth:`RetriableAction.fail`."""
        self._abandon_copy()
        self._pieces = ()

    def _start_copy(self) -> None:
        if self._copies is not None:
            self._copy = self._copies.start(self._store, self._won, self._pieces)

    def _abandon_copy(self) -> None:
        if self._copy is not None:
            self._copy.abandon()

    def _wake(self, _: Future[Any]) -> None:
        with self._monitor:
            self._monitor.notify_all()


def segment_name(ids: Ids) -> str:
    """A fresh name of a segment."""
    return f"{SEGMENTS_PREFIX}{ids.new_id()}{SEGMENT_SUFFIX}"
