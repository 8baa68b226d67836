"""Is everything there, is it what was written, and what is there that nobody needs?

Deletes nothing, fences nobody, and may run beside the query.

What it looks at: the record of each live checkpoint (or one, or a savepoint), every object in the root that they
reach, the marks beside the records and the floor, and, for outputs whose store is given, the files they finish.

Facts:
- The root is listed before the records are read. So what a running query writes meanwhile is either not listed, or
  reached by a record that is read later. What is listed and not reached is *orphaned*: garbage of a crash, or an object
  whose checkpoint is not decided yet. Tell the two apart by age.
- A checkpoint may be retired while it is looked at. A finding counts only if its checkpoint is live afterwards.
- A finished file that was visible once may have been moved away by its consumer: only files of a checkpoint that is not
  marked as published must be there, or their pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum

from stateline.blob.api import BlobStore, ObjectInfo
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.history import read_block
from stateline.checkpoint.layout import (
    CLAIMED,
    FLOOR_BLOCK,
    FLOOR_PREFIX,
    HISTORY_PREFIX,
    METADATA,
    PUBLISHED,
    RECORD_PREFIX,
    SHARED_PREFIX,
    TASKOWNED_PREFIX,
    block_of,
    block_of_floor,
    block_of_history,
    floor_name,
    id_of_published,
    ids_of_block,
    published_name,
    record_name,
)
from stateline.checkpoint.metadata import check_mark, encode_floor, encode_published
from stateline.checkpoint.objects import Extent, check_object, extents_of, read_piece
from stateline.checkpoint.savepoint import Savepoint
from stateline.checkpoint.slots import Empty, Slots
from stateline.checkpoint.store import CheckpointStore
from stateline.errors import CorruptDataError, DataLossError, NotFoundError
from stateline.handles import CommitPoint, Part

__all__ = ["Finding", "Problem", "VerifyReport", "verify_outputs", "verify_root", "verify_savepoint"]

Progress = Callable[[int, int], None]
"""``progress(objects_done, objects_in_all)``, called after each object."""


class Problem(StrEnum):
    """What is wrong with an object."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    UNREADABLE = "unreadable"
    """The store cannot read it before it is published, so nothing was proved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One object that is not as it should be.

    Attributes:
        problem: What is wrong.
        name: The object: its name in the root, or its URL in an output.
        checkpoint_ids: The checkpoints that need it, ascending.
        detail: What was expected and what was found.
    """

    problem: Problem
    name: str
    checkpoint_ids: tuple[int, ...]
    detail: str


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was looked at and what was found.

    Attributes:
        checkpoint_ids: The live checkpoints that were looked at, ascending.
        reachable: Names of the objects of the root that they reach, sorted.
        bytes_read: Bytes that were read and compared.
        findings: What is wrong.
        orphaned: Objects of the root that no live checkpoint reaches; empty when only one was asked for.
    """

    checkpoint_ids: list[int] = field(default_factory=list)
    reachable: list[str] = field(default_factory=list)
    bytes_read: int = 0
    findings: list[Finding] = field(default_factory=list)
    orphaned: list[ObjectInfo] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether everything that is needed was read and found intact. Orphans do no harm."""
        return not self.findings

    def add(self, problem: Problem, name: str, checkpoint_ids: tuple[int, ...], detail: str) -> None:
        """Adds a finding."""
        self.findings.append(Finding(problem=problem, name=name, checkpoint_ids=checkpoint_ids, detail=detail))

    @contextmanager
    def noting(self, name: str, checkpoint_ids: tuple[int, ...]) -> Iterator[None]:
        """Makes a finding of an object that turns out to be missing or corrupt."""
        try:
            yield
        except NotFoundError as error:
            self.add(Problem.MISSING, name, checkpoint_ids, error.message)
        except CorruptDataError as error:
            self.add(Problem.CORRUPT, name, checkpoint_ids, error.message)


def verify_root(
    root: CheckpointStore,
    *,
    checkpoint_id: int | None = None,
    outputs: Mapping[str, BlobStore] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Verifies all live checkpoints of a root, or one.

    Args:
        root: The root.
        checkpoint_id: Only this one.
        outputs: Stores of outputs by ``OutputState.url``, whose files are looked at too.
        progress: Told after each object.

    Raises:
        NotFoundError: There is no checkpoint ``checkpoint_id``.
        StatelineError: What the stores raise, other than for missing and corrupt objects.
    """
    report = VerifyReport()
    listed = [info for prefix in (SHARED_PREFIX, TASKOWNED_PREFIX, RECORD_PREFIX) for info in root.store.list(prefix)]
    listed += root.store.list_staged()
    checkpoints = _live(root, report) if checkpoint_id is None else [root.get(checkpoint_id)]
    marked = [id_of_published(info.name) for info in listed] if checkpoint_id is None else [checkpoint_id]
    _look_at_marks(root.store, marked, report)
    if checkpoint_id is None:
        _look_beside_marks(root.store, listed, report)
        _look_at_floor(root.store, report)
        _look_at_history(root.store, report)
    _verify(root.store, checkpoints, outputs or {}, root.is_published, progress, report)
    report.findings = [finding for finding in report.findings if _still_counts(root, finding)]
    if checkpoint_id is None:
        reached = set(report.reachable)
        report.orphaned = [info for info in listed if info.name not in reached and not _coordinates(info.name)]
    return report


def verify_savepoint(savepoint: Savepoint, *, progress: Progress | None = None) -> VerifyReport:
    """Verifies a savepoint: all it needs is in its folder, and whether it has an owner can be read."""
    needed = {savepoint.name_in_store(name): found for name, found in extents_of(savepoint.checkpoint).items()}
    ids = (savepoint.checkpoint.checkpoint_id,)
    report = VerifyReport(checkpoint_ids=list(ids))
    with report.noting(savepoint.name_in_store(CLAIMED), ids):
        savepoint.owner()
    _look_at_objects(savepoint.store, needed, dict.fromkeys(needed, ids), progress, report)
    return report


def verify_outputs(checkpoint: Checkpoint, outputs: Mapping[str, BlobStore]) -> VerifyReport:
    """Verifies what a checkpoint needs of its outputs alone, by ``OutputState.url``, so that a driver can go on."""
    report = VerifyReport(checkpoint_ids=[checkpoint.checkpoint_id])
    _look_at_outputs(checkpoint, outputs, lambda _: True, report)
    return report


def _live(root: CheckpointStore, report: VerifyReport) -> list[Checkpoint]:
    """The live checkpoints that can be read; records that are corrupt or gone become findings."""
    slots = Slots(root.store, allow_older=False)
    listed_ids = slots.listed_ids()
    checkpoints = []
    taken = []
    for checkpoint_id in listed_ids:
        slot = None
        with report.noting(record_name(checkpoint_id), (checkpoint_id,)):
            slot = slots.read(checkpoint_id)
        if isinstance(slot, Checkpoint):
            checkpoints.append(slot)
        if slot is None or isinstance(slot, Checkpoint):
            taken.append(checkpoint_id)
    for missing in sorted(set(range(min(taken, default=0), max(taken, default=-1))) - set(taken)):
        report.add(Problem.MISSING, record_name(missing), (missing,), "its neighbours are live")
    _look_below(slots, min(taken, default=0), set(listed_ids), report)
    try:
        slots.newest(listed_ids)
    except DataLossError as error:
        report.add(Problem.MISSING, f"{RECORD_PREFIX}*/{METADATA}", (), error.message)
    except CorruptDataError:
        return checkpoints  # It is among the findings.
    return checkpoints


def _look_below(slots: Slots, oldest_live: int, listed_ids: set[int], report: VerifyReport) -> None:
    """The slots below the oldest live checkpoint: each of them was taken, and is closed, or has a tombstone.

    Records were listed before the floor is read here, and a slot is freed only below a marker. So what is neither is
    gone; it is asked once more by exact name, as a listing may lag.
    """
    for block in range(block_of(oldest_live) + (oldest_live % FLOOR_BLOCK > 0)):
        ids = [slot for slot in ids_of_block(block) if slot < oldest_live]
        unlisted = [slot for slot in ids if slot not in listed_ids]
        if not unlisted or slots.is_closed(ids[0]):
            continue
        if len(unlisted) == FLOOR_BLOCK and slots.read(ids[0]) is Empty.ABSENT:
            what = f"no marker says that checkpoints {ids[0]} to {ids[-1]} were retired: a late driver may decide one"
            report.add(Problem.MISSING, floor_name(block), (), what)
            continue
        for slot in unlisted:
            if slots.read(slot) is Empty.ABSENT:
                report.add(Problem.MISSING, record_name(slot), (), "neither the record nor a tombstone is there")


def _verify(
    store: BlobStore,
    checkpoints: Sequence[Checkpoint],
    outputs: Mapping[str, BlobStore],
    is_published: Callable[[Checkpoint], bool],
    progress: Progress | None,
    report: VerifyReport,
) -> None:
    needed: dict[str, set[Extent]] = {}
    needed_by: dict[str, tuple[int, ...]] = {}
    # A file that a younger checkpoint finishes once more, below another URL, is looked for there.
    finishes = {
        file.commit.nonce: checkpoint.checkpoint_id
        for checkpoint in checkpoints
        for output in checkpoint.outputs
        for file in output.finished
    }
    for checkpoint in checkpoints:
        report.checkpoint_ids.append(checkpoint.checkpoint_id)
        for name, extents in extents_of(checkpoint).items():
            needed.setdefault(name, set()).update(extents)
            needed_by[name] = (*needed_by.get(name, ()), checkpoint.checkpoint_id)
        mine = checkpoint.checkpoint_id
        due = set() if is_published(checkpoint) else {nonce for nonce, last in finishes.items() if last == mine}
        _look_at_outputs(checkpoint, outputs, due.__contains__, report)
    _look_at_objects(store, needed, needed_by, progress, report)


def _look_at_outputs(
    checkpoint: Checkpoint, outputs: Mapping[str, BlobStore], is_due: Callable[[str], bool], report: VerifyReport
) -> None:
    """The files, known by their nonces, that are due to become visible."""
    for output in checkpoint.outputs:
        if output.url in outputs:
            for finished in output.finished:
                if is_due(finished.commit.nonce):
                    _look_at_file(outputs[output.url], finished.commit, checkpoint.checkpoint_id, report)


def _look_at_objects(
    store: BlobStore,
    needed: Mapping[str, set[Extent]],
    needed_by: Mapping[str, tuple[int, ...]],
    progress: Progress | None,
    report: VerifyReport,
) -> None:
    report.reachable = sorted(needed)
    for done, name in enumerate(report.reachable, start=1):
        with report.noting(name, needed_by[name]):
            report.bytes_read += check_object(store, name, needed[name])
        if progress is not None:
            progress(done, len(needed))


def _look_at_marks(store: BlobStore, checkpoint_ids: Iterable[int | None], report: VerifyReport) -> None:
    """The marks that files are visible; a checkpoint may have none."""
    for marked in checkpoint_ids:
        if marked is not None:
            _look_at_mark(store, published_name(marked), encode_published(marked), (marked,), report)


def _look_beside_marks(store: BlobStore, listed: Iterable[ObjectInfo], report: VerifyReport) -> None:
    """A mark is made after its record, and freed before it: one without a record tells that the record is gone."""
    names = {info.name for info in listed} | {finding.name for finding in report.findings}
    slots = Slots(store, allow_older=False)
    for marked in sorted(mark for mark in map(id_of_published, names) if mark is not None):
        if record_name(marked) not in names and slots.read(marked) is Empty.ABSENT:
            report.add(Problem.MISSING, record_name(marked), (marked,), "its mark is there")


def _look_at_floor(store: BlobStore, report: VerifyReport) -> None:
    """The markers of the floor: whatever is in them counts, but a store that changes one changes others."""
    for block in [block_of_floor(info.name) for info in store.list(FLOOR_PREFIX)]:
        if block is not None:
            _look_at_mark(store, floor_name(block), encode_floor(block), (), report)


def _look_at_history(store: BlobStore, report: VerifyReport) -> None:
    """The objects of the history: nothing depends on them, but a store that changes one changes others."""
    for name in [info.name for info in store.list(HISTORY_PREFIX)]:
        block = block_of_history(name)
        if block is not None:
            with report.noting(name, ()), suppress(NotFoundError):  # It fell out meanwhile.
                read_block(store, block)


def _look_at_mark(
    store: BlobStore, name: str, written: bytes, checkpoint_ids: tuple[int, ...], report: VerifyReport
) -> None:
    try:
        data = store.get(name)
    except NotFoundError:
        return  # There is none, or the query has freed its slot.
    report.bytes_read += len(data)
    with report.noting(name, checkpoint_ids):
        check_mark(data, written, f"{store.url}/{name}")


def _look_at_parts(store: BlobStore, parts: Iterable[Part], checkpoint_id: int, report: VerifyReport) -> None:
    for part in parts:
        if not part.length:  # It is there for the store alone.
            continue
        name = f"{store.url}/{part.name}"
        with report.noting(name, (checkpoint_id,)):
            data = read_piece(store, part)
            report.bytes_read += len(data or b"")
            if data is None:
                report.add(Problem.UNREADABLE, name, (checkpoint_id,), "the store cannot read staged pieces")


def _look_at_file(store: BlobStore, commit: CommitPoint, checkpoint_id: int, report: VerifyReport) -> None:
    """A file to be published: it is there already, or all its pieces are."""
    extent = Extent(0, commit.length, commit.crc32c, is_whole=True)
    with report.noting(f"{store.url}/{commit.target}", (checkpoint_id,)):
        try:
            report.bytes_read += check_object(store, commit.target, [extent])
        except NotFoundError:
            _look_at_parts(store, commit.parts, checkpoint_id, report)


def _still_counts(root: CheckpointStore, finding: Finding) -> bool:
    """Whether it is about what coordinates, or some checkpoint that needs the object was not retired meanwhile."""
    if finding.name.startswith((FLOOR_PREFIX, HISTORY_PREFIX)) or (
        finding.name.startswith(RECORD_PREFIX) and _coordinates(finding.name)
    ):
        return True
    for checkpoint_id in finding.checkpoint_ids:
        try:
            root.get(checkpoint_id)
        except NotFoundError:
            continue  # It needs nothing any more.
        except CorruptDataError:
            return True
        return True
    return False


def _coordinates(name: str) -> bool:
    return name.rpartition("/")[2] in (METADATA, PUBLISHED)
