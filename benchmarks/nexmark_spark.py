"""The queries of Nexmark in Spark's own operators, each with the mode in which Spark runs it.

Where Spark cannot run a query, ``instead`` says what stands in its place: less work, never more.

Beside them :func:`floor`: what any operator in Python pays before it does anything, which is reading the columns that
it needs, the shuffle by key, and the way through Arrow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from examples.nexmark.queries import CLASSES, LATENESS, WINDOW, Streams


@dataclass(frozen=True)
class SparkQuery:
    """One query: how it is made, its output mode, and what it is where Spark cannot do what is asked."""

    build: Callable[[Streams], DataFrame]
    mode: str
    instead: str = ""


def q3(streams: Streams) -> DataFrame:
    auctions = streams.auctions.where("category = 10").select("seller", F.col("id").alias("auction"))
    persons = streams.persons.where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    return auctions.join(persons, F.expr("seller = id")).select("name", "city", "state", "auction")


def valid_bids(streams: Streams) -> DataFrame:
    """The join of q4 and q9, with a bound on event time that evicts no auction too early."""
    seconds = streams.longest_auction.total_seconds()
    auctions = streams.auctions.withWatermark("dateTime", LATENESS).alias("a")
    bids = streams.bids.withWatermark("dateTime", LATENESS).alias("b")
    bound = f"b.dateTime <= a.dateTime + make_dt_interval(0, 0, 0, {seconds})"
    return auctions.join(bids, F.expr(f"id = auction AND b.dateTime >= a.dateTime AND {bound}")).where(
        "b.dateTime <= expires"
    )


def q5(streams: Streams) -> DataFrame:
    bids = streams.bids.select("auction", "dateTime").withWatermark("dateTime", LATENESS)
    counts = bids.groupBy(F.window("dateTime", WINDOW, "2 seconds"), "auction").agg(F.count("*").alias("bids"))
    greatest = counts.groupBy("window").agg(F.max("bids").alias("greatest"))
    return counts.join(greatest, "window").where("bids = greatest").select("auction", "bids")


def q7(streams: Streams) -> DataFrame:
    bids = streams.bids.select("auction", "price", "bidder", "dateTime", "extra").withWatermark("dateTime", LATENESS)
    time = F.expr("dateTime + INTERVAL 0 SECONDS")  # A join takes one column with a watermark of each side: the window.
    bids = bids.withColumns({"window": F.window("dateTime", WINDOW), "dateTime": time})
    return bids.join(bids.groupBy("window").agg(F.max("price").alias("price")), ["window", "price"])


def q8(streams: Streams) -> DataFrame:
    window = F.window("dateTime", WINDOW)
    persons = streams.persons.withWatermark("dateTime", LATENESS).groupBy(window, "id", "name").count()
    auctions = streams.auctions.withWatermark("dateTime", LATENESS).groupBy(window, F.col("seller").alias("id")).count()
    return persons.drop("count").join(auctions.drop("count"), ["window", "id"]).select("id", "name", "window.start")


def q11(streams: Streams) -> DataFrame:
    bids = streams.bids.select("bidder", "dateTime").withWatermark("dateTime", LATENESS)
    return bids.groupBy("bidder", F.session_window("dateTime", WINDOW)).count()


def q12(streams: Streams) -> DataFrame:
    bids = streams.bids.select("bidder", F.current_timestamp().alias("now")).withWatermark("now", LATENESS)
    return bids.groupBy("bidder", F.window("now", WINDOW)).count()


def with_day(streams: Streams) -> DataFrame:
    return streams.bids.withColumn("day", F.date_format("dateTime", "yyyy-MM-dd"))


def by_class(name: str, figure: str) -> list[Column]:
    """A figure in total and for each class of prices."""
    parts = {which: f"{figure} FILTER (WHERE {test})" for which, test in CLASSES.items()}
    return [F.expr(part).alias(f"{which}_{name}") for which, part in {"total": figure, **parts}.items()]


def approximate_figures() -> list[Column]:
    bidders, auctions = "approx_count_distinct(bidder)", "approx_count_distinct(auction)"
    return [*by_class("bids", "count(*)"), *by_class("bidders", bidders), *by_class("auctions", auctions)]


def q15(streams: Streams) -> DataFrame:
    return with_day(streams).groupBy("day").agg(*approximate_figures())


def q16(streams: Streams) -> DataFrame:
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    return with_day(streams).groupBy("channel", "day").agg(minute, *approximate_figures())


def q17(streams: Streams) -> DataFrame:
    figures = [F.min("price"), F.max("price"), F.expr("sum(price) div count(*)"), F.sum("price")]
    return with_day(streams).groupBy("auction", "day").agg(*by_class("bids", "count(*)"), *figures)


def _ranked(streams: Streams, keys: list[str], by: str, *limit: int) -> DataFrame:
    others = F.struct(*[name for name in streams.bids.columns if name not in keys])
    best: Any = F.max_by(others, by, *limit)
    return streams.bids.groupBy(*keys).agg(best)


def q18(streams: Streams) -> DataFrame:
    return _ranked(streams, ["bidder", "auction"], "dateTime")


def q19(streams: Streams) -> DataFrame:
    return _ranked(streams, ["auction"], "price", 10)


def q20(streams: Streams) -> DataFrame:
    return streams.bids.alias("b").join(streams.auctions.where("category = 10").alias("a"), F.expr("auction = id"))


SPARK_QUERIES: Final[Mapping[str, SparkQuery]] = {
    "q3": SparkQuery(q3, "append"),
    "q4": SparkQuery(valid_bids, "append", "the join alone, without both aggregations"),
    "q5": SparkQuery(q5, "append"),
    "q7": SparkQuery(q7, "append", "joined on the window, without bids at its end"),
    "q8": SparkQuery(q8, "append"),
    "q9": SparkQuery(valid_bids, "append", "the join alone, without the best bid"),
    "q11": SparkQuery(q11, "append"),
    "q12": SparkQuery(q12, "update"),
    "q15": SparkQuery(q15, "update", "approximate numbers of distinct values"),
    "q16": SparkQuery(q16, "update", "approximate numbers of distinct values"),
    "q17": SparkQuery(q17, "update"),
    "q18": SparkQuery(q18, "update", "max_by: any of the last ones where times are equal"),
    "q19": SparkQuery(q19, "update", "max_by with k: an array without ranks, any order where prices are equal"),
    "q20": SparkQuery(q20, "append"),
}


def floor(name: str, streams: Streams) -> DataFrame:
    """The streams of a query with the columns that it reads, each row sent to the task of its key and let go there."""
    frames = [
        rows.repartition(streams.parallelism, key).mapInArrow(_let_go, "rows long")
        for rows, key in _READ[name](streams)
    ]
    return reduce(DataFrame.union, frames)


def _let_go(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def _with_classes(streams: Streams, *columns: str) -> DataFrame:
    classes = [F.expr(test).alias(name) for name, test in CLASSES.items()]
    return with_day(streams).select(*columns, "day", *classes)


_Reads = Callable[[Streams], list[tuple[DataFrame, str]]]
_READ: Final[Mapping[str, _Reads]] = {
    "q3": lambda streams: [
        (streams.auctions.where("category = 10").select("seller", "id"), "seller"),
        (streams.persons.where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state"), "id"),
    ],
    "q4": lambda streams: [
        (streams.auctions.select("id", "dateTime", "expires", "category"), "id"),
        (streams.bids.select("auction", "dateTime", "price"), "auction"),
    ],
    "q5": lambda streams: [(streams.bids.select("auction", "dateTime"), "auction")],
    "q7": lambda streams: [
        (streams.bids.select("price", "auction", "bidder", "dateTime", "extra"), "price"),
    ],
    "q8": lambda streams: [
        (streams.persons.select("id", "name", "dateTime"), "id"),
        (streams.auctions.select("seller", "dateTime"), "seller"),
    ],
    "q9": lambda streams: [
        (streams.auctions, "id"),
        (streams.bids.select("auction", "dateTime", "bidder", "price", "extra"), "auction"),
    ],
    "q11": lambda streams: [(streams.bids.select("bidder", "dateTime"), "bidder")],
    "q12": lambda streams: [(streams.bids.select("bidder", F.current_timestamp().alias("now")), "bidder")],
    "q15": lambda streams: [(_with_classes(streams, "bidder", "auction"), "day")],
    "q16": lambda streams: [
        (_with_classes(streams, "bidder", "auction", "channel"), "channel"),
    ],
    "q17": lambda streams: [(_with_classes(streams, "auction", "price"), "auction")],
    "q18": lambda streams: [(streams.bids, "bidder")],
    "q19": lambda streams: [(streams.bids, "auction")],
    "q20": lambda streams: [(streams.bids, "auction"), (streams.auctions.where("category = 10"), "id")],
}
