"""What every benchmark shares: the machine's facts, medians, a table of ratios, a JSON file with every figure."""

import datetime as dt
import json
import mmap
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stateline import __version__
from stateline.spark.job.arrow_batches import ARROW_BATCH_SETTINGS

RESULTS = Path(__file__).parent / "results"

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
