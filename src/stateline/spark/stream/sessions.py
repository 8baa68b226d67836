"""Aggregations over sessions, from what users say of a keyed stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stateline.pipeline.event_time import Duration, SessionPlan
from stateline.pipeline.operators.sessions import SessionProgram
from stateline.spark.stream.keyed_rows import KeyedRows
from stateline.state.aggregate import Aggregation

__all__ = ["sessions_of"]


def sessions_of(
    rows: KeyedRows, column: str, gap: Duration
) -> Callable[[str, Mapping[str, Aggregation]], SessionProgram]:
    """What makes the program of an output mode and aggregations; see :meth:`stateline.spark.KeyedStream.sessions`."""
    own = rows.columns.own(column)
    watermark = rows.watermark_of(own, "sessions")
    sessions = SessionPlan.of(rows.schema, own, gap)

    def program(output_mode: str, aggregations: Mapping[str, Aggregation]) -> SessionProgram:
        bound = SessionProgram.bind(
            rows.read_by(aggregations),
            rows.keys,
            sessions,
            aggregations,
            output_mode=output_mode,
            watermark=watermark,
            updates=rows.updates,
        )
        rows.check_compared(aggregations)
        return bound

    return program
