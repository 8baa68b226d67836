"""Output modes, windows and late rows of aggregations, against a model; over restarts at any parallelism."""

from __future__ import annotations

import collections

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan, WindowPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.state.aggregate import Aggregator, count, sum
from tests.unit.pipeline.engine import Engine

SECOND = 1_000_000
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
WATERMARK = WatermarkPlan.of(SCHEMA, "at", "5 seconds")
TUMBLING = WindowPlan.of(SCHEMA, "at", "10s", None, "0s")
SLIDING = WindowPlan.of(SCHEMA, "at", "10s", "4s", "1s")


def program(mode="update", window=None, watermark=None):
    return AggregateProgram.bind(
        SCHEMA, ["key"], {"n": count(), "total": sum("value")}, output_mode=mode, window=window, watermark=watermark
    )


def rows(*pairs):
    return [{"key": key, "value": 1, "at": None if at is None else at * SECOND} for key, at in pairs]


class Model:
    """What Spark's stateful aggregation does, in the plainest form."""

    def __init__(self, mode, window, watermark):
        self.mode, self.window, self.watermark = mode, window, watermark
        self.state, self.current, self.applied = {}, None, None

    def starts(self, time):
        start = (time - self.window.start_us) // self.window.slide_us * self.window.slide_us + self.window.start_us
        while start > time - self.window.size_us:
            yield start
            start -= self.window.slide_us

    def run(self, batch):
        touched = set()
        closes = self.watermark is not None and self.mode != "complete"
        for row in batch:
            for start in self.starts(row["at"]) if row["at"] is not None else ():
                late = self.applied is not None and start + self.window.size_us <= self.applied
                if closes and late and self.watermark.late_data == "drop":
                    continue
                key = row["key"], start
                n, total = self.state.get(key, (0, 0))
                self.state[key] = n + 1, total + row["value"]
                touched.add(key)
        over = set()
        if closes and self.current is not None:
            over = {key for key in self.state if key[1] + self.window.size_us <= self.current}
        shown = {"update": touched, "append": over, "complete": set(self.state)}[self.mode]
        output = collections.Counter((*key, *self.state[key]) for key in shown)
        for key in over:
            del self.state[key]
        self.applied = self.current
        times = [row["at"] for row in batch if row["at"] is not None]
        if times and self.watermark is not None:
            reached = max(times) // 1000 * 1000 - self.watermark.delay_us
            self.current = reached if self.current is None else max(self.current, reached)
        return output


def shown(engine, record):
    found = collections.Counter()
    for row in engine.output.get(record.checkpoint_id, ()):
        assert row["checkpoint_id"] == record.checkpoint_id
        start, end = (int(row[name].timestamp() * SECOND) for name in ("window_start", "window_end"))
        assert end - start == engine.operator.window.size_us
        found[row["key"], start, row["n"], row["total"]] += 1
    return found


BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 60)), max_size=6),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(
    BATCHES,
    st.sampled_from(["append", "update", "complete"]),
    st.sampled_from([TUMBLING, SLIDING]),
    st.sampled_from(["drop", "keep"]),
    st.lists(st.sampled_from([1, 2, 3]), min_size=6, max_size=6),
)
def test_every_mode_equals_the_model_over_restarts(batches, mode, window, late_data, parallelisms):
    watermark = WatermarkPlan.of(SCHEMA, "at", "5 seconds", late_data)
    model = Model(mode, window, watermark)
    root = None
    for batch, parallelism in zip(batches, parallelisms, strict=False):
        made = program(mode, window, watermark)
        engine = Engine(made, SCHEMA, root=root, watermark=watermark, parallelism=parallelism)
        record = engine.run(rows(*batch))
        assert shown(engine, record) == model.run(rows(*batch))
        assert record.watermark_us == model.current
        root = engine.root
    settled = engine.settle()
    if mode != "complete" and model.applied != model.current:
        assert settled.checkpoint_id == record.checkpoint_id + 1
        assert settled.batch_id == record.batch_id
        assert shown(engine, settled) == model.run([])
    assert engine.settle() == settled, "once is enough"


def test_windows_without_a_watermark_stay():
    engine = Engine(program("update", TUMBLING), SCHEMA)
    engine.run(rows(("a", 1)))
    engine.run(rows(("a", 500)))
    record = engine.run(rows(("a", 2)))
    assert shown(engine, record) == {("a", 0, 2, 2): 1}
    assert record.watermark_us is None
    assert engine.settle() == record


def test_late_rows_are_counted_and_state_of_closed_windows_goes():
    engine = Engine(program("update", TUMBLING, WATERMARK), SCHEMA, watermark=WATERMARK)
    engine.run(rows(("a", 1), ("b", 2)))
    engine.run(rows(("a", 100)))
    engine.run(rows(("a", 3)))
    assert engine.metrics["rows_late"] == 0, "nothing had been closed before this batch"
    assert engine.metrics["windows_closed"] == 2
    engine.run(rows(("a", 3), ("a", 101)))
    assert engine.metrics["rows_late"] == 1
    assert engine.metrics["windows_closed"] == 0


def test_without_windows_nothing_is_late_and_the_watermark_advances_all_the_same():
    engine = Engine(program(), SCHEMA, watermark=WATERMARK)
    engine.run(rows(("a", 100)))
    engine.run(rows(("a", 1), ("b", None)))
    record = engine.run(rows(("a", 2)))
    assert [(row["key"], row["n"]) for row in engine.output[2]] == [("a", 3)]
    assert record.watermark_us == 95 * SECOND


def test_complete_shows_every_key_at_every_batch_even_without_rows():
    engine = Engine(program("complete"), SCHEMA)
    engine.run(rows(("a", 1), ("b", 1)))
    engine.run(rows(("a", 1)))
    engine.run([])
    for checkpoint, counts in {0: {"a": 1, "b": 1}, 1: {"a": 2, "b": 1}, 2: {"a": 2, "b": 1}}.items():
        assert {row["key"]: row["n"] for row in engine.output[checkpoint]} == counts


def test_a_restart_without_the_watermark_keeps_what_is_stored():
    engine = Engine(program("update", TUMBLING, WATERMARK), SCHEMA, watermark=WATERMARK)
    engine.run(rows(("a", 100)))
    with pytest.raises(InvalidInputError, match="closes"):
        Engine(program("update", TUMBLING), SCHEMA, root=engine.root).run([])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: program("upsert"), "append, complete, update"),
        (lambda: program("append"), "nothing here says when one is"),
        (lambda: program("append", TUMBLING), "watermark on the same column"),
        (lambda: program("append", None, WATERMARK), r"\.window"),
        (lambda: AggregateProgram.bind(SCHEMA, ["key"], {"output_mode": "append"}), r'aggregate\("append", ...\)'),
        (lambda: AggregateProgram.bind(SCHEMA, ["key"], {"checkpoint_id": count()}), "checkpoint_id"),
        (lambda: AggregateProgram.bind(SCHEMA, ["key"], {"window_end": count()}, window=TUMBLING), "window_end"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


class Size(Aggregator):
    """How many rows, in words: made of a list, which tells no type when it is empty."""

    state_schema = pa.schema([("rows", pa.int64())])
    output_type = pa.string()

    def reduce(self, rows, group, num_groups):
        return pa.table([pc.value_counts(group).field("counts")], schema=self.state_schema)

    def merge(self, older, newer):
        return pa.table([pc.add(older["rows"].fill_null(0), newer["rows"])], schema=self.state_schema)

    def result(self, state):
        return pa.array(["many" if number > 1 else "few" for number in state["rows"].to_pylist()])


def test_an_aggregator_is_not_asked_about_windows_where_none_closes():
    made = AggregateProgram.bind(
        SCHEMA, ["key"], {"size": Size()}, output_mode="append", window=TUMBLING, watermark=WATERMARK
    )
    engine = Engine(made, SCHEMA, watermark=WATERMARK)
    for batch in ([("a", 1), ("a", 2)], [("b", 3)], [("b", 40)], []):
        engine.run(rows(*batch))
    found = sorted((row["key"], row["size"]) for shown_rows in engine.output.values() for row in shown_rows)
    assert found == [("a", "many"), ("b", "few")]
