"""The same unchanged stateful processor through Spark's own operators and through Stateline, in both forms.

All engines run in one session, in turn, several rounds; each round starts every engine on an empty state. The first
batches of a round are not counted. The processor keeps a count and a sum per key and puts out one row, or one data
frame of one row, per key and batch. ``user code`` is the time of the processor's own lines, with state in a plain dict:
what no engine can go below on one core.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from benchmarks.harness import (
    costs_of,
    finish,
    median,
    own_workers,
    rate,
    spark_as_it_comes,
    spread,
    table,
    use_rocksdb,
    write_results,
)
from benchmarks.stateful import make_source

OUTPUT = "k long, n long, s long"
ENGINES = ("spark-row", "stateline-row", "spark-pandas", "stateline-pandas")


class RowCounter(StatefulProcessor):
    """Count and sum, as ``transformWithState`` wants it."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, s long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002, N802, N803
        n, total = self.totals.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.v
        self.totals.update((n, total))
        yield Row(k=key[0], n=n, s=total)


class FrameCounter(RowCounter):
    """Count and sum, as ``transformWithStateInPandas`` wants it."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Any:  # noqa: ARG002, N802, N803
        n, total = self.totals.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            total += int(frame["v"].sum())
        self.totals.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "s": [total]})


class _Dict:
    """Value state in a plain dict, for the floor."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.key: Any = None

    def getValueState(self, *_: Any) -> "_Dict":  # noqa: N802
        return self

    def get(self) -> Any:
        return self.values.get(self.key)

    def update(self, value: Any) -> None:
        self.values[self.key] = value


def run_spark(spark: Any, events: Any, folder: Path, *, pandas: bool) -> list[dict[str, Any]]:
    use_rocksdb(spark)
    grouped = events.groupBy("k")
    if pandas:
        rows = grouped.transformWithStateInPandas(FrameCounter(), OUTPUT, "update", "None")
    else:
        rows = grouped.transformWithState(RowCounter(), OUTPUT, "update", "None")
    writer = rows.writeStream.outputMode("update").format("noop")
    return finish(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())


def run_stateline(events: Any, folder: Path, parallelism: int, *, pandas: bool) -> list[dict[str, Any]]:
    from stateline.spark import KeyedStream

    processor = FrameCounter() if pandas else RowCounter()
    stream = KeyedStream(events, "k", f"file://{folder}/state", parallelism=parallelism)
    pipeline = stream.process(processor, OUTPUT, form="pandas" if pandas else "row").state_only()
    return finish(pipeline.start(str(folder / "spark"), trigger={"availableNow": True}))


def user_code(source: Path, processor: Any, *, pandas: bool) -> float:
    """Rows per second and core of the processor alone, over one batch."""
    rows = pq.read_table(min(source.iterdir())).sort_by("k")
    state = _Dict()
    processor.init(state)
    keys = rows["k"].to_pylist()
    if pandas:
        frame = rows.to_pandas()
        groups = [(key, [part.reset_index(drop=True)]) for key, part in frame.groupby("k")]
    else:
        made: dict[int, list[Any]] = {}
        for key, value in zip(keys, rows["v"].to_pylist(), strict=True):
            made.setdefault(key, []).append(Row(k=key, v=value))
        groups = list(made.items())
    began = time.perf_counter()
    for key, part in groups:
        state.key = key
        list(processor.handleInputRows((key,), iter(part), None))
    return len(keys) / (time.perf_counter() - began)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks processor", description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys")
    parser.add_argument("--batches", type=int, default=6, help="micro-batches per round")
    parser.add_argument(
        "--pandas-batches", type=int, default=2, help="micro-batches of Spark's pandas form: it is slow"
    )
    parser.add_argument("--skip", type=int, default=1, help="first batches of a round that are not counted")
    parser.add_argument("--rounds", type=int, default=2, help="rounds; the median counts")
    parser.add_argument("--parallelism", type=int, default=2, help="cores, shuffle partitions and subtasks")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which, in which order")
    parser.add_argument(
        "--tuned-peers",
        action="store_true",
        help="Spark's engines get the settings that make Stateline's own session faster",
    )
    arguments = parser.parse_args(argv)

    from pyspark import cloudpickle

    from stateline.spark import get_or_create_session

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Workers need not find this module.
    spark = get_or_create_session(
        "stateline-benchmark",
        master=f"local[{arguments.parallelism}]",
        **{"spark.sql.shuffle.partitions": str(arguments.parallelism), "spark.driver.memory": "3g"},
    )
    spark.sparkContext.setLogLevel("OFF")
    peers = spark if arguments.tuned_peers else spark_as_it_comes(spark)
    rates: dict[str, list[float]] = {engine: [] for engine in arguments.engines.split(",")}
    batches: dict[str, list[Any]] = {engine: [] for engine in rates}
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        sources = {}
        for name, count in (("all", arguments.batches), ("few", arguments.pandas_batches)):
            sources[name] = Path(folder, name)
            sources[name].mkdir()
            schema = make_source(
                sources[name],
                batches=count,
                rows=arguments.rows,
                keys=arguments.keys,
                kind="long",
                seed=1,
                zipf=None,
            )
        floors = {
            "row": user_code(sources["all"], RowCounter(), pandas=False),
            "pandas": user_code(sources["all"], FrameCounter(), pandas=True),
        }
        for round_ in range(arguments.rounds):
            for engine in rates:
                source = sources["few" if engine == "spark-pandas" else "all"]
                session = peers if engine.startswith("spark") else spark
                own_workers(session, engine, tuned=session is spark)
                events = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
                place = Path(folder, f"{engine}-{round_}")
                place.mkdir()
                pandas = engine.endswith("pandas")
                if engine.startswith("spark"):
                    done = run_spark(session, events, place, pandas=pandas)
                else:
                    done = run_stateline(events, place, arguments.parallelism, pandas=pandas)
                rates[engine].append(rate(done, arguments.skip))
                batches[engine].append(costs_of(done))
                print(f"round {round_ + 1} {engine:18} {rates[engine][-1]:12,.0f} rows/s", flush=True)
                shutil.rmtree(place)
    rows = []
    for form in ("row", "pandas"):
        ours, theirs = (median(rates.get(f"{side}-{form}", [])) for side in ("stateline", "spark"))
        rows.append((f"spark {form}", f"{theirs:,.0f}", spread(rates.get(f"spark-{form}", [])), ""))
        shown = spread(rates.get(f"stateline-{form}", []))
        rows.append((f"stateline {form}", f"{ours:,.0f}", shown, f"{ours / theirs:.1f}x"))
        floor = floors[form] * arguments.parallelism
        rows.append((f"user code alone, {form}", f"{floor:,.0f}", "", f"{floor / theirs:.1f}x"))
    print("\n" + table(("engine", "rows/s (median)", "lowest .. highest", "of spark"), rows))
    figures = {"settings": vars(arguments), "rows_per_second": rates, "user_code": floors, "batches": batches}
    print(f"\nEvery figure: {write_results('processor', {**figures, 'spark': spark.version})}")
    spark.stop()
    return 0
