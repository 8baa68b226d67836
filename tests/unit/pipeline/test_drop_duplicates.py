"""The first row of each key, against a model in plain Python: over restarts, late rows, nulls and keys of all types."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import random

import pyarrow as pa
import pytest

from stateline.errors import InvalidInputError
from stateline.key_groups import KeyGroupRange, hash_columns
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.api import BatchContext
from stateline.pipeline.operators.deduplication import DropDuplicatesProgram
from stateline.state.table import StateTable
from stateline.testing import OperatorHarness

SECOND = 1_000_000
SCHEMA = pa.schema([("n", pa.int64()), ("key", pa.string()), ("at", pa.timestamp("us")), ("other", pa.int32())])
DELAY = 10
NAN = math.nan
MOMENT = pa.scalar(dt.datetime(2024, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")).as_py()
"""With the zone as pyarrow makes it, which is another class in older versions."""


def watermark(late_data="drop", delay=DELAY):
    return WatermarkPlan.of(SCHEMA, "at", delay, late_data)


def harness(keys=("key",), *, mark=None, schema=SCHEMA, **more):
    options = {name: more.pop(name) for name in ("within_watermark", "ttl_ms") if name in more}
    program = DropDuplicatesProgram.bind(schema, list(keys), watermark=mark, **options)
    return OperatorHarness(program, schema, watermark=mark, **more)


def rows(*pairs):
    return [{"n": n, "key": key, "at": None if at is None else at * SECOND} for n, (key, at) in enumerate(pairs)]


def passed(found):
    return sorted(row["n"] for row in found)


class Model:
    """What Spark's two operators do, and a time to live, in the plainest form; times in seconds."""

    def __init__(self, keys, mark, *, within=False, ttl=None):
        self.keys, self.mark, self.within, self.ttl = keys, mark, within, ttl
        self.ends, self.current, self.applied = {}, None, None
        self.late = self.duplicates = 0

    def run(self, batch, now):
        out, time_is_key = [], self.mark is not None and "at" in self.keys and not self.within
        self.late = self.duplicates = 0
        self.forget(self.applied, now)
        for row in batch:
            at = None if row["at"] is None else row["at"] // SECOND
            if self.applied is not None and at is not None and at <= self.applied and self.mark.drops_late_rows:
                self.late += 1
                continue
            key = tuple(identity(row[name]) for name in self.keys)
            if key in self.ends:
                self.duplicates += 1
                continue
            ends = at if time_is_key else (at or 0) + self.mark.delay_us // SECOND if self.within else None
            self.ends[key] = ends, None if self.ttl is None else now + self.ttl
            out.append(row["n"])
        self.forget(self.current, now)
        self.applied = self.current
        times = [row["at"] for row in batch if row["at"] is not None]
        if times and self.mark is not None:
            reached = max(times) // SECOND - self.mark.delay_us // SECOND
            self.current = reached if self.current is None else max(self.current, reached)
        return sorted(out)

    def forget(self, watermark, now):
        def over(by_event, by_clock):
            by_watermark = by_event is not None and watermark is not None and by_event <= watermark
            return by_watermark or (by_clock is not None and by_clock <= now)

        self.ends = {key: ends for key, ends in self.ends.items() if not over(*ends)}


def identity(value):
    """A value as Spark groups it: NaN is one key, and so are 0.0 and -0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


CASES = {
    "for ever": (("key",), None, {}),
    "several columns": (("key", "other"), None, {}),
    "for ever, late rows dropped": (("key",), watermark(), {}),
    "time in the key": (("key", "at"), watermark(), {}),
    "time alone": (("at",), watermark(), {}),
    "within watermark": (("key",), watermark(), {"within_watermark": True}),
    "within watermark, without a delay": (("key",), watermark(delay=0), {"within_watermark": True}),
    "within watermark, time in the key": (("key", "at"), watermark(), {"within_watermark": True}),
    "ttl": (("key",), None, {"ttl_ms": 7_000}),
    "ttl and time in the key": (("at", "key"), watermark(), {"ttl_ms": 7_000}),
    "late rows kept": (("key",), watermark("keep"), {}),
    "late rows kept, time in the key": (("key", "at"), watermark("keep"), {}),
    "late rows kept within watermark": (("key",), watermark("keep"), {"within_watermark": True}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_equals_the_model_over_restarts_late_rows_nulls_and_empty_batches(case, seed):
    keys, mark, options = CASES[case]
    draw = random.Random(f"{case} {seed}")
    ours = harness(keys, mark=mark, **options)
    ttl = options.get("ttl_ms")
    model = Model(keys, mark, within="within_watermark" in options, ttl=None if ttl is None else ttl // 1000)
    number, newest = 0, 100
    for _ in range(25):
        newest += draw.choice([0, 1, 5, 15])
        batch = []
        for _ in range(draw.choice([0, 1, 12])):
            at = draw.choice([None, newest - draw.randrange(25), newest])
            key = draw.choice(["a", "b", "c", None])
            batch.append({"n": number, "key": key, "at": None if at is None else at * SECOND, "other": number % 2})
            number += 1
        if draw.random() < 0.3:
            ours.restart(parallelism=draw.choice([1, 2, 3]))
        ours.clock.advance(draw.choice([0, 1, 3, 8]))
        assert passed(ours.run_batch(batch)) == model.run(batch, int(ours.clock.now()))
        counted = ours.metrics.get("rows_late", 0), ours.metrics.get("rows_duplicate", 0)
        assert counted == (model.late, model.duplicates)


KEYS = {
    "long": (pa.int64(), [0, -1, 2**62, None]),
    "byte": (pa.int8(), [1, -1, None]),
    "text": (pa.string(), ["", "a", "é" * 40, None]),
    "binary": (pa.binary(), [b"", b"\x00", None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "float": (pa.float32(), [0.0, -0.0, 1.5, NAN, None]),
    "double": (pa.float64(), [0.0, -0.0, math.inf, NAN, None]),
    "date": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1960, 1, 1), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [MOMENT, None]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-2.00"), None]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_equal_as_spark_groups_them_and_rows_pass_as_they_came(kind):
    type_, values = KEYS[kind]
    schema = pa.schema([("n", pa.int64()), ("k", type_), ("tags", pa.list_(pa.string()))])
    ours = harness(("k",), schema=schema, ttl_ms=1000)
    draw = random.Random(kind)
    seen, number = set(), 0
    for parallelism in (1, 3, 2):
        ours.restart(parallelism=parallelism)
        batch, expected = [], []
        for _ in range(20):
            value = draw.choice(values)
            batch.append({"n": number, "k": value, "tags": [str(number), None]})
            if identity(value) not in seen:
                seen.add(identity(value))
                expected.append(batch[-1])
            number += 1
        found = sorted(ours.run_batch(batch), key=lambda row: row["n"])
        assert repr(found) == repr(expected)


def test_the_key_that_passed_is_forgotten_when_the_watermark_has_reached_its_time_and_the_delay():
    ours = harness(mark=watermark(), within_watermark=True)
    assert passed(ours.run_batch(rows(("a", 100)))) == [0]
    assert passed(ours.run_batch(rows(("a", 108)))) == []
    assert passed(ours.run_batch(rows(("b", 121)))) == [0]
    assert passed(ours.run_batch(rows(("a", 112)))) == [], "a leaves only at the end of this batch"
    assert passed(ours.run_batch(rows(("a", 112), ("a", 112)))) == [0]
    assert passed(ours.run_batch(rows(("a", 121)))) == [], "a duplicate did not put it off, but the new row did"


def test_within_a_batch_the_row_that_comes_first_passes_whatever_its_time():
    ours = harness(mark=watermark(), within_watermark=True, parallelism=1)
    assert passed(ours.run_batch(rows(("a", 100), ("a", 90), ("b", 91), ("a", 300)))) == [0, 2]


def test_when_a_stream_goes_quiet_the_watermark_makes_keys_forgotten_without_rows():
    for round_ in ("finish", "advance_time"):
        ours = harness(mark=watermark(), within_watermark=True)
        ours.run_batch(rows(("a", 100)))
        ours.run_batch(rows(("b", 130)))
        assert getattr(ours, round_)() == []
        assert passed(ours.run_batch(rows(("a", 120), ("b", 125)))) == [], "120 is late, b is remembered"
        assert ours.metrics["rows_late"] == 1
        assert passed(ours.run_batch(rows(("a", 121)))) == [0]


def test_stored_keys_do_not_grow_without_bound_and_are_not_searched_for():
    ours = harness(mark=watermark(), within_watermark=True)
    largest = 0
    for batch in range(60):
        ours.run_batch([{"n": n, "key": f"{batch} {n}", "at": batch * 4 * SECOND} for n in range(300)])
        largest = max(largest, ours.metrics["state_rows"])
    assert 300 * 5 <= largest <= 300 * 24, "five batches are remembered"


def test_a_time_to_live_bounds_state_too():
    ours = harness(ttl_ms=5_000)
    largest = 0
    for batch in range(60):
        ours.run_batch([{"n": n, "key": f"{batch} {n}"} for n in range(300)])
        ours.clock.advance(1)
        largest = max(largest, ours.metrics["state_rows"])
    assert 300 * 5 <= largest <= 300 * 24


def test_a_ttl_may_be_added_and_changed_but_not_taken_away():
    first = harness()
    first.run_batch(rows(("a", 1), ("b", 1)))
    clock = first.clock
    later = harness(ttl_ms=5_000, root=first.root, environment=first.environment)
    assert passed(later.run_batch(rows(("a", 1), ("c", 1)))) == [1], "what was remembered still is"
    clock.advance(5)
    assert passed(later.run_batch(rows(("a", 1), ("b", 1), ("c", 1)))) == [0, 2], "the one that came got an end"
    longer = harness(ttl_ms=50_000, root=first.root, environment=first.environment)
    clock.advance(5)
    assert passed(longer.run_batch(rows(("a", 1), ("b", 1), ("d", 1)))) == [0, 1, 2]
    clock.advance(5)
    assert passed(longer.run_batch(rows(("a", 1), ("b", 1), ("c", 1), ("d", 1)))) == [2]
    with pytest.raises(InvalidInputError, match="ttl"):
        harness(root=first.root, environment=first.environment).run_batch([])
    with pytest.raises(InvalidInputError, match="expected what is stored"):
        harness(mark=watermark(), within_watermark=True, root=first.root, environment=first.environment).run_batch([])


def test_the_program_says_what_it_reads_and_emits():
    program = DropDuplicatesProgram.bind(SCHEMA, ["key"], watermark=watermark(), within_watermark=True)
    (reading,) = program.readings
    assert (reading.key_columns, reading.columns, reading.late_by) == (("key",), ("key", "n", "at", "other"), "at")
    assert (program.emits, program.event_time_columns, program.watermark_lag_us) == ("appends", ("at",), 0)
    assert program.output_schema == SCHEMA
    assert json.loads(program.definition) == {"program": "drop_duplicates", "keys": ["key"], "within_watermark": True}
    assert program.tables["keys"].values == pa.schema([("expires_at", pa.timestamp("us"))])
    several = DropDuplicatesProgram.bind(SCHEMA, ["key"], watermark=watermark(), event_times=["end", "at"])
    assert several.event_time_columns == ("at", "end")
    kept = DropDuplicatesProgram.bind(SCHEMA, ["key"], watermark=watermark("keep"), event_times=["at"])
    assert (kept.readings[0].late_by, kept.event_time_columns) == (None, ())


def test_a_key_is_called_as_the_user_spelled_it_and_rows_keep_the_names_of_the_stream():
    program = DropDuplicatesProgram.bind(SCHEMA, ["AT", "Key"], grouped_by=["at", "key"], watermark=watermark())
    assert program.key_columns == ("AT", "Key")
    assert program.input_columns == ("AT", "Key", *SCHEMA.names)
    assert program.tables["keys"].keys.names == ["AT", "Key"]
    assert (program.output_schema, program.event_time_columns) == (SCHEMA, ("at",))
    wide = pa.schema([SCHEMA.field("at").with_name("AT"), SCHEMA.field("key").with_name("Key"), *SCHEMA])
    ours = OperatorHarness(program, wide, watermark=watermark())
    for at in (100, 300, 285):
        (row,) = ours.run_batch([{"n": 1, "key": "a", "at": at * SECOND, "AT": at * SECOND, "Key": "a"}])
        assert list(row) == SCHEMA.names
    assert 285 not in [row["AT"].timestamp() for row in ours.state()], "the watermark has passed it at once"


def test_state_is_the_keys_and_their_ends():
    ours = harness(mark=watermark(), within_watermark=True)
    ours.run_batch(rows(("a", 100)))
    assert ours.state() == [{"key": "a", "expires_at": dt.datetime(1970, 1, 1, 0, 1, 50)}]
    brief = harness(ttl_ms=1)
    brief.run_batch(rows(("a", 100)))
    assert [row["key"] for row in brief.state()] == ["a"]
    brief.clock.advance(1)
    brief.run_batch([])
    assert brief.state() == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: harness(within_watermark=True), "cannot be used without a watermark"),
        (lambda: harness(mark=watermark(), within_watermark=True, ttl_ms=1), "together with a ttl"),
        (lambda: DropDuplicatesProgram.bind(SCHEMA, ["key"], updates=True), "replaces rows"),
        (
            lambda: harness(("expires_at_ms",), schema=pa.schema([("expires_at_ms", pa.int64())]), ttl_ms=1),
            "time to live needs itself",
        ),
        (
            lambda: harness(
                ("expires_at",),
                schema=SCHEMA.append(pa.field("expires_at", pa.int64())),
                mark=watermark(),
                within_watermark=True,
            ),
            "within_watermark needs itself",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_times_near_the_end_of_time_do_not_overflow():
    program = DropDuplicatesProgram.bind(SCHEMA, ["key"], watermark=watermark(), within_watermark=True)
    table = StateTable(program.tables["keys"], KeyGroupRange(0, 7), 8)
    batch = pa.RecordBatch.from_pylist([{"n": 0, "key": "a", "at": 2**63 - 1}], SCHEMA)
    batch = batch.append_column("__hash", pa.array(hash_columns([batch.column("key")]).view("int64")))
    changes = program.process([batch], {"keys": table}, BatchContext(0, 0.0, 10**16, 0)).changes["keys"]
    assert changes.values[0].cast(pa.int64()).to_pylist() == [2**63 - 1]
