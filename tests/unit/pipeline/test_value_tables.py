"""Exact counts of distinct values, kept as rows of a table: against sets, over windows that close and restarts."""

from __future__ import annotations

import math
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.checkpoint import create_savepoint, open_savepoint, start_from_savepoint
from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan, WindowPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.state.aggregate import KeyedAggregation, count, count_distinct, count_if, sum
from stateline.state.aggregate import max as greatest
from tests.unit.pipeline.engine import Engine

SECOND = 1_000_000
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("number", pa.float64()),
        ("name", pa.string()),
        ("cheap", pa.bool_()),
        ("at", pa.timestamp("us")),
    ]
)
WANTED = {
    "rows": count(),
    "numbers": count_distinct("number"),
    "names": count_distinct("name"),
    "cheap_numbers": count_distinct("number").where("cheap"),
    "cheap_rows": count_if("cheap"),
    "total": sum("number").where("cheap"),
    "greatest": greatest("name").where("cheap"),
}
WINDOW = WindowPlan.of(SCHEMA, "at", "10s", None, "0s")


def identity(number):
    """Floats that are one value: -0.0 is 0.0, and all NaN are one."""
    return "nan" if math.isnan(number) else struct.pack("d", number + 0.0)


def expected(rows):
    numbers = [row for row in rows if row["number"] is not None]
    cheap = [row for row in rows if row["cheap"]]
    return {
        "rows": len(rows),
        "numbers": len({identity(row["number"]) for row in numbers}),
        "names": len({row["name"] for row in rows if row["name"] is not None}),
        "cheap_numbers": len({identity(row["number"]) for row in numbers if row["cheap"]}),
        "cheap_rows": len(cheap),
        "total": sum_of([row["number"] for row in cheap if row["number"] is not None]),
        "greatest": max((row["name"] for row in cheap if row["name"] is not None), default=None),
    }


def sum_of(numbers):
    total = None
    for number in numbers:
        total = number if total is None else total + number
    return plain(total)


def plain(number):
    return None if number is None else repr(number + 0.0)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "b", None]),
            "number": st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan, 2.0]),
            "name": st.none() | st.sampled_from(["x", "y", "é"]),
            "cheap": st.none() | st.booleans(),
            "at": st.integers(0, 50).map(lambda second: second * SECOND),
        }
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=6),
    st.sampled_from(["append", "update", None]),
    st.sampled_from(["drop", "keep"]),
    st.lists(st.sampled_from([1, 2, 3]), min_size=6, max_size=6),
)
def test_distinct_values_equal_sets_over_restarts(batches, mode, late_data, parallelisms):
    watermark = WatermarkPlan.of(SCHEMA, "at", "5 seconds", late_data)
    made = AggregateProgram.bind(
        SCHEMA,
        ["key"],
        WANTED,
        output_mode=mode or "update",
        window=None if mode is None else WINDOW,
        watermark=watermark,
    )
    state, root, passed, applied = {}, None, None, None
    for batch, parallelism in zip(batches, parallelisms, strict=False):
        engine = Engine(made, SCHEMA, root=root, watermark=watermark, parallelism=parallelism)
        root = engine.root
        touched = set()
        for row in batch:
            start = row["at"] // (10 * SECOND) * 10 * SECOND
            if mode and late_data == "drop" and applied is not None and start + 10 * SECOND <= applied:
                continue
            key = (row["key"], start if mode else None)
            state.setdefault(key, []).append(row)
            touched.add(key)
        over = {key for key in state if mode and passed is not None and key[1] + 10 * SECOND <= passed}
        shown = {key: expected(state[key]) for key in (over if mode == "append" else touched)}
        record = engine.run(batch)
        found = {}
        for row in engine.output.get(record.checkpoint_id, []):
            start = int(row["window_start"].timestamp() * SECOND) if mode else None
            found[row["key"], start] = {name: row[name] for name in WANTED} | {"total": plain(row["total"])}
        assert found == shown
        for key in over:
            del state[key]
        applied = passed
        for row in batch:
            reached = row["at"] - 5 * SECOND
            passed = reached if passed is None else [passed, reached][reached > passed]


def test_a_batch_writes_only_values_that_are_new():
    engine = Engine(AggregateProgram.bind(SCHEMA, ["key"], {"n": count_distinct("name")}), SCHEMA, parallelism=1)
    rows = [{"key": "a", "name": str(number)} for number in range(1000)]
    engine.run_batch(rows)
    before = engine.metrics["state_rows"]
    assert engine.run_batch([*rows, {"key": "a", "name": "new"}])[0]["n"] == 1001
    assert engine.metrics["state_rows"] - before == 2, "the count, and one value"
    assert len(engine.state("values.name")) == 1001


def test_a_window_that_is_kept_open_for_late_rows_begins_anew_without_its_old_values():
    watermark = WatermarkPlan.of(SCHEMA, "at", "0 seconds", "keep")
    made = AggregateProgram.bind(SCHEMA, ["key"], {"n": count_distinct("name")}, window=WINDOW, watermark=watermark)
    engine = Engine(made, SCHEMA, watermark=watermark, parallelism=1)
    row = {"key": "a", "name": "x", "at": 1 * SECOND}
    engine.run_batch([row, row | {"name": "y"}])
    for second in (20, 21):
        engine.run_batch([row | {"at": second * SECOND}])
    assert len(engine.state("values.name")) == 3, "no merge has left them out yet"
    assert [one["n"] for one in engine.run_batch([row, row])] == [1], "and x was stored before"


def test_values_of_closed_windows_go_when_runs_are_merged():
    watermark = WatermarkPlan.of(SCHEMA, "at", "0 seconds")
    made = AggregateProgram.bind(
        SCHEMA, ["key"], {"n": count_distinct("name")}, output_mode="append", window=WINDOW, watermark=watermark
    )
    engine = Engine(made, SCHEMA, watermark=watermark, parallelism=1)
    for second in range(0, 300, 5):
        engine.run_batch([{"key": "a", "name": str(number), "at": second * SECOND} for number in range(20)])
    assert len(engine.state("values.name")) < 10 * 20, "of 30 windows"


def by_key(engine, rows):
    """What a batch puts out, without keys and checkpoints."""
    return {
        row["key"]: tuple(value for name, value in row.items() if name not in ("key", "checkpoint_id"))
        for row in engine.run_batch(rows)
    }


@pytest.mark.parametrize("saved", [False, True], ids=["restarted", "from a savepoint"])
def test_a_count_of_distinct_values_may_be_added_and_dropped_where_there_is_state(saved):
    def after(engine, parallelism, **wanted):
        made = AggregateProgram.bind(SCHEMA, ["key"], wanted)
        if not saved:
            return Engine(made, SCHEMA, root=engine.root, parallelism=parallelism)
        savepoint = open_savepoint(engine.root, create_savepoint(engine.checkpoints, engine.root).folder)
        new = Engine(made, SCHEMA, parallelism=parallelism)
        new.checkpoints.publish(start_from_savepoint(savepoint, new.checkpoints, query_id="q"))
        return new

    def rows(key, *names):
        return [{"key": key, "name": name, "number": float(len(name))} for name in names]

    n, names, numbers = count(), count_distinct("name"), count_distinct("number")
    engine = Engine(AggregateProgram.bind(SCHEMA, ["key"], {"n": n}), SCHEMA)
    assert by_key(engine, [*rows("a", "x", "y"), *rows("b", "x")]) == {"a": (2,), "b": (1,)}
    engine = after(engine, 2, n=n, names=names)
    assert by_key(engine, [*rows("a", "x", "x"), *rows("new", "z")]) == {"a": (4, 1), "new": (1, 1)}
    assert by_key(engine, rows("a", "x", "yy")) == {"a": (6, 2)}
    engine = after(engine, 3, n=n, names=names, numbers=numbers)
    assert by_key(engine, rows("a", "yy", "zz")) == {"a": (8, 3, 1)}
    assert sorted(state.name for state in engine.checkpoint.operators) == ["op", "op/values.name", "op/values.number"]
    engine = after(engine, 1, n=n, numbers=numbers)
    assert by_key(engine, rows("a", "yy", "q")) == {"a": (10, 2)}
    with pytest.raises(InvalidInputError, match="dropped before"):
        after(engine, 1, n=n, names=names, numbers=numbers).run_batch([])
    engine = after(engine, 2, n=n, again=names)
    assert by_key(engine, [*rows("a", "x"), *rows("b", "y")]) == {"a": (11, 1), "b": (2, 1)}
    assert [row["n"] for row in engine.state() if row["key"] == "b"] == [2]


def test_a_table_of_values_cannot_be_added_where_rows_may_be_taken_back():
    def engine(root=None, **wanted):
        return Engine(AggregateProgram.bind(SCHEMA, ["key"], {"n": count()} | wanted, updates=True), SCHEMA, root=root)

    first = engine()
    first.run_batch([])
    with pytest.raises(InvalidInputError, match=r"values\.name"):
        engine(first.root, names=count_distinct("name")).run_batch([])
    second = engine(names=count_distinct("name"))
    second.run_batch([])
    engine(second.root).run_batch([])


def test_without_tables_values_are_kept_in_lists():
    plain = KeyedAggregation.bind(SCHEMA, ["key"], {"n": count_distinct("name")})
    assert plain.value_tables == ()
    assert plain.state_schema.values.names == ["n.values"]
    tabled = KeyedAggregation.bind(SCHEMA, ["key"], {"n": count_distinct("name")}, tables=True)
    assert [each.name for each in tabled.value_tables] == ["values.name"]
    assert plain.definition != tabled.definition, "state of the one is not read as that of the other"


def test_a_condition_is_a_column_of_truth_values_and_is_said_once():
    for wanted, match in ((count_if("name"), "not boolean"), (count_distinct("at").where("absent"), "absent")):
        with pytest.raises(InvalidInputError, match=match):
            AggregateProgram.bind(SCHEMA, ["key"], {"n": wanted})
    with pytest.raises(InvalidInputError, match="condition"):
        sum("number").where("cheap").where("cheap")
    with pytest.raises(InvalidInputError, match="condition"):
        count().where(3)
    assert sum("number").where("cheap").columns == ("number", "cheap")
    assert count_if("cheap").definition == "count(*) where cheap"
    lists = SCHEMA.append(pa.field("list", pa.list_(pa.int64())))
    with pytest.raises(InvalidInputError, match="compared for equality"):
        AggregateProgram.bind(lists, ["key"], {"n": count_distinct("list")})
