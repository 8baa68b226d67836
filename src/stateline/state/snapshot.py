"""From changes to a durable stack of runs: what one subtask does for one checkpoint.

Owns the order of work: plan, merge in memory where the plan says so, write. Does not own the decision (``checkpoint``):
until a record names the new runs they are garbage, and the old stack is as it was.

A merge that takes the newest changes in is done before they are written, so that a checkpoint writes **one** object in
the common case, be it the changes or the merged run.
"""

from __future__ import annotations

import dataclasses

from stateline.checkpoint.api import SubtaskState
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange
from stateline.state.merge import (
    Expired,
    MergeSettings,
    RunSize,
    drops_tombstones,
    merge_runs,
    plan_merge,
)
from stateline.state.rows import StateRows
from stateline.state.run_store import RunWriter
from stateline.state.table import StateTable

__all__ = ["Snapshot", "merge_once", "snapshot"]


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint of one subtask made.

    Attributes:
        state: The new stack, for the record.
        written: The runs that are new in it.
        merged: How many runs were merged into one; 0 if none.
    """

    state: SubtaskState
    written: tuple[RunHandle, ...]
    merged: int


def snapshot(
    table: StateTable,
    changes: StateRows | None,
    writer: RunWriter,
    checkpoint_id: int,
    *,
    settings: MergeSettings | None = None,
    expired: Expired | None = None,
) -> Snapshot:
    """Makes the table with its changes durable.

    Args:
        table: The state before; its runs in memory, if any, are made durable too.
        changes: New rows, each key once; they win. ``None`` for none.
        writer: Where runs go.
        checkpoint_id: The checkpoint that will name them.
        settings: When runs are merged.
        expired: Which rows have outlived their time; see :func:`~stateline.state.merge.merge_runs`.

    Raises:
        InvalidInputError: A key of another subtask.
        StatelineError: What the store raises. Nothing is changed; at most garbage is left.
    """
    changed = table if changes is None else table.with_changes(changes)
    merged_table, merged = merge_once(changed, settings, expired)
    handles, written = [], []
    for run in merged_table.runs:
        handle = run.handle
        if handle is None:
            handle = writer.write(run, checkpoint_id)
            written.append(handle)
        handles.append(handle)
    state = SubtaskState(
        first_key_group=table.key_groups.start, last_key_group=table.key_groups.end, runs=tuple(handles)
    )
    return Snapshot(state, tuple(written), merged)


def merge_once(
    table: StateTable, settings: MergeSettings | None = None, expired: Expired | None = None
) -> tuple[StateTable, int]:
    """Does what :func:`~stateline.state.merge.plan_merge` asks for, in memory.

    Returns:
        The table with the same live rows, and how many runs were merged (0: it is the same table).
    """
    runs = table.runs
    planned = plan_merge([RunSize.of(run) for run in runs], settings)
    if planned is None:
        return table, 0
    below, chosen, above = runs[: planned.start], runs[planned.start : planned.stop], runs[planned.stop :]
    merged = merge_runs(
        chosen,
        _hull([run.key_groups for run in chosen]),
        table.max_parallelism,
        drop_tombstones=drops_tombstones([run.key_groups for run in below], [run.key_groups for run in chosen]),
        expired=expired,
    )
    kept = (merged,) if len(merged) else ()
    return StateTable(table.schema, table.key_groups, table.max_parallelism, (*below, *kept, *above)), len(chosen)


def _hull(ranges: list[KeyGroupRange]) -> KeyGroupRange:
    return KeyGroupRange(min(part.start for part in ranges), max(part.end for part in ranges))
