"""Every table: a row is refused before a record stands, or the table's own reader shows it."""

from __future__ import annotations

import dataclasses
import os
import random
import sqlite3
from collections import Counter

import pytest

from tests.unit.tables.drawn_values import drawn_rows, folder_of, held_by_rule, rows_of_arrow
from tests.unit.tables.table_kit import KINDS, places

SEEDS = int(os.environ.get("STATELINE_VALUE_SEEDS", "40"))


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
