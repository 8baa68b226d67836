"""From changes to a durable stack of runs: what one subtask does for one checkpoint.

Owns the order of work: plan, merge in memory where the plan says so, write. Does not own the decision (``checkpoint``):
until a record names the new runs they are garbage, and the old stack is as it was.

A merge that takes the newest changes in is done before they are written, so that a checkpoint writes **one** object in
the common case, be it the changes or the merged run. A large merge is done piece by piece, each of which is written and
forgotten before the next one is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from stateline.checkpoint.api import SubtaskState
from stateline.handles import RunHandle
from stateline.state.merge import Expired, MergeSettings, RunSize, merge_pieces, plan_merge
from stateline.state.rows import Run, StateRows
from stateline.state.run_store import RunWriter
from stateline.state.table import StateTable

__all__ = ["Snapshot", "merge_once", "snapshot"]


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint of one subtask made.

    Attributes:
        state: The new stack, for the record.
        written: The runs that are new in it.
        merged: How many runs were merged; 0 if none.
        write_seconds: The wait for the store, in which the runs are encoded and written.
    """

    state: SubtaskState
    written: tuple[RunHandle, ...]
    merged: int
    write_seconds: float = 0.0


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
    changed = table if changes is None else table.with_changes(changes.narrowed())
    runs, merged = _merging(changed, settings or MergeSettings(), expired)
    written = []
    waits = []

    def durable(run: Run) -> RunHandle:
        handle = run.handle
        if handle is None:
            began = writer.clock.monotonic()
            handle = writer.write(run, checkpoint_id)
            waits.append(writer.clock.monotonic() - began)
            written.append(handle)
        return handle

    # By map, because a loop would hold on to a piece while the next one is made.
    handles = tuple(map(durable, runs))
    state = SubtaskState(first_key_group=table.key_groups.start, last_key_group=table.key_groups.end, runs=handles)
    return Snapshot(state, tuple(written), merged, sum(waits))


def merge_once(
    table: StateTable, settings: MergeSettings | None = None, expired: Expired | None = None
) -> tuple[StateTable, int]:
    """Does what :func:`~stateline.state.merge.plan_merge` asks for, in memory.

    Returns:
        The table with the same live rows, and how many runs were merged (0: the runs are the same).
    """
    runs, merged = _merging(table, settings or MergeSettings(), expired)
    return StateTable(table.schema, table.key_groups, table.max_parallelism, tuple(runs)), merged


def _merging(table: StateTable, settings: MergeSettings, expired: Expired | None) -> tuple[Iterator[Run], int]:
    """The stack as it will be, each merged run made when it is asked for; and how many runs are merged."""
    runs = table.runs
    planned = plan_merge([RunSize.of(run) for run in runs], settings)
    if planned is None:
        return iter(runs), 0
    below, chosen, above = runs[: planned.start], runs[planned.start : planned.stop], runs[planned.stop :]

    def stack() -> Iterator[Run]:
        yield from below
        yield from merge_pieces(below, chosen, table.max_parallelism, settings.piece_bytes, expired)
        yield from above

    return stack(), len(chosen)
