"""A drawn case through Stateline and through Spark, and both answers beside each other, batch by batch.

Where no window closes, Spark's answer to the rows up to each batch is one query over all of them; where windows close,
it is that of Spark's own stream, which is stopped and started again where ours is. Late rows that are kept are nothing
that Spark knows: there each batch of them begins its window anew, in one query again.
"""

from __future__ import annotations

import collections
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.drawn_aggregations import RSD, Asked, Case
from tests.spark.event_files import FILE_TIME, EventFiles

Rows = dict[int, list[dict[str, Any]]]


class DrawnFiles(EventFiles):
    """The rows of a case as files, one for each batch, and both answers."""

    def __init__(self, folder: Path, spark: SparkSession, case: Case) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, spark)
        self.case = case

    def add_next(self) -> None:
        path = self.folder / "source" / f"{self.batches:03}.parquet"
        pq.write_table(self.case.batches[self.batches], path)
        os.utime(path, (FILE_TIME + self.batches, FILE_TIME + self.batches))
        self.batches += 1

    def events(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.case.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "source"))

    def answers(self) -> tuple[Rows, Rows]:
        """Ours and Spark's."""
        theirs: Rows = {}
        for batches, parallelism in self.case.starts:
            for _ in range(batches):
                self.add_next()
            ours = self.run(self._stage(parallelism))
            if self._streams:
                theirs |= self.spark_answer(self._asked_of(self.events()), self.case.mode)
        return ours, theirs if self._streams else self._answers_at_once()

    @property
    def _streams(self) -> bool:
        return self.case.closes and self.case.late_data == "drop"

    def types(self) -> tuple[dict[str, str], dict[str, str]]:
        """The types of both outputs, as Spark names them."""
        ours = self.spark.read.parquet(str(self.folder / "out")).drop("checkpoint_id")
        theirs = self._asked_of(self.events())
        expected = dict(theirs.dtypes)
        if self.case.window is not None:
            del expected["window"]
            expected |= {"window_start": "timestamp", "window_end": "timestamp"}
        return dict(ours.dtypes), expected

    def _stage(self, parallelism: int) -> Any:
        case = self.case
        events = self.events()
        stream: Any = self.keyed(
            events.repartition(case.spread) if case.spread else events,
            key=case.keys,
            parallelism=parallelism,
            max_parallelism=case.max_parallelism,
            watermark=None if case.delay is None else ("at", case.delay),
            late_data=case.late_data,
            options={"combine": "always" if case.combined else "never"},
        )
        if case.window is not None:
            size, slide, start = case.window
            stream = stream.window("at", size, slide, start=start)
        return stream.aggregate(case.mode, **{name: one.ours for name, one in case.asked.items()})

    def _grouping(self) -> list[Column | str]:
        return [*self.case.keys, *([] if self.case.window is None else [self._window()])]

    def _window(self) -> Column:
        size, slide, start = self.case.window or ("", None, "")
        return F.window("at", size, slide or size, start)

    def _asked_of(self, rows: DataFrame) -> DataFrame:
        if self.case.delay is not None:
            rows = rows.withWatermark("at", self.case.delay)
        # A stream of Spark's cannot count distinct values; a batch of its can.
        form = _streamed if self._streams else str
        asked = [F.expr(form(one.theirs)).alias(name) for name, one in self.case.asked.items()]
        return rows.groupBy(*self._grouping()).agg(*asked)

    def _answers_at_once(self) -> Rows:
        case = self.case
        rows = self.spark.read.schema(case.schema).parquet(str(self.folder / "source"))
        ends = list(itertools.accumulate(batch.num_rows for batch in case.batches))
        numbers, closed = self._numbers(), [F.lit(None).cast("timestamp")] * len(ends)
        if case.closes:
            closed = [F.timestamp_micros(F.lit(at)) for at in self._closed_before()]
        # The first batch that a row is in; it counts for that one and all later ones.
        first = F.expr(f"aggregate(array({', '.join(f'{end}L' for end in ends)}), 0, (n, end) -> n + int(row >= end))")
        rows = rows.withColumn("first", first).withColumn("batch", F.explode(F.sequence("first", F.lit(len(ends) - 1))))
        rows = rows.withColumn("closed", F.get(F.array(*closed), "first"))
        anew = F.lit(-1)
        if case.window is not None:
            rows = rows.withColumn("window", self._window())
            anew = F.when(F.col("window.end") <= F.col("closed"), F.col("first")).otherwise(anew)
        asked = [F.expr(one.theirs).alias(name) for name, one in case.asked.items()]
        touched = F.max(F.col("first") == F.col("batch")).alias("touched")
        grouping = [*case.keys, *(["window"] if case.window is not None else [])]
        made = rows.withColumn("anew", anew).groupBy("batch", "anew", *grouping).agg(touched, *asked).drop("anew")
        found: Rows = collections.defaultdict(list)
        for row in made.toArrow().to_pylist():
            window, is_touched, batch = row.pop("window", None), row.pop("touched"), row.pop("batch")
            if window is not None:
                row |= {"window_start": window["start"], "window_end": window["end"]}
            if is_touched or case.mode == "complete":
                found[numbers[batch]].append(row)
        return found

    def _marks(self) -> Iterator[tuple[int | None, int | None, bool]]:
        """For each batch the watermark it works with, the one after it, and whether it is the last one of a start."""
        delay = pa.scalar(self.spark.sql(f"SELECT interval {self.case.delay or '0 seconds'}").collect()[0][0]).value
        current = None
        lasts = set(itertools.accumulate(batches for batches, _ in self.case.starts))
        for number, batch in enumerate(self.case.batches, start=1):
            newest, before = pc.max(batch["at"]).value, current
            if newest is not None:
                reached = newest // 1000 * 1000 - delay
                current = reached if current is None else max(current, reached)
            yield before, current, number in lasts

    def _numbers(self) -> list[int]:
        """The number of each batch with rows: a start that ends with a new watermark has one batch more."""
        numbers, number = [], 0
        for before, after, is_last in self._marks():
            numbers.append(number)
            number += 2 if self.case.closes and is_last and before != after else 1
        return numbers

    def _closed_before(self) -> list[int | None]:
        """What the batch before each batch has closed: everything up to there."""
        found, closed = [], None
        for before, after, is_last in self._marks():
            found.append(closed)
            closed = after if is_last else before
        return found


def _streamed(expression: str) -> str:
    distinct = expression.removeprefix("count(DISTINCT ")
    return expression if distinct == expression else f"size(array_distinct(collect_list({distinct[:-1]})))"


def check(case: Case, spark: SparkSession, folder: Path) -> None:
    """Raises an :class:`AssertionError` that says in what both answers differ."""
    files = DrawnFiles(folder, spark, case)
    ours, theirs = files.answers()
    found = list(differences(case, ours, theirs))
    if any(ours.values()):
        types, expected = files.types()
        found += [
            f"type of {name}: {types.get(name)}, in Spark {expected.get(name)}"
            for name in types.keys() | expected.keys()
            if types.get(name) != expected.get(name) and not (name == "distinct" and case.closes)  # An int there
        ]
    if found:
        raise AssertionError("\n".join(found[:20]))


def differences(case: Case, ours: Rows, theirs: Rows) -> list[str]:
    names = [*case.keys, *(["window_start", "window_end"] if case.window is not None else [])]
    found = []
    for batch in sorted(ours.keys() | theirs.keys()):
        mine, other = _by_key(ours.get(batch, []), names), _by_key(theirs.get(batch, []), names)
        if len(mine) != len(ours.get(batch, [])):
            found.append(f"batch {batch}: a key came twice")
        found += [f"batch {batch}: {key} only here" for key in mine.keys() - other.keys()]
        found += [f"batch {batch}: {key} only in Spark" for key in other.keys() - mine.keys()]
        found += [
            f"batch {batch}, {key}: {name} = {one.theirs} is {mine[key][name]!r}, in Spark {other[key][name]!r}"
            for key in mine.keys() & other.keys()
            for name, one in case.asked.items()
            if not same(mine[key][name], other[key][name], one)
        ]
    return found


def _by_key(rows: list[dict[str, Any]], names: list[str]) -> dict[str, dict[str, Any]]:
    return {repr([plain(row[name]) for name in names]): row for row in rows}


def plain(value: Any) -> Any:
    """A value in a form in which equal ones are equal: one NaN, one zero, maps in order."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def same(mine: Any, other: Any, asked: Asked) -> bool:
    """Whether two answers are the same, as far as they must be."""
    if asked.form == "about":
        return abs(mine - other) <= max(1, 8 * RSD * other)
    if asked.form == "set":
        return sorted(map(repr, plain(mine))) == sorted(map(repr, plain(other)))
    if asked.form == "near" and isinstance(mine, float) and isinstance(other, float) and math.isfinite(mine):
        return math.isclose(mine, other, rel_tol=1e-9, abs_tol=1e-12 * asked.scale)
    return bool(plain(mine) == plain(other))
