"""State as data: one key from 5 M rows, and full scans through Spark beside Parquet files of the same rows.

``python -m benchmarks source [--rows N] [--runs N] [--rounds N] [--only get|scan]``

The bounds: one key within 50 ms after imports, from less than 1 % of the bytes; a scan of at least 5 M rows/s on two
cores, and at least 0.7 of Parquet's rate, both in turn in one session. A scan ends in Spark's ``noop`` sink. The first
round is not counted. The state is also read with a schema that rules nulls out, which Spark does not take from whoever
reads Parquet; it is shown beside, and does not decide.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import median, table, write_results
from stateline.blob import InstrumentedStore
from stateline.checkpoint import resolve_pointer
from stateline.state import KeyedStateBackend, StateSchema
from stateline.state.stored import StoredState

SCHEMA = StateSchema(
    pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64()), ("total", pa.int64()), ("largest", pa.float64())])
)
GET_SECONDS, GET_PART, SCAN_ROWS, SCAN_RATIO = 0.050, 0.01, 5e6, 0.7

NOT_NULL = "k bigint NOT NULL, n bigint NOT NULL, total bigint NOT NULL, largest double NOT NULL"

GET = """
import sys, time
import pyarrow as pa
import stateline.blob.local
from stateline.checkpoint import resolve_pointer
from stateline.state.stored import StoredState
pa.array([0]).to_numpy()  # Arrow imports pandas at its first use of numpy.
url, keys = sys.argv[1], [int(text) for text in sys.argv[2:]]
for key in keys:
    began = time.perf_counter()
    snapshot = resolve_pointer(url)
    stored = StoredState.of(snapshot.store, snapshot.checkpoint)
    rows = stored.reader().get(stored.whole(), [pa.array([key])])
    print(time.perf_counter() - began, rows.num_rows)
"""


def make_root(url: str, rows: int, runs: int) -> pa.Table:
    """A root of ``runs`` checkpoints, each with its part of the keys; returns all rows."""
    keys = np.random.default_rng(1).permutation(np.arange(rows, dtype=np.int64) * 2_654_435_761 % 2**61)
    made = []
    with KeyedStateBackend.open(url, retained_checkpoints=2) as backend:
        state = backend.state("flights", SCHEMA)
        # Each part is smaller than the one before, as a stack of merged runs is: so none is merged away.
        weights = np.array([4.0**-number for number in range(runs)])
        ends = np.cumsum(weights / weights.sum() * rows).astype(int)
        ends[-1] = rows
        start = 0
        for end in ends:
            part = keys[start:end]
            columns = {"k": part, "n": np.arange(start, end), "total": part // 7, "largest": part * 0.5}
            made.append(pa.table(columns, schema=SCHEMA.row))
            state.put(made[-1])
            backend.checkpoint()
            start = end
    return pa.concat_tables(made)


def measure_get(url: str, rows: pa.Table, rounds: int) -> dict[str, Any]:
    """Seconds of the first look-up of fresh processes, of later ones, and the bytes of each."""
    keys = [rows.column("k")[number * 1009 % rows.num_rows].as_py() for number in range(rounds * 3)]
    first, later = [], []
    for number in range(rounds):
        chosen = [str(key) for key in keys[number * 3 : number * 3 + 3]]
        done = subprocess.run([sys.executable, "-c", GET, url, *chosen], capture_output=True, text=True, check=True)
        answers = [line.split() for line in done.stdout.splitlines()]
        if [found for _, found in answers] != ["1"] * 3:
            raise RuntimeError(done.stdout)
        first.append(float(answers[0][0]))
        later += [float(seconds) for seconds, _ in answers[1:]]
    snapshot = resolve_pointer(url)
    counted = InstrumentedStore(snapshot.store)
    stored = StoredState.of(counted, snapshot.checkpoint)
    total = sum(run.length for subtask in stored.operator.subtasks for run in subtask.runs)
    parts = []
    for key in keys:
        counted.reset()
        stored.reader().get(stored.whole(), [pa.array([key])])
        parts.append(counted.bytes_read / total)
    return {"first_seconds": first, "later_seconds": later, "fetched": parts, "bytes": total}


def measure_scan(url: str, rows: pa.Table, folder: Path, rounds: int, cores: int) -> dict[str, list[float]]:
    """Rows per second of both, in turn."""
    from stateline.spark import get_or_create_session

    files = folder / "parquet"
    files.mkdir()
    step = -(-rows.num_rows // 8)
    for number in range(8):
        pq.write_table(rows.slice(number * step, step), files / f"{number}.parquet")
    spark = get_or_create_session("stateline-benchmark", f"local[{cores}]", **{"spark.driver.memory": "3g"})
    spark.sparkContext.setLogLevel("ERROR")
    engines = {
        "state": lambda: spark.read.format("stateline").load(url),
        "state, NOT NULL": lambda: spark.read.format("stateline").schema(NOT_NULL).load(url),
        "state, 2 of 4 columns": lambda: spark.read.format("stateline").option("columns", "k,n").load(url),
        "parquet": lambda: spark.read.parquet(str(files)),
        "parquet, 2 of 4 columns": lambda: spark.read.parquet(str(files)).select("k", "n"),
    }
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(rounds + 1):
        for name, load in engines.items():
            frame = load()
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            seconds = time.perf_counter() - began
            if round_:
                rates[name].append(rows.num_rows / seconds)
    if spark.read.format("stateline").load(url).count() != rows.num_rows:
        raise RuntimeError("rows are missing")
    spark.stop()
    return rates


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks source", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3, help="runs in the stack")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", choices=("get", "scan"))
    options = parser.parse_args(argv)
    figures: dict[str, Any] = {"settings": vars(options)}
    within = True
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        url = f"file://{folder}/root"
        rows = make_root(url, options.rows, options.runs)
        if options.only != "scan":
            figures["get"] = got = measure_get(url, rows, options.rounds)
            within = median(got["first_seconds"]) <= GET_SECONDS and max(got["fetched"]) < GET_PART
            print(f"one key of {options.rows:,} rows, {options.runs} runs, {got['bytes']:,} bytes")
            for name in ("first", "later"):
                times = got[f"{name}_seconds"]
                print(f"  {name:<6} {median(times) * 1e3:6.1f} ms, {min(times) * 1e3:.1f} .. {max(times) * 1e3:.1f}")
            print(f"  fetched {median(got['fetched']):.3%}, at most {max(got['fetched']):.3%} of the bytes")
        if options.only != "get":
            figures["scan"] = rates = measure_scan(url, rows, Path(folder), options.rounds, options.cores)
            ratio = median(rates["state"]) / median(rates["parquet"])
            within = within and median(rates["state"]) >= SCAN_ROWS and ratio >= SCAN_RATIO
            print(table(("scan", "rows/s"), [(name, f"{median(each):,.0f}") for name, each in rates.items()]))
            declared = median(rates["state, NOT NULL"]) / median(rates["parquet"])
            print(f"ratio to Parquet {ratio:.2f}; {declared:.2f} where nulls are ruled out")
    path = write_results("source", {**figures, "within_bound": within})
    print(f"{'within' if within else 'OVER'} the bounds; figures in {path}")
    return 0 if within else 1
