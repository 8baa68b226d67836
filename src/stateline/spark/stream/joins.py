"""The two sides of a join, from what users say of two keyed streams."""

from __future__ import annotations

from dataclasses import replace

from stateline.pipeline.event_time import Duration, WatermarkPlan
from stateline.pipeline.operators.join import Interval, JoinProgram, JoinSide
from stateline.spark.stream.keyed_rows import KeyedRows
from stateline.state.time_to_live import ttl_milliseconds

__all__ = ["join_of"]


def join_of(
    left: KeyedRows,
    right: KeyedRows,
    how: str,
    within: tuple[Duration, Duration] | None,
    suffix: str,
    ttl: Duration | None,
) -> JoinProgram:
    """The program of a join; see :meth:`~stateline.spark.stream.keyed_stream.KeyedStream.join`."""
    interval = None if within is None else Interval.of(within)
    return JoinProgram.bind(
        _side(left, times_in_key=interval is None),
        _side(right, times_in_key=interval is None),
        how,
        interval=interval,
        suffix=suffix,
        ttl_ms=None if ttl is None else ttl_milliseconds(ttl, "join"),
    )


def _side(rows: KeyedRows, *, times_in_key: bool) -> JoinSide:
    """One side, which is given all columns: those of the key as the user spells them, the others by their own names."""
    spelled = dict(zip(rows.key_columns, rows.keys, strict=True))
    watermark = rows.watermark
    if watermark is not None:
        column = _event_time(rows, watermark) if times_in_key else watermark.column
        watermark = replace(watermark, column=spelled.get(column, column))
    return JoinSide(schema=rows.keyed_schema, keys=list(rows.keys), watermark=watermark, updates=rows.updates)


def _event_time(rows: KeyedRows, watermark: WatermarkPlan) -> str:
    """The event time that is one of the key columns, where the rows have several; else the first."""
    return next((column for column in rows.event_times if column in rows.key_columns), watermark.column)
