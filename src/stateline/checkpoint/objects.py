"""The objects that a checkpoint reaches: which bytes of them matter, whether those are intact, copies and new names.

Facts:
- A state file is a whole object: its size and CRC32C are known. Of a segment, what counts are its sections: some of
  them may belong to nobody any more.
- Objects are read in pieces of ``Sizes.copied_bytes``, so memory stays bounded however large a run is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.changelog.segment import SECTION_ALIGNMENT, read_directory
from stateline.changelog.segment_writer import SEGMENT_SUFFIX
from stateline.checkpoint.api import (
    HISTORY,
    Checkpoint,
    DeliveryState,
    FileState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.checkpoint.layout import SHARED_PREFIX
from stateline.errors import CorruptDataError
from stateline.handles import Part, RunHandle, SectionHandle
from stateline.sizes import sizes

__all__ = [
    "Extent",
    "Place",
    "check_object",
    "copy_object",
    "extents_of",
    "flat_names",
    "read_piece",
    "renamed",
    "with_sections",
]

H = TypeVar("H", bound=SectionHandle)


class Place(Protocol):
    """Says where a section is now."""

    def __call__(self, section: H) -> H:
        """The handle of the same section."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A range of an object whose checksum is known.

    Attributes:
        offset: First byte.
        length: Bytes.
        crc32c: CRC32C of them.
        is_whole: Whether the object holds nothing else.
    """

    offset: int
    length: int
    crc32c: int
    is_whole: bool

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.length


def extents_of(checkpoint: Checkpoint) -> dict[str, set[Extent]]:
    """What must be intact in the root, by object name. Covers exactly ``checkpoint.object_names()``."""
    found: dict[str, set[Extent]] = {}
    for section in checkpoint.sections():
        if not section.is_inline:
            extent = Extent(section.offset, section.length, section.crc32c, is_whole=False)
            found.setdefault(section.name, set()).add(extent)
    for state in checkpoint.states.values():
        if isinstance(state, FileState):
            name = state.object_name(checkpoint.folder)
            found.setdefault(name, set()).add(Extent(0, state.size, state.crc32c, is_whole=True))
    return found


def check_object(store: BlobStore, name: str, extents: Iterable[Extent]) -> int:
    """Reads what counts of an object and compares checksums; of a segment, every byte. Returns the bytes read.

    Raises:
        NotFoundError: There is no such object.
        CorruptDataError: It is shorter or longer than it was, or other bytes are in it.
    """
    size = store.head(name).size
    return sum(map(len, _checked_pieces(store, name, size, _all_extents(store, name, size, extents))))


def copy_object(source: BlobStore, name: str, extents: Iterable[Extent], target: BlobStore, target_name: str) -> None:
    """Copies an object; idempotent. It is checked on the way, or by what the store says of the copy it made itself.

    Raises:
        NotFoundError: There is no such object.
        CorruptDataError: It is not what was written. The store may have made a copy that nobody names.
        AlreadyExistsError: The target holds other bytes. So does :class:`ConflictError`.
    """
    if source.url == target.url and target.copies_cheaply:
        made = target.copy(name, target_name)
        for extent in extents:
            _check_within(source, name, extent, made.size)
            if extent.is_whole and made.crc32c is not None and made.crc32c != extent.crc32c:
                raise _changed(source, name, extent, f"the CRC32C of the copy is {made.crc32c:08x}")
        return
    size = source.head(name).size
    pieces = _checked_pieces(source, name, size, _all_extents(source, name, size, extents))
    if size <= sizes().copied_bytes:
        target.put_if_absent(target_name, b"".join(pieces))
        return
    parts: list[Part] = []
    checksum = 0
    try:
        for piece in pieces:
            checksum = crc32c(piece, checksum)
            parts.append(target.stage(target_name, piece))
        # The nonce tells copies of one object from everything else, and lets the same copy be made again.
        target.publish(target_name, parts, f"copy-{size}-{checksum:08x}")
    finally:
        target.discard(parts)


def _all_extents(store: BlobStore, name: str, size: int, extents: Iterable[Extent]) -> list[Extent]:
    """What can be checked of an object: of a segment every byte, so also the zeros between sections, and the directory.

    The directory is read here and once more with the other bytes: a copy must hold what was checked.
    """
    expected = sorted(extents)
    for extent in expected:
        _check_within(store, name, extent, size)
    if not name.endswith(SEGMENT_SUFFIX):
        return expected
    directory = read_directory(store, name)
    found = [Extent(directory.offset, size - directory.offset, directory.crc32c, is_whole=False)]
    for entry in directory.entries:
        section = Extent(entry.offset, entry.length, entry.crc32c, is_whole=False)
        zeros = bytes(-section.end % SECTION_ALIGNMENT)
        found += [section, Extent(section.end, len(zeros), crc32c(zeros), is_whole=False)]
    for extent in expected:
        if extent not in found:
            raise _changed(store, name, extent, "the directory of the segment has no such section")
    return found


def _check_within(store: BlobStore, name: str, extent: Extent, size: int) -> None:
    if extent.end > size or (extent.is_whole and extent.length != size):
        raise _changed(store, name, extent, f"the object has {size} bytes")


def _checked_pieces(store: BlobStore, name: str, size: int, extents: Sequence[Extent]) -> Iterator[bytes]:
    """All bytes of an object, with an error at the end if some are not what was written."""
    checksums = dict.fromkeys(extents, 0)
    step = sizes().copied_bytes
    for start in range(0, size, step):
        piece = store.get_range(name, start, min(start + step, size))
        for extent in extents:
            found = piece[max(extent.offset - start, 0) : max(extent.end - start, 0)]
            checksums[extent] = crc32c(found, checksums[extent])
        yield piece
    for extent, checksum in checksums.items():
        if checksum != extent.crc32c:
            raise _changed(store, name, extent, f"their CRC32C is {checksum:08x}")


def read_piece(store: BlobStore, part: Part) -> bytes | None:
    """The bytes of a staged piece, checked; ``None`` where the store cannot read it before it is published."""
    data = store.read_staged(part)
    if data is not None and (len(data) != part.length or crc32c(data) != part.crc32c):
        extent = Extent(0, part.length, part.crc32c, is_whole=True)
        raise _changed(store, part.name, extent, f"the piece has {len(data)} bytes with CRC32C {crc32c(data):08x}")
    return data


def renamed(
    checkpoint: Checkpoint, name_of: Callable[[str], str], *, run_checkpoint_id: int | None = None
) -> Checkpoint:
    """The same state under other names: what a copy of a checkpoint's objects is described by.

    Files that the checkpoint finishes are left out, open ones stay; files of exclusive state become absolute. The
    history stays where it is: the checkpoints of another root have numbers of their own.

    Args:
        checkpoint: The original.
        name_of: From the name of an object of the root to its new name.
        run_checkpoint_id: The checkpoint that runs say they were made by; by default the original one.
    """

    def new_section(section: H) -> H:
        named = section if section.is_inline else replace(section, name=name_of(section.name))
        if isinstance(named, RunHandle) and run_checkpoint_id is not None:
            return replace(named, checkpoint_id=run_checkpoint_id)
        return named

    def new_output(output: OutputState) -> OutputState:
        return replace(output, finished=())

    moved = with_sections(checkpoint, new_section)
    return replace(
        moved,
        outputs=tuple(map(new_output, moved.outputs)),
        states={
            key: replace(state, name=name_of(state.object_name(checkpoint.folder)), relative=False)
            if isinstance(state, FileState)
            else state
            for key, state in checkpoint.states.items()
            if key != HISTORY
        },
    )


def with_sections(checkpoint: Checkpoint, place: Place) -> Checkpoint:
    """The same checkpoint with the handle of each section as ``place`` gives it."""

    def new_subtask(subtask: SubtaskState) -> SubtaskState:
        return replace(subtask, runs=tuple(map(place, subtask.runs)))

    def new_operator(operator: OperatorState) -> OperatorState:
        return replace(operator, subtasks=tuple(map(new_subtask, operator.subtasks)))

    def new_output(output: OutputState) -> OutputState:
        files = (replace(file, pending=tuple(map(place, file.pending))) for file in output.open)
        return replace(output, open=tuple(files))

    def new_delivery(delivery: DeliveryState) -> DeliveryState:
        return replace(delivery, rows=tuple(map(place, delivery.rows)))

    return replace(
        checkpoint,
        operators=tuple(map(new_operator, checkpoint.operators)),
        outputs=tuple(map(new_output, checkpoint.outputs)),
        deliveries=tuple(map(new_delivery, checkpoint.deliveries)),
    )


def flat_names(names: Iterable[str]) -> dict[str, str]:
    """A new name below ``shared/`` for each name: the last segment, which a number tells apart where two are equal."""
    flat: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names):
        leaf = name.rpartition("/")[2]
        candidate, number = SHARED_PREFIX + leaf, 1
        while candidate in taken:
            number += 1
            candidate = f"{SHARED_PREFIX}{number}-{leaf}"
        taken.add(candidate)
        flat[name] = candidate
    return flat


def _changed(store: BlobStore, name: str, extent: Extent, found: str) -> CorruptDataError:
    return CorruptDataError(
        f"{extent.length} bytes from {extent.offset} with CRC32C {extent.crc32c:08x} were written, {found}",
        operation="verify",
        subject=f"{store.url}/{name}",
        hint="Restore the object from a copy, or go back to a checkpoint that does not need it",
    )
