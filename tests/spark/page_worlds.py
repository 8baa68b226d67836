"""What pages of the documentation take for granted: streams of sample rows, and a few things that users bring along."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint
from stateline.spark import KeyedStream, count, mean, sum
from stateline.testing import KeyedStreamHarness

ROWS, FILES = 60, 3
START = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)

STREAMS: Mapping[str, str] = {
    "flights": "origin string, dest string, tailnum string, carrier string, dep_delay double, distance long, x long, "
    "ts timestamp",
    "events": "event_id string, user string, key string, value long, sensor string, tailnum string, origin string, "
    "dep_delay double, auction long, price long, ts timestamp, at timestamp",
    "bids": "auction long, bidder string, price long, at timestamp",
    "clicks": "click string, user string, page string, ad_id long, clicked_at timestamp, ts timestamp",
    "impressions": "ad long, shown_at timestamp",
    "order_rows": "currency string, amount long, ordered_at timestamp",
    "rate_rows": "code string, rate double, valid_from timestamp",
}
"""Streams by the names that pages have for them, over one table that has all columns."""


def write_rows(folder: Path) -> None:
    """Writes the sample rows, in some files."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(ROWS)
    times = pa.array([START + dt.timedelta(minutes=number) for number in numbers], pa.timestamp("us", "UTC"))
    words = {
        "origin": ("EWR", "JFK", "LGA"),
        "dest": ("SFO", "MIA"),
        "tailnum": ("N1", "N2", "N3", "N4"),
        "carrier": ("AA", "UA"),
        "user": ("ada", "bela"),
        "page": ("home", "cart"),
        "key": ("a", "b", "c"),
        "sensor": ("s1", "s2"),
        "currency": ("EUR", "USD"),
        "code": ("EUR", "USD"),
        "bidder": ("ada", "carl"),
    }
    columns: dict[str, Any] = {
        name: [choices[number % len(choices)] for number in numbers] for name, choices in words.items()
    }
    columns |= dict.fromkeys(("event_id", "click"), pa.array([f"e{number // 2}" for number in numbers]))
    columns |= dict.fromkeys(("auction", "ad", "ad_id"), pa.array([number % 5 for number in numbers]))
    columns |= dict.fromkeys(
        ("value", "price", "amount", "x", "distance"), pa.array([number * 7 % 50 for number in numbers])
    )
    columns |= dict.fromkeys(("dep_delay", "rate"), pa.array([number % 11 - 3.5 for number in numbers]))
    columns |= dict.fromkeys(("ts", "at", "shown_at", "clicked_at", "ordered_at", "valid_from"), times)
    table = pa.table(columns)
    for number in range(FILES):
        size = ROWS // FILES
        pq.write_table(table.slice(number * size, size), folder / f"{number}.parquet")


def streams(spark: SparkSession, source: Path) -> dict[str, object]:
    """Every stream by its name."""
    return {
        name: spark.readStream.schema(columns).option("maxFilesPerTrigger", 2).parquet(str(source))
        for name, columns in STREAMS.items()
    }


class Sessions(StatefulProcessor):
    """Some processor: the seconds that each sensor was seen for."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803 - Spark's names
        times = [row.at for row in rows]
        yield Row(sensor=key[0], seconds=int((times[-1] - times[0]).total_seconds()))

    def close(self) -> None:
        pass


class Database:
    """A database that remembers which batches it has."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self._seen: set[str] = set()

    @contextlib.contextmanager
    def transaction(self) -> Any:
        yield self

    def remember(self, key: str) -> bool:
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def insert(self, rows: pa.Table) -> None:
        self.rows += rows.to_pylist()


World = Callable[[dict[str, Any], Path], dict[str, object]]


def _flights_to_read(_names: dict[str, Any], folder: Path) -> dict[str, object]:
    write_rows(folder / "flights" / "in")
    return {}


def _functions(names: dict[str, Any], folder: Path) -> dict[str, object]:
    hourly = (
        KeyedStream(names["flights"], "origin", f"{folder}/hourly/state", watermark=("ts", "10 minutes"))
        .window("ts", "10 minutes")
        .aggregate("append", flights=count(), mean_delay=mean("dep_delay"))
    )
    stream = KeyedStream(names["events"], "key", f"{folder}/totals/state")
    return {"stream": stream, "hourly": hourly, "database": Database()}


def _lookups(_names: dict[str, Any], folder: Path) -> dict[str, object]:
    state = open_store(f"{folder}/bucket/carriers/state")
    schema = "carrier string, name string, country string"
    stream = KeyedStreamHarness(schema, "carrier", root=state, name="carriers")
    kept = stream.apply_arrow(
        _newest_names, "name string, country string", "carrier string, name string, country string"
    )
    kept.run_batch([{"carrier": "AA", "name": "American", "country": "US"}])
    return {}


def _newest_names(events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    names = events.group_by("key_index").aggregate([("name", "max"), ("country", "max")]).sort_by("key_index")
    kept = pa.table({"carrier": state["carrier"], "name": names["name_max"], "country": names["country_max"]})
    return kept, kept


def _metrics(names: dict[str, Any], folder: Path) -> dict[str, object]:
    stream = KeyedStream(names["flights"], "tailnum", f"{folder}/pipeline/state")
    return {"pipeline": stream.aggregate(flights=count()).write_files(f"{folder}/pipeline/out")}


def _state(_names: dict[str, Any], folder: Path) -> dict[str, object]:
    """Thirteen checkpoints of a count for each carrier, and a savepoint."""
    root = open_store(f"{folder}/bucket/flights/state")
    options = {"retained_checkpoints": "20"}
    harness = KeyedStreamHarness("carrier string, n long", "carrier", root=root, options=options).aggregate(n=sum("n"))
    for number in range(13):
        harness.run_batch([{"carrier": ("AA", "UA")[number % 2], "n": number}])
    savepoints = folder / "bucket" / "savepoints"
    made = create_savepoint(CheckpointStore(root), f"{savepoints}")
    Path(made.url.removeprefix("file://")).rename(savepoints / "savepoint-1f")
    return {}


WORLDS: Mapping[str, World] = {
    "docs/guides/cluster.md": lambda _names, folder: {"root": f"{folder}/root"},
    "docs/guides/files.md": _flights_to_read,
    "docs/guides/functions.md": _functions,
    "docs/guides/lookups.md": _lookups,
    "docs/guides/processors.md": lambda _names, _folder: {"Sessions": Sessions},
    "docs/guides/state-as-data.md": _state,
    "docs/guides/tables.md": _flights_to_read,
    "docs/reference/metrics.md": _metrics,
}
"""What a page takes for granted besides the streams."""
