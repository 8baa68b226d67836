"""Chains of operators against batch SQL: what the last one has shown, less what it took back, at every checkpoint.

Behind each chain stands one operator more, which counts equal rows: its state is what a reader of all changes holds.
"""

from __future__ import annotations

import collections
import random

import duckdb
import pyarrow as pa
import pytest

from stateline.blob.memory import MemoryStore
from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import WINDOW_END, WINDOW_START, WatermarkPlan, WindowPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.operators.aggregation import CHECKPOINT_COLUMN, AggregateProgram
from stateline.pipeline.operators.top import TopProgram
from stateline.state import aggregate as agg
from stateline.testing import FaultyStore, GraphHarness, KeyedStreamHarness
from stateline.testing.faults import ActorKilled, Fault, FaultKind, ScriptedFaults

SECOND = 1_000_000
BIDS = pa.schema(
    [
        ("auction", pa.int64()),
        ("category", pa.string()),
        ("price", pa.int64()),
        ("bidder", pa.int64()),
        ("cheap", pa.bool_()),
        ("moment", pa.timestamp("us")),
    ]
)
WATERMARK = WatermarkPlan.of(BIDS, "moment", "5 seconds")
WINDOW = WindowPlan.of(BIDS, "moment", "10 seconds", None, 0)
SLIDING = WindowPlan.of(BIDS, "moment", "10 seconds", "4 seconds", 0)
WINDOW_SQL = "time_bucket(interval 10 seconds, moment, timestamp '1970-01-01') as window_start"


class Chain:
    """Operators behind each other; the first one reads bids."""

    def __init__(self, *steps, watermark=None, root=None):
        self.programs, plans, schema = {}, [], BIDS
        for number, step in enumerate((*steps, None)):
            before = list(self.programs.values())[-1] if self.programs else None
            made = consolidated(schema, before) if step is None else step(schema, before)
            name = f"step {number}"
            source = Source("input", "step 0") if before is None else Source("operator", f"step {number - 1}")
            plans.append(OperatorPlan.of(name, made, (source,)))
            self.programs[name] = made
            schema = pa.schema([field for field in made.output_schema if field.name != CHECKPOINT_COLUMN])
        self.last = f"step {len(steps)}"
        self.columns = self.programs[self.last].key_columns
        graph = Graph((Input(name="step 0", watermark=watermark),), tuple(plans))
        self.harness = GraphHarness(graph, self.programs, {"step 0": BIDS}, root=root)

    def held(self):
        """What a reader of all changes holds: rows, and how many of each."""
        return collections.Counter(
            {tuple(row[name] for name in self.columns): row["copies"] for row in self.harness.state(self.last)}
        )


def consolidated(schema, before):
    return AggregateProgram.bind(
        schema, schema.names, {"copies": agg.count()}, updates=before.emits == "updates", behind=True
    )


def aggregated(*keys, mode="update", window=None, watermark=None, **aggregations):
    def bind(schema, before):
        event_times = () if before is None else before.event_time_columns
        column = next((key for key in keys if key in event_times), None)
        reached = watermark or (None if column is None else WatermarkPlan(column=column, delay_us=0))
        updates = before is not None and before.emits == "updates"
        return AggregateProgram.bind(
            schema,
            list(keys),
            aggregations,
            output_mode=mode,
            window=window,
            watermark=reached,
            updates=updates,
            behind=before is not None,
        )

    return bind


def top(n, by, *keys, **more):
    def bind(schema, before):
        event_times = () if before is None else before.event_time_columns
        column = next((key for key in keys if key in event_times), None)
        watermark = None if column is None else WatermarkPlan(column=column, delay_us=0)
        updates = before is not None and before.emits == "updates"
        return TopProgram.bind(schema, list(keys), n, by, watermark=watermark, updates=updates, **more)

    return bind


def bids(dice, count, second):
    made = []
    for _ in range(count):
        auction = dice.randrange(6)
        price = dice.choice([None, *range(1, 30)])
        made.append(
            {
                "auction": auction,
                "category": dice.choice("xyz") if auction % 2 else "w",
                "price": price,
                "bidder": dice.choice([None, 1, 2, 3, 4]),
                "cheap": None if price is None else price < 10,
                "moment": max(second + dice.randrange(-4, 9), 0) * SECOND,
            }
        )
    return made


def answer(sql, rows, columns):
    """What batch SQL says of all rows so far."""
    connection = duckdb.connect()
    connection.register("arrived", pa.Table.from_pylist([row | {"n": n} for n, row in enumerate(rows)], NUMBERED))
    connection.execute("create table bids as select * from arrived")
    found = connection.execute(sql).fetchall()
    places = [[column[0] for column in connection.description].index(name) for name in columns]
    return collections.Counter(tuple(row[place] for place in places) for row in found)


NUMBERED = BIDS.append(pa.field("n", pa.int64()))

PER_WINDOW = f"select auction, {WINDOW_SQL}, count(*) as bids, max(price) as best from bids group by all"
CHAINS = {
    "how many auctions have so many bids": (
        (
            aggregated("auction", bids=agg.count()),
            aggregated("bids", auctions=agg.count(), sum=agg.sum("auction"), least=agg.min("auction")),
        ),
        """select bids, count(*) as auctions, sum(auction)::long as sum, min(auction) as least
           from (select auction, count(*) as bids from bids group by auction) group by bids""",
    ),
    "mean of the best prices": (
        (
            aggregated("auction", "category", best=agg.max("price")),
            aggregated("category", mean=agg.mean("best"), worst=agg.min("best"), kinds=agg.count_distinct("best")),
        ),
        """select category, avg(best) as mean, min(best) as worst, count(distinct best) as kinds
           from (select auction, category, max(price) as best from bids group by all) group by category""",
    ),
    "three steps": (
        (
            aggregated("auction", "bidder", n=agg.count()),
            aggregated("bidder", most=agg.max("n"), total=agg.sum("n")),
            aggregated("most", bidders=agg.count(), total=agg.sum("total")),
        ),
        """select most, count(*) as bidders, sum(total)::long as total from (
             select bidder, max(n) as most, sum(n) as total
             from (select auction, bidder, count(*) as n from bids group by all) group by bidder) group by most""",
    ),
    "best auctions of a category": (
        (
            aggregated("auction", "category", bids=agg.count(), value=agg.sum("price")),
            top(2, ["bids", "auction"], "category"),
        ),
        """select category, auction, bids, value, rank from (
             select *, row_number() over (partition by category order by bids desc, auction desc)::int as rank
             from (select auction, category, count(*) as bids, sum(price)::long as value from bids group by all))
           where rank <= 2""",
    ),
    "what the best bidders pay": (
        (
            top(2, ["price", "bidder"], "auction", ascending=[False, True], columns=["price"]),
            aggregated("bidder", places=agg.count(), paid=agg.sum("price"), most=agg.max("price")),
        ),
        """select bidder, count(*) as places, sum(price)::long as paid, max(price) as most from (
             select *, row_number() over (
               partition by auction order by price desc nulls last, bidder asc nulls last, n) as rank from bids)
           where rank <= 2 group by bidder""",
    ),
    "all auctions of a window that have most bids": (
        (
            aggregated("auction", window=WINDOW, bids=agg.count(), best=agg.max("price")),
            top(1, "bids", WINDOW_START, ties="all", columns=["auction", "best"]),
        ),
        f"""select window_start, auction, best, bids, 1::int as rank from ({PER_WINDOW}) as c
            where bids = (select max(d.bids) from ({PER_WINDOW}) as d where d.window_start = c.window_start)""",
    ),
    "top of a top": (
        (
            top(3, "price", "auction", columns=["category"]),
            top(2, ["price", "auction"], "category", columns=[]),
        ),
        """select category, price, auction, row_number() over (
             partition by category order by price desc nulls last, auction desc)::int as rank
           from (select *, row_number() over (partition by auction order by price desc nulls last, n) as best
                 from bids) where best <= 3
           qualify rank <= 2""",
    ),
    "bidders of a day, and the cheap ones": (
        (
            aggregated("category", all=agg.count_distinct("bidder"), low=agg.count_distinct("bidder").where("cheap")),
            aggregated("all", categories=agg.count(), low=agg.sum("low")),
        ),
        """select "all", count(*) as categories, sum(low)::long as low from (
             select category, count(distinct bidder) as "all", count(distinct bidder) filter (where cheap) as low
             from bids group by category) group by "all" """,
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_held_after_each_batch_is_the_answer_of_batch_sql(name):
    steps, sql = CHAINS[name]
    dice, rows = random.Random(name), []
    chain = Chain(*steps)
    for number in range(9):
        rows += (batch := bids(dice, dice.choice([0, 1, 5, 20]), 4 * number))
        chain.harness.run_batch({"step 0": batch})
        assert chain.held() == answer(sql, rows, chain.columns), number
        if number % 3 == 1:
            chain.harness.run_batch({"step 0": batch}, batch_id=number)  # Spark gives it again: nothing happens twice.
        chain.harness.restart(parallelism=dice.choice([1, 2, 3]))
    assert chain.held()


@pytest.mark.parametrize("name", ["three steps", "what the best bidders pay", "top of a top"])
def test_a_driver_that_dies_at_any_call_of_the_store_takes_back_each_row_once(name):
    steps, sql = CHAINS[name]
    dice, rows, place = random.Random(name), [], f"chain-{name}"
    faults = ScriptedFaults()
    store, deaths = FaultyStore(MemoryStore(place), faults), 0
    chain = Chain(*steps, root=store)
    for number in range(12):
        rows += (batch := bids(dice, dice.choice([1, 5, 20]), 4 * number))
        kind = dice.choice([FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
        faults.add(Fault(kind=kind, at=faults.total + dice.randrange(6)))
        for _ in range(5):  # Faults that nothing met before may strike now, too.
            try:
                chain.harness.run_batch({"step 0": batch}, batch_id=number)
            except ActorKilled:
                deaths += 1
                store.revive()
                chain.harness.restart(parallelism=dice.choice([1, 2, 3]))
        faults.suspended = True  # A fault of a call that nobody made waits for the next batch.
        assert chain.held() == answer(sql, rows, chain.columns), number
        faults.suspended = False
    assert deaths > 3
    MemoryStore.forget(place)


CLOSING = {
    "greatest count of a window": (
        (
            aggregated("auction", mode="append", window=SLIDING, watermark=WATERMARK, bids=agg.count()),
            aggregated(WINDOW_END, mode="append", most=agg.max("bids"), auctions=agg.count()),
        ),
        "window_end, most, auctions",
        "select window_end, max(bids) as most, count(*) as auctions from counted group by window_end",
    ),
    "best auctions of a window": (
        (
            aggregated("auction", mode="append", window=SLIDING, watermark=WATERMARK, bids=agg.count()),
            top(1, "bids", WINDOW_END, ties="all", columns=["auction"]),
        ),
        "window_end, auction, bids, rank",
        "select *, rank() over (partition by window_end order by bids desc)::int as rank from counted qualify rank = 1",
    ),
    "best auctions of a window while it is open": (
        (
            aggregated("auction", mode="update", window=SLIDING, watermark=WATERMARK, bids=agg.count()),
            top(1, "bids", WINDOW_END, ties="all", columns=["auction"]),
        ),
        "window_end, auction, bids, rank",
        "select *, rank() over (partition by window_end order by bids desc)::int as rank from counted qualify rank = 1",
    ),
    "longer windows over windows": (
        (
            aggregated("auction", mode="append", window=WINDOW, watermark=WATERMARK, bids=agg.count()),
            lambda schema, before: AggregateProgram.bind(
                pa.schema([field for field in schema if field.name != WINDOW_START]),
                ["auction"],
                {"bids": agg.sum("bids"), "windows": agg.count()},
                output_mode="append",
                window=WindowPlan(column=WINDOW_END, size_us=20 * SECOND, slide_us=20 * SECOND, shift_us=-1),
                watermark=WatermarkPlan(column=WINDOW_END, delay_us=0),
                behind=True,
            ),
        ),
        "auction, window_start, bids, windows",
        """select auction, time_bucket(interval 20 seconds, window_end - interval 1 microsecond, timestamp '1970-01-01')
             as window_start, sum(bids)::long as bids, count(*) as windows
           from counted group by all""",
    ),
}


@pytest.mark.parametrize("name", CLOSING)
def test_windows_that_close_along_a_chain_give_the_answer_of_batch_sql(name):
    steps, columns, sql = CLOSING[name]
    dice, rows, watermark = random.Random(name), [], None
    chain = Chain(*steps, watermark=WATERMARK)
    for number in range(12):
        batch = [
            row
            for row in bids(dice, dice.choice([0, 1, 5, 20]), 4 * number)
            if watermark is None or row["moment"] > watermark
        ]
        rows += batch
        chain.harness.run_batch({"step 0": batch})
        chain.harness.restart(parallelism=dice.choice([1, 2, 3]))
        watermark = max((row["moment"] for row in rows), default=0) - 5 * SECOND
    chain.harness.run_batch({"step 0": [last := bids(dice, 1, 500)[0]]})
    chain.harness.finish()
    names = columns.split(", ")
    slide, size = (10, 10) if "longer" in name else (4, 10)
    counted = f"""create table counted as
        select auction, window_start, window_start + interval {size} seconds as window_end, count(*) as bids
        from (select *, unnest(generate_series(
                time_bucket(interval {slide} seconds, moment, timestamp '1970-01-01')
                  - interval {(size - 1) // slide * slide} seconds,
                time_bucket(interval {slide} seconds, moment, timestamp '1970-01-01'), interval {slide} seconds))
                as window_start from bids)
        where moment < window_start + interval {size} seconds group by auction, window_start"""
    shown = [*rows, last] if "while it is open" in name else rows
    expected = answer(f"{counted}; select {columns} from ({sql})", shown, names)
    places = [chain.columns.index(each) for each in names]
    held = collections.Counter()
    for row, copies in chain.held().items():
        held[tuple(row[place] for place in places)] += copies
    assert held == expected
    if isinstance(chain.programs["step 1"], AggregateProgram):
        assert len(chain.harness.state("step 1")) <= 3, "closed windows are gone"


def test_the_harness_of_keyed_streams_runs_chains_as_spark_does():
    stream = KeyedStreamHarness(BIDS, "auction", watermark=("moment", "5 seconds"))
    counts = stream.window("moment", "10 seconds").aggregate("append", bids=agg.count())
    longer = counts.key_by("auction").window(WINDOW_END, "20 seconds")
    sums = longer.aggregate("append", bids=agg.sum("bids"), windows=agg.count())
    hot = sums.key_by(WINDOW_END).top(1, "bids", ties="all")
    assert hot.program.event_time_columns == (WINDOW_END,)
    for second in (1, 2, 11, 19, 20, 60):
        rows = [{"auction": auction, "moment": second * SECOND} for auction in (1, 1, 2)]
        hot.run_batch(rows if second < 12 else rows[1:])
    found = [
        (row["window_start"].second, row["window_end"].second, row["auction"], row["bids"]) for row in hot.finish()
    ]
    assert sorted(found) == [(0, 20, 1, 7), (20, 40, 1, 1), (20, 40, 2, 1)]
    with pytest.raises(InvalidInputError, match="checkpoint_id"):
        counts.key_by("auction").aggregate(x=agg.max("checkpoint_id"))
    updated = stream.aggregate(bids=agg.count()).key_by("bids")
    with pytest.raises(InvalidInputError, match="cannot follow a step that updates"):
        updated.aggregate(x=agg.last("auction", by="auction"))
    with pytest.raises(InvalidInputError, match="cannot feed another operator"):
        stream.aggregate("complete", bids=agg.count()).key_by("bids")
