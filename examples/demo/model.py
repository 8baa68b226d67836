"""What must come out, computed by pandas over the source files. No Stateline code, no streaming, no state.

A micro-batch is a file, seldom two: see ``offsets``. The row that a micro-batch writes for a key is the aggregate over
all flights of that key up to the end of its last file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

AIRCRAFT_KEY = ["tailnum"]
ROUTE_KEY = ["origin", "dest"]


def read_source(folder: Path, batches: Sequence[int]) -> pd.DataFrame:
    """All flights in order, with the number of their micro-batch as ``checkpoint_id``.

    Args:
        folder: The source.
        batches: The micro-batch of each file, in order.
    """
    paths = sorted(folder.glob("week-*.parquet"))
    frames = [
        pq.read_table(path).to_pandas().assign(checkpoint_id=batch) for path, batch in zip(paths, batches, strict=True)
    ]
    return pd.concat(frames, ignore_index=True)


def updates(flights: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """One row for each key and micro-batch that touched it: what the output must hold."""
    groups = flights.groupby(list(key), dropna=False, sort=False)
    delay = flights["dep_delay"]
    keys = [flights[column] for column in key]
    known = delay.notna().groupby(keys, dropna=False).cumsum()
    total = delay.fillna(0.0).groupby(keys, dropna=False).cumsum()
    worst = delay.fillna(float("-inf")).groupby(keys, dropna=False).cummax()
    running = flights[[*key, "checkpoint_id"]].assign(
        flights=groups.cumcount() + 1,
        mean_delay=(total / known).where(known > 0),
        worst_delay=worst.where(known > 0),
        last_airport=flights["dest"],
        last_seen=flights["ts"],
    )
    return running.drop_duplicates([*key, "checkpoint_id"], keep="last")


def aircraft_updates(flights: pd.DataFrame) -> pd.DataFrame:
    """What the output of the operator ``aircraft`` must hold."""
    return updates(flights, AIRCRAFT_KEY)


def route_updates(flights: pd.DataFrame) -> pd.DataFrame:
    """What the output of the operator ``routes`` must hold."""
    return updates(flights, ROUTE_KEY).drop(columns="last_airport")


def newest_updates(all_updates: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """What a table of the newest rows must hold in the end: the last update of each key."""
    return all_updates.drop_duplicates(list(key), keep="last")


def final_state(all_updates: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """What the state must hold in the end."""
    return newest_updates(all_updates, key).drop(columns="checkpoint_id")
