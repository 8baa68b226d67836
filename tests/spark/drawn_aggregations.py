"""Random aggregations of a random stream, each beside Spark's own expression for it."""

from __future__ import annotations

import collections
import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import stateline.spark as st
from stateline.state.aggregate import KeyedAggregation
from stateline.state.aggregate.api import SqlWords
from tests.spark.drawn_aggregators import drawn_aggregator
from tests.spark.drawn_columns import KEYS, NULLS, VALUES, Kind, maybe

BASE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ORDERED = tuple(name for name, kind in VALUES.items() if kind.is_comparable)
DELAYS = {"0 seconds": 0, "7 minutes": 7, "10 minutes": 10, "2 hours": 120}
"""Delays of a watermark, in minutes."""
RSD = 0.05
ALL = 10_000
"""More than any list has."""


@dataclass(frozen=True)
class Asked:
    """One aggregation.

    Attributes:
        ours: As users of Stateline say it.
        theirs: As Spark's SQL says it.
        form: How answers are compared: ``exact``, ``near``, ``about`` or ``set``.
        scale: For ``near``, the greatest magnitude of what is added up.
    """

    ours: Any
    theirs: str
    form: str = "exact"
    scale: float = 0.0


@dataclass(frozen=True)
class Case:
    """One pipeline: its rows by batch, what is asked of them, and where it is stopped and started again."""

    seed: str
    keys: list[str]
    batches: list[pa.Table]
    asked: dict[str, Asked]
    mode: str
    window: tuple[str, str | None, str] | None
    delay: str | None
    starts: list[tuple[int, int]]
    max_parallelism: int
    zone: str
    ansi: bool
    late_data: str
    spread: int
    combined: bool
    schema: str = field(repr=False, default="")

    @property
    def closes(self) -> bool:
        """Whether windows close."""
        return self.window is not None and self.delay is not None and self.mode != "complete"

    def __str__(self) -> str:
        asked = "\n".join(f"  {name}: {one.theirs}" for name, one in self.asked.items())
        lengths = [batch.num_rows for batch in self.batches]
        return (
            f"seed {self.seed}: keys {self.keys}, mode {self.mode}, window {self.window}, delay {self.delay}, "
            f"late {self.late_data}, rows {lengths}, (batches, parallelism) {self.starts} of {self.max_parallelism}, "
            f"zone {self.zone}, ansi {self.ansi}, spread {self.spread}, combined {self.combined}\n{asked}"
        )


def drawn_case(seed: str, *, closing: bool) -> Case:
    """A case that depends on the arguments alone.

    Args:
        seed: Anything.
        closing: Whether windows close. Without it all is open: with or without windows, with or without a watermark.
    """
    dice = random.Random(seed)
    keys = dice.sample(KEYS, dice.choice((1, 1, 2, 3)))
    window = _window(dice) if closing or dice.random() < 0.4 else None
    delay = dice.choice(tuple(DELAYS)) if closing or dice.random() < 0.4 else None
    open_modes = ("complete",) if window is not None and delay is not None else ("update", "complete")
    mode = dice.choice(("update", "append", "append") if closing else open_modes)
    batches = list(_batches(dice, keys, delay))
    max_parallelism = dice.choice((1, 3, 7, 128))
    fields = {**{f"key_{name}": name for name in keys}, **{name: name for name in VALUES}}
    spread = dice.choice((0, 0, 3))
    asked = dict(_asked(dice, keys, in_order=not spread))
    combined = dice.random() < 0.5
    if combined:
        asked = {name: one for name, one in asked.items() if _is_combined(batches[0].schema, one)}
    return Case(
        seed=seed,
        keys=[f"key_{name}" for name in keys],
        batches=batches,
        asked=asked,
        mode=mode,
        window=window,
        delay=delay,
        starts=_starts(dice, len(batches), max_parallelism),
        max_parallelism=max_parallelism,
        zone=dice.choice(("UTC", "America/New_York", "Asia/Kathmandu")),
        ansi=dice.random() < 0.7,
        late_data="keep" if mode != "append" and dice.random() < 0.3 else "drop",
        spread=spread,
        combined=combined,
        schema=", ".join(f"{name} {VALUES[kind].ddl}" for name, kind in fields.items()) + ", at timestamp, row bigint",
    )


def _is_combined(schema: pa.Schema, one: Asked) -> bool:
    """Whether Spark may compute it before rows come to Python."""
    bound = KeyedAggregation.bind(schema, [schema.names[0]], {"asked": one.ours}, tables=True)
    return bool(bound.sql(SqlWords(raising=repr)))


def _window(dice: random.Random) -> tuple[str, str | None, str]:
    size, slide, start = dice.choice(
        (
            ("10 minutes", None, "0 seconds"),
            ("10 minutes", None, "3 minutes"),
            ("1 hour", "20 minutes", "0 seconds"),
            ("10 minutes", "4 minutes", "-90 seconds"),
            ("7 seconds", "3 seconds", "1 second"),
            ("1 day", None, "5 hours"),
        )
    )
    return size, slide, start


def _starts(dice: random.Random, batches: int, max_parallelism: int) -> list[tuple[int, int]]:
    """How many batches each start takes, and its parallelism."""
    cuts = sorted(dice.sample(range(1, batches), min(dice.choice((0, 1, 1, 2)), batches - 1)))
    ends = [*cuts, batches]
    lengths = [end - first for first, end in zip([0, *cuts], ends, strict=True)]
    return [(length, dice.randint(1, min(5, max_parallelism))) for length in lengths]


def _batches(dice: random.Random, keys: list[str], delay: str | None) -> Iterator[pa.Table]:
    """Batches of rows: usual ones, ones of a single key, empty ones. Times go on, and some rows come late."""
    borders: list[dt.datetime] = []
    pools = [[maybe(VALUES[name].draw, dice) for _ in range(dice.choice((2, 3, 5, 5, 200)))] + [None] for name in keys]
    base = BASE if delay is not None or dice.random() < 0.7 else BASE.replace(year=dice.choice((2, 1900, 1969)))
    row, minute = 0, 0
    for batches_left in reversed(range(dice.randint(2, 4))):
        # Spark hands over 1,024 rows at a time.
        count = dice.choice((0, 1, 12, 25, 60, 60, 60, 1_500)) if row or batches_left else 25
        chosen = [[dice.choice(pool)] for pool in pools] if dice.random() < 0.2 else pools
        columns: list[pa.Array] = [
            pa.array([dice.choice(pool) for _ in range(count)], VALUES[name].arrow)
            for name, pool in zip(keys, chosen, strict=True)
        ]
        rarely = dice.random() < 0.2
        for kind in VALUES.values():
            nulls = 1.0 if rarely and dice.random() < 0.5 else NULLS
            values = [None if dice.random() < nulls else kind.draw(dice) for _ in range(count)]
            columns.append(pa.array(values, kind.arrow))
        times = [_time(dice, base, minute) for _ in range(count)]
        for place in range(count) if borders else ():
            if dice.random() < 0.2:  # In the last window that a watermark on its border has closed.
                times[place] = dice.choice(borders) - dt.timedelta(seconds=dice.randint(1, 600))
        if count and dice.random() < 0.7:
            newest = base + dt.timedelta(minutes=(minute + 22) // 10 * 10)
            times[-1] = newest + dt.timedelta(minutes=DELAYS.get(delay or "", 0))
            borders.append(newest)
        columns += [pa.array(times, pa.timestamp("us", "UTC")), pa.array(range(row, row + count), pa.int64())]
        yield pa.table(columns, names=[*(f"key_{name}" for name in keys), *VALUES, "at", "row"])
        row += count
        minute += dice.choice((0, 5, 11, 40, 200))


def _time(dice: random.Random, base: dt.datetime, minute: int) -> dt.datetime | None:
    if dice.random() < 0.05:
        return None
    late = dice.choice((0, 0, 0, 10, 30, 500))
    second = dice.choice((0.0, 0.0, 59.999999, dice.random() * 60))
    return base + dt.timedelta(minutes=max(minute - late, 0) + dice.randint(0, 12), seconds=second)


def _asked(dice: random.Random, keys: list[str], *, in_order: bool) -> Iterator[tuple[str, Asked]]:
    """Every aggregation once, each of a column of its own choice; and some that users write."""
    columns = {**VALUES, **{f"key_{name}": VALUES[name] for name in keys}, "at": VALUES["moment"]}
    choices = collections.defaultdict(list)
    for column, kind in columns.items():
        for name, one in _choices(dice, column, kind, in_order=in_order):
            choices[name].append(one)
    yield "rows", Asked(st.count(), "count(*)")
    for name, of_columns in choices.items():
        yield name, dice.choice(of_columns)
    for number in range(2):
        yield f"own_{number}", Asked(*drawn_aggregator(dice))


def _choices(dice: random.Random, column: str, kind: Kind, *, in_order: bool) -> Iterator[tuple[str, Asked]]:
    """All that may be asked of a column."""
    arrived = (
        f"transform(array_sort(collect_list(struct(row, {column})) FILTER (WHERE {column} IS NOT NULL), "
        f"(a, b) -> cast(a.row - b.row as int)), e -> e.{column})"
    )
    limit = dice.choice((1, 3, ALL))
    yield "count", Asked(st.count(column), f"count({column})")
    yield "whole_list", Asked(st.collect_list(column, ALL), f"collect_list({column})", "set")
    if in_order:
        yield "list", Asked(st.collect_list(column, limit), f"slice({arrived}, 1, {limit})")
        newest = f"reverse(slice(reverse({arrived}), 1, {limit}))"
        yield "newest", Asked(st.collect_list(column, limit, newest=True), newest)
    yield from _at_extremes(dice, column, is_comparable=kind.is_comparable)
    if kind.is_comparable:
        yield "min", Asked(st.min(column), f"min({column})")
        yield "max", Asked(st.max(column), f"max({column})")
        yield "whole_set", Asked(st.collect_set(column, ALL), f"collect_set({column})", "set")
        if in_order:
            yield "set", Asked(st.collect_set(column, limit), f"slice(array_distinct({arrived}), 1, {limit})")
        yield "distinct", Asked(st.count_distinct(column), f"count(DISTINCT {column})")
        about = f"approx_count_distinct({column}, {RSD})"
        yield "about", Asked(st.approx_count_distinct(column, RSD), about, "about")
    if kind.scale is not None:
        yield from _numeric(column, kind.scale, has_sum=kind.has_sum)


def _at_extremes(dice: random.Random, column: str, *, is_comparable: bool) -> Iterator[tuple[str, Asked]]:
    # Where values have no order, equal times would leave the answer open.
    by = dice.choice((*ORDERED, "at")) if is_comparable else "row"
    least = f"min_by({column}, struct({by}, isnull({column}), {column}))"
    most = f"max_by({column}, struct({by}, {column}))"
    if by == "row":
        least, most = f"min_by({column}, row)", f"max_by({column}, row)"
    there = f"FILTER (WHERE {by} IS NOT NULL)"
    yield "first", Asked(st.first(column, by=by), f"{least} {there}")
    yield "last", Asked(st.last(column, by=by), f"{most} {there}")
    yield "min_by", Asked(st.min_by(column, by), f"{least} {there}")
    yield "max_by", Asked(st.max_by(column, by), f"{most} {there}")


def _numeric(column: str, scale: float, *, has_sum: bool) -> Iterator[tuple[str, Asked]]:
    if has_sum:
        yield "sum", Asked(st.sum(column), f"sum({column})", "near", scale)
    yield "mean", Asked(st.mean(column), f"avg({column})", "near", scale)
    yield "variance", Asked(st.variance(column), f"variance({column})", "near", scale**2)
    yield "var_pop", Asked(st.var_pop(column), f"var_pop({column})", "near", scale**2)
    yield "stddev", Asked(st.stddev(column), f"stddev({column})", "near", scale)
    yield "stddev_pop", Asked(st.stddev_pop(column), f"stddev_pop({column})", "near", scale)
