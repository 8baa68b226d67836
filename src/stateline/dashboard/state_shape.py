"""How state lies over key groups and subtasks: rows, bytes, runs, what merges still owe, and how uneven it is. Pure.

A record says how many rows a run has and which key groups it was written for; the index of a run says how many rows lie
between which hashes, in up to 64 parts. Rows and bytes are spread evenly over a part, and without an index over all key
groups of the run. A subtask counts those of the groups that it owns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from stateline.checkpoint import Checkpoint, OperatorState, SubtaskState
from stateline.errors import CorruptDataError
from stateline.handles import RunHandle, SectionIdentity
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.state.run_index import RunIndex
from stateline.state.schema import StateSchema

__all__ = ["StateShape", "SubtaskShape", "folded", "state_shapes"]

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskShape:
    """The state of one subtask of one operator.

    Attributes:
        first_key_group: The lowest key group.
        last_key_group: The highest one, inclusive.
        rows: Stored rows, older versions and deletions included.
        bytes: Of its runs, as far as they lie in its key groups.
        runs: How many runs are in its stack.
        debt_bytes: Bytes above the largest run of the stack: what merges have still to fold in.
    """

    first_key_group: int
    last_key_group: int
    rows: float
    bytes: float
    runs: int
    debt_bytes: float

    @property
    def label(self) -> str:
        """Its key groups."""
        return f"{self.first_key_group} to {self.last_key_group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """The state of one operator, or of one of its tables.

    Attributes:
        name: As the record has it.
        schema: Keys and values, for people; or why they cannot be read.
        subtasks: In order of their key groups.
        rows: Of each key group.
        bytes: Of each key group.
        runs: Different runs in all.
        inline_runs: Those of them that are in the record itself.
        stored_rows: In all runs.
        stored_bytes: Of all runs.
    """

    name: str
    schema: str
    subtasks: tuple[SubtaskShape, ...]
    rows: Values
    bytes: Values
    runs: int
    inline_runs: int
    stored_rows: int
    stored_bytes: int

    @property
    def debt_bytes(self) -> float:
        """Of all subtasks."""
        return sum(subtask.debt_bytes for subtask in self.subtasks)

    @property
    def deepest(self) -> int:
        """Runs of the highest stack."""
        return max((subtask.runs for subtask in self.subtasks), default=0)

    @property
    def skew(self) -> float | None:
        """The largest subtask by the mean one; 1 is even. ``None`` without state."""
        sizes = [subtask.bytes for subtask in self.subtasks]
        total = sum(sizes)
        return max(sizes) * len(sizes) / total if total else None


def state_shapes(record: Checkpoint, indexes: Mapping[SectionIdentity, RunIndex] | None = None) -> list[StateShape]:
    """The state of each operator of a record.

    Args:
        record: The checkpoint.
        indexes: Those of its runs that are known.
    """
    return [_shape(operator, record.max_parallelism, indexes or {}) for operator in record.operators]


def folded(values: Sequence[float] | Values, most: int) -> list[float]:
    """Sums of neighbours, so that there are at most so many."""
    given = np.asarray(values, np.float64)
    if len(given) <= most:
        return [float(value) for value in given]
    step = -(-len(given) // most)
    return [float(value) for value in np.add.reduceat(given, np.arange(0, len(given), step))]


def _shape(operator: OperatorState, max_parallelism: int, indexes: Mapping[SectionIdentity, RunIndex]) -> StateShape:
    rows, sizes = np.zeros(max_parallelism), np.zeros(max_parallelism)
    for subtask in operator.subtasks:
        for run in subtask.runs:
            first, last = _owned(run, subtask)
            if first <= last:
                mine = slice(first, last + 1)
                of_rows, of_bytes = _spread(run, indexes.get(run.identity), max_parallelism)
                rows[mine] += of_rows[mine]
                sizes[mine] += of_bytes[mine]
    different = {run.identity: run for subtask in operator.subtasks for run in subtask.runs}
    return StateShape(
        name=operator.name,
        schema=_schema_text(operator),
        subtasks=tuple(_subtask(subtask, rows, sizes) for subtask in operator.subtasks),
        rows=rows,
        bytes=sizes,
        runs=len(different),
        inline_runs=sum(run.is_inline for run in different.values()),
        stored_rows=sum(run.rows for run in different.values()),
        stored_bytes=sum(run.length for run in different.values()),
    )


def _subtask(subtask: SubtaskState, rows: Values, sizes: Values) -> SubtaskShape:
    owned = slice(subtask.first_key_group, subtask.last_key_group + 1)
    parts = []
    for run in subtask.runs:
        first, last = _owned(run, subtask)
        parts.append(run.length * max(last - first + 1, 0) / _width(run))
    return SubtaskShape(
        first_key_group=subtask.first_key_group,
        last_key_group=subtask.last_key_group,
        rows=float(rows[owned].sum()),
        bytes=float(sizes[owned].sum()),
        runs=len(subtask.runs),
        debt_bytes=sum(parts) - max(parts, default=0.0),
    )


def _owned(run: RunHandle, subtask: SubtaskState) -> tuple[int, int]:
    """The key groups of a run that a subtask owns, both ends included."""
    return max(run.first_key_group, subtask.first_key_group), min(run.last_key_group, subtask.last_key_group)


def _spread(run: RunHandle, index: RunIndex | None, max_parallelism: int) -> tuple[Values, Values]:
    """The rows and the bytes of a run by key group."""
    edges = _edges(max_parallelism)
    end = edges[run.last_key_group + 1]
    if index is None:
        starts, of_rows, of_bytes = [edges[run.first_key_group]], [run.rows], [run.length]
    else:
        starts = [float(entry.first_hash) for entry in index.batches]
        of_rows = [entry.rows for entry in index.batches]
        of_bytes = [entry.length for entry in index.batches]
        of_bytes[-1] += run.length - sum(of_bytes)  # The index itself lies at the end.
    places = np.maximum.accumulate([*starts, max(end, starts[-1])])
    spread = (np.diff(np.interp(edges, places, np.cumsum([0, *amounts]))) for amounts in (of_rows, of_bytes))
    rows, sizes = spread
    return rows, sizes


@cache
def _edges(max_parallelism: int) -> Values:
    """Where each key group begins among all hashes, and the end of the last one."""
    lows = [hash_bounds(KeyGroupRange(group, group), max_parallelism)[0] for group in range(max_parallelism)]
    return np.array([*lows, 2**64], np.float64)


def _width(run: RunHandle) -> int:
    return run.last_key_group - run.first_key_group + 1


def _schema_text(operator: OperatorState) -> str:
    try:
        return str(StateSchema.decode(operator.schema))
    except CorruptDataError as error:
        return f"the schema cannot be read: {error.message}"
