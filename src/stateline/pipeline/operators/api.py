"""The contract of an operator: what it is given for one batch and one subtask, and what it returns.

The pipeline does everything around it: the shuffle by key, the runs of its state, its output files, retries and the
record. An operator sees the rows of its own keys and the state as the last checkpoint left it, and returns changes.
``docs/internals/write-an-operator.md`` builds one step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from stateline.pipeline.event_time import WindowPlan
from stateline.state.aggregate.api import SqlWords
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

__all__ = [
    "CHECKPOINT_COLUMN",
    "HASH_COLUMN",
    "ROWS_COLUMN",
    "WEIGHT_COLUMN",
    "BatchContext",
    "Emits",
    "Lookup",
    "OperatorProgram",
    "Processed",
    "Reading",
    "combined_columns",
    "rows_counted",
]

HASH_COLUMN: Final = "__hash"
"""The stable hash of the key, where it has been computed already."""
WEIGHT_COLUMN: Final = "__weight"
"""Of rows of an operator that updates its output, int8: 1 for a row that holds from now on, -1 for one that no longer
does. A row that is replaced comes as both, the old one first."""

ROWS_COLUMN: Final = "__rows"
"""Of rows that stand for several of one key, int64: for how many; see :meth:`OperatorProgram.combined`."""

CHECKPOINT_COLUMN: Final = "checkpoint_id"
"""Last column of the output of operators of ours, not null: the checkpoint that made the row."""


def combined_columns(count: int) -> list[str]:
    """The columns of what :meth:`OperatorProgram.combined` computes."""
    return [f"__combined_{number}" for number in range(count)]


def rows_counted(rows: pa.Table | pa.RecordBatch | None) -> int:
    """How many rows of the stream these are, or stand for."""
    if rows is None or ROWS_COLUMN not in rows.schema.names:
        return 0 if rows is None else rows.num_rows
    return int(pc.sum(rows.column(ROWS_COLUMN)).as_py() or 0)


Emits = Literal["appends", "updates", "unknown"]
"""What the output of an operator is to the operators behind it: rows that stay as they are; rows that replace earlier
ones, which :attr:`Processed.retracted` names; or rows of which only user code knows what they replace."""

_REMOVALS_UNKNOWN: Final[Mapping[Emits, str]] = {
    "appends": "its rows are final, and none is ever taken back",
    "updates": "",
    "unknown": "only its own code knows which rows others replace, and which keys it forgets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an operator reads of one of the streams that feed it.

    Attributes:
        key_columns: In the order in which they are hashed. All readings of an operator hash equal keys equally.
        columns: Columns that tasks receive, key columns first.
        late_by: The column of event time by which a row is late; ``None`` where no row is. Late rows are taken out
            before the operator sees any, and counted as ``rows_late``.
        late_after_us: A row is late when its time plus this is at or below the watermark of the batch before.
    """

    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    late_by: str | None = None
    late_after_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """State of another operator that an operator reads and never changes.

    Attributes:
        state: Its name in the checkpoint: that of the operator, with the table where it has several.
        schema: Its key columns, and the value columns that are read.
        root: URL of the root, or of the folder of a savepoint, that has it; ``None`` for an operator of the same
            pipeline, whose state is that of the checkpoint before the batch.
        checkpoint_id: The checkpoint of ``root``; ``None`` for the newest one when a batch begins.
        options: Settings of the store of ``root``.
    """

    state: str
    schema: StateSchema
    root: str | None = None
    checkpoint_id: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Which batch it is, and when: decided by the driver, the same for all subtasks and for every attempt.

    Attributes:
        checkpoint_id: The checkpoint being made.
        now: Processing time of the batch, seconds since the epoch.
        watermark_us: The watermark that holds for the batch, microseconds since the epoch; ``None`` without one. What
            it has passed is closed at the end of the batch.
        late_watermark_us: The one that held for the batch before: what lies at or below it is closed, and late.
        earlier_checkpoints: See :attr:`stateline.checkpoint.Checkpoint.earlier_checkpoints`.
        retracts: Whether :attr:`Processed.retracted` is asked for: an operator reads the output, or a table deletes by
            it.
        forgets: Whether :attr:`Processed.forgotten` is asked for: a table deletes by it.
    """

    checkpoint_id: int
    now: float
    watermark_us: int | None = None
    late_watermark_us: int | None = None
    earlier_checkpoints: int = 0
    retracts: bool = False
    forgets: bool = False

    @property
    def sequence(self) -> int:
        """A number of the batch that ascends and never repeats in the life of its state, also over savepoints."""
        return self.earlier_checkpoints + self.checkpoint_id

    @property
    def now_ms(self) -> int:
        """Processing time in whole milliseconds, by the microsecond: 1.001 s are 1,001 ms, though a float has less."""
        return round(self.now * 1_000_000) // 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """What an operator makes of the rows of one batch.

    Attributes:
        changes: New rows of each state table, by table name; a table without changes may be left out.
        output: Output rows; ``None`` for none.
        retracted: Rows of earlier output that hold no longer, in the same schema; asked for by
            :attr:`BatchContext.retracts`, of operators whose output is updated. Rows that are equal to new ones may be
            left out on both sides.
        forgotten: The last rows, in the same schema, of the keys that the batch forgets: the watermark has closed them,
            or their time to live is over. Asked for by :attr:`BatchContext.forgets`. Also of keys that it has rows of.
        expired: Tests by table name: which rows have outlived their time, to be dropped when runs are merged.
        metrics: Counts by name, summed over the subtasks.
        next_timer_ms: No timer by processing time comes before this, milliseconds since the epoch; ``None`` for no
            timer at all.
    """

    changes: Mapping[str, StateRows]
    output: pa.Table | None = None
    retracted: pa.Table | None = None
    forgotten: pa.Table | None = None
    expired: Mapping[str, Expired] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    next_timer_ms: int | None = None


class OperatorProgram(Protocol):
    """What a keyed operator computes. Shipped to every task, so it must survive being copied to another process.

    Implementations derive from it, and inherit what they do not say: no windows, nothing to do when only time passes.
    """

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Key columns of the input, in the order in which they are hashed."""
        ...

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns of the input that tasks receive, key columns first."""
        ...

    @property
    def wants_hash(self) -> bool:
        """Whether tasks also receive :data:`HASH_COLUMN`: cheaper to send than to compute in Python, for strings."""
        ...

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What it reads of each stream that feeds it; one, unless it joins several."""
        return (Reading(key_columns=self.key_columns, columns=self.input_columns),)

    def combined(self, words: SqlWords) -> Sequence[str]:
        """SQL of what one row can say for all rows of a key in a batch; empty where the operator must see each row.

        Where a batch has many rows for each key, Spark computes it before rows are sent. :meth:`process` is then given
        one row for each key: key columns, :func:`combined_columns`, and :data:`ROWS_COLUMN`.
        """
        del words
        return ()

    @property
    def emits(self) -> Emits:
        """What its output is to operators that read it."""
        return "unknown"

    @property
    def removals_unknown(self) -> str:
        """Why it cannot say which rows of its output are gone; empty where it says so when it is asked."""
        return _REMOVALS_UNKNOWN[self.emits]

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        """Columns of the output that are event times: no row comes whose time the output's watermark has passed."""
        return ()

    @property
    def watermark_lag_us(self) -> int:
        """How far the watermark of the output stays behind that of the operator."""
        return 0

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """Schemas of the operator's state tables, by name.

        In the checkpoint they are called ``operator/table``; the only table, and one whose name is empty, ``operator``.
        """
        ...

    @property
    def lookups(self) -> Mapping[str, Lookup]:
        """State of other operators that it reads, by a name of its own; ``tables`` has them beside its own tables."""
        return {}

    @property
    def definition(self) -> str:
        """What is computed, as text that is the same for the same program. A restart with another one is refused."""
        ...

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of the output rows."""
        ...

    @property
    def columns_handed_on(self) -> pa.Schema:
        """The columns of the output that operators behind it can read.

        All but :data:`CHECKPOINT_COLUMN`: another checkpoint takes a row back than that which made it.
        """
        schema = self.output_schema
        number = schema.get_field_index(CHECKPOINT_COLUMN)
        return schema if number < 0 or schema.field(number).nullable else schema.remove(number)

    @property
    def window(self) -> WindowPlan | None:
        """Windows of event time, whose start is the last key column; ``None`` for none."""
        return None

    @property
    def closes_windows(self) -> bool:
        """Whether the state of a window goes when the watermark passes its end."""
        return False

    @property
    def acts_on_watermark(self) -> bool:
        """Whether a watermark that advances changes state or output, even without rows."""
        return self.closes_windows

    @property
    def ttl_ms(self) -> int | None:
        """Processing time after which it forgets a key, milliseconds; ``None`` where the clock makes it forget none."""
        return None

    @property
    def acts_on_time(self) -> bool:
        """Whether processing time that passes changes state or output, even without rows."""
        return False

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Processes the rows of one batch that belong to one subtask; there may be none.

        Must not keep anything between calls: the next batch may be processed elsewhere, and this one again.
        """
        ...

    def process_sides(
        self, sides: Sequence[Iterable[pa.RecordBatch]], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """As :meth:`process`, of the rows of each reading. An operator with several readings has this one instead."""
        (batches,) = sides
        return self.process(batches, tables, context)
