"""``KeyedStream.aggregate``: vectorised aggregation as an operator of a pipeline.

Owns the wiring of :class:`stateline.state.aggregate.KeyedAggregation` into tasks. Does not own any aggregation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from stateline.spark.task import HASH_COLUMN, BatchMoment, Processed
from stateline.state.aggregate import Aggregation, KeyedAggregation
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

__all__ = ["CHECKPOINT_COLUMN", "AggregateProgram"]

CHECKPOINT_COLUMN: Final = "checkpoint_id"
"""Last column of the output: the checkpoint that made the row."""

_TABLE: Final = "aggregates"


@dataclass(frozen=True, slots=True)
class AggregateProgram:
    """Aggregations of one keyed stream; see :class:`stateline.spark.task.OperatorProgram`."""

    _aggregation: KeyedAggregation

    @classmethod
    def bind(cls, schema: pa.Schema, keys: Sequence[str], aggregations: Mapping[str, Aggregation]) -> Self:
        """Checks keys and aggregations against the columns of the input.

        Raises:
            InvalidInputError: Nothing to keep, a name that is taken, a column that does not exist or does not fit.
        """
        return cls(KeyedAggregation.bind(schema, keys, aggregations))

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Key columns, in the order in which they are hashed."""
        return tuple(self._aggregation.state_schema.keys.names)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that are read, keys first."""
        return self._aggregation.input_columns

    @property
    def wants_hash(self) -> bool:
        """Whether the JVM's hash is worth its eight bytes per row: for strings, and for several columns."""
        kinds = [field.type for field in self._aggregation.state_schema.keys]
        return len(kinds) > 1 or not pa.types.is_primitive(kinds[0])

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """One table."""
        return {_TABLE: self._aggregation.state_schema}

    @property
    def definition(self) -> str:
        """Keys and aggregations, as text."""
        return self._aggregation.definition

    @property
    def output_schema(self) -> pa.Schema:
        """Key columns, aggregations, ``checkpoint_id``."""
        return self._aggregation.output_schema.append(pa.field(CHECKPOINT_COLUMN, pa.int64(), nullable=False))

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], moment: BatchMoment
    ) -> Processed:
        """Merges the rows into the state of their keys, and hands on one row per key."""
        received = list(batches)
        if not received:
            return Processed(changes={})
        rows = pa.Table.from_batches(received)
        hashes = rows.column(HASH_COLUMN).to_numpy() if self.wants_hash else None
        update = self._aggregation.update(tables[_TABLE], rows, hashes)
        output = pa.Table.from_batches([update.output])
        numbers = pa.array(np.full(output.num_rows, moment.checkpoint_id))
        numbered = output.append_column(self.output_schema.field(CHECKPOINT_COLUMN), numbers)
        counts = {"rows": rows.num_rows, "keys": len(update.changes)}
        return Processed(changes={_TABLE: update.changes}, output=numbered, metrics=counts)
