"""Upserts into Delta tables: one row for each key, of every type and value, and no bound that hides a row."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import random
import struct
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake

from stateline.environment import system_environment
from stateline.tables import TableTarget, commit_once, delta, open_table
from stateline.tables.api import TableChange, TableToken

WORLD = system_environment()
UTC = dt.UTC
NAN = math.nan
D = decimal.Decimal
MICROS = pa.timestamp("us")
MICROS_UTC = pa.timestamp("us", "UTC")


class Upserts:
    def __init__(self, folder, schema, key):
        self.place, self.schema, self.key, self.number = folder / "t", schema, key, 0

    def merge(self, rows, gone=None):
        target = TableTarget(format="delta", target=self.place.as_uri(), mode="upsert", key=self.key)
        token = TableToken(app="a", checkpoint_id=self.number, previous=self.number - 1 if self.number else None)
        change = TableChange(
            token=token,
            created_at=1.0,
            rows=lambda: iter([rows]),
            gone=lambda: iter([] if gone is None else [gone]),
        )
        with open_table(target, schema=self.schema) as table:
            commit_once(table, change, WORLD)
        self.number += 1

    @property
    def table(self):
        return DeltaTable(str(self.place))

    def rows(self):
        return sorted(map(repr, self.table.to_pyarrow_table().select(self.schema.names).to_pylist()))


def shown(*rows):
    return sorted(map(repr, rows))


def upserts_of(folder, rows, key):
    return Upserts(folder, rows.schema, key)


def test_nan_among_the_keys_adds_no_row(tmp_path):
    rows = pa.table({"d": [NAN, 1.0], "v": [1, 2]})
    upserts = upserts_of(tmp_path / "one", rows, ("d",))
    for _ in range(3):
        upserts.merge(rows)
    assert upserts.rows() == shown({"d": NAN, "v": 1}, {"d": 1.0, "v": 2})
    rows = pa.table({"k": ["a", "a", "b"], "d": [NAN, 1.0, NAN], "v": [1, 2, 3]})
    upserts = upserts_of(tmp_path / "two", rows, ("k", "d"))
    for _ in range(3):
        upserts.merge(rows)
    assert upserts.rows() == shown(*rows.to_pylist())


KEYS = {
    "nan": pa.array([NAN, 1.0, math.inf, -math.inf, 0.0, -1e308, 5e-324]),
    "float": pa.array([NAN, 0.1, math.inf, 3e38, 0.0], pa.float32()),
    "text": pa.array(
        ["a" * 32 + "\U0010ffffb", "\U0010ffff" * 40, "z" * 50, "", "\0", "é", "e\u0301", "\ud7ff", "\ue000"]
    ),
    "moment": pa.array([0, -1, 456_789, 1_704_067_200_456_789, -14_830_000_000_000_001], MICROS_UTC),
    "local": pa.array([0, -1, 456_789, 1_704_067_200_456_789, 253_402_300_799_999_999], MICROS),
    "day": pa.array([dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)]),
    "wide": pa.array([D("9" * 38), D(-1), D("12345678901234567890")], pa.decimal128(38, 0)),
    "money": pa.array([D("-863233125685948.28"), D("100000000000000.03"), D("0.01")], pa.decimal128(20, 2)),
    "small": pa.array([D("0." + "0" * 37 + "1"), D("0.5")], pa.decimal128(38, 38)),
    "whole": pa.array([2**63 - 1, -(2**63), 2**53 + 1, 0]),
    "bytes": pa.array([b"\xff" * 40, b"", b"\0"]),
    "flag": pa.array([True, False]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_each_key_has_one_row_and_is_found(kind, tmp_path):
    keys, chance = KEYS[kind], random.Random(kind)
    rows = pa.table({"k": keys, "g": ["x"] * len(keys), "copy": keys, "v": list(range(len(keys)))})
    upserts = upserts_of(tmp_path, rows, ("k", "g"))
    newest = {}
    for number in range(4):
        taken = sorted(chance.sample(range(len(keys)), chance.randint(1, len(keys)))) if number else [*range(len(keys))]
        part = rows.take(taken).set_column(3, "v", pa.array([number * 100 + at for at in taken]))
        upserts.merge(part)
        newest |= {at: number * 100 + at for at in taken}
    assert sorted(upserts.table.to_pyarrow_table()["v"].to_pylist()) == sorted(newest.values())
    bounds_hold(upserts.table)
    dataset, query = upserts.table.to_pyarrow_dataset(), QueryBuilder().register("t", upserts.table)
    for at, number in newest.items():
        value = keys[at]
        if kind == "text" and "\0" not in value.as_py():
            found = query.execute(f"select v from t where k = '{value}' and copy = '{value}'").read_all()
            assert pa.table(found)["v"].to_pylist() == [number], value
        # Arrow's datasets cannot compare the views of text that the library writes.
        for column in ("k", "copy") if kind not in ("text", "bytes") else ():
            same = pc.is_nan(pc.field(column)) if _is_nan(value) else pc.field(column) == value
            assert dataset.to_table(filter=same)["v"].to_pylist() == [number], (kind, value)
    if pa.types.is_floating(keys.type):
        for condition in ("copy > 5", "copy >= 1.5"):
            found = pa.table(query.execute(f"select copy from t where {condition}").read_all())
            assert found.num_rows == sum(1 for each in keys.to_pylist() if _is_nan(each) or each > 5), condition


def bounds_hold(table):
    """Every bound of the log and of the files holds for every row, by exact comparison."""
    for path in table.file_uris():
        footer = pq.read_metadata(path.replace("%20", " "))
        for leaf in map(footer.row_group(0).column, range(footer.num_columns)):
            assert leaf.physical_type not in ("FLOAT", "DOUBLE") or not leaf.is_stats_set, leaf.path_in_schema
    log = (_folder(table) / "_delta_log").glob("*.json")
    for line in (line for path in log for line in path.read_text().splitlines()):
        add = json.loads(line, parse_float=D).get("add")
        if add is None:
            continue
        stats = json.loads(add["stats"], parse_float=D)
        rows = pq.read_table(_folder(table) / add["path"])
        for name, least in stats.get("minValues", {}).items():
            greatest = stats["maxValues"][name]
            kind = rows.schema.field(name).type
            assert not pa.types.is_floating(kind), name
            if pa.types.is_decimal(kind) or pa.types.is_integer(kind):
                numbers = [each for each in rows[name].to_pylist() if each is not None]
                assert least <= min(numbers), name
                assert greatest >= max(numbers), name
            if pa.types.is_string(kind):
                texts = [each for each in rows[name].to_pylist() if each is not None]
                assert least.encode() <= min(each.encode() for each in texts), name
                assert greatest.encode() >= max(each.encode() for each in texts), name


def _folder(table):
    return Path(unquote(urlsplit(table.table_uri).path))


def _is_nan(value):
    number = value.as_py() if isinstance(value, pa.Scalar) else value
    return isinstance(number, float) and math.isnan(number)


def test_numbers_that_are_equal_are_one_key(tmp_path):
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    schema = pa.schema([("d", pa.float64()), ("v", pa.int64())])
    upserts = Upserts(tmp_path, schema, ("d",))
    for number, keys in enumerate(([NAN, 0.0], [other, -0.0], [-0.0], [0.0, NAN])):
        upserts.merge(pa.table({"d": pa.array(keys, pa.float64()), "v": [number] * len(keys)}))
    assert upserts.rows() == shown({"d": NAN, "v": 3}, {"d": 0.0, "v": 3})
    upserts.merge(pa.table({"d": [1.0], "v": [9]}), gone=pa.table({"d": [other, -0.0]}))
    assert upserts.rows() == shown({"d": 1.0, "v": 9})


def test_tables_that_others_made_lose_only_the_bounds_that_would_be_wrong(tmp_path):
    rows = pa.table(
        {
            "k": [1, 2],
            "s": ["a", "b"],
            "d": [NAN, math.inf],
            "n": pa.array([{"x": NAN, "y": 1}, None]),
            "m": pa.array([D("100000000000000.03"), D(1)], pa.decimal128(17, 2)),
        }
    )
    properties = [
        {},
        {"delta.dataSkippingStatsColumns": "k,d,n"},
        {"delta.dataSkippingNumIndexedCols": "0"},
        {"delta.dataSkippingStatsColumns": "k,s"},
    ]
    for at, given in enumerate(properties):
        upserts = upserts_of(tmp_path / str(at), rows, ("k",))
        upserts.place.mkdir(parents=True)
        DeltaTable.create(str(upserts.place), Schema.from_arrow(rows.schema), configuration=given)
        for _ in range(2):
            upserts.merge(rows)
        table = upserts.table
        assert table.version() == (2 if at > 1 else 3), "at most one change of the properties"
        for path in (upserts.place / "_delta_log").glob("*.json"):
            for line in path.read_text().splitlines():
                stats = json.loads(json.loads(line).get("add", {}).get("stats", "{}"))
                wanted = [{"k", "s", "n"}, {"k"}, set(), {"k", "s"}][at]
                assert {*stats.get("minValues", ())} <= wanted
        dataset = table.to_pyarrow_dataset()
        for condition in (pc.field("k") == 1, pc.is_nan(pc.field("d")), pc.field("n", "y") == 1):
            assert dataset.to_table(filter=condition).num_rows == 1, (given, condition)
        query = QueryBuilder().register("t", table)
        for condition, count in (
            ("d > 5", 2),
            ("m = cast('100000000000000.03' as decimal(17, 2))", 1),
            ("k = 2", 1),
            ("s = 'a'", 1),
            ("n['x'] > 5", 1),
        ):
            found = pa.table(query.execute(f"select * from t where {condition}").read_all())
            assert found.num_rows == count, (given, condition)


@pytest.mark.parametrize("may_limit", [True, False])
def test_rows_that_others_wrote_with_wrong_bounds_are_replaced(tmp_path, monkeypatch, may_limit):
    if not may_limit:  # A table whose properties cannot be changed.
        monkeypatch.setattr(delta, "limit_bounds", lambda *_: False)
    keys = {"d": pa.array([NAN, 1.0]), "m": pa.array([D("9" * 38), D(1)], pa.decimal128(38, 0))}
    for kind, values in keys.items():
        rows = pa.table({"k": values, "v": [1, 2]})
        upserts = upserts_of(tmp_path / kind, rows, ("k",))
        upserts.place.parent.mkdir()
        write_deltalake(str(upserts.place), rows)
        for part in (rows, rows.slice(0, 1), rows):
            upserts.merge(part)
        assert upserts.rows() == shown(*rows.to_pylist()), kind
