"""How even micro-batches are while state grows: count, sum and maximum over batches of 500,000 of 50 million keys.

Most batches bring keys that are new, so the state grows with each, to some 32 million keys in 100 batches. Prints the
highest and the 95th percentile of the durations over their median, and the rate. The first batches are not counted:
code compiles, and there is nothing to merge yet.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import median, table, write_results


def make_source(folder: Path, *, batches: int, rows: int, keys: int, seed: int) -> None:
    """One Parquet file for each micro-batch."""
    dice = np.random.default_rng(seed)
    for batch in range(batches):
        columns = {"k": dice.integers(0, keys, rows) * 7919, "v": dice.integers(0, 1000, rows)}
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")


def run(spark: Any, source: Path, place: Path, parallelism: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Seconds of each micro-batch, by Spark's own measure, and what each did."""
    from stateline.spark import KeyedStream, count, max, sum

    events = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(source))
    stream = KeyedStream(events, key="k", checkpoint=str(place), parallelism=parallelism)
    query = stream.aggregate(n=count(), s=sum("v"), m=max("v")).state_only().start(trigger={"availableNow": True})
    query.awaitTermination()
    progress = [item for item in query.recentProgress if item["numInputRows"]]
    return [item["durationMs"]["triggerExecution"] / 1000 for item in progress], list(query.recent_reports)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks tail", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=50_000_000, help="keys to draw from")
    parser.add_argument("--batches", type=int, default=100, help="micro-batches; Spark keeps the progress of 100")
    parser.add_argument("--skip", type=int, default=5, help="first batches that are not counted")
    parser.add_argument("--parallelism", type=int, default=2, help="cores, shuffle partitions and subtasks")
    arguments = parser.parse_args(argv)

    from stateline.spark import get_or_create_session

    spark = get_or_create_session(
        "stateline-benchmark",
        master=f"local[{arguments.parallelism}]",
        **{
            "spark.sql.shuffle.partitions": str(arguments.parallelism),
            "spark.driver.memory": "6g",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        make_source(source, batches=arguments.batches, rows=arguments.rows, keys=arguments.keys, seed=1)
        seconds, reports = run(spark, source, Path(folder, "state"), arguments.parallelism)
    counted = seconds[arguments.skip :]
    middle, high = median(counted), float(np.percentile(counted, 95))
    figures = [
        ("median", f"{middle:.2f} s", ""),
        ("95th percentile", f"{high:.2f} s", f"{high / middle:.2f}x"),
        ("highest", f"{max(counted):.2f} s", f"{max(counted) / middle:.2f}x"),
        ("rate", f"{arguments.rows * len(counted) / sum(counted):,.0f} rows/s", ""),
    ]
    print(table(("micro-batch", "is", "over the median"), figures))
    results = {"settings": vars(arguments), "seconds": seconds, "reports": reports, "spark": spark.version}
    print(f"\nEvery figure: {write_results('tail', results)}")
    spark.stop()
    return 0
