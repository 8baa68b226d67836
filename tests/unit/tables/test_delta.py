"""Delta: what the log says of a file is what its readers find in it, and tables that cannot be kept are refused."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import math
import random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema
from deltalake.schema import PrimitiveType

from stateline.blob import open_store
from stateline.environment import Environment
from stateline.errors import CorruptDataError, DataLossError, InvalidInputError
from stateline.files import FileOutput, RollingPolicy
from stateline.files.formats import FORMATS
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PLAIN
from stateline.tables import NewFile, TableChange, TableTarget, TableToken, commit_once, open_table
from stateline.tables.delta_statistics import file_statistics, partition_values
from tests.unit.tables.table_kit import SCHEMA, DeltaPlace

WORLD = Environment()
UTC = dt.UTC


def written(folder, rows, partition_by=(), batches=1):
    """A Delta table of rows, as a query of the file sink makes it."""
    out = open_store(str(folder / "t x"), {"fsync": "false"})
    output = FileOutput(url=out.url, partition_by=partition_by, rolling=RollingPolicy(every_checkpoint=True))
    table = TableTarget(format="delta", target=out.url, partition_by=partition_by)
    root = open_store("memory://" + WORLD.ids.new_id())
    plan = files_plan(root.url, output, PLAIN, schema=rows.schema, table=table)
    decision = FilesDecision(plan, root, out, rows.schema, WORLD)
    share = -(-rows.num_rows // batches)
    for number in range(batches):
        part = rows.slice(number * share, share).combine_chunks().to_batches()
        decision.commit([decision.stage(part)], batch_id=number, offsets_digest=str(number), query_id="q")
    return DeltaTable(str(folder / "t x"))


def values(table):
    return sorted(map(repr, table.select(sorted(table.column_names)).to_pylist()))


def test_rows_of_all_types_come_back_by_two_readers(tmp_path):
    moment = dt.datetime(2024, 3, 31, 1, 2, 3, 456789)
    rows = pa.table(
        {
            "b": [True, None],
            "i8": pa.array([-1, None], pa.int8()),
            "i16": pa.array([2, None], pa.int16()),
            "i32": pa.array([3, None], pa.int32()),
            "i64": pa.array([2**62, None], pa.int64()),
            "f32": pa.array([1.5, None], pa.float32()),
            "f64": [math.nan, -math.inf],
            "s": ["é" * 40, ""],
            "bin": [b"\xff\x00", None],
            "d": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(20, 2)),
            "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
            "at": pa.array([moment.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "local": pa.array([moment, None], pa.timestamp("us")),
            "list": [[1, None], None],
            "st": pa.array(
                [{"x": 1, "y": {"z": "q"}}, None],
                pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
            ),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "a.b": ["dot", None],
        }
    )
    table = written(tmp_path, rows)
    assert values(table.to_pyarrow_table()) == values(rows)
    query = QueryBuilder().register("t", table)
    for condition in (
        "at >= timestamp '2024-03-31T01:02:03.456789Z'",
        "local = timestamp '2024-03-31T01:02:03.456789'",
        "s = '" + "é" * 40 + "'",
        "day = date '9999-12-31'",
        "d >= 1.25",
        "i64 > 5",
        "st['x'] = 1",
    ):
        assert pa.table(query.execute(f"select * from t where {condition}").read_all()).num_rows == 1, condition
    assert pa.table(query.execute("select count(*) c from t").read_all())["c"].to_pylist() == [2]


def test_partitions_with_any_text_in_their_names(tmp_path):
    texts = [
        "a b",
        "100%",
        "x=y/z",
        "é%C3",
        "",
        None,
        "__HIVE_DEFAULT_PARTITION__x",
        "~",
        "q" * 300,
        "line\nfeed",
        "+ &?#",
    ]
    rows = pa.table(
        {
            "p": texts * 2,
            "day": pa.array([dt.date(2024, 1, 1), None] * len(texts)),
            "at": pa.array([dt.datetime(2024, 1, 1, 0, 0, 0, 5, UTC)] * 2 * len(texts), pa.timestamp("us", "UTC")),
            "n": list(range(2 * len(texts))),
        }
    )
    table = written(tmp_path, rows, ("p", "day", "at"), batches=2)
    asked = rows.set_column(0, "p", pc.if_else(pc.equal(rows["p"], ""), None, rows["p"]))
    assert values(table.to_pyarrow_table()) == values(asked)
    found = pa.table(QueryBuilder().register("t", table).execute("select n from t where p = '100%'").read_all())
    assert sorted(found["n"].to_pylist()) == [1, 1 + len(texts)]
    assert table.metadata().partition_columns == ["p", "day", "at"]


@pytest.mark.parametrize("seed", range(6))
def test_no_filter_loses_rows_by_statistics(tmp_path, seed):
    chance = random.Random(seed)
    n = 60
    moments = [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_000 + chance.randrange(1000))
        + dt.timedelta(microseconds=chance.randrange(3000))
        for _ in range(n)
    ]
    rows = pa.table(
        {
            "i": [chance.choice([None, chance.randrange(-5, 5)]) for _ in range(n)],
            "f": [chance.choice([math.nan, -0.0, 0.0, chance.random(), math.inf]) for _ in range(n)],
            "s": [chance.choice(["é", "z", "\U0010ffff"]) * chance.randrange(0, 40) for _ in range(n)],
            "t": pa.array(moments, pa.timestamp("us")),
            "d": pa.array(
                [decimal.Decimal(chance.randrange(-(10**17), 10**17)).scaleb(-2) for _ in range(n)],
                pa.decimal128(20, 2),
            ),
        }
    )
    table = written(tmp_path, rows, batches=10)
    dataset = table.to_pyarrow_dataset()
    for name in rows.column_names:
        for value in rows[name].to_pylist()[:20]:
            if value is None or value != value:
                continue
            for compare in (pc.greater_equal, pc.less_equal, pc.equal):
                scalar = pa.scalar(value, rows.schema.field(name).type)
                wanted = rows.filter(compare(rows[name], scalar)).num_rows
                assert dataset.to_table(filter=compare(pc.field(name), scalar)).num_rows == wanted, (name, value)


def footer_of(rows, rows_of_group=2):
    sink = io.BytesIO()
    encoder = FORMATS["parquet"].encoder(sink, rows.schema, None, rows_of_group)
    encoder.write(rows)
    encoder.finish()
    return pq.read_metadata(io.BytesIO(sink.getvalue()))


def stats_of(rows):
    return json.loads(file_statistics(footer_of(rows)))


def test_a_file_has_bounds_of_all_columns_or_of_none():
    rows = pa.table(
        {
            "f": pa.array([1.0, None, 2.5], pa.float32()),
            "b": [True, False, True],
            "n": pa.array([None] * 3, pa.int64()),
            "long": ["a" * 33, "b" * 32, "c"],
            "t": pa.array([1, 1_999, 5_001], pa.timestamp("us", "UTC")),
            "wide": pa.array([decimal.Decimal("-863233125685948.28")] * 3, pa.decimal128(20, 2)),
            "last": ["a\U0010ffff" + "\U0010ffff" * 40] * 3,
            "bin": [b"x"] * 3,
            "list": [[1.0]] * 3,
            "st": [{"x": 1, "f": 1.0}] * 3,
        }
    )
    rows = rows.replace_schema_metadata()
    footer = footer_of(rows)
    assert '"wide":-863233125685948.28' in file_statistics(footer)
    stats = json.loads(file_statistics(footer))
    assert stats["numRecords"] == 3
    assert stats["nullCount"] == {
        "f": 1,
        "b": 0,
        "n": 3,
        "long": 0,
        "t": 0,
        "wide": 0,
        "last": 0,
        "st": {"x": 0, "f": 0},
    }
    del stats["minValues"]["wide"], stats["maxValues"]["wide"]
    assert stats["minValues"] == {
        "f": 1.0,
        "b": False,
        "long": "a" * 32,
        "t": "1970-01-01T00:00:00.000Z",
        "last": "a" + "\U0010ffff" * 31,
        "st": {"x": 1, "f": 1.0},
    }
    assert stats["maxValues"] == {
        "f": 2.5,
        "b": True,
        "long": "c",
        "t": "1970-01-01T00:00:00.006Z",
        "last": "b",
        "st": {"x": 1, "f": 1.0},
    }
    for odd in (math.nan, math.inf, -math.inf):
        assert "minValues" not in stats_of(pa.table({"f": [1.0, odd], "i": [1, 2]})), "an order that readers differ in"
    assert "minValues" not in stats_of(pa.table({"s": ["\U0010ffff" * 33], "i": [1]})), "no text is above"
    assert "minValues" not in stats_of(pa.table({"s": ["a" * 5000], "i": [1]})), "a footer has no bounds of long texts"
    assert "minValues" not in stats_of(pa.table({f"c{index}": [index] for index in range(201)}))


def test_a_cut_text_bound_is_below_and_above_its_text():
    chance = random.Random(1)
    characters = ["a", "\x7f", "\0", "é", "e\u0301", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
    for _ in range(500):
        head = chance.choice(characters) * 31 + chance.choice(characters)
        texts = [(head + "".join(chance.choices(characters, k=chance.randrange(5)))) for _ in range(2)]
        stats = stats_of(pa.table({"s": texts}))
        if "minValues" in stats:
            assert stats["minValues"]["s"].encode() <= min(texts).encode(), texts
            assert stats["maxValues"]["s"].encode() >= max(texts).encode(), texts
        else:
            assert max(texts)[:32] == "\U0010ffff" * 32, texts


def test_a_cut_text_is_found_by_equality(tmp_path):
    texts = ["a" * 32 + "\U0010ffffb", "\U0010ffff" * 40]
    for at, text in enumerate(texts):
        table = written(tmp_path / str(at), pa.table({"s": [text], "i": [1]}))
        asked = QueryBuilder().register("t", table).execute(f"select * from t where s = '{text}'")
        assert pa.table(asked.read_all()).num_rows == 1, text
        assert table.to_pyarrow_dataset().to_table(filter=pc.field("s") == text).num_rows == 1, text


def test_floats_have_bounds_in_the_log_and_none_in_the_file(tmp_path):
    inner = pa.struct([("x", pa.float32()), ("deep", pa.struct([("y", pa.float64())]))])
    rows = pa.table(
        {
            "good": [1.5, None, -2.0],
            "zero": [0.0, -0.0, 0.0],
            "codes": pa.array([1.5, 2.5, None]).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.float64())),
            "st": pa.array([{"x": 1.0, "deep": {"y": 2.0}}, None, {"x": None, "deep": None}], inner),
            "list": pa.array([[1.0], None, []], pa.list_(pa.float64())),
            "i": [1, 2, 3],
        }
    )
    footer = footer_of(rows)
    for group in range(footer.num_row_groups):
        for leaf in map(footer.row_group(group).column, range(footer.num_columns)):
            assert leaf.is_stats_set == (leaf.physical_type == "INT64"), leaf.path_in_schema
    stats = json.loads(file_statistics(footer))
    assert stats["minValues"] == {
        "good": -2.0,
        "zero": 0.0,
        "codes": 1.5,
        "st": {"x": 1.0, "deep": {"y": 2.0}},
        "i": 1,
    }
    assert math.copysign(1, stats["minValues"]["zero"]) == -1
    assert math.copysign(1, stats["maxValues"]["zero"]) == 1
    assert stats["nullCount"] == {"good": 1, "zero": 0, "codes": 1, "st": {"x": 2, "deep": {"y": 2}}, "i": 0}
    twice = pa.table({"a": [1.0, math.nan], "b": [math.nan, 1.0]})
    assert values(written(tmp_path / "twice", twice, batches=2).to_pyarrow_table()) == values(twice)


def test_a_partition_value_that_no_reader_can_parse_never_reaches_the_log():
    schema = pa.schema([("day", pa.date32()), ("x", pa.int64())])
    footer = footer_of(pa.table({"x": [1]}))
    assert partition_values("day=2024-01-01/f", ["day"], schema, footer) == {"day": "2024-01-01"}
    for name in ("day=yesterday/f", "f", "other=2024-01-01/f"):
        with pytest.raises(CorruptDataError):
            partition_values(name, ["day"], schema, footer)


def test_types_that_delta_has_not_are_refused_by_name(tmp_path):
    for kind in (
        pa.uint8(),
        pa.time64("us"),
        pa.timestamp("ms"),
        pa.float16(),
        pa.duration("s"),
        pa.list_(pa.uint64()),
    ):
        with pytest.raises(InvalidInputError, match="column 'odd'"):
            open_table(DeltaPlace(tmp_path).target(), schema=pa.schema([("odd", kind)]))


def prepared(tmp_path, change):
    place = DeltaPlace(tmp_path)
    place.open().create()
    change(place.table())
    return place


def refused_with(place, said):
    table = place.open()
    with pytest.raises(InvalidInputError, match=said):
        table.check(table.look("a"))
    with pytest.raises(InvalidInputError, match=said):
        commit_once(table, place.change(0, None, [1]), WORLD)
    assert place.rows() == []


def test_features_that_nobody_would_keep_are_refused(tmp_path):
    refused_with(prepared(tmp_path / "a", lambda t: t.alter.add_constraint({"positive": "k > 0"})), "constraints")

    def edit_log(table, key, value):
        log = tmp_path / "b" / "t" / "_delta_log" / f"{0:020}.json"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "metaData" in line:
                if key == "field":
                    schema = json.loads(line["metaData"]["schemaString"])
                    schema["fields"][1]["metadata"] = value
                    line["metaData"]["schemaString"] = json.dumps(schema)
                else:
                    line["metaData"]["configuration"][key] = value
        log.write_text("\n".join(map(json.dumps, lines)))

    for key, value, said in (
        ("delta.columnMapping.mode", "name", "maps columns"),
        ("field", {"delta.generationExpression": "upper(v)"}, "computed or checked"),
        ("field", {"delta.invariants": '{"expression":{"expression":"k > 1"}}'}, "computed or checked"),
    ):
        place = prepared(tmp_path / "b", lambda table, key=key, value=value: edit_log(table, key, value))
        refused_with(place, said)
        place.drop()
    append_only = prepared(tmp_path / "c", lambda t: t.alter.set_table_properties({"delta.appendOnly": "true"}))
    commit_once(append_only.open(), append_only.change(0, None, [1]), WORLD)
    upsert = DeltaPlace(tmp_path / "c", "upsert")
    with pytest.raises(InvalidInputError, match="appends only"):
        commit_once(upsert.open(), upsert.change(0, None, [1], app="b"), WORLD)


def test_a_table_that_changed_meanwhile_keeps_the_rows_for_later(tmp_path):
    place = DeltaPlace(tmp_path)
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    change = place.change(1, 0, [2])
    place.table().alter.add_columns([Field("more", PrimitiveType("string"), nullable=True)])
    commit_once(place.open(), change, WORLD)
    assert place.rows() == [(1, "c0", None), (2, "c1", None)]


def test_files_that_are_gone_or_others_are_never_named(tmp_path):
    place = DeltaPlace(tmp_path)
    table = place.open()
    change = place.change(0, None, [1])
    (file,) = change.files
    (tmp_path / "t" / file.name).unlink()
    with pytest.raises(DataLossError, match="is gone"):
        commit_once(table, change, WORLD)
    (tmp_path / "t" / file.name).write_bytes(b"nothing")
    with pytest.raises(CorruptDataError, match="not a Parquet file"):
        commit_once(table, change, WORLD)
    other = place.publish(pa.table({"k": ["text"], "v": ["x"]}))
    token = TableToken(app="a", checkpoint_id=0)
    with pytest.raises(InvalidInputError, match="'k' is int64 there"):
        commit_once(table, TableChange(token=token, created_at=1.0, files=other), WORLD)
    wrong = TableChange(
        token=token, created_at=1.0, files=(NewFile(name=other[0].name, length=other[0].length, rows=5),)
    )
    with pytest.raises(CorruptDataError, match="expected 5 rows"):
        commit_once(table, wrong, WORLD)
    assert place.rows() == []


def test_other_partitions_are_refused(tmp_path):
    DeltaTable.create(str(tmp_path / "t"), Schema.from_arrow(SCHEMA), partition_by=["v"])
    refused_with(DeltaPlace(tmp_path), r"partitioned by \['v'\]")


def test_vacuum_takes_nothing_that_is_not_committed_yet(tmp_path):
    place = DeltaPlace(tmp_path)
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    change = place.change(1, 0, [2])
    place.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    commit_once(place.open(), change, WORLD)
    assert place.rows() == [(1, "c0"), (2, "c1")]


def test_the_log_stays_readable_over_its_own_checkpoints(tmp_path):
    place = DeltaPlace(tmp_path)
    for number in range(5):
        commit_once(place.open(), place.change(number, number - 1 if number else None, [number]), WORLD)
    place.table().create_checkpoint()
    place.table().update_incremental()
    for number in range(5, 8):
        commit_once(place.open(), place.change(number, number - 1, [number]), WORLD)
    assert len(place.rows()) == 8


def test_old_entries_of_the_log_go_once_in_a_hundred_versions(tmp_path):
    place = DeltaPlace(tmp_path)
    commit_once(place.open(), place.change(0, None, [0]), WORLD)
    for _ in range(96):
        place.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    place.table().create_checkpoint()
    log = tmp_path / "t" / "_delta_log"
    entries = []
    for number in range(1, 4):
        commit_once(place.open(), place.change(number, number - 1, [number]), WORLD)
        entries.append(len(list(log.glob("*.json"))))
    assert place.table().version() == 100
    assert entries[0] == 99  # Version 98: all that there are.
    assert max(entries[1:]) < 10
    assert len(place.rows()) == 4


@pytest.mark.parametrize("character", list(" ,;{}()\n\t="))
def test_names_that_other_engines_refuse_are_refused_by_their_characters(tmp_path, character):
    inner = pa.struct([("x", pa.int64()), (f"a{character}b", pa.int64())])
    for kind in ("append", "upsert"):
        for schema in (
            pa.schema([("k", pa.int64()), (f"a{character}b", pa.int64())]),
            pa.schema([("k", pa.int64()), ("s", pa.list_(inner))]),
            pa.schema([("k", pa.int64()), ("m", pa.map_(pa.string(), inner))]),
        ):
            with pytest.raises(InvalidInputError) as caught:
                open_table(DeltaPlace(tmp_path, kind).target(), schema=schema)
            assert f"Delta excludes the characters {character!r}" in str(caught.value)
            assert "Rename the column" in str(caught.value)


def test_a_backtick_in_a_name_cannot_be_merged(tmp_path):
    schema = pa.schema([("k", pa.int64()), ("a`b", pa.int64())])
    open_table(DeltaPlace(tmp_path).target(), schema=schema)
    with pytest.raises(InvalidInputError, match="merges of Delta exclude the characters '`'"):
        open_table(DeltaPlace(tmp_path, "upsert").target(), schema=schema)


def test_names_that_engines_cannot_tell_apart_are_refused(tmp_path):
    for names, said in ((["k", "K"], "'k' and 'K'"), (["k", ""], "without a name")):
        for schema in (
            pa.schema([(name, pa.int64()) for name in names]),
            pa.schema([("s", pa.struct([(name, pa.int64()) for name in names]))]),
        ):
            with pytest.raises(InvalidInputError, match=said):
                open_table(DeltaPlace(tmp_path).target(), schema=schema)


NAMES = [
    "a.b",
    "`",
    '"',
    "'",
    "é",
    "e\u0301",
    "%20",
    "a/b",
    "\\",
    "#",
    "?",
    "$x",
    "-",
    "1",
    "select",
    "\r",
    "\x7f",
    "x" * 300,
]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_every_other_name_is_found_by_a_filter(tmp_path, mode):
    names = NAMES if mode == "append" else [name for name in NAMES if name != "`"]
    rows = pa.table({"k": [1, 2], **{name: [at, at + 1] for at, name in enumerate(names)}, "s": [{"p.q": 1.5}] * 2})
    rows = rows.append_column("f.g", [[math.nan, 1.5]])
    if mode == "append":
        table = written(tmp_path, rows)
    else:
        target = TableTarget(format="delta", target=(tmp_path / "t").as_uri(), mode="upsert", key=("k", '"', "a.b"))
        for number in range(2):
            token = TableToken(app="a", checkpoint_id=number, previous=number - 1 if number else None)
            change = TableChange(token=token, created_at=1.0, rows=lambda: iter([rows]))
            commit_once(open_table(target, schema=rows.schema), change, WORLD)
        table = DeltaTable(str(tmp_path / "t"))
    dataset, query = table.to_pyarrow_dataset(), QueryBuilder().register("t", table)
    assert dataset.count_rows() == 2
    footer = pq.read_metadata(table.file_uris()[0].replace("%20", " "))
    for leaf in map(footer.row_group(0).column, range(footer.num_columns)):
        assert leaf.physical_type != "DOUBLE" or not leaf.is_stats_set, leaf.path_in_schema
    assert pa.table(query.execute('select k from t where "f.g" > 5').read_all())["k"].to_pylist() == [1]
    for at, name in enumerate(names):
        assert dataset.to_table(filter=pc.field(name) == at)["k"].to_pylist() == [1], name
        quoted = '"' + name.replace('"', '""') + '"'
        found = pa.table(query.execute(f"select k from t where {quoted} = {at + 1}").read_all())
        assert found["k"].to_pylist() == [2], name


def test_a_folder_with_a_percent_sign_is_refused(tmp_path):
    """The library decodes the path twice: such a table could be created, and never be read."""
    target = TableTarget(format="delta", target=(tmp_path / "a%20b").as_uri())
    with pytest.raises(InvalidInputError, match="'%'"):
        open_table(target, schema=SCHEMA)


def test_columns_without_nulls_have_their_feature_beside_timestamps_without_a_zone(tmp_path):
    schema = pa.schema([pa.field("at", pa.timestamp("us")), pa.field("checkpoint_id", pa.int64(), nullable=False)])
    target = TableTarget(format="delta", target=f"file://{tmp_path}/created")
    with open_table(target, schema=schema) as table:
        table.create()
    assert set(DeltaTable(tmp_path / "created").protocol().writer_features) == {"invariants", "timestampNtz"}

    DeltaTable.create(tmp_path / "earlier", Schema.from_arrow(schema))
    target = TableTarget(format="delta", target=f"file://{tmp_path}/earlier", mode="upsert", key=("checkpoint_id",))
    rows = pa.table({"at": [dt.datetime(2026, 1, 1)], "checkpoint_id": [0]}).cast(schema)
    token = TableToken(app="query", checkpoint_id=0)
    with open_table(target, schema=schema) as table:
        commit_once(table, TableChange(token=token, created_at=0.0, rows=lambda: iter([rows])), WORLD)
    there = DeltaTable(tmp_path / "earlier")
    assert set(there.protocol().writer_features) == {"invariants", "timestampNtz"}
    assert there.to_pyarrow_table().num_rows == 1
