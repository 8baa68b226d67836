"""Runs one query over the files of its events until they end, as any driver would."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from examples.nexmark.events import SCHEMAS, EventSettings, Kind
from examples.nexmark.queries import BEFORE, FOLDERS, QUERIES, Streams
from examples.nexmark.source import side_input
from stateline.spark import PipelineStage, finish_files

__all__ = ["Batch", "batches_of", "open_streams", "run_query"]

ALL_FILES: Mapping[str, bool] = {"availableNow": True}


@dataclass(frozen=True)
class Batch:
    """What a micro-batch took.

    Attributes:
        rows: Rows of all streams that the query reads.
        seconds: By Spark's measure of a trigger, with everything around it.
    """

    rows: int
    seconds: float


def open_streams(
    spark: SparkSession,
    source: Path,
    checkpoint: Path,
    parallelism: int,
    longest_auction: dt.timedelta,
    file_format: str = "parquet",
) -> Streams:
    """All streams of a source: a file of each in each micro-batch."""

    def read(kind: Kind | Literal["side"]) -> DataFrame:
        schema = side_input().schema if kind == "side" else SCHEMAS[kind]
        reader = spark.readStream.schema(from_arrow_schema(schema)).option("maxFilesPerTrigger", 1)
        return reader.format(file_format).load(str(source / kind))

    return Streams(
        persons=read("persons"),
        auctions=read("auctions"),
        bids=read("bids"),
        side=read("side"),
        checkpoint=str(checkpoint),
        side_checkpoint=f"{checkpoint}-side",
        parallelism=parallelism,
        longest_auction=longest_auction,
    )


def run_query(
    spark: SparkSession, name: str, source: Path, settings: EventSettings, place: Path, parallelism: int = 2
) -> list[Batch]:
    """Runs a query over all events; its output is in ``place / "output"`` then, in files that appear exactly once.

    Args:
        spark: The session.
        name: The query.
        source: The events.
        settings: What they were made with.
        place: A folder for state, Spark's checkpoint and output.
        parallelism: Subtasks.
    """
    streams = open_streams(spark, source, place / "state", parallelism, settings.longest_auction)
    if name in BEFORE:
        BEFORE[name](streams).state_only().start(trigger=dict(ALL_FILES)).awaitTermination()
    result = QUERIES[name](streams)
    start = _start_files if isinstance(result, DataFrame) else _start_operators
    output = str(place / "output")
    query = start(result, output, FOLDERS.get(name, ()), str(place / "spark"))
    query.awaitTermination()
    if isinstance(result, DataFrame):
        finish_files(output)  # Spark does not tell a sink that its stream has ended.
    return batches_of(query)


def _start_files(rows: DataFrame, output: str, folders: tuple[str, ...], spark_checkpoint: str) -> StreamingQuery:
    writer = rows.writeStream.format("stateline_files").option("partition_by", ",".join(folders))
    return writer.option("checkpointLocation", spark_checkpoint).trigger(**ALL_FILES).start(output)


def _start_operators(
    stage: PipelineStage, output: str, folders: tuple[str, ...], spark_checkpoint: str
) -> StreamingQuery:
    return stage.write_files(output, partition_by=folders).start(spark_checkpoint, trigger=dict(ALL_FILES))


def batches_of(query: StreamingQuery) -> list[Batch]:
    """The micro-batches of a query that had rows."""
    told = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return [Batch(one["numInputRows"], one["durationMs"]["triggerExecution"] / 1000) for one in told]
