"""The demo's data and its oracle: the oracle is checked against a loop that nobody could get wrong."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.demo import model
from examples.demo.flights import SCHEMA, load_flights, write_source
from examples.demo.offsets import batch_of_files, files_through
from examples.demo.verification import compare

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["N1", "N2", None]),
        st.sampled_from(["EWR", "JFK"]),
        st.sampled_from(["IAH", "MIA"]),
        st.none() | st.integers(-10, 10),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)


def frame_of(events: list[tuple]) -> pd.DataFrame:
    """Flights of a few micro-batches, in order."""
    ordered = sorted(events, key=lambda event: event[4])
    frame = pd.DataFrame(ordered, columns=["tailnum", "origin", "dest", "dep_delay", "checkpoint_id"])
    frame["dep_delay"] = frame["dep_delay"].astype(float)
    frame["ts"] = pd.Timestamp("2013-01-01", tz="UTC") + pd.to_timedelta(range(len(frame)), unit="us")
    return frame


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_the_model_is_what_a_loop_over_the_events_computes(events: list[tuple]) -> None:
    flights = frame_of(events)
    naive: dict[tuple, dict] = {}
    state: dict[str | None, list[dict]] = {}
    for event in flights.to_dict("records"):
        key = event["tailnum"] if isinstance(event["tailnum"], str) else None
        seen = state.setdefault(key, [])
        seen.append(event)
        delays = [past["dep_delay"] for past in seen if not math.isnan(past["dep_delay"])]
        naive[key, event["checkpoint_id"]] = {
            "flights": len(seen),
            "mean_delay": sum(delays) / len(delays) if delays else None,
            "worst_delay": max(delays) if delays else None,
            "last_airport": event["dest"],
            "last_seen": event["ts"],
        }
    updates = model.aircraft_updates(flights)
    rows = {}
    for row in updates.to_dict("records"):
        key = row.pop("tailnum"), row.pop("checkpoint_id")
        rows[key[0] if isinstance(key[0], str) else None, key[1]] = {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()
        }
    assert rows == naive
    final = model.final_state(updates, model.AIRCRAFT_KEY)
    assert final["flights"].sum() == len(flights)
    assert len(final) == len(state)


def test_the_year_is_whole_ordered_and_without_equal_times(tmp_path: Path) -> None:
    flights = load_flights()
    assert len(flights) == 336_776
    assert flights["ts"].is_unique
    assert flights["ts"].dt.floor("min").is_monotonic_increasing
    counts = write_source(flights, tmp_path / "source")
    paths = sorted((tmp_path / "source").iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in paths] == sorted(os.listdir(tmp_path / "source"))
    assert [pq.read_metadata(path).num_rows for path in paths] == counts
    assert sum(counts) == 336_776
    assert len(counts) == 53
    assert pq.read_schema(paths[0]).equals(SCHEMA, check_metadata=False)
    again = model.read_source(tmp_path / "source", range(len(counts)))
    assert again["ts"].is_monotonic_increasing
    assert again["checkpoint_id"].nunique() == len(counts)


def test_a_batch_may_take_two_files(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for batch, last in enumerate([0, 2, 3]):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{last}}}')
        (tmp_path / "offsets" / f".{batch}.crc").touch()
    assert batch_of_files(tmp_path) == [0, 1, 1, 2]
    assert files_through(tmp_path, 1) == 3


TABLE = pd.DataFrame({"key": ["a", None, "b"], "x": [1, 2, 3], "y": [1.5, None, float("inf")]})


def test_equal_tables_in_another_order_are_equal() -> None:
    comparison = compare("it", TABLE, TABLE.iloc[::-1], ["key"])
    assert (comparison.rows, comparison.count, comparison.differences) == (3, 0, ())


@pytest.mark.parametrize(
    ("actual", "difference"),
    [
        (TABLE.iloc[:2], "missing: key=b"),
        (TABLE.iloc[[0, 2]], "missing: key=(no value)"),
        (pd.concat([TABLE, TABLE.iloc[:1]]), "twice: key=a"),
        (pd.concat([TABLE, TABLE.iloc[:1].assign(key="c")]), "not expected: key=c"),
        (TABLE.assign(x=[1, 2, 4]), "key=b: x is 4, expected 3"),
        (TABLE.assign(y=[1.5, 0.0, float("inf")]), "key=(no value): y is 0.0, expected nan"),
        (TABLE.assign(y=[None, None, float("inf")]), "key=a: y is nan, expected 1.5"),
        (TABLE.drop(columns="y"), "columns are missing: ['y']"),
    ],
)
def test_every_kind_of_difference_is_found(actual: pd.DataFrame, difference: str) -> None:
    comparison = compare("it", TABLE, actual, ["key"])
    assert comparison.count > 0
    assert any(difference in found for found in comparison.differences), comparison.differences
