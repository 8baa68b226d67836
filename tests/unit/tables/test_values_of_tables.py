"""Every table: a row is refused before a record stands, or the table's own reader shows it."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import sqlite3
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from stateline.errors import InvalidInputError
from stateline.tables import TABLE_FORMATS, TableTarget, check_values, open_table
from tests.unit.tables.drawn_values import SIGNALLING, Query, drawn_rows, folder_of, held_by_rule, rows_of_arrow
from tests.unit.tables.table_kit import KINDS, places

SEEDS = int(os.environ.get("STATELINE_VALUE_SEEDS", "25"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_refused_before_the_record_or_it_is_shown(kind, tmp_path):
    results = Counter()
    for seed in range(SEEDS):
        draw = random.Random(f"{kind} {seed}")
        place = places(folder_of(tmp_path, seed))[kind]
        rows = drawn_rows(draw, upsert=kind.endswith("upsert"))
        target = dataclasses.replace(place.target(), key=place.key)
        if kind.startswith("delta") and draw.random() < 0.3:
            target = dataclasses.replace(target, partition_by=("c0",))

        def read(expected, place=place, form=target.format):
            if form != "sqlite":
                table = place.table()
                return rows_of_arrow(table.to_pyarrow_table() if form == "delta" else table.scan().to_arrow())
            connection = place.connection()
            connection.row_factory = sqlite3.Row
            try:
                return {row["n"]: dict(row) for row in connection.execute("SELECT * FROM flights")}
            finally:
                connection.close()

        with place:
            results[held_by_rule(place, target, rows, read)] += 1
    assert min(results["refused"], results["shown"]) >= SEEDS // 8, results


def numbers_of(*texts):
    return pa.array([None if text is None else text.encode("latin-1") for text in texts], pa.binary()).view(pa.string())


@pytest.mark.parametrize("form", sorted(TABLE_FORMATS))
@pytest.mark.parametrize("shape", ["plain", "list", "struct", "map", "dictionary", "list of struct"])
def test_the_error_names_row_and_column_at_any_depth(form, shape):
    leaf = numbers_of("a", None, "\xff", "b")
    offsets = pa.array([0, 2, 2, 4], pa.int32())
    structs = pa.StructArray.from_arrays([leaf], ["x"])
    column = {
        "plain": leaf.slice(0, 3),
        "list": pa.ListArray.from_arrays(offsets, leaf),
        "struct": structs.slice(0, 3),
        "map": pa.MapArray.from_arrays(offsets, pa.array(list("abcd")), leaf),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), leaf),
        "list of struct": pa.ListArray.from_arrays(offsets, structs),
    }[shape]
    rows = pa.concat_tables([pa.table({"n": [7], "c": column.slice(0, 1)}), pa.table({"n": [8, 9], "c": column[1:]})])
    target = TableTarget(format=form, target="a.b")
    with pytest.raises(InvalidInputError, match=r"column 'c' of row 2 \{'n': 9\} has text that is not UTF-8"):
        check_values(rows, target, "operator x")
    check_values(rows.slice(0, 2), target, "operator x")


def test_what_lies_behind_a_null_does_not_count():
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), numbers_of("\xff", "a"), mask=pa.array([True, False])
    )
    inside = pa.StructArray.from_arrays([numbers_of("\xff", "a")], ["x"], mask=pa.array([True, False]))
    check_values(pa.table({"c": hidden, "s": inside}), TableTarget(format="delta", target="t"), "operator x")


@pytest.mark.parametrize("kind", ["delta-upsert", "sqlite-upsert"])
@pytest.mark.parametrize("deletes", [False, True])
def test_both_zeros_and_all_forms_of_nan_are_one_key(kind, deletes, tmp_path):
    place = places(tmp_path)[kind]
    keys = [0.0, 1.0, -0.0] if kind.startswith("sqlite") else [0.0, math.nan, -0.0, SIGNALLING]
    rows = pa.table({"n": range(len(keys)), "k": pa.array(np.array(keys))})
    target = dataclasses.replace(place.target(), deletes=deletes)
    with place:
        Query(place, target, rows).run()
        found = place.rows()
    newest = [(1, 1.0), (2, 0.0)] if kind.startswith("sqlite") else [(2, 0.0), (3, math.nan)]
    assert repr(sorted(found)) == repr(newest)


def test_a_key_that_is_there_twice_is_refused_as_ever(tmp_path):
    place = places(tmp_path)["sqlite-upsert"]
    query = Query(place, place.target(), pa.table({"n": [1, 2, 3], "k": [0.0, 0.0, -0.0]}))
    with place, pytest.raises(InvalidInputError, match="one row of each key"):
        query.run()
    assert not query.is_decided


def test_partitions_and_keys_that_have_no_room_are_refused():
    rows = pa.table({"n": [1, 2], "c": ["x" * 4096, "y" * 4097]})
    check_values(rows, TableTarget(format="iceberg", target="a.b", partition_by=("c",)), "operator x")
    files = TableTarget(format="delta", target="a.b", partition_by=("c",))
    check_values(rows.slice(0, 1), files, "operator x")
    with pytest.raises(InvalidInputError, match=r"column 'c' of row 1 \{'n': 2\} has a value of more than 4096 bytes"):
        check_values(rows, files, "operator x")
    merged = TableTarget(format="delta", target="t", mode="upsert", key=("n",), partition_by=("c",))
    check_values(pa.table({"n": [1], "c": ["é" * 42]}), merged, "operator x")
    with pytest.raises(InvalidInputError, match="of row 0"):
        check_values(pa.table({"n": [1], "c": ["é" * 43]}), merged, "operator x")


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize(("given", "said"), [("colour", "'colour': unknown option"), ("fsnc", "Did you mean 'fsync'")])
def test_options_that_nothing_knows_are_refused(form, given, said):
    for mode in ("append", "upsert") if form == "delta" else ("append",):
        key = ("k",) if mode == "upsert" else ()
        target = TableTarget(format=form, target="/tmp/a.b", mode=mode, key=key, options={given: "red"})
        with pytest.raises(InvalidInputError, match=said):
            open_table(target, schema=pa.schema([("k", pa.int64())]))
