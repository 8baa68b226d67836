"""The objects that a checkpoint reaches: which bytes of them matter, whether those are intact, copies and new names.

Owns walking over a checkpoint's handles. Does not own which checkpoint, or where its copies go (``savepoint``), or what
a finding means (``verify``).

Facts:
- A run or a state file is a whole object: its size and CRC32C are known. Pending rows are ranges of an object that
  several files share; the bytes between the ranges belong to nobody.
- Objects are read in pieces of :data:`PIECE_BYTES`, so memory stays bounded however large a run is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.checkpoint.api import Checkpoint, FileState, OperatorState, OutputState, SubtaskState
from stateline.checkpoint.layout import SHARED_PREFIX
from stateline.errors import CorruptDataError
from stateline.handles import OpenFile, Part, RunHandle

__all__ = [
    "Extent",
    "check_extents",
    "copy_object",
    "extents_of",
    "flat_names",
    "read_piece",
    "renamed",
]

PIECE_BYTES: Final = 16 * 1024 * 1024


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


def extents_of(checkpoint: Checkpoint) -> dict[str, set[Extent]]:
    """What must be intact in the root, by object name. Covers exactly ``checkpoint.object_names()``."""
    found: dict[str, set[Extent]] = {}
    for operator in checkpoint.operators:
        for subtask in operator.subtasks:
            for run in subtask.runs:
                found.setdefault(run.name, set()).add(Extent(0, run.size, run.crc32c, is_whole=True))
    for output in checkpoint.outputs:
        for file in output.open:
            for rows in file.pending:
                found.setdefault(rows.name, set()).add(Extent(rows.offset, rows.length, rows.crc32c, is_whole=False))
    for state in checkpoint.states.values():
        if isinstance(state, FileState):
            name = state.object_name(checkpoint.folder)
            found.setdefault(name, set()).add(Extent(0, state.size, state.crc32c, is_whole=True))
    return found


def check_extents(store: BlobStore, name: str, extents: Iterable[Extent]) -> int:
    """Reads ranges of an object and compares their checksums; returns the bytes read.

    Raises:
        NotFoundError: There is no such object.
        CorruptDataError: It is shorter or longer than it was, or other bytes are in it.
    """
    bytes_read = 0
    for extent in sorted(extents):
        if extent.is_whole and store.head(name).size != extent.length:
            raise _changed(store, name, extent, f"it has {store.head(name).size} bytes")
        checksum = 0
        for piece in _pieces(store, name, extent.offset, extent.offset + extent.length):
            checksum = crc32c(piece, checksum)
            bytes_read += len(piece)
        if checksum != extent.crc32c:
            raise _changed(store, name, extent, f"their CRC32C is {checksum:08x}")
    return bytes_read


def copy_object(source: BlobStore, name: str, extents: Iterable[Extent], target: BlobStore, target_name: str) -> None:
    """Copies an object; idempotent. It is checked on the way, or by what the store says of the copy it made itself.

    Raises:
        NotFoundError: There is no such object.
        CorruptDataError: It is not what was written. The store may have made a copy that nobody names.
        AlreadyExistsError: The target holds other bytes. So does :class:`ConflictError`.
    """
    if source.url == target.url and target.copies_cheaply:
        made = target.copy(name, target_name)
        checksum = "" if made.crc32c is None else f" with CRC32C {made.crc32c:08x}"
        for extent in extents:
            if extent.is_whole and (made.size != extent.length or made.crc32c not in (None, extent.crc32c)):
                raise _changed(source, name, extent, f"the copy has {made.size} bytes{checksum}")
        return
    extents = sorted(extents)
    if len(extents) == 1 and extents[0].is_whole and extents[0].length > PIECE_BYTES:
        _copy_in_pieces(source, name, extents[0], target, target_name)
        return
    data = source.get(name)
    for extent in extents:
        found = data[extent.offset : extent.offset + extent.length]
        if crc32c(found) != extent.crc32c or len(found) != extent.length:
            raise _changed(source, name, extent, f"their CRC32C is {crc32c(found):08x}")
    target.put_if_absent(target_name, data)


def _copy_in_pieces(source: BlobStore, name: str, extent: Extent, target: BlobStore, target_name: str) -> None:
    parts: list[Part] = []
    checksum = 0
    try:
        for piece in _pieces(source, name, 0, extent.length):
            checksum = crc32c(piece, checksum)
            parts.append(target.stage(target_name, piece))
        if checksum != extent.crc32c:
            raise _changed(source, name, extent, f"their CRC32C is {checksum:08x}")
        # The nonce tells copies of one object from everything else, and lets the same copy be made again.
        target.publish(target_name, parts, f"copy-{extent.length}-{extent.crc32c:08x}")
    finally:
        target.discard(parts)


def read_piece(store: BlobStore, part: Part) -> bytes | None:
    """The bytes of a staged piece, checked; ``None`` where the store cannot read it before it is published.

    Raises:
        NotFoundError: It is gone.
        CorruptDataError: It is not what was staged.
    """
    data = store.read_staged(part)
    if data is not None and (len(data) != part.length or crc32c(data) != part.crc32c):
        extent = Extent(0, part.length, part.crc32c, is_whole=True)
        raise _changed(store, part.name, extent, f"it has {len(data)} bytes with CRC32C {crc32c(data):08x}")
    return data


def renamed(
    checkpoint: Checkpoint, name_of: Callable[[str], str], *, run_checkpoint_id: int | None = None
) -> Checkpoint:
    """The same state under other names: what a copy of a checkpoint's objects is described by.

    Files that the checkpoint finishes are left out, open ones stay; files of exclusive state become absolute.

    Args:
        checkpoint: The original.
        name_of: From the name of an object of the root to its new name.
        run_checkpoint_id: What the runs say they were first named by; as they were if ``None``.
    """

    def new_run(run: RunHandle) -> RunHandle:
        first = run.checkpoint_id if run_checkpoint_id is None else run_checkpoint_id
        return replace(run, name=name_of(run.name), checkpoint_id=first)

    def new_subtask(subtask: SubtaskState) -> SubtaskState:
        return replace(subtask, runs=tuple(map(new_run, subtask.runs)))

    def new_operator(operator: OperatorState) -> OperatorState:
        return replace(operator, subtasks=tuple(map(new_subtask, operator.subtasks)))

    def new_file(file: OpenFile) -> OpenFile:
        return replace(file, pending=tuple(replace(rows, name=name_of(rows.name)) for rows in file.pending))

    def new_output(output: OutputState) -> OutputState:
        return replace(output, finished=(), open=tuple(map(new_file, output.open)))

    return replace(
        checkpoint,
        operators=tuple(map(new_operator, checkpoint.operators)),
        outputs=tuple(map(new_output, checkpoint.outputs)),
        states={
            key: replace(state, name=name_of(state.object_name(checkpoint.folder)), relative=False)
            if isinstance(state, FileState)
            else state
            for key, state in checkpoint.states.items()
        },
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


def _pieces(store: BlobStore, name: str, start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, PIECE_BYTES):
        yield store.get_range(name, position, min(position + PIECE_BYTES, end))


def _changed(store: BlobStore, name: str, extent: Extent, found: str) -> CorruptDataError:
    return CorruptDataError(
        f"{extent.length} bytes from {extent.offset} with CRC32C {extent.crc32c:08x} were written, {found}",
        operation="verify",
        subject=f"{store.url}/{name}",
        hint="Restore the object from a copy, or go back to a checkpoint that does not need it",
    )
