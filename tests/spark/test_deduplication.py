"""The first row of each key: Spark's own operators on the same files, batch by batch, over restarts."""

from __future__ import annotations

import collections
import random

import pytest
from pyspark.sql import functions as F

from stateline.errors import InvalidInputError
from stateline.spark import count
from tests.spark.event_files import LATE_AND_EARLY, EventFiles, minutes, same

KINDS = {
    "for ever": (["key"], None, False),
    "late rows go first": (["key"], "10 minutes", False),
    "time in the key": (["key", "at"], "10 minutes", False),
    "within watermark": (["key"], "10 minutes", True),
    "within watermark, without a delay": (["key"], "0 minutes", True),
}


@pytest.fixture
def events(tmp_path, spark):
    return EventFiles(tmp_path, spark)


def drawn(seed, batches):
    """Batches in which a key comes with one time, so that it does not matter which of its rows passes."""
    draw = random.Random(seed)
    newest, made = 20, []
    for _ in range(batches):
        newest += draw.choice([0, 1, 6, 20])
        times = {key: draw.choice([None, newest - draw.randrange(30), newest]) for key in ["a", "b", "c", "d", None]}
        keys = draw.choices(list(times), k=draw.choice([1, 4, 8]))
        made.append([(key, times[key]) for key in keys])
    return made


def ours(events, kind, **options):
    """What passes, by checkpoint, of everything that has not been processed yet."""
    keys, delay, within = KINDS[kind]
    found = {}

    def keep(rows, key):
        found[key.checkpoint_id] = rows.toArrow().to_pylist()

    watermark = {} if delay is None else {"watermark": ("at", delay)}
    stage = events.keyed(key=keys, **watermark, **options).drop_duplicates(within_watermark=within)
    query = stage.for_each_batch(keep).start(str(events.folder / "spark"), trigger={"availableNow": True})
    query.awaitTermination()
    return found


def theirs(events, kind):
    keys, delay, within = KINDS[kind]
    stream = events.events() if delay is None else events.events().withWatermark("at", delay)
    once = stream.dropDuplicatesWithinWatermark(keys) if within else stream.dropDuplicates(keys)
    return events.spark_answer(once, "append")


def keys_of(found, kind):
    """Keys by batch. Of the rows of a key, Spark lets any pass."""
    keys = KINDS[kind][0]
    return {
        batch: collections.Counter(tuple(str(row[name]) for name in keys) for row in rows)
        for batch, rows in found.items()
        if rows
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_keys_pass_as_in_spark_batch_by_batch_over_restarts_at_other_parallelisms(events, kind):
    ours_found, theirs_found = {}, {}
    batches = [*LATE_AND_EARLY, *drawn(kind, 12)]
    for parallelism, part in ((2, batches[:7]), (3, batches[7:12]), (1, batches[12:])):
        events.add(*part)
        ours_found |= ours(events, kind, parallelism=parallelism)
        theirs_found |= theirs(events, kind)
    assert keys_of(ours_found, kind) == keys_of(theirs_found, kind)
    assert len(keys_of(ours_found, kind)) > 2


def test_rows_pass_whole_in_files_with_every_column_as_it_came(events):
    events.add([("a", 1), ("a", 2), ("b", 3), (None, None)], [("a", 4), ("c", 5), (None, 6)])
    found = events.run(events.keyed().drop_duplicates())[None]
    assert sorted(str((row["key"], row["value"])) for row in found) == [
        "('a', 1)",
        "('b', 3)",
        "('c', 2)",
        "(None, 7)",
    ]
    assert [list(row) for row in found] == [["key", "value", "at"]] * 4


def test_windows_over_what_passed_answer_as_sparks_own_chain_batch_by_batch(events):
    events.add(*LATE_AND_EARLY, *drawn("windows", 10))
    once = events.keyed(watermark=("at", "10 minutes")).drop_duplicates(within_watermark=True)
    found = events.run(once.key_by("key").window("at", "10 minutes").aggregate("append", n=count()))
    theirs = events.events().withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["key"])
    theirs = theirs.groupBy("key", F.window("at", "10 minutes")).agg(F.count("*").alias("n"))
    assert same(found) == same(events.spark_answer(theirs, "append"))
    assert len(same(found)) > 2


def test_behind_an_operator_keys_are_remembered_as_long_as_in_sparks_own_chain(events):
    events.add(*drawn("chain", 18))
    found = {}

    def keep(rows, key):
        found[key.checkpoint_id] = rows.toArrow().to_pylist()

    first = events.keyed(key=["key", "at"], watermark=("at", "10 minutes")).drop_duplicates()
    second = first.key_by("key").drop_duplicates(within_watermark=True).for_each_batch(keep)
    second.start(str(events.folder / "spark"), trigger={"availableNow": True}).awaitTermination()
    theirs = events.events().withWatermark("at", "10 minutes").dropDuplicates(["key", "at"])
    theirs = events.spark_answer(theirs.dropDuplicatesWithinWatermark(["key"]), "append")
    kind = "within watermark"
    assert keys_of(found, kind) == keys_of(theirs, kind)
    assert len(keys_of(found, kind)) > 3


EVERY_TYPE = (
    "*", "array(value, null) as numbers", "map(coalesce(key, 'none'), at) as times", "cast(key as binary) as bytes",
    "named_struct('x', value, 'y', array(named_struct('z', key))) as nested", "cast(value as decimal(20, 5)) as exact",
    "cast(at as timestamp_ntz) as local", "cast(at as date) as day", "make_dt_interval(value) as length",
    "cast(value as float) as number", "value > 1 as flag", "cast(value as tinyint) as tiny", "null as nothing",
)  # fmt: skip


def test_columns_of_every_type_pass_as_they_came(events):
    events.add([("a", 1), ("b", 3), (None, None)], [("a", 4), ("c", 5), (None, 6)])
    found = []
    stream = events.keyed(events.events().selectExpr(*EVERY_TYPE), key=["key", "at"])
    pipeline = stream.drop_duplicates(ttl="1 hour").for_each_batch(lambda rows, key: found.extend(rows.collect()))
    pipeline.start(str(events.folder / "spark"), trigger={"availableNow": True}).awaitTermination()
    expected = events.spark.read.parquet(str(events.folder / "source")).selectExpr(*EVERY_TYPE).collect()
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert found[0].__fields__ == expected[0].__fields__


def test_keys_are_found_as_spark_finds_them_and_what_passes_feeds_an_aggregation(events):
    events.add([("a", 1), ("a", 1), ("b", 3)], [("a", 4), ("c", 5)])
    stage = events.keyed(events.events().withWatermark("at", "1 minute"), key="KEY").drop_duplicates()
    by_value = stage.key_by("value").aggregate(n=count())
    rows = [row for found in events.run(by_value).values() for row in found]
    assert {row["value"]: row["n"] for row in rows} == {1: 1, 3: 1, 2: 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda stream: stream().drop_duplicates(within_watermark=True), "cannot be used without a watermark"),
        (
            lambda stream: stream(watermark=("at", "1 minute")).drop_duplicates(within_watermark=True, ttl="1 hour"),
            "together with a ttl",
        ),
        (lambda stream: stream().drop_duplicates(ttl="-1 hour"), "must be 1 millisecond or more"),
        (lambda stream: stream().drop_duplicates(ttl="1 month"), "no fixed length"),
        (
            lambda stream: stream(ttl="1 hour").sessions("at", "1 hour").aggregate(n=count()),
            "forgets no keys by the clock",
        ),
        (
            lambda stream: stream().aggregate(n=count()).key_by("key", ttl="1 hour").top(1, by="n"),
            "could not be taken back",
        ),
        (lambda stream: stream(ttl="1 hour").top(1, by="at").key_by("key"), "cannot"),
        (lambda stream: stream(ttl=0), "must be 1 millisecond or more"),
        (lambda stream: stream(ttl="soon"), "ttl"),
        (lambda stream: stream().aggregate(n=count()).key_by("key").drop_duplicates(), "replaces"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(events, make, message):
    with pytest.raises(InvalidInputError, match=message):
        make(events.keyed)


def test_a_key_that_no_row_touched_for_its_time_to_live_is_counted_anew(events):
    def run(ttl):
        found = events.run(events.keyed(ttl=ttl).aggregate(n=count()))
        return {row["key"]: row["n"] for row in found[max(found)]}

    for ttl, keys, counted in (
        ("1 hour", ["a", "b"], {"a": 1, "b": 1}),
        ("1 millisecond", ["a"], {"a": 2}),
        ("1 hour", ["a", "b"], {"a": 1, "b": 2}),
    ):
        events.add([(key, 1) for key in keys])
        assert run(ttl) == counted
    with pytest.raises(InvalidInputError, match="cannot be taken away"):
        events.run(events.keyed().aggregate(n=count()))


def test_the_best_row_of_a_key_that_no_row_touched_for_its_time_to_live_is_forgotten(events):
    for ttl, minute in (("1 hour", 5), ("1 hour", 4), ("1 millisecond", 3), ("1 hour", 2)):
        events.add([("a", minute)])
        found = events.run(events.keyed(ttl=ttl).top(1, by="at"))
    shown = [row["at"] for checkpoint_id in sorted(found) for row in found[checkpoint_id]]
    assert shown == [minutes(5), minutes(2)]
