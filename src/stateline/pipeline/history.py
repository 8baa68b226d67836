"""What a driver adds to the history of its root: a summary of each checkpoint, in the record that decides it.

The history itself, its format and its bound are in :mod:`stateline.checkpoint.history`.

Facts:
- What is known when a record is made goes into that record. What is known later, such as how long its creation took,
  goes into the next one of the same driver.
- A block of the history is written beside the next batch, like retention, and leaves the record once it is there. While
  it is not, the record carries it on, for a bounded number of blocks.
- Nothing here fails a batch: what the store raises is logged, and tried again with the next checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from stateline.blob import BlobStore
from stateline.checkpoint import Checkpoint
from stateline.checkpoint.history import (
    CheckpointSummary,
    by_block,
    create_block,
    create_fenced_mark,
    figure_of,
    fitting,
    rounded,
    summaries_in,
    with_summaries,
)
from stateline.checkpoint.table_records import table_records
from stateline.environment import Environment
from stateline.errors import CorruptDataError, StatelineError
from stateline.pipeline.messages import SubtaskResult
from stateline.quantities import bytes_text, count_text
from stateline.sizes import sizes

__all__ = ["HistoryRecorder", "described", "state_figures"]

_STATE_FIGURES: Final = ("state_rows", "state_bytes", "state_bytes_written", "runs")
"""Figures that are told of each operator, too."""

_KEPT: Final = ("state_rows", "state_bytes", "runs")
"""Those of them that a checkpoint without subtasks does not change."""

_LOGGER: Final = logging.getLogger(__name__)


class HistoryRecorder:
    """Summarises the checkpoints of one run of a query. The coordinators of the run share it.

    Args:
        store: The root.
        environment: Clock and ids.
        is_new_run: Whether this is a start of the query, to be told from the runs before it.
    """

    def __init__(self, store: BlobStore, environment: Environment, *, is_new_run: bool = True) -> None:
        self._store = store
        self._environment = environment
        self._is_new_run = is_new_run
        self._run: int | None = None
        self._replays = 0
        self._late: dict[str, float] = {}
        self._late_of = ""
        self._summaries: tuple[CheckpointSummary, ...] = ()
        self._summaries_of = ""
        self._written: set[int] = set()  # Only added to, by whoever writes, beside the driver or in it.

    def replayed(self) -> None:
        """Counts a batch that had been decided before."""
        self._replays += 1

    def summarised(
        self, newest: Checkpoint | None, record: Checkpoint, metrics: Mapping[str, float], state: Mapping[str, float]
    ) -> Checkpoint:
        """The record with its summary in it, and with those that the newest record carries.

        Args:
            newest: The record before; ``None`` for none.
            record: The next one.
            metrics: What it did and cost, as far as that is known.
            state: Figures of each operator's state, from :func:`state_figures`; empty where the state is the same.
        """
        earlier = self._earlier(newest)
        if self._run is None:
            last = earlier[-1].run if earlier else 0
            self._run = last + 1 if self._is_new_run else max(last, 1)
        kept = {name: value for name, value in earlier[-1].figures.items() if _is_kept(name)} if earlier else {}
        figures = {**kept, **metrics, **state} | _figures(newest, record)
        if self._replays:
            figures["batches_replayed"] = self._replays
        summary = CheckpointSummary(
            checkpoint_id=record.checkpoint_id,
            batch_id=record.batch_id,
            created_at=record.created_at,
            run=self._run,
            figures=rounded(figures),
        )
        summaries = fitting((*self._not_written(earlier, record.checkpoint_id), summary))
        self._summaries, self._summaries_of = summaries, record.nonce
        return with_summaries(record, summaries)

    def decided(self, record: Checkpoint, late: Mapping[str, float]) -> None:
        """Remembers what became known of a record after it was made."""
        self._late, self._late_of = dict(late), record.nonce
        self._replays = 0

    def writing(self) -> Callable[[], None]:
        """What is to be written after the record that was decided last. It never raises what the store does."""
        newest_id = self._summaries[-1].checkpoint_id if self._summaries else 0
        return partial(self._write, self._summaries, newest_id)

    def fenced(self, newest: Checkpoint | None, query_id: str = "") -> None:
        """Leaves a mark that this driver lost the checkpoint after ``newest``. Never raises what the store does."""
        lost, world = 0 if newest is None else newest.checkpoint_id + 1, self._environment
        name = query_id or ("" if newest is None else newest.query_id)
        try:
            create_fenced_mark(self._store, lost, name, world.clock.now(), world.ids.new_id())
        except (StatelineError, OSError) as error:
            _LOGGER.warning(
                "The history of %s does not show that this driver was overtaken: %s", self._store.url, error
            )

    def _earlier(self, newest: Checkpoint | None) -> tuple[CheckpointSummary, ...]:
        """The summaries that the newest record carries, its own with all that is known of it by now."""
        if newest is None:
            return ()
        if newest.nonce == self._summaries_of:
            earlier = self._summaries
        else:
            try:
                earlier = summaries_in(newest)
            except CorruptDataError as error:
                _LOGGER.warning("The history of %s begins anew: %s", self._store.url, error)
                earlier = ()
            self._write(earlier, newest.checkpoint_id)
        if earlier and self._late_of == newest.nonce and earlier[-1].checkpoint_id == newest.checkpoint_id:
            completed = replace(earlier[-1], figures={**earlier[-1].figures, **rounded(self._late)})
            earlier = (*earlier[:-1], completed)
        return earlier

    def _not_written(self, summaries: Sequence[CheckpointSummary], next_id: int) -> list[CheckpointSummary]:
        """What the next record goes on carrying."""
        first = next_id // sizes().history_block - sizes().history_blocks_carried
        blocks = by_block(summaries).items()
        return [summary for block, each in blocks if block >= first and block not in self._written for summary in each]

    def _write(self, summaries: Sequence[CheckpointSummary], newest_id: int) -> None:
        """Writes the blocks below that of the newest checkpoint, which are complete, where they may be missing."""
        for block, found in by_block(summaries).items():
            if block >= newest_id // sizes().history_block or block in self._written:
                continue
            try:
                create_block(self._store, block, found)
            except (StatelineError, OSError) as error:
                _LOGGER.warning("The history of %s waits for the next checkpoint: %s", self._store.url, error)
            else:
                self._written.add(block)


def state_figures(results: Sequence[SubtaskResult]) -> dict[str, float]:
    """What the subtasks of each operator say of its state."""
    figures: dict[str, float] = {}
    for result in results:
        for name in _STATE_FIGURES:
            if name in result.metrics:
                of_operator = figure_of(name, result.operator)
                figures[of_operator] = figures.get(of_operator, 0) + result.metrics[name]
    return figures


def described(record: Checkpoint) -> str:
    """What a query that goes on from a record has before it, in one line."""
    runs = {run.identity: run for state in record.operators for subtask in state.subtasks for run in subtask.runs}
    growing = [file for output in record.outputs for file in output.open]
    return (
        f"checkpoint {record.checkpoint_id} (batch {record.batch_id}): {len(record.operators)} states of "
        f"{bytes_text(sum(run.length for run in runs.values()))} in {len(runs):,} runs, "
        f"{len(growing):,} open files with {count_text(sum(file.rows for file in growing))} rows"
    )


def _is_kept(figure: str) -> bool:
    return figure.partition(" ")[0] in _KEPT


def _figures(newest: Checkpoint | None, record: Checkpoint) -> dict[str, float]:
    """What a record itself says."""
    before = {file.target for output in (() if newest is None else newest.outputs) for file in output.open}
    finished = [file for output in record.outputs for file in output.finished]
    growing = [file for output in record.outputs for file in output.open]
    figures: dict[str, float] = {"parallelism": record.parallelism}
    if record.outputs:
        figures |= {
            "files_finished": len(finished),
            "files_opened": sum(file.target not in before for file in growing),
            "files_open": len(growing),
            "rows_finished": sum(file.rows for file in finished),
            "bytes_finished": sum(file.commit.length for file in finished),
            "rows_pending": sum(file.rows for file in growing),
            "bytes_pending": sum(file.bytes for file in growing),
        }
    if record.deliveries:
        figures["rows_delivered"] = sum(rows.rows for delivery in record.deliveries for rows in delivery.rows)
    for each in record.inputs:
        if each.watermark_us is not None:
            figures[figure_of("watermark_us", each.name)] = each.watermark_us
    for operator, table in table_records(record).items():
        if table.version.isdecimal():
            figures[figure_of("table_version", operator)] = int(table.version)
    return figures
