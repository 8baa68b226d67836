"""Every aggregation over values of every type, in random batches, beside Spark's answer over all rows at once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stateline.key_groups import KeyGroupRange
from stateline.spark.arrow_types import arrow_schema
from stateline.state import aggregate as agg
from stateline.state.table import StateTable
from stateline.testing.seeds import Dice

ALL = KeyGroupRange(0, 127)
EPOCH = dt.datetime(1970, 1, 1)
DIGITS = decimal.Context(prec=60)
SEED = random.SystemRandom().randrange(2**32)
"""Drawn anew for each run; it is part of every message, and pasted here it repeats a failure."""

INTEGERS = {T.ByteType(): 8, T.ShortType(): 16, T.IntegerType(): 32, T.LongType(): 52}
"""Types of integers, and in how many bits values lie: so few that no sum of them outgrows a long."""
FLOATS = (T.FloatType(), T.DoubleType())
DECIMALS = tuple(T.DecimalType(*kind) for kind in ((5, 2), (18, 0), (20, 4), (38, 10), (28, 28)))
TEXTS = ("", "a", "A", "aa", "é", "ß", "日本", "\U0001f600", " a", "a ", "\x00", "a\x00b", "z" * 40)
OTHERS = (
    T.BooleanType(),
    T.StringType(),
    T.BinaryType(),
    T.DateType(),
    T.TimestampType(),
    T.TimestampNTZType(),
    T.DayTimeIntervalType(),
)
TYPES = (*INTEGERS, *FLOATS, *DECIMALS, *OTHERS)


def draw(dice: Dice, kind: T.DataType) -> Any:
    """A value of a type, often null, small, the same as others, or at an end of what the type holds."""
    if dice.chance(0.15):
        return None
    small = dice.below(11) - 5
    if kind in INTEGERS:
        largest = 2 ** (INTEGERS[kind] - 1)
        return dice.pick([small, small, dice.below(2 * largest) - largest, largest - 1, -largest])
    if kind in FLOATS:
        value = dice.pick([float(small), dice.fraction() * 1e3, -dice.fraction(), math.nan, math.inf, -math.inf])
        return float(np.float32(value)) if kind == T.FloatType() else value
    if kind in DECIMALS:
        largest = 10 ** min(kind.precision, 30) - 1
        return decimal.Decimal(dice.pick([small, dice.below(largest), largest, -largest])).scaleb(-kind.scale, DIGITS)
    if kind == T.BooleanType():
        return dice.chance(0.5)
    if kind == T.DateType():
        return EPOCH.date() + dt.timedelta(days=dice.pick([small, dice.below(800_000) - 300_000]))
    if kind == T.StringType():
        return dice.pick(TEXTS)
    if kind == T.BinaryType():
        return dice.pick([b"", b"a", b"\xff", b"\x00\x01", b"aa"])
    distance = dt.timedelta(microseconds=dice.pick([small, dice.below(10**16) - 10**15]))
    if kind == T.DayTimeIntervalType():
        return distance
    return (EPOCH + distance).replace(tzinfo=dt.UTC if kind == T.TimestampType() else None)


class Longest(agg.Aggregator):
    """A user's own over text: the length of the longest one, and how many there are."""

    state_schema = pa.schema([("length", pa.int32()), ("rows", pa.int64())])
    output_type = pa.struct([("length", pa.int32()), ("rows", pa.int64())])

    def reduce(self, rows, group, num_groups):
        lengths = pa.table({"g": group, "l": pc.utf8_length(rows.column(0).cast(pa.string()))})
        made = lengths.group_by("g").aggregate([("l", "max"), ("l", "count")]).sort_by("g")
        return pa.table([made["l_max"], made["l_count"]], schema=self.state_schema)

    def merge(self, older, newer):
        rows = pc.add(pc.fill_null(older["rows"], 0), newer["rows"])
        return pa.table([pc.max_element_wise(older["length"], newer["length"]), rows], schema=self.state_schema)

    def result(self, state):
        return pc.make_struct(state["length"], state["rows"], field_names=["length", "rows"])


class Squares(agg.Aggregator):
    """A user's own over numbers: the sum of their squares."""

    state_schema = pa.schema([("sum", pa.float64())])
    output_type = pa.float64()

    def reduce(self, rows, group, num_groups):
        values = rows.column(0).cast(pa.float64())
        made = pa.table({"g": group, "s": pc.multiply(values, values)}).group_by("g").aggregate([("s", "sum")])
        return pa.table([made.sort_by("g")["s_sum"]], schema=self.state_schema)

    def merge(self, older, newer):
        both = pc.add(pc.fill_null(older["sum"], 0.0), pc.fill_null(newer["sum"], 0.0))
        neither = pc.and_(pc.is_null(older["sum"]), pc.is_null(newer["sum"]))
        return pa.table([pc.if_else(neither, None, both)], schema=self.state_schema)

    def result(self, state):
        return state["sum"]


def exactly(value: Any) -> Any:
    """A value so that equal ones are equal: NaN, decimals of other notation, time stamps of other zones."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, decimal.Decimal):
        return value.normalize(DIGITS)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


def about(value: Any) -> Any:
    """A float, of which the last digits depend on the order of the sums."""
    return pytest.approx(float(value), rel=1e-6, abs=1e-6, nan_ok=True) if value is not None else None


def as_bag(values: Any) -> Any:
    """Values in an order of their own."""
    return sorted(map(repr, map(exactly, values or [])))


@dataclasses.dataclass(frozen=True)
class Case:
    """One aggregation here and in Spark, and how their answers are made comparable."""

    ours: agg.Aggregation
    spark: Any
    comparable: Callable[[Any], Any] = exactly


def cases_for(kind: T.DataType) -> dict[str, Case]:
    """What can be kept of values of a type."""
    made = {
        "rows": Case(agg.count(), F.count("*")),
        "values": Case(agg.count("v"), F.count("v")),
        "low": Case(agg.min("v"), F.min("v")),
        "high": Case(agg.max("v"), F.max("v")),
        "opening": Case(agg.first("v", by="at"), F.min_by("v", "at")),
        "closing": Case(agg.last("v", by="at"), F.max_by("v", "at")),
        "kinds": Case(agg.count_distinct("v"), F.count_distinct("v")),
        "all": Case(agg.collect_list("v", 1000), F.collect_list("v"), as_bag),
        "some": Case(agg.collect_set("v", 1000), F.collect_set("v"), as_bag),
    }
    if kind == T.StringType():
        longest = F.struct(F.max(F.length("v")).alias("length"), F.count("v").alias("rows"))
        made["own"] = Case(
            Longest("v"), longest, lambda value: dict(value) if isinstance(value, dict) else value.asDict()
        )
    if kind in OTHERS:
        return made
    exact = kind not in FLOATS
    return made | {
        "total": Case(agg.sum("v"), F.sum("v"), exactly if exact else about),
        "average": Case(agg.mean("v"), F.avg("v"), exactly if kind in DECIMALS else about),
        "var": Case(agg.variance("v"), F.variance("v"), _loosely),
        "dev": Case(agg.stddev_pop("v"), F.stddev_pop("v"), _loosely),
        "own": Case(Squares("v"), F.sum(F.col("v").cast("double") * F.col("v").cast("double")), about),
    }


def _loosely(value: Any) -> Any:
    return pytest.approx(value, rel=1e-4, abs=1e-4, nan_ok=True) if value is not None else None


def answers(rows: pa.Table, cases: dict[str, Case], dice: Dice) -> tuple[pa.Schema, dict[Any, dict[str, Any]]]:
    """What a stream over the rows has put out last for each key, some batches of it being empty."""
    plan = agg.KeyedAggregation.bind(rows.schema, ["k"], {name: case.ours for name, case in cases.items()})
    table, newest, first = StateTable(plan.state_schema, ALL, len(ALL)), {}, 0
    while first < len(rows):
        length = dice.below(max(len(rows) // 2, 2))
        update = plan.update(table, rows.slice(first, length))
        table, first = table.with_changes(update.changes), first + length
        newest |= {exactly(row["k"]): row for row in update.output.to_pylist()}
    return plan.output_schema, newest


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.simpleString())
def test_the_answer_is_that_of_spark(spark, kind):
    dice = Dice(SEED, kind.simpleString())
    key = dice.pick(TYPES[:-1])
    keys = [draw(dice, key) for _ in range(6)]
    count = dice.pick([1, 20, 100])
    times = dice.shuffled(range(count))
    drawn = [(dice.pick(keys), draw(dice, kind), None if dice.chance(0.1) else time) for time in times]
    schema = T.StructType([T.StructField("k", key), T.StructField("v", kind), T.StructField("at", T.LongType())])
    cases = cases_for(kind)
    fields = arrow_schema(schema)
    rows = pa.table(
        [pa.array(column, field.type) for column, field in zip(zip(*drawn, strict=True), fields, strict=True)], fields
    )
    made, ours = answers(rows, cases, dice)
    frame = spark.createDataFrame(drawn, schema)
    query = frame.groupBy("k").agg(*(case.spark.alias(name) for name, case in cases.items()))
    theirs = {exactly(row["k"]): row for row in query.collect()}
    where = f"seed {SEED}, keys of {key.simpleString()}"
    assert ours.keys() == theirs.keys(), where
    for name, case in cases.items():
        if name not in ("all", "some", "own"):
            assert made.field(name).type == arrow_schema(query.schema).field(name).type, (where, name)
        for group, answer in theirs.items():
            mine, other = ours[group][name], answer[name]
            if case.comparable in (about, _loosely):
                assert mine == case.comparable(other), (where, name, group)
            else:
                assert case.comparable(mine) == case.comparable(other), (where, name, group)
