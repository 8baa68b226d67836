"""What every benchmark shares: the machine's facts, medians, a table of ratios, a JSON file with every figure.

And for those that run Stateline beside Spark, the rounds: :class:`BesideSpark`.
"""

import argparse
import datetime as dt
import json
import mmap
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from stateline import __version__
from stateline.spark.job.arrow_batches import ARROW_BATCH_SETTINGS

RESULTS = Path(__file__).parent / "results"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_TOUCHED_MIB = 128
_MEMORY_POOL = "ARROW_DEFAULT_MEMORY_POOL"


def machine() -> dict[str, Any]:
    """Facts that a figure cannot be read without."""
    memory = next((line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")), "")
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": model.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "memory": memory.partition(":")[2].strip(),
        "first_touch_ms_per_mib": round(first_touch_ms(_TOUCHED_MIB) / _TOUCHED_MIB, 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyarrow", "numpy")},
        "stateline": __version__,
    }


def first_touch_ms(mib: int) -> float:
    """How long it takes to write to memory that nobody has used before, in milliseconds.

    A virtual machine that gives memory back to its host pays for each page again: up to ten times what a machine with
    memory of its own pays. It is what a file in the page cache costs, too, so engines that write files look slower.
    """
    with mmap.mmap(-1, mib << 20) as memory:
        began = time.perf_counter()
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = 1
        return (time.perf_counter() - began) * 1e3


def write_results(name: str, figures: Mapping[str, Any]) -> Path:
    """Writes one run as JSON and returns the file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{dt.datetime.now():%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps({"benchmark": name, "machine": machine(), **figures}, indent=2, default=str) + "\n")
    return path


def spark_as_it_comes(spark: Any) -> Any:
    """A session beside ours for Spark's own engines, without what ``get_or_create_session`` sets to be faster.

    These are the Arrow batches, and the way in which streams write their logs, which a new session does not inherit.
    """
    plain = spark.newSession()
    for name in ARROW_BATCH_SETTINGS:
        plain.conf.unset(name)
    return plain


def own_workers(spark: Any, engine: str, *, tuned: bool) -> None:
    """Gives an engine Python workers of its own from now on: what one engine imports there, all others would carry.

    Spark's daemon collects garbage after each task, which takes longer the more a worker has imported, and Stateline
    hides imports from the collector. Spark tells workers apart by the environment that they were started with.

    Args:
        spark: The session.
        engine: Its name.
        tuned: Whether Arrow takes memory as in Stateline's own session, or as Spark comes.
    """
    environment = spark.sparkContext.environment
    environment["BENCHMARK_ENGINE"] = engine
    environment.pop(_MEMORY_POOL, None)
    chosen = spark.conf.get(f"spark.executorEnv.{_MEMORY_POOL}", None) if tuned else None
    if chosen is not None:
        environment[_MEMORY_POOL] = chosen


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float]) -> str:
    """Lowest and highest of several runs, for the reader to judge the noise."""
    return f"{min(values):,.0f} .. {max(values):,.0f}" if values else "-"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Plain text with aligned columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(headers), *cells]) for column in range(len(headers))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    head = "  ".join(header.ljust(width) for header, width in zip(headers, widths, strict=True)).rstrip()
    return "\n".join([head, "  ".join("-" * width for width in widths), *lines])


def use_rocksdb(session: Any) -> None:
    """What Spark's own operators do best with: RocksDB, and checkpoints of what changed."""
    session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")


def finish(query: Any) -> list[dict[str, Any]]:
    """Waits for the end of a query. The progress of its batches that had rows."""
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def rate(progress: list[dict[str, Any]], skip: int) -> float:
    """Rows per second of the counted batches, by Spark's own measure of a trigger."""
    counted = progress[skip:]
    seconds = sum(item["durationMs"]["triggerExecution"] / 1000 for item in counted)
    return float(sum(item["numInputRows"] for item in counted) / seconds)


def costs_of(progress: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What the JSON file keeps of each batch."""
    return [(item["batchId"], item["numInputRows"], item["durationMs"]) for item in progress]


@dataclass(frozen=True)
class Run:
    """One engine in one round.

    Attributes:
        rate: Rows per second.
        batches: What the JSON file keeps of its batches.
        note: What is printed behind the rate.
    """

    rate: float
    batches: Any = None
    note: str = ""


Engine = Callable[[Any, Path], Run]
"""Runs one round, given the engine's session and an empty folder."""


def add_rounds(
    parser: argparse.ArgumentParser, engines: Sequence[str], *, rounds: int = 3, counted: str = "rounds"
) -> None:
    """The options of :class:`BesideSpark`."""
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{counted}; the median counts")
    parser.add_argument("--parallelism", type=int, default=2, help="cores, shuffle partitions and subtasks")
    parser.add_argument("--engines", default=",".join(engines), type=_some_of(engines), help="which, in which order")


def _some_of(known: Sequence[str]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"no such engine: {', '.join(sorted(unknown))}")
        return text

    return checked


class BesideSpark:
    """Engines in turn within one session, several rounds, each on an empty state. Use it as a context manager.

    An engine is called by its name, the last word of which is ``stateline`` for ours. Words before it are what is
    compared by itself, such as a kind of join.

    Args:
        name: Of the benchmark.
        arguments: Those of :func:`add_rounds`, and the benchmark's own. With ``tuned_peers``, Spark's engines get the
            settings of Stateline's own session.
        settings: Of the session, besides the usual ones.

    Attributes:
        source: A folder for what engines read.
    """

    source: Path

    def __init__(self, name: str, arguments: argparse.Namespace, settings: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._arguments = arguments
        self._settings = settings or {}
        self._stack = ExitStack()
        self._runs: dict[str, list[Run]] = {}

    def __enter__(self) -> Self:
        from stateline.spark import get_or_create_session

        parallelism = self._arguments.parallelism
        self._ours = get_or_create_session(
            "stateline-benchmark",
            master=f"local[{parallelism}]",
            **{
                "spark.sql.shuffle.partitions": str(parallelism),
                "spark.driver.memory": "6g",
                "spark.ui.showConsoleProgress": "false",
                **self._settings,
            },
        )
        self._stack.callback(self._ours.stop)
        self._ours.sparkContext.setLogLevel("ERROR")
        is_tuned = getattr(self._arguments, "tuned_peers", False)
        self._peers = self._ours if is_tuned else spark_as_it_comes(self._ours)
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="stateline-bench-")))
        self.source = self._folder / "source"
        self.source.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, engines: Mapping[str, Engine], *, warm_up: bool = False) -> None:
        """Runs all rounds.

        Args:
            engines: By name, in their order.
            warm_up: Whether a round comes before them that is not counted.
        """
        width = max(10, *(len(name) + 1 for name in engines))
        self._runs = {name: [] for name in engines}
        for round_ in range(0 if warm_up else 1, self._arguments.rounds + 1):
            for name, engine in engines.items():
                session = self._ours if _kind(name) == "stateline" else self._peers
                own_workers(session, _kind(name), tuned=session is self._ours)
                place = self._folder / f"{name.replace(' ', '-')}-{round_}"
                place.mkdir()
                run = engine(session, place)
                if round_:
                    self._runs[name].append(run)
                print(f"round {round_ or 'not counted'} {name:{width}} {run.rate:12,.0f} rows/s{run.note}", flush=True)
                shutil.rmtree(place)

    def report(self, column: tuple[str, Mapping[str, object]] | None = None, **figures: Any) -> None:
        """Prints what came out, and writes the JSON file.

        Args:
            column: One more column of the table: its header, and its values by engine.
            figures: What the file has besides the settings, the rates, the batches and Spark's version.
        """
        rates = {name: [run.rate for run in runs] for name, runs in self._runs.items()}
        rows: list[list[object]] = []
        for name, values in rates.items():
            ours = median(rates.get(" ".join([*name.split()[:-1], "stateline"]), []))
            rows.append([name, f"{median(values):,.0f}", spread(values), f"{ours / median(values):.2f}x"])
            if column is not None:
                rows[-1].append(column[1][name])
        headers = ["engine", "rows/s (median)", "lowest .. highest", "stateline is", *([column[0]] if column else [])]
        print("\n" + table(headers, rows))
        kept = {name: [run.batches for run in runs] for name, runs in self._runs.items()}
        if any(batches is not None for runs in kept.values() for batches in runs):
            figures = {"batches": kept, **figures}
        settings = {"settings": vars(self._arguments), "rows_per_second": rates}
        written = write_results(self._name, {**settings, **figures, "spark": self._ours.version})
        print(f"\nEvery figure: {written}")


def _kind(name: str) -> str:
    return name.rsplit(maxsplit=1)[-1]
