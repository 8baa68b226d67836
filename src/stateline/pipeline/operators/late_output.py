"""Late rows as an output of their own: an operator without state that hands on what came too late for another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from stateline.pipeline.operators.api import BatchContext, Emits, OperatorProgram, Processed
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

__all__ = ["LateRowsProgram"]


@dataclass(frozen=True, slots=True)
class LateRowsProgram(OperatorProgram):
    """Rows as they come.

    Attributes:
        schema: Their columns.
        key_columns: Those by which the operator that they came too late for is keyed.
    """

    schema: pa.Schema
    key_columns: tuple[str, ...]

    @property
    def input_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.key_columns, *self.schema.names]))

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def emits(self) -> Emits:
        return "appends"

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        return {}

    @property
    def definition(self) -> str:
        return "late rows"

    @property
    def output_schema(self) -> pa.Schema:
        return self.schema

    def process(
        self,
        batches: Iterable[pa.RecordBatch],
        tables: Mapping[str, StateTable],  # noqa: ARG002 - the contract of an operator
        context: BatchContext,  # noqa: ARG002
    ) -> Processed:
        """Hands them on."""
        rows = [batch.select(self.schema.names) for batch in batches]
        output = pa.Table.from_batches(rows).cast(self.schema) if rows else None
        return Processed(changes={}, output=output, metrics={"rows": sum(batch.num_rows for batch in rows)})
