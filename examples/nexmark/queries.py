"""The queries of Nexmark: each a function from streams of people, auctions and bids to what is to be written.

A query without state is a plain DataFrame of Spark's, which ``stateline_files`` writes exactly once. The others
are operators of Stateline, whose state and output are in one checkpoint. What can be computed for each row by itself is
said in front of an operator, in Spark's words. q6 is not here: see ``docs/evidence/nexmark.md``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stateline.spark import KeyedStream, PipelineStage, count, count_distinct, max, min, sum
from stateline.state.aggregate.api import Function

__all__ = ["BEFORE", "CLASSES", "FOLDERS", "LATENESS", "QUERIES", "WINDOW", "Query", "Streams"]

LATENESS: Final = "4 seconds"
"""Rows may come this much later than the newest one."""
WINDOW: Final = "10 seconds"
CLASSES: Final[Mapping[str, str]] = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
"""Of prices, each about a third of all bids."""


@dataclass(frozen=True)
class Streams:
    """What a query reads, and where it keeps its state.

    Attributes:
        persons: Everybody who sells, as a stream; so are ``auctions`` and ``bids``.
        side: The rows of q13's table.
        checkpoint: Root of the state.
        side_checkpoint: Root of that table, which another pipeline keeps.
        parallelism: Subtasks.
        longest_auction: No auction is open for longer.
    """

    persons: DataFrame
    auctions: DataFrame
    bids: DataFrame
    side: DataFrame
    checkpoint: str
    side_checkpoint: str
    parallelism: int
    longest_auction: dt.timedelta

    def keyed(self, df: DataFrame, key: str | list[str], time: str | None = "dateTime") -> KeyedStream:
        """A stream by a key, with the watermark of the suite on its time."""
        watermark = None if time is None else (time, LATENESS)
        return KeyedStream(df, key, self.checkpoint, parallelism=self.parallelism, watermark=watermark)


Query = Callable[[Streams], DataFrame | PipelineStage]


def q0(streams: Streams) -> DataFrame:
    """Every bid as it is: what reading and writing cost."""
    return streams.bids.select("auction", "bidder", "price", "dateTime", "extra")


def q1(streams: Streams) -> DataFrame:
    """Prices in another currency."""
    return q0(streams).withColumn("price", _converted())


def q2(streams: Streams) -> DataFrame:
    """Bids for some auctions."""
    return streams.bids.where("auction % 123 = 0").select("auction", "price")


def q3(streams: Streams) -> PipelineStage:
    """Who sells in category 10 in three states. Nobody says when a seller ends, so both sides are kept for good."""
    auctions = streams.auctions.where("category = 10").select("seller", F.col("id").alias("auction"))
    persons = streams.persons.where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    return streams.keyed(auctions, "seller", None).join(streams.keyed(persons, "id", None))


def q4(streams: Streams) -> PipelineStage:
    """The average of the highest bids of each category: a join, and two aggregations, which update their results."""
    highest = _valid_bids(streams, ["category"], ["price"]).key_by(["id", "category"]).aggregate(final=max("price"))
    averages = highest.key_by("category").aggregate(total=sum("final"), auctions=count())
    return averages.select("category", "checkpoint_id", average=pc.divide(pc.field("total"), pc.field("auctions")))


def q5(streams: Streams) -> PipelineStage:
    """The auctions with most bids in sliding windows, and all of them where several have most."""
    bids = streams.bids.select("auction", "dateTime")
    counts = streams.keyed(bids, "auction").window("dateTime", WINDOW, "2 seconds").aggregate("append", bids=count())
    return counts.key_by("window_end").top(1, "bids", ties="all", columns=["auction"])


def q7(streams: Streams) -> PipelineStage:
    """The highest bids of each window, ends included: the greatest price of a window, joined with the bids.

    All bids have one key. The windows are spread over the subtasks all the same, for their start is part of the key.
    """
    bids = streams.bids.select(F.lit(0).alias("all"), "price", "auction", "bidder", "dateTime", "extra")
    highest = streams.keyed(bids, "all").window("dateTime", WINDOW).aggregate("append", price=max("price"))
    return highest.key_by("price").join(streams.keyed(bids, "price"), within=("-10 seconds", "0 seconds"))


def q8(streams: Streams) -> PipelineStage:
    """People who sold something in the window in which they came."""
    start = F.window("dateTime", WINDOW).start.alias("window_start")
    persons = streams.persons.select("id", "name", start, "dateTime")
    auctions = streams.auctions.select("seller", start, "dateTime")
    newcomers = streams.keyed(persons, ["id", "window_start"])
    sellers = streams.keyed(auctions, ["seller", "window_start"])
    return newcomers.join(sellers, "semi", within=("-10 seconds", "10 seconds"))


def q9(streams: Streams) -> PipelineStage:
    """The winning bid of each auction."""
    auctions = [name for name in streams.auctions.columns if name not in ("id", "dateTime", "expires")]
    bids = ["bidder", "price", "extra"]
    return (
        _valid_bids(streams, auctions, bids).key_by("id").top(1, ["price", "dateTime_right"], ascending=[False, True])
    )


def q10(streams: Streams) -> DataFrame:
    """Every bid, in folders by day and minute."""
    day, minute = F.date_format("dateTime", "yyyy-MM-dd"), F.date_format("dateTime", "HH:mm")
    return q0(streams).withColumns({"day": day, "minute": minute})


def q11(streams: Streams) -> PipelineStage:
    """Bids of each session of a bidder."""
    bids = streams.bids.select("bidder", "dateTime")
    return streams.keyed(bids, "bidder").sessions("dateTime", WINDOW).aggregate("append", bids=count())


def q12(streams: Streams) -> PipelineStage:
    """Bids of each bidder in windows of the clock on the wall, which another run has at other times."""
    bids = streams.bids.select("bidder", F.current_timestamp().alias("now"))
    return streams.keyed(bids, "bidder", "now").window("now", WINDOW).aggregate(bids=count())


def q13(streams: Streams) -> PipelineStage:
    """Every bid with a value from a table that another pipeline keeps: :func:`side_table`, as a batch finds it."""
    bids = streams.bids.select(F.expr("auction % 10000").alias("key"), "auction", "bidder", "price", "dateTime")
    return streams.keyed(bids, "key", None).lookup(streams.side_checkpoint, columns=["value"], how="inner")


def q14(streams: Streams) -> DataFrame:
    """Bids of a range of prices, by the time of the day, and how often ``extra`` has a c."""
    hour = F.hour("dateTime")
    time_of_day = F.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime")
    letters = F.length("extra") - F.length(F.replace("extra", F.lit("c"), F.lit("")))
    bids = streams.bids.where("0.908 * price > 1000000 AND 0.908 * price < 50000000")
    return bids.select(
        "auction",
        "bidder",
        _converted().alias("price"),
        time_of_day.otherwise("otherTime").alias("time_of_day"),
        "dateTime",
        "extra",
        letters.alias("c_counts"),
    )


def q15(streams: Streams) -> PipelineStage:
    """Bids, bidders and auctions of each day, in total and by class of price."""
    bids = _with_classes(streams.bids, "bidder", "auction")
    return streams.keyed(bids, "day", None).aggregate(**_distinct_figures())


def q16(streams: Streams) -> PipelineStage:
    """The same of each channel and day, and the last minute with a bid."""
    minute = F.date_format("dateTime", "HH:mm").alias("minute")
    bids = _with_classes(streams.bids, "bidder", "auction", "channel", minute)
    return streams.keyed(bids, ["channel", "day"], None).aggregate(minute=max("minute"), **_distinct_figures())


def q17(streams: Streams) -> PipelineStage:
    """Figures of each auction and day."""
    bids = _with_classes(streams.bids, "auction", "price")
    counts = _by_class("bids", count())
    figures = {"min_price": min("price"), "max_price": max("price"), "sum_price": sum("price")}
    stage = streams.keyed(bids, ["auction", "day"], None).aggregate(**counts, **figures)
    average = pc.divide(pc.field("sum_price"), pc.field("total_bids"))
    return stage.select("auction", "day", *counts, *figures, "checkpoint_id", avg_price=average)


def q18(streams: Streams) -> PipelineStage:
    """The last bid of each bidder for each auction."""
    return streams.keyed(streams.bids, ["bidder", "auction"], None).top(1, "dateTime", ties="last")


def q19(streams: Streams) -> PipelineStage:
    """The ten highest bids for each auction."""
    return streams.keyed(streams.bids, "auction", None).top(10, "price")


def q20(streams: Streams) -> PipelineStage:
    """Every bid with its auction, of category 10. Nobody says when bids end, so both sides are kept for good."""
    auctions = streams.auctions.where("category = 10")
    return streams.keyed(streams.bids, "auction", None).join(streams.keyed(auctions, "id", None))


def q21(streams: Streams) -> DataFrame:
    """The number of each bid's channel: of the large ones by name, of the others from the address."""
    of_address = F.nullif(F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2), F.lit(""))
    number = F.expr(
        "CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' "
        "WHEN 'baidu' THEN '3' END"
    )
    bids = streams.bids.select(
        "auction", "bidder", "price", "channel", F.coalesce(number, of_address).alias("channel_id")
    )
    return bids.where("channel_id IS NOT NULL")


def q22(streams: Streams) -> DataFrame:
    """The folders in the address of each bid."""
    folders = [F.split_part("url", F.lit("/"), F.lit(place)).alias(f"dir{place - 3}") for place in (4, 5, 6)]
    return streams.bids.select("auction", "bidder", "price", "channel", *folders)


def side_table(streams: Streams) -> PipelineStage:
    """What q13 looks up: a pipeline of its own, which runs to its end before."""
    side = KeyedStream(streams.side, "key", streams.side_checkpoint, parallelism=streams.parallelism)
    return side.aggregate(value=max("value"))


QUERIES: Final[Mapping[str, Query]] = {
    query.__name__: query
    for query in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22)
}
BEFORE: Final[Mapping[str, Query]] = {"q13": side_table}
"""Pipelines that keep what a query looks up."""
FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {"q10": ("day", "minute")}
"""Columns that become folders of the output."""


def _with_classes(bids: DataFrame, *columns: str | Column) -> DataFrame:
    """Columns of bids, the day, and for each class of prices whether the price is in it."""
    day = F.date_format("dateTime", "yyyy-MM-dd").alias("day")
    return bids.select(*columns, day, *(F.expr(test).alias(name) for name, test in CLASSES.items()))


def _by_class(name: str, figure: Function) -> dict[str, Function]:
    """A figure in total and for each class of prices."""
    return {f"total_{name}": figure, **{f"{which}_{name}": figure.where(which) for which in CLASSES}}


def _distinct_figures() -> dict[str, Function]:
    bidders, auctions = count_distinct("bidder"), count_distinct("auction")
    return {**_by_class("bids", count()), **_by_class("bidders", bidders), **_by_class("auctions", auctions)}


def _converted() -> Column:
    return F.expr("CAST(0.908 * price AS DECIMAL(23, 3))")


def _valid_bids(streams: Streams, of_auction: list[str], of_bid: list[str]) -> PipelineStage:
    """Bids for auctions that were open: not before they began, and not after they ended.

    No auction is open for longer than the streams say, which bounds how long a bid and an auction wait for each other.
    """
    auctions = streams.auctions.select("id", "dateTime", "expires", *of_auction)
    bids = streams.bids.select("auction", "dateTime", *of_bid)
    within = (dt.timedelta(), streams.longest_auction)
    joined = streams.keyed(auctions, "id").join(streams.keyed(bids, "auction"), within=within)
    return joined.where(pc.field("dateTime_right") <= pc.field("expires"))
