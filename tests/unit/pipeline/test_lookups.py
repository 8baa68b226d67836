"""``lookup``: rows beside the state of another root, while its job goes on and its retention takes runs away."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.blob import open_store
from stateline.changelog.host_cache import HostCache
from stateline.checkpoint import CheckpointStore, create_savepoint
from stateline.environment import Environment
from stateline.errors import DataLossError, InvalidInputError, NotFoundError
from stateline.key_groups import KeyGroupRange
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.lookups import (
    LookupRoot,
    LookupRoots,
    find_lookup,
    lookup_in_operator,
    lookup_url,
    open_lookup,
)
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import HASH_COLUMN, OperatorProgram, Processed
from stateline.pipeline.operators.lookup import LookupProgram
from stateline.pipeline.plan import PipelineSettings
from stateline.state.aggregate import count, sum
from stateline.state.keys import group_rows, key_rows
from stateline.state.open_runs import OpenRuns
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.subkeys import subkey_changes
from stateline.testing import GraphHarness, ManualClock, OperatorHarness

STREAM = pa.schema([("at", pa.int64()), ("code", pa.string()), ("n", pa.int64())])
TABLE = pa.schema([("k", pa.string()), ("v", pa.int64())])
COUNTS = AggregateProgram.bind(TABLE, ["k"], {"n": count(), "total": sum("v")})


def table(program=COUNTS, schema=TABLE, *, retained=2, max_parallelism=5, **more):
    settings = PipelineSettings(retained_checkpoints=retained, inline_bytes=0)
    return OperatorHarness(program, schema, settings=settings, max_parallelism=max_parallelism, **more)


def found_in(url, operator=None, columns=None):
    return find_lookup(url, operator, columns, {}, Environment(clock=ManualClock()))


def lookup(url, *, operator=None, columns=None, schema=STREAM, keys=("code",), parallelism=2, **more):
    what, shown = found_in(url, operator, columns)
    program = LookupProgram.bind(schema, keys, what, shown, **more)
    return OperatorHarness(program, schema, parallelism=parallelism, max_parallelism=8)


def sent(*codes):
    return [{"at": number, "code": code, "n": -number} for number, code in enumerate(codes)]


def as_rows(rows):
    return sorted((tuple(row.items()) for row in rows), key=repr)


KEYS = {
    "byte": (pa.int8(), [1, -1]),
    "text": (pa.string(), ["", "a", "é" * 40]),
    "binary": (pa.binary(), [b"", b"\x00"]),
    "boolean": (pa.bool_(), [True, False]),
    "double": (pa.float64(), [0.0, 1.5, float("nan")]),
    "date": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1960, 1, 1)]),
    "moment": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-2.00")]),
}


class Totals:
    """The table in plain Python."""

    def __init__(self):
        self.totals = {}

    def run(self, rows):
        for row in rows:
            n, total = self.totals.get(row["k"], (0, 0))
            self.totals[row["k"]] = n + 1, total + row["v"]

    def beside(self, rows, how):
        out = []
        for row in rows:
            known = self.totals.get(row["code"]) if row["code"] is not None else None
            if known is not None or how == "left":
                n, total = known or (None, None)
                shown = {"code": row["code"], "at": row["at"], "n": row["n"]}
                out.append(shown | {"n_right": n, "total": total})
        return out


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("max_parallelism", [1, 3, 8, 13])
def test_random_streams_see_the_newest_state_of_a_table_that_goes_on(how, max_parallelism):
    for seed in range(2):
        draw = random.Random(f"{how}-{max_parallelism}-{seed}")
        other, model = table(max_parallelism=max_parallelism, parallelism=1), Totals()
        keys = [None, *(f"k{number}" for number in range(draw.choice([3, 60])))]

        def go_on(other=other, model=model, keys=keys, draw=draw):
            rows = [{"k": draw.choice(keys), "v": draw.randrange(9)} for _ in range(draw.choice([0, 1, 20]))]
            other.run_batch(rows)
            model.run(rows)

        go_on()
        stream = lookup(other.root.url, how=how)
        for _ in range(8):
            rows = sent(*(draw.choice([*keys, "nowhere"]) for _ in range(draw.choice([0, 1, 30]))))
            assert as_rows(stream.run_batch(rows)) == as_rows(model.beside(rows, how))
            for _ in range(draw.randrange(5)):
                go_on()
            if draw.random() < 0.3:
                other.restart(parallelism=draw.randint(1, max_parallelism))
            if draw.random() < 0.3:
                stream.restart(parallelism=draw.randint(1, 8))


def interrupted(harness, before):
    """Counts attempts, and calls a function before the subtasks of each of them."""
    run, attempts = harness._run_subtasks, []

    def runner(batch, inputs):
        attempts.append({each.lookups["lookup"].checkpoint_id for each in inputs})
        before(len(attempts))
        return run(batch, inputs)

    harness.coordinator._run_subtasks = runner
    return attempts


def test_random_lives_of_a_table_give_each_batch_the_state_of_one_of_its_records():
    draw, again = random.Random(11), 0
    other, model, stream = table(), Totals(), None
    at_record = {}

    def go_on(times):
        for _ in range(times):
            rows = [{"k": f"k{draw.randrange(9)}", "v": 1} for _ in range(draw.choice([0, 1, 9]))]
            other.run_batch(rows)
            model.run(rows)
            at_record[other.checkpoint.checkpoint_id] = dict(model.totals)

    go_on(1)
    stream = lookup(other.root.url)
    for _ in range(25):
        attempts = interrupted(stream, lambda number: go_on(draw.choice([0, 4]) if number < 3 else 0))
        rows = sent(*(f"k{draw.randrange(12)}" for _ in range(20)))
        seen = Totals()
        out = stream.run_batch(rows)
        (record,) = attempts[-1]
        seen.totals = at_record[record]
        assert as_rows(out) == as_rows(seen.beside(rows, "left"))
        again += len(attempts) - 1
        stream.restart(parallelism=draw.randint(1, 4))
    assert again > 3


def test_a_batch_whose_runs_are_taken_away_is_computed_again_with_the_newer_record():
    other = table()
    other.run_batch([{"k": "a", "v": 1}])
    stream = lookup(other.root.url)

    def go_on(attempt):
        for _ in range(5 if attempt == 1 else 0):
            other.run_batch([{"k": "a", "v": 1}])

    attempts = interrupted(stream, go_on)
    (row,) = stream.run_batch(sent("a"))
    assert attempts == [{0}, {5}]  # All subtasks of one attempt see one record.
    assert row == {"code": "a", "at": 0, "n": 0, "n_right": 6, "total": 6}


def test_a_table_that_runs_away_fails_the_batch_and_nothing_is_committed():
    other = table()
    other.run_batch([{"k": "a", "v": 1}])
    stream = lookup(other.root.url)
    attempts = interrupted(stream, lambda _: [other.run_batch([{"k": "a", "v": 1}]) for _ in range(5)])
    with pytest.raises(DataLossError, match=r"lookup state 'op' of memory:.*retained_checkpoints"):
        stream.run_batch(sent("a"))
    assert len(attempts) == 4
    assert stream.checkpoint is None
    stream.restart()
    assert stream.run_batch(sent("a"))[0]["n_right"] == 21


def test_what_is_lost_for_good_is_told_at_once():
    other = table()
    other.run_batch([{"k": "a", "v": 1}])
    stream = lookup(other.root.url)
    attempts = interrupted(stream, lambda _: None)
    other.root.delete([info.name for info in other.root.list("shared/")])
    with pytest.raises(DataLossError, match="lookup"):
        stream.run_batch(sent("a"))
    assert len(attempts) == 1


def test_a_decided_batch_is_not_computed_again():
    other = table()
    other.run_batch([{"k": "a", "v": 1}])
    stream = lookup(other.root.url)
    first = stream.run_batch(sent("a"))
    other.run_batch([{"k": "a", "v": 1}])
    stream.restart()
    report = stream.report_batch(sent("a"), batch_id=0)
    assert report.replayed
    assert stream.outputs[0] == first


def test_a_checkpoint_and_a_savepoint_stay_as_they_are():
    other = table(retained=5)
    other.run_batch([{"k": "a", "v": 1}])
    saved = create_savepoint(CheckpointStore(other.root), open_store("memory://savepoints-of-lookups"))
    streams = [lookup(f"{other.root.url}/chk-0"), lookup(saved.url)]
    other.run_batch([{"k": "a", "v": 1}])
    for stream in streams:
        assert stream.run_batch(sent("a"))[0]["n_right"] == 1


def test_the_newest_checkpoint_may_be_that_of_a_program_with_more_columns():
    other = table()
    other.run_batch([{"k": "a", "v": 1}])
    stream = lookup(other.root.url, columns=["total"])
    wider = AggregateProgram.bind(TABLE, ["k"], {"more": count(), "n": count(), "total": sum("v")})
    table(wider, root=other.root).run_batch([{"k": "a", "v": 4}])
    assert stream.run_batch(sent("a", "b")) == [
        {"code": "a", "at": 0, "n": 0, "total": 5},
        {"code": "b", "at": 1, "n": -1, "total": None},
    ]
    narrower = AggregateProgram.bind(TABLE, ["k"], {"n": count()})
    table(narrower, root=other.root).run_batch([{"k": "a", "v": 4}])
    with pytest.raises(InvalidInputError, match="Its query was changed"):
        stream.run_batch(sent("a"))


@dataclass(frozen=True)
class Keeping(OperatorProgram):
    """Stores each row as it comes: by its key, or as an element below it."""

    schema: pa.Schema
    is_list: bool = False
    key_columns = ("k",)
    wants_hash = True
    definition = "keeping"

    @property
    def input_columns(self):
        return tuple(self.schema.names)

    @property
    def tables(self):
        schema = StateSchema.of(self.schema, self.schema.names[: 2 if self.is_list else 1])
        return {"kept": replace(schema, subkeys=int(self.is_list))}

    @property
    def output_schema(self):
        return self.schema

    def process(self, batches, tables, context):
        received = list(batches)
        if not received:
            return Processed(changes={})
        rows = pa.Table.from_batches(received)
        grouping = StateSchema(pa.schema([self.schema.field(0)]), pa.schema([]))
        keys = key_rows(grouping, [rows.column(0)], rows.column(HASH_COLUMN).to_numpy())
        columns = [column.combine_chunks() for column in rows.columns[1:-1]]
        if self.is_list:
            nothing = np.zeros(len(keys), dtype=np.bool_)
            changes = subkey_changes(tables["kept"], keys, range(len(keys)), columns[:1], columns[1:], nothing)
        else:
            groups = group_rows(keys)
            first = pa.array(groups.order[groups.starts])
            changes = StateRows(groups.keys, tuple(column.take(first) for column in columns))
        return Processed(changes={"kept": changes})


def test_runs_of_another_root_are_kept_on_this_host(tmp_path):
    other = table()
    other.run_batch([{"k": "a", "v": 1}])
    what, _ = found_in(other.root.url)
    given = LookupRoots({other.root.url: other.root}).slice(what, KeyGroupRange(0, 7), 8)
    root = LookupRoot(other.root, HostCache(tmp_path, 1 << 20))
    for _ in range(2):
        opened = open_lookup(what, given, ("look", "lookup", 0, 7), root, other.environment, OpenRuns())
        assert [batch.to_pylist() for batch in opened.scan()] == [[{"k": "a", "n": 1, "total": 1}]]
        other.root.delete([info.name for info in other.root.list("shared/")])
    with pytest.raises(DataLossError, match="lookup"):
        open_lookup(what, given, ("look", "lookup", 0, 7), LookupRoot(other.root), other.environment, OpenRuns())


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_found(kind):
    type_, values = KEYS[kind]
    kept, stream = pa.schema([("k", type_), ("v", pa.int64())]), pa.schema([("code", type_), ("n", pa.int64())])
    other = table(Keeping(kept), kept)
    other.run_batch([{"k": value, "v": number} for number, value in enumerate(values)])
    rows = [{"code": value, "n": number} for number, value in enumerate([*values, None])]
    out = lookup(other.root.url, schema=stream).run_batch(rows)
    assert {row["n"]: row["v"] for row in out} == {number: number for number in range(len(values))} | {
        len(values): None
    }


def test_what_has_outlived_its_time_is_not_there():
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("expires_at_ms", pa.int64())])
    other = table(Keeping(schema), schema)
    rows = [("old", 1, 1), ("new", 2, 10**15), ("ever", 3, None)]
    other.run_batch([dict(zip(schema.names, row, strict=True)) for row in rows])
    out = lookup(other.root.url).run_batch(sent("old", "new", "ever"))
    assert {row["code"]: row["v"] for row in out} == {"old": None, "new": 2, "ever": 3}
    assert "expires_at_ms" not in out[0]


def test_a_table_with_several_rows_for_a_key_is_refused():
    schema = pa.schema([("k", pa.string()), ("position", pa.int64()), ("v", pa.int64())])
    other = table(Keeping(schema, is_list=True), schema)
    other.run_batch([{"k": "a", "position": 1, "v": 1}])
    with pytest.raises(InvalidInputError, match="several rows for each key"):
        lookup(other.root.url, keys=("code", "n"))


class Replacing(Keeping):
    """Puts out each row, and takes back one with a smaller value."""

    emits = "updates"

    def process(self, batches, tables, context):
        rows = pa.Table.from_batches(list(batches), self.schema.append(pa.field(HASH_COLUMN, pa.int64())))
        rows = rows.select(self.schema.names)
        return Processed(changes={}, output=rows, retracted=rows.set_column(1, "v", pc.subtract(rows["v"], 1)))


def test_rows_that_take_others_back_are_left_out():
    other, replacing = table(), Replacing(TABLE)
    other.run_batch([{"k": "a", "v": 7}])
    what, shown = found_in(other.root.url, columns=["total"])
    program = LookupProgram.bind(TABLE, ["k"], what, shown, updates=True)
    assert program.emits == "unknown"
    assert LookupProgram.bind(STREAM, ["code"], what, shown).emits == "appends"
    graph = Graph.of_one_input([OperatorPlan.of("counts", replacing)])
    graph = graph.with_operator(OperatorPlan.of("look", program, (Source("operator", "counts"),))).graph
    job = GraphHarness(graph, {"counts": replacing, "look": program}, {"counts": TABLE})
    assert job.run_batch({"counts": [{"k": "a", "v": 1}]})["look"] == [{"k": "a", "v": 1, "total": 7}]


def test_what_cannot_be_looked_up_is_refused_before_anything_runs():
    other = table()
    with pytest.raises(NotFoundError, match="neither a checkpoint nor a savepoint"):
        found_in(other.root.url)
    other.run_batch([{"k": "a", "v": 1}])
    url = other.root.url
    with pytest.raises(InvalidInputError, match="operator"):
        found_in(url, operator="by_x")
    with pytest.raises(InvalidInputError, match="column of state 'op'"):
        found_in(url, columns=["totals"])
    with pytest.raises(InvalidInputError, match="cannot name 'n' twice"):
        found_in(url, columns=["n", "n"])
    with pytest.raises(InvalidInputError, match="columns"):
        found_in(url, columns="n")
    with pytest.raises(NotFoundError):
        found_in(f"{url}/chk-7")
    with pytest.raises(InvalidInputError, match="pointer"):
        found_in("")
    for keys in (["n"], ["code", "n"]):
        with pytest.raises(InvalidInputError, match="expected a key of the types of the state"):
            lookup(url, keys=keys)
    with pytest.raises(InvalidInputError, match="how"):
        lookup(url, how="right")
    with pytest.raises(InvalidInputError, match="which is taken"):
        lookup(url, suffix="")


def graph_of(program, *, kept=COUNTS):
    """A table that one stream keeps and the rows of another one beside it."""
    inputs = (Input(name="look"), Input(name="totals"))
    keeping = OperatorPlan.of("totals", kept, (Source("input", "totals"),))
    return Graph(inputs, (OperatorPlan.of("look", program, (Source("input", "look"),)), keeping))


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_table_of_the_same_pipeline_is_seen_as_the_batch_before_left_it(how):
    draw = random.Random(how)
    what, shown = lookup_in_operator(OperatorPlan.of("totals", COUNTS), None, None)
    program = LookupProgram.bind(STREAM, ["code"], what, shown, how=how)
    programs, schemas = {"look": program, "totals": COUNTS}, {"look": STREAM, "totals": TABLE}
    job, model = GraphHarness(graph_of(program), programs, schemas), Totals()
    keys = [None, *(f"k{number}" for number in range(30))]
    for _ in range(10):
        rows = sent(*(draw.choice(keys) for _ in range(draw.choice([0, 5, 40]))))
        changes = [{"k": draw.choice(keys), "v": draw.randrange(9)} for _ in range(draw.choice([0, 1, 20]))]
        out = job.run_batch({"look": rows, "totals": changes})
        assert as_rows(out.get("look", [])) == as_rows(model.beside(rows, how))
        model.run(changes)
        job.restart(parallelism=draw.randint(1, 8))


def test_a_state_that_is_not_in_the_pipeline_is_refused():
    plan = OperatorPlan.of("totals", COUNTS)
    with pytest.raises(InvalidInputError, match="operator"):
        lookup_in_operator(plan, "sums", None)
    what, shown = lookup_in_operator(plan, "totals", ["n"])
    program = LookupProgram.bind(STREAM, ["code"], what, shown)
    with pytest.raises(InvalidInputError, match="cannot look up 'totals'"):
        Graph.of_one_input([OperatorPlan.of("look", program)])
    with pytest.raises(InvalidInputError, match="has no state"):
        lookup_in_operator(OperatorPlan.of("look", program), None, None)
    with pytest.raises(InvalidInputError, match="Give operator=, one of: totals/a, totals/b"):
        lookup_in_operator(replace(plan, tables={"a": plan.tables[""], "b": ""}), None, None)
    for own in ("/tmp/of/mine/", "file:///tmp/of/mine", "/tmp/of/../of/mine/chk-3"):
        with pytest.raises(InvalidInputError, match="the checkpoint of this stream itself"):
            lookup_url(own, "/tmp/of/mine")
    for other in ("/tmp/of", "/tmp/of/mine/savepoint-1f", "s3://bucket/mine", "memory://mine"):
        assert lookup_url(other, "/tmp/of/mine") == other
    with pytest.raises(InvalidInputError, match="source"):
        lookup_url(7, "/tmp/of/mine")
