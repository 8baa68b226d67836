"""A stand-in for the demo's driver: no Spark, no Stateline, but the same files, batch by batch, from the model.

A batch is written under a name of its own and then named by a record, so it survives being killed at any moment.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from examples.demo import model
from examples.demo.progress import newest_record

OPERATORS = {"aircraft": model.AIRCRAFT_KEY, "routes": model.ROUTE_KEY}


def write(path: Path, table: pa.Table) -> None:
    """Writes Parquet or Arrow, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}")
    if path.suffix == ".parquet":
        pq.write_table(table, staged)
    else:
        with pa.ipc.new_file(staged, table.schema) as file:
            file.write_table(table)
    os.replace(staged, path)


def state_table(rows: pd.DataFrame, key: list[str]) -> pa.Table:
    """The rows as a run holds them."""
    counted = rows.assign(**{"mean_delay.sum": rows["mean_delay"], "mean_delay.count": rows["mean_delay"].notna() * 1})
    table = pa.Table.from_pandas(counted.drop(columns=["mean_delay", "checkpoint_id"]), preserve_index=False)
    fields = [
        field.with_metadata({"stateline.role": "key" if field.name in key else "value"}) for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def write_delta(folder: Path, table: pa.Table, batch: int) -> None:
    """Appends the rows of a batch, unless they are there."""
    try:
        there = DeltaTable(str(folder)).to_pyarrow_table(columns=["checkpoint_id"])["checkpoint_id"].to_pylist()
    except TableNotFoundError:
        there = []
    if batch not in there:
        write_deltalake(str(folder), table, mode="append")


def write_newest(path: Path, rows: pd.DataFrame) -> None:
    """Replaces the rows of the same keys."""
    rows = rows.assign(last_seen=rows["last_seen"].astype(str))
    with closing(sqlite3.connect(path)) as connection:
        names, marks = ", ".join(rows.columns), ", ".join("?" * len(rows.columns))
        connection.execute(f"CREATE TABLE IF NOT EXISTS routes ({names}, PRIMARY KEY (origin, dest))")
        values = rows.astype(object).where(rows.notna(), None).itertuples(index=False, name=None)
        connection.executemany(f"INSERT OR REPLACE INTO routes VALUES ({marks})", values)
        connection.commit()


def run_batch(batch: int, updates: dict[str, pd.DataFrame], root: Path, output: Path) -> None:
    operators = []
    for name, key in OPERATORS.items():
        rows = updates[name][updates[name]["checkpoint_id"] == batch]
        table = pa.Table.from_pandas(rows.drop(columns="origin", errors="ignore"), preserve_index=False)
        if name == "routes":
            for origin, part in rows.groupby("origin"):
                part_table = pa.Table.from_pandas(part.drop(columns="origin"), preserve_index=False)
                write(output / name / f"origin={origin}" / f"batch-{batch}.parquet", part_table)
            write_newest(output / "newest.db", rows)
        else:
            write_delta(output / name, table, batch)
        write(root / "shared" / f"{name}-{batch}.arrow", state_table(rows, key))
        paths = [root / "shared" / f"{name}-{number}.arrow" for number in range(batch + 1)]
        runs = [{"name": f"shared/{path.name}", "offset": 0, "length": path.stat().st_size} for path in paths]
        operators.append({"name": name, "subtasks": [{"runs": runs}]})
    folder = root / f"chk-{batch}"
    folder.mkdir(parents=True, exist_ok=True)
    record = {"format": "stateline.checkpoint", "checkpoint_id": batch, "batch_id": batch, "operators": operators}
    (folder / ".staged").write_text(json.dumps({**record, "outputs": [{"open": []}]}))
    os.replace(folder / ".staged", folder / "_metadata")


def note_offsets(spark_checkpoint: Path, batch: int) -> None:
    """As Spark does, before it runs a batch."""
    folder = spark_checkpoint / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".staged").write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
    os.replace(folder / ".staged", folder / str(batch))


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("source", "root", "output", "spark-checkpoint"):
        parser.add_argument(f"--{option}", type=Path, required=True)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--stall-at", type=int, default=-1)
    parser.add_argument("--pace-seconds", type=float, default=0.03)
    arguments, _ = parser.parse_known_args()
    flights = model.read_source(arguments.source, range(len(list(arguments.source.iterdir()))))
    arguments.output.mkdir(exist_ok=True)
    updates = {"aircraft": model.aircraft_updates(flights), "routes": model.route_updates(flights)}
    subprocess.Popen(["sleep", "600"], process_group=0)  # As Spark's Python workers: another group, the same session.
    record = newest_record(arguments.root)
    for batch in range(0 if record is None else record["batch_id"] + 1, flights["checkpoint_id"].max() + 1):
        if batch == arguments.fail_at:
            sys.exit("no such luck")
        if batch == arguments.stall_at:
            time.sleep(600)
        note_offsets(arguments.spark_checkpoint, batch)
        run_batch(batch, updates, arguments.root, arguments.output)
        time.sleep(arguments.pace_seconds)


if __name__ == "__main__":
    main()
