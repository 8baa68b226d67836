"""Bugs of the micro-batch protocol, planted in the real code: coordinator, checkpoint store, tasks, files, state."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from stateline.blob.names import STAGING_PREFIX
from stateline.changelog.segment import encode_segment
from stateline.changelog.segment_writer import Placement, SegmentWriter
from stateline.checkpoint import retention as retention_module
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.layout import published_name, record_name
from stateline.checkpoint.metadata import Retired, encode_checkpoint
from stateline.checkpoint.retention import Reach, Retention, RetentionRule
from stateline.checkpoint.store import CheckpointStore
from stateline.errors import DataLossError, FencedError, NotFoundError, StatelineError
from stateline.files import FileJoiner
from stateline.handles import OpenFile, RunHandle
from stateline.pipeline import coordinator as coordinator_module
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.messages import SubtaskInput, SubtaskResult
from stateline.pipeline.plan import PipelinePlan
from stateline.recoverable.committer import Committer
from stateline.recoverable.writer import RecoverableWriter
from stateline.state import merge as merge_module
from stateline.state import snapshot as snapshot_module
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.

_SCENARIOS: Final = ("pipeline", "pipeline_spanning")


def _bug(
    name: str,
    description: str,
    owner: Any,
    attribute: str,
    wrong: Any,
    *suites: str,
    scenarios: tuple[str, ...] = _SCENARIOS,
) -> None:
    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=f"{getattr(owner, '__module__', owner.__name__)}.{getattr(owner, '__qualname__', '')}.{attribute}",
            plant=lambda: replaced(owner, attribute, wrong),
            scenarios=scenarios,
            suites=suites,
        )
    )


def _plain_record(self: CheckpointStore, checkpoint: Checkpoint) -> Checkpoint:
    self.store.put(record_name(checkpoint.checkpoint_id), encode_checkpoint(checkpoint))
    self._retention.record(checkpoint)
    return checkpoint


def _check_then_put(self: CheckpointStore, checkpoint: Checkpoint) -> Checkpoint:
    name = record_name(checkpoint.checkpoint_id)
    try:
        self.store.get(name)
    except NotFoundError:
        return _plain_record(self, checkpoint)
    raise FencedError("the slot is taken", operation="publish", subject=name)


def _own_parts_win(self: CheckpointStore, checkpoint: Checkpoint, error: StatelineError) -> Checkpoint:
    return checkpoint


def _named_by_subtask(self: SegmentWriter) -> Placement:
    if not self._sections:
        return Placement({}, {}, 0)
    runs = [handle for handle in self._handles if isinstance(handle, RunHandle)]
    name = f"shared/{self._sections[0].number}-{runs[0].first_key_group if runs else 'rows'}.segment"
    encoded = encode_segment(self._sections)
    self._store.put(name, b"".join(encoded.pieces))
    return Placement({self._name: name}, {}, encoded.size)


def _clean_by_prefix(self: Committer) -> None:
    self._store.delete([info.name for info in self._store.list(STAGING_PREFIX)])


def _missing_is_success(self: Committer) -> None:
    with contextlib.suppress(DataLossError):
        self._publish()
    self._discard()


_commit = MicroBatchCoordinator._commit


def _abort_deletes(self: MicroBatchCoordinator[Any], record: Checkpoint) -> dict[str, float]:
    try:
        return _commit(self, record)
    except Exception:
        for output in record.outputs:
            store = self._outputs[output.operator]
            store.discard([part for file in output.finished for part in file.commit.parts])
        raise


def _publish_first(self: MicroBatchCoordinator[Any], record: Checkpoint) -> dict[str, float]:
    for output in record.outputs:
        writer = RecoverableWriter(self._outputs[output.operator])
        for file in output.finished:
            writer.recover_for_commit(file.commit).commit_after_recovery()
    return _commit(self, record)


def _mark_first(self: MicroBatchCoordinator[Any], record: Checkpoint) -> None:
    if any(output.finished for output in record.outputs):
        self._checkpoints.mark_published(record.checkpoint_id)
    _publish(self, record)


_publish = MicroBatchCoordinator._publish


def _free_slots(self: Retention, num_retained: int | RetentionRule) -> None:
    live = self._recover() if self._live is None else self._live
    for oldest in self.retirable(num_retained):
        names = live[oldest].objects
        for checkpoint_id, reach in live.items():
            if checkpoint_id != oldest:
                names = names - reach.objects
        self._store.delete([record_name(oldest), published_name(oldest), *sorted(names)])
        del live[oldest]


def _retire_all(retired: Reach, younger: Sequence[Reach]) -> Retired:
    return Retired(
        checkpoint_id=retired.checkpoint_id,
        query_id=retired.query_id,
        nonce=retired.nonce,
        created_at=retired.created_at,
        delete=tuple(sorted(retired.objects)),
    )


_adopt = FileJoiner._adopt


def _forget_last_rows(self: Any, file: OpenFile) -> None:
    _adopt(self, msgspec.structs.replace(file, pending=file.pending[:-1]))


def _oldest_wins(runs: Sequence[Any], *arguments: Any, **more: Any) -> Any:
    return _merge_windows(list(reversed(runs)), *arguments, **more)


def _first_piece_only(self: Any) -> Any:
    return itertools.islice(_made(self), 1)


def _kept_nowhere(self: Any) -> list[Any]:
    """Only runs of which no slice was merged."""
    needed = min(self._firsts)
    return [run for number, run in enumerate(self._table.runs) if number < needed]


_merge_windows = merge_module.merge_windows
_made = snapshot_module.Layers.made
_inputs = MicroBatchCoordinator._inputs
_gathered = coordinator_module.gathered


def _files_of_lost_subtasks(
    self: MicroBatchCoordinator[Any], newest: Checkpoint | None, *more: Any
) -> list[SubtaskInput]:
    return [
        msgspec.structs.replace(
            given, open_files=tuple(file for file in given.open_files if file.subtask == given.subtask)
        )
        for given in _inputs(self, newest, *more)
    ]


def _state_of_first(plan: PipelinePlan, output_urls: Mapping[str, str], results: Sequence[SubtaskResult]) -> Any:
    operators, *rest = _gathered(plan, output_urls, results)
    broken = [
        msgspec.structs.replace(
            operator,
            subtasks=tuple(
                msgspec.structs.replace(subtask, runs=operator.subtasks[0].runs if len(subtask.runs) else ())
                for subtask in operator.subtasks
            ),
        )
        for operator in operators
    ]
    return tuple(broken), *rest


def _never_published(self: CheckpointStore, checkpoint: Checkpoint) -> bool:
    return True


def _discard_nothing(self: Committer) -> None:
    """Leaves the pieces to nobody."""


_bug(
    "pipeline_plain_record",
    "the record is put, not created: the second driver wins over the first",
    CheckpointStore,
    "publish",
    _plain_record,
    "zombies",
)
_bug(
    "pipeline_check_then_put",
    "the slot is looked at, and then put",
    CheckpointStore,
    "publish",
    _check_then_put,
    "zombies",
)
_bug(
    "pipeline_own_parts_win",
    "a driver that lost the race goes on with its own files and state",
    CheckpointStore,
    "_judge_winner",
    _own_parts_win,
    "zombies",
)
_bug(
    "pipeline_named_by_subtask",
    "a segment is named by checkpoint and subtask, so two attempts write one name",
    SegmentWriter,
    "finish",
    _named_by_subtask,
    "zombies",
)
_bug(
    "pipeline_clean_by_prefix",
    "the committer deletes all that is staged, other attempts' pieces too",
    Committer,
    "_discard",
    _clean_by_prefix,
    "zombies",
)
_bug(
    "pipeline_missing_is_success",
    "a file of which neither target nor pieces exist counts as published",
    Committer,
    "commit_after_recovery",
    _missing_is_success,
    "single",
)
_bug(
    "pipeline_abort_deletes",
    "an error after the record deletes the pieces that the record names",
    MicroBatchCoordinator,
    "_commit",
    _abort_deletes,
    "single",
)
_bug(
    "pipeline_publish_first",
    "files are visible before the record decides",
    MicroBatchCoordinator,
    "_commit",
    _publish_first,
    "single",
)
_bug(
    "pipeline_mark_first",
    "a checkpoint is marked as published before it is",
    MicroBatchCoordinator,
    "_publish",
    _mark_first,
    "single",
)
_bug(
    "pipeline_never_republished",
    "a driver that starts takes every record for published",
    CheckpointStore,
    "is_published",
    _never_published,
    "single",
)
_bug(
    "pipeline_pieces_stay",
    "pieces outlive the acknowledgement, so a late driver can publish them again",
    Committer,
    "_discard",
    _discard_nothing,
    "single",
)
_bug(
    "pipeline_retention_frees_slots",
    "retention deletes a record instead of leaving its tombstone",
    Retention,
    "retain",
    _free_slots,
    "zombies",
)
_bug(
    "pipeline_retention_deletes_live",
    "retention deletes all that a retired checkpoint reached, also what younger ones reach",
    retention_module,
    "retire",
    _retire_all,
    "single",
)
_bug(
    "pipeline_tail_dropped",
    "a file that is resumed forgets the rows of the last checkpoint",
    FileJoiner,
    "_adopt",
    _forget_last_rows,
    "single",
    scenarios=("pipeline_spanning",),
)
_bug(
    "pipeline_oldest_wins",
    "a merge keeps the oldest version of a key",
    snapshot_module,
    "merge_windows",
    _oldest_wins,
    "sim",
)
_bug(
    "pipeline_piece_forgotten",
    "a merge in pieces forgets all but the first",
    snapshot_module.Layers,
    "made",
    _first_piece_only,
    "sim",
)
_bug(
    "pipeline_slice_forgotten",
    "a run that was merged in one slice is forgotten in all of them",
    snapshot_module.Layers,
    "kept",
    _kept_nowhere,
    "sim",
)
_bug(
    "pipeline_files_lost_by_rescale",
    "open files of a subtask that is no more are forgotten",
    MicroBatchCoordinator,
    "_inputs",
    _files_of_lost_subtasks,
    "single",
    scenarios=("pipeline_spanning",),
)
_bug(
    "pipeline_state_of_another_subtask",
    "the record names the runs of the first subtask for all",
    coordinator_module,
    "gathered",
    _state_of_first,
    "single",
)
