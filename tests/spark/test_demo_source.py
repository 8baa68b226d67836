"""What the demo's oracle takes for granted about Spark's file source."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.demo.flights import SCHEMA, SPARK_SCHEMA, write_source

pytestmark = pytest.mark.spark


def test_each_micro_batch_is_one_weekly_file_in_the_order_of_time(spark: SparkSession, tmp_path: Path) -> None:
    flights = pd.DataFrame({name: [None] * 12 for name in SCHEMA.names})
    flights["ts"] = pd.Timestamp("2013-01-01", tz="UTC") + pd.to_timedelta(range(0, 84, 7), unit="D")
    write_source(flights, tmp_path / "source")
    seen: dict[int, list[int]] = {}

    def handle(rows: DataFrame, batch_id: int) -> None:
        seen[batch_id] = [row["ts"].timestamp() for row in rows.select("ts").collect()]

    stream = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "spark"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert seen == {batch: [time.timestamp()] for batch, time in enumerate(flights["ts"])}
