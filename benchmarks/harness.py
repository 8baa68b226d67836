"""What every benchmark shares: the machine's facts, medians, a table of ratios, a JSON file with every figure."""

import datetime as dt
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stateline import __version__
from stateline.spark.arrow_batches import ARROW_BATCH_SETTINGS

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Facts that a figure cannot be read without."""
    memory = next((line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")), "")
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": model.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "memory": memory.partition(":")[2].strip(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyarrow", "numpy")},
        "stateline": __version__,
    }


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
