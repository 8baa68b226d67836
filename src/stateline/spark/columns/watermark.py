"""The watermark of a DataFrame: as Stateline is told, or as ``withWatermark`` has told Spark.

Facts: ``withWatermark`` leaves the delay in the metadata of the column, as ``spark.watermarkDelayMs``. Spark itself
drops nothing because of it: only its own stateful operators look at it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from stateline.errors import InvalidInputError
from stateline.options import parse_choice
from stateline.pipeline.event_time import LATE_DATA, Duration, WatermarkPlan
from stateline.spark.columns.names import StreamColumns

__all__ = ["stream_watermark"]

_DELAY: Final = "spark.watermarkDelayMs"


def stream_watermark(
    df: DataFrame,
    schema: pa.Schema,
    columns: StreamColumns,
    watermark: tuple[str, Duration] | None,
    late_data: str,
) -> WatermarkPlan | None:
    """The watermark of a stream; ``None`` without one.

    Args:
        df: The stream.
        schema: Its Arrow schema.
        columns: Its columns by name.
        watermark: What ``KeyedStream`` was told.
        late_data: ``drop`` or ``keep``.

    Raises:
        InvalidInputError: As :meth:`WatermarkPlan.of`; two watermarks.
    """
    parse_choice(late_data, LATE_DATA, "late_data")
    plans = [
        WatermarkPlan.of(schema, columns.own(field.name), timedelta(milliseconds=field.metadata[_DELAY]), late_data)
        for field in df.schema.fields
        if _DELAY in (field.metadata or {})
    ]
    if watermark is not None:
        if not isinstance(watermark, tuple | list) or len(watermark) != 2:
            raise InvalidInputError(
                f"expected a column and a delay, got {watermark!r}",
                subject="watermark",
                hint='Give a pair, such as ("at", "10 minutes")',
            )
        plans.append(WatermarkPlan.of(schema, columns.own(watermark[0]), watermark[1], late_data))
    distinct = sorted(set(plans), key=lambda plan: plan.column)
    if len(distinct) > 1:
        raise InvalidInputError(
            f"expected one for the stream, got two: {[(plan.column, f'{plan.delay_us} us') for plan in distinct]}",
            subject="watermark",
            hint="A stream has one watermark: say it once, to KeyedStream or with withWatermark",
        )
    return distinct[0] if distinct else None
