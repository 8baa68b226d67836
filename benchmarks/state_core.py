"""Where the time of keyed state goes, phase by phase, for one subtask on one thread.

One subtask's share of the ``stateful`` benchmark: micro-batches of 250,000 rows over 500,000 random keys, count, sum
and max, every batch checkpointed to the local disk with fsync. Prints the milliseconds of each phase per batch (see
:func:`best_of`) for long, 16-character string and (string, date) keys, and with ``--alternatives`` what was measured
and not taken.

    python -m benchmarks state_core [--batches 24] [--repeats 3] [--kinds long string composite] [--alternatives]

The phases are in processor time of this thread by default, which other work on the machine disturbs little; ``--wall``
makes them wall-clock time. The last lines are wall-clock time in both cases.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from stateline.blob import open_store
from stateline.changelog.segment_writer import Segments
from stateline.environment import system_environment
from stateline.key_groups import KeyGroupRange, hash_columns
from stateline.state import aggregate, merge, run_store, snapshot
from stateline.state.aggregate import plan as plan_module
from stateline.state.keys import group_rows, key_rows
from stateline.state.run_store import RunReader, RunWriter
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

MAX_PARALLELISM = 128
KINDS = ("long", "string", "composite")


def make_keys(kind: str, numbers: np.ndarray) -> dict[str, pa.Array]:
    if kind == "long":
        return {"k": pa.array(numbers * 7919)}
    if kind == "string":
        return {"k": pa.array([f"key-{number:012d}" for number in numbers.tolist()])}
    days = pa.array((numbers % 30).astype(np.int32), pa.date32())
    return {"k": pa.array([f"customer-{number:07d}" for number in (numbers // 30).tolist()]), "day": days}


class Phases:
    """Milliseconds by phase; a nested phase is taken out of the one around it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.batches: list[dict[str, float]] = []
        self._stack: list[float] = []

    def begin(self) -> None:
        self.batches.append(defaultdict(float))

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        self._stack.append(0.0)
        started = self.clock()
        try:
            yield
        finally:
            took = (self.clock() - started) * 1e3
            self.batches[-1][name] += took - self._stack.pop()
            if self._stack:
                self._stack[-1] += took

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.timed(name):
                return function(*args, **kwargs)

        return wrapped


@contextlib.contextmanager
def instrumented(phases: Phases, store: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for target, attribute, name in (
            (plan_module, "key_rows", "hash"),
            (plan_module, "group_rows", "group"),
            (StateTable, "probe", "probe"),
            (plan_module.KeyedAggregation, "_results", "output"),
            (run_store, "encode_run", "build run"),
            (merge, "_newest", "merge runs"),
        ):
            wrapped = phases.wrap(name, getattr(target, attribute))
            stack.enter_context(mock.patch.object(target, attribute, wrapped))
        stack.enter_context(
            mock.patch.object(store, "put_all_if_absent", phases.wrap("write + fsync", store.put_all_if_absent))
        )
        yield


def run_pipeline(kind: str, arguments: argparse.Namespace, *, given_hashes: bool) -> dict[str, Any]:
    """Runs the life of one subtask and returns phases, bytes and runs."""
    rows, keys, batches = arguments.rows, arguments.keys, arguments.batches
    dice = np.random.default_rng(7)
    # Every key of this pool counts as owned by the subtask: which key groups it owns changes nothing in the work.
    owned = KeyGroupRange(0, MAX_PARALLELISM - 1)
    pool = make_keys(kind, np.arange(keys))
    schema = pa.schema([*((name, column.type) for name, column in pool.items()), ("value", pa.int64())])
    wanted = {"n": aggregate.count(), "total": aggregate.sum("value"), "top": aggregate.max("value")}
    aggregation = aggregate.KeyedAggregation.bind(schema, list(pool), wanted)
    phases = Phases(time.perf_counter if arguments.wall else time.thread_time)
    walls = []
    sizes, stack_sizes = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder, {"fsync": "false"} if arguments.no_fsync else {})
        reader = RunReader(store, aggregation.state_schema)
        segments = Segments(store, system_environment())
        runs: Sequence[Any] = ()
        dead: list[str] = []
        for number in range(batches):
            chosen = pa.array(dice.integers(0, keys, rows))
            table = pa.table(
                {**{name: column.take(chosen) for name, column in pool.items()}, "value": dice.integers(0, 1000, rows)}
            )
            batch = pa.Table.from_batches(table.to_batches(max_chunksize=10_000))
            hashes = hash_columns([table.column(name) for name in pool]) if given_hashes else None
            gc.collect()
            phases.begin()
            started = time.perf_counter()
            with instrumented(phases, store), phases.timed("partial + combine"):
                with phases.timed("open runs"):
                    state = StateTable(aggregation.state_schema, owned, MAX_PARALLELISM, reader.open_all(runs))
                update = aggregation.update(state, batch, hashes)
                segment = segments.writer()
                writer = RunWriter(segment, "state", aggregation.state_schema, MAX_PARALLELISM)
                made = snapshot.snapshot(state, update.changes, writer, number)
                placed = segment.finish().of
            walls.append((time.perf_counter() - started) * 1e3)
            # As retention does: what the last two checkpoints do not name is deleted.
            now = tuple(map(placed, made.state.runs))
            gone = {run.name for run in runs} - {run.name for run in now}
            store.delete(dead)
            dead = sorted(gone)
            runs = now
            sizes.append(sum(run.length for run in made.written))
            stack_sizes.append(len(runs))
    return {
        "batches": phases.batches,
        "walls": walls,
        "sizes": sizes,
        "touched_keys": int(update.output.num_rows),
        "runs": max(stack_sizes),
    }


def best_of(repeats: Sequence[dict[str, Any]], skip: int) -> dict[str, Any]:
    """Batch by batch and phase by phase the least of several equal runs, then the mean over the batches.

    The least is what the work takes when the machine does nothing else; the mean is right because merges come every few
    batches.
    """
    batches = range(skip, len(repeats[0]["batches"]))
    names = dict.fromkeys(name for number in batches for name in repeats[0]["batches"][number])
    phases = {
        name: statistics.fmean(min(run["batches"][number].get(name, 0.0) for run in repeats) for number in batches)
        for name in names
    }
    walls = [min(run["walls"][number] for run in repeats) for number in batches]
    return {
        "phases_ms": phases,
        "total_ms": sum(phases.values()),
        "wall_ms_median": statistics.median(walls),
        "wall_ms_mean": statistics.fmean(walls),
        "touched_keys": repeats[0]["touched_keys"],
        "bytes_per_batch": statistics.fmean(repeats[0]["sizes"][skip:]),
        "runs": repeats[0]["runs"],
    }


def print_table(results: dict[str, dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for result in results.values() for name in result["phases_ms"]))
    print(f"{'ms per batch':24}" + "".join(f"{name:>20}" for name in results))
    for name in names:
        print(f"{name:24}" + "".join(f"{result['phases_ms'].get(name, 0.0):20.1f}" for result in results.values()))
    print(f"{'total':24}" + "".join(f"{result['total_ms']:20.1f}" for result in results.values()))
    print(
        f"{'MB written per batch':24}"
        + "".join(f"{result['bytes_per_batch'] / 1e6:20.1f}" for result in results.values())
    )
    for name in ("wall_ms_median", "wall_ms_mean"):
        print(f"{name:24}" + "".join(f"{result[name]:20.1f}" for result in results.values()))
    base = next(iter(results.values()))["total_ms"]
    print(f"{'relative':24}" + "".join(f"{result['total_ms'] / base:20.2f}" for result in results.values()))


# -- alternatives -----------------------------------------------------------------------------------------------------


def measure(function: Callable[[], Any], repeats: int = 11) -> float:
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took)


def alternatives(rows: int, keys: int) -> dict[str, float]:
    """What was tried for grouping, searching and merging; see ``docs/decisions/0017-grouping.md``."""
    import pyarrow.compute as pc

    dice = np.random.default_rng(7)
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([]))
    numbers = pa.array(dice.integers(0, keys, rows) * 7919)
    batch = key_rows(schema, [numbers])
    distinct = group_rows(batch).keys.hashes
    stored = np.sort(hash_columns([pa.array(np.arange(keys) * 7919)]))
    values = pa.table({"k": numbers, "v": dice.integers(0, 1000, rows)})
    both = np.concatenate([distinct, stored])
    bits = np.uint64((1 << rows.bit_length()) - 1)

    def near() -> None:
        first = (batch.hashes >> np.uint64(48)).astype(np.uint16).argsort(kind="stable")
        first.take(batch.hashes.take(first).argsort(kind="stable"))

    def packed() -> None:
        words = (batch.hashes & ~bits) | np.arange(rows, dtype=np.uint64)
        words.sort()
        words &= bits

    def buckets() -> None:
        shift = np.uint64(64 - 19)
        starts = np.zeros((1 << 19) + 1, dtype=np.int64)
        np.cumsum(np.bincount((stored >> shift).astype(np.int64), minlength=1 << 19), out=starts[1:])
        rows_at = starts.take((distinct >> shift).astype(np.int64))
        behind = np.flatnonzero(stored.take(rows_at, mode="clip") < distinct)
        while len(behind):
            rows_at[behind] += 1
            behind = behind[stored.take(rows_at[behind], mode="clip") < distinct[behind]]

    shuffled = dice.permutation(distinct)
    return {
        "group: 16 bits, then an adaptive sort (taken, order only)": measure(near),
        "group: hash and row packed into words, sorted": measure(packed),
        "group: argsort, unstable": measure(lambda: np.argsort(batch.hashes)),
        "group: argsort, stable": measure(lambda: np.argsort(batch.hashes, kind="stable")),
        "group: group_rows (taken, all of it)": measure(lambda: group_rows(batch)),
        "group: pyarrow group_by + 3 aggregates": measure(
            lambda: values.group_by("k", use_threads=False).aggregate([("v", "count"), ("v", "sum"), ("v", "max")])
        ),
        "group: pyarrow dictionary_encode": measure(numbers.dictionary_encode),
        "search: sorted needles (taken)": measure(lambda: stored.searchsorted(distinct)),
        "search: needles in random order": measure(lambda: stored.searchsorted(shuffled)),
        "search: bucket index, built each time": measure(buckets),
        "search: pyarrow index_in": measure(lambda: pc.index_in(pa.array(distinct), value_set=pa.array(stored)), 5),
        "merge: stable argsort of sorted parts (taken)": measure(lambda: np.argsort(both, kind="stable")),
        "merge: plain sort": measure(lambda: np.sort(both)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; see the module docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks state_core", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--wall", action="store_true", help="wall-clock time instead of processor time")
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--alternatives", action="store_true")
    parser.add_argument("--json", help="write every figure to this file")
    arguments = parser.parse_args(argv)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    results = {}
    for kind in arguments.kinds:
        for given in (True, False):
            name = f"{kind}, {'JVM hash' if given else 'own hash'}"
            results[name] = best_of(
                [run_pipeline(kind, arguments, given_hashes=given) for _ in range(arguments.repeats)],
                arguments.batches // 3,
            )
    print_table(results)
    report: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
        },
        "rows": arguments.rows,
        "keys": arguments.keys,
        "results": results,
    }
    if arguments.alternatives:
        report["alternatives_ms"] = alternatives(arguments.rows, arguments.keys)
        print()
        for name, took in report["alternatives_ms"].items():
            print(f"{name:50}{took:8.2f} ms")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
