"""A pipeline of joins, chains, sessions and best rows for the killed driver, and what it must have made."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.demo.offsets import batch_of_files
from stateline import spark as stateline
from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.spark import KeyedStream, Pipeline
from stateline.state.stored import StoredState

DELAY, NEAR, GAP, BEST = 3, 20, 5, 2
"""Seconds that rows may be late, within which rows are joined, and that end a session; rows that are kept of a key."""

Row = dict[str, int]


def pipeline(events: DataFrame, folder: str, parallelism: int, options: Mapping[str, str]) -> Pipeline:
    """Even values joined with odd ones and added up behind the join; sessions; the newest rows of each key."""
    events = events.withColumn("at", F.timestamp_seconds("id"))

    def keyed(rows: DataFrame, name: str) -> KeyedStream:
        return KeyedStream(
            rows,
            "key",
            f"file://{folder}/state",
            parallelism=parallelism,
            watermark=("at", f"{DELAY} seconds"),
            options=options,
            name=name,
        )

    def written(name: str) -> dict[str, str]:
        return {"path": f"file://{folder}/{name}", "roll_bytes": "600B"}

    even, odd = (keyed(events.where(f"value % 2 = {half}"), "pairs") for half in (0, 1))
    within = (f"-{NEAR} seconds", f"{NEAR} seconds")
    pairs = even.join(odd, within=within)
    totals = pairs.key_by("key", name="totals").aggregate(pairs=stateline.count(), total=stateline.sum("value"))
    sessions = keyed(events, "sessions").sessions("at", f"{GAP} seconds").aggregate("append", n=stateline.count())
    newest = keyed(events, "newest").top(BEST, "id")
    files = pairs.write_files(**written("pairs")).alongside(sessions.write_files(**written("sessions")))
    return files.alongside(totals.state_only()).alongside(newest.state_only())


def check(folder: Path, *, files: int, rows: int) -> None:
    """Compares files and state with the model, row by row."""
    batches = batch_of_files(folder / "spark")
    assert len(batches) == files
    events = [{"id": i, "key": i * i % 13, "value": i * 7 % 101} for i in range(files * rows)]
    even, odd = ([row for row in events if row["value"] % 2 == half] for half in (0, 1))
    pairs = collections.Counter(
        (left["key"], left["id"], right["id"])
        for left in even
        for right in odd
        if left["key"] == right["key"] and abs(left["id"] - right["id"]) <= NEAR
    )
    found = _rows(folder / "pairs")
    assert collections.Counter((row["key"], row["id"], row["id_right"]) for row in found) == pairs
    values = {row["id"]: row["value"] for row in events}
    totals = {
        key: (len(of_key), sum(values[left] for _, left, _ in of_key))
        for key in {pair[0] for pair in pairs}
        for of_key in [[pair for pair in pairs if pair[0] == key]]
    }
    assert {row["key"]: (row["pairs"], row["total"]) for row in _state(folder, "totals")} == totals
    best = {(row["key"], row["id"]) for row in events if row["id"] in _newest_ids(events, row["key"])}
    assert {(row["key"], row["id"]) for row in _state(folder, "newest")} == best
    _check_sessions(folder, events, min(half[-1]["id"] for half in (even, odd)) - DELAY)


def _check_sessions(folder: Path, events: list[Row], closed: int) -> None:
    """Each session that the last watermark has passed is there once, and no row is in two of them."""
    expected = collections.Counter()
    for key in {row["key"] for row in events}:
        times = [row["id"] for row in events if row["key"] == key]
        first = times[0]
        n = 0
        for time, after in zip(times, [*times[1:], None], strict=True):
            n += 1
            if after is None or after > time + GAP:
                expected[key, first, time + GAP, n] += 1
                first, n = after, 0
    found = collections.Counter(
        (row["key"], int(row["window_start"].timestamp()), int(row["window_end"].timestamp()), row["n"])
        for row in _rows(folder / "sessions")
    )
    assert not found - expected
    assert not [session for session in expected - found if session[2] <= closed]


def _newest_ids(events: Iterable[Row], key: int) -> list[int]:
    return [row["id"] for row in events if row["key"] == key][-BEST:]


def _rows(folder: Path) -> list[dict[str, Any]]:
    return ds.dataset(folder, format="parquet").to_table().to_pylist()


def _state(folder: Path, operator: str) -> list[dict[str, Any]]:
    store = open_store(f"file://{folder}/state")
    newest = CheckpointStore(store).latest()
    assert newest is not None
    (name,) = (each.name for each in newest.operators if each.name.partition("/")[0] == operator)
    stored = StoredState.of(store, newest, name)
    return [row for batch in stored.reader().scan(stored.whole()) for row in batch.to_pylist()]
