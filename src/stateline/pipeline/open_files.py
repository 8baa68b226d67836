"""The open files of a record: when time alone finishes them, and the record that has them finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from msgspec.structs import replace

from stateline.checkpoint import Checkpoint, checkpoint_time
from stateline.checkpoint.table_records import following_tables, table_properties
from stateline.environment import Environment
from stateline.handles import FinishedFile, OpenFile
from stateline.pipeline.plan import PipelinePlan

__all__ = ["FinishFiles", "due_files", "files_by_subtask", "files_due_at", "is_round_of", "with_files_finished"]

FinishFiles = Callable[[str, Sequence[OpenFile]], Sequence[FinishedFile]]
"""``finish_files(operator, open_files)`` encodes and stages files."""

_ROUND: Final = "round.run"
"""Name in ``Checkpoint.properties``: the run of the query whose driver made the record while no rows came."""


def files_due_at(plan: PipelinePlan, record: Checkpoint | None) -> float | None:
    """From when on time alone finishes a file that a record left open; ``None`` if there is none."""
    return min((at for _, at in _due(plan, record) if at is not None), default=None)


def due_files(plan: PipelinePlan, record: Checkpoint, now: float) -> frozenset[str]:
    """The targets of open files whose time has come."""
    return frozenset(file.target for file, at in _due(plan, record) if at is not None and at <= now)


def files_by_subtask(record: Checkpoint | None, operator: str, parallelism: int) -> dict[int, list[OpenFile]]:
    """Open files by the subtask that goes on with them: the same one, or by index after a rescale."""
    files: dict[int, list[OpenFile]] = {}
    for output in () if record is None else record.outputs:
        if output.operator == operator:
            for file in output.open:
                files.setdefault(file.subtask % parallelism, []).append(file)
    return files


def with_files_finished(
    record: Checkpoint,
    targets: Collection[str],
    finish_files: FinishFiles,
    environment: Environment,
    run_id: str = "",
) -> Checkpoint:
    """The checkpoint after a record: the same batch and the same state, with some open files finished.

    Args:
        record: The newest one.
        targets: The files to finish.
        finish_files: Encodes and stages them.
        environment: Clock and ids.
        run_id: The run of the query that makes it while no rows come; empty for the end of a stream.
    """
    outputs = tuple(
        replace(
            output,
            finished=tuple(finish_files(output.operator, [file for file in output.open if file.target in targets])),
            open=tuple(file for file in output.open if file.target not in targets),
        )
        for output in record.outputs
    )
    created_at = checkpoint_time(environment.clock.now(), record)
    return _following(record, run_id, nonce=environment.ids.new_id(), created_at=created_at, outputs=outputs)


def is_round_of(run_id: str, record: Checkpoint, following: Checkpoint) -> bool:
    """Whether the checkpoint after a record was made by one run of the query while no rows came.

    Then nothing has been decided but that some files are finished: the batch, its offsets and the state are those of
    the record, and no driver but the one that runs the caller can have made it. What a record tells of its
    cost is in its states, of which operators have none.
    """
    changes = {name: getattr(following, name) for name in ("nonce", "created_at", "outputs", "states")}
    return bool(run_id) and following == _following(record, run_id, **changes)


def _following(record: Checkpoint, run_id: str, **changes: Any) -> Checkpoint:
    properties = {name: text for name, text in record.properties.items() if name != _ROUND}
    properties |= table_properties(following_tables(record))
    if run_id:
        properties[_ROUND] = run_id
    following_id = record.checkpoint_id + 1
    return replace(record.without_deliveries(), checkpoint_id=following_id, properties=properties, **changes)


def _due(plan: PipelinePlan, record: Checkpoint | None) -> list[tuple[OpenFile, float | None]]:
    outputs = {operator.name: operator.output for operator in plan.graph.operators}
    policies = {name: output.rolling for name, output in outputs.items() if output is not None}
    return [
        (file, policies[output.operator].due_at(opened_at=file.opened_at, written_at=file.written_at))
        for output in (() if record is None else record.outputs)
        for file in output.open
        if output.operator in policies
    ]
