"""The exactly-once file sink beside Spark's own: many micro-batches to Parquet, and how many files come of them.

All engines run in one JVM, in turn, several rounds; Spark's own in a session as Spark comes. ``spark batch`` is one
batch job over all rows, which knows no exactly-once between micro-batches and no small files: the best that Spark can
do with the same rows. ``stateline batch`` is such a job through the sink. ``--partitions``: all write so many folders.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.harness import median, spark_as_it_comes, spread, table, write_results

SCHEMA = "id long, name string, amount double, at timestamp, folder int"


def make_source(folder: Path, *, batches: int, rows: int, files: int, partitions: int, seed: int) -> None:
    """As many Parquet files per micro-batch, of one row group each: Spark reads each of them in a task."""
    generator = np.random.default_rng(seed)
    names = pa.array([f"customer-{number:06}" for number in range(50_000)])
    for batch in range(batches):
        made = pa.table(
            {
                "id": np.arange(batch * rows, (batch + 1) * rows),
                "name": names.take(pa.array(generator.integers(0, len(names), rows))),
                "amount": generator.random(rows),
                "at": pa.array(1_700_000_000_000_000 + generator.integers(0, 10**12, rows), pa.timestamp("us", "UTC")),
                "folder": pa.array(generator.integers(0, max(partitions, 1), rows), pa.int32()),
            }
        )
        step = -(-rows // files)
        for file in range(files):
            pq.write_table(made.slice(file * step, step), folder / f"{batch:05}-{file}.parquet")


def rows_of(reader: Any, source: Path, partitions: int) -> Any:
    """The source; the column for the folders only where there are some."""
    rows = reader.schema(SCHEMA).parquet(str(source))
    return rows if partitions else rows.drop("folder")


def in_folders(writer: Any, sink: str, partitions: int) -> Any:
    """A writer that makes a folder for each value of the column, if there are any."""
    if not partitions:
        return writer
    return writer.option("partitionBy", "folder") if sink == "stateline_files" else writer.partitionBy("folder")


def run_stream(spark: Any, source: Path, files: int, partitions: int, place: Path, sink: str) -> float:
    """Seconds of all triggers of one stream."""
    events = rows_of(spark.readStream.option("maxFilesPerTrigger", files), source, partitions)
    writer = events.writeStream.format(sink).option("path", str(place / "out")).option("finish", "never")
    writer = in_folders(writer, sink, partitions).option("checkpointLocation", str(place / "spark"))
    query = writer.trigger(availableNow=True).start()
    began = time.perf_counter()
    query.awaitTermination()
    return time.perf_counter() - began


def run_batch(spark: Any, source: Path, partitions: int, place: Path, sink: str) -> float:
    """Seconds of one batch job."""
    began = time.perf_counter()
    writer = rows_of(spark.read, source, partitions).write.format(sink).mode("append")
    in_folders(writer, sink, partitions).save(str(place / "out"))
    return time.perf_counter() - began


def finish_stream(place: Path) -> float:
    """Seconds until the open files are finished: the end of a stream is part of the work."""
    from stateline.spark import finish_files

    began = time.perf_counter()
    finish_files(str(place / "out"))
    return time.perf_counter() - began


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks sink", description=__doc__)
    parser.add_argument("--batches", type=int, default=40, help="micro-batches")
    parser.add_argument("--rows", type=int, default=250_000, help="rows per micro-batch")
    parser.add_argument("--source-files", type=int, default=1, help="files of the source per micro-batch")
    parser.add_argument("--partitions", type=int, default=0, help="folders that the rows go to; 0 for none")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median counts")
    parser.add_argument(
        "--tuned-peers",
        action="store_true",
        help="Spark's engines get the settings that make Stateline's own session faster",
    )
    arguments = parser.parse_args(argv)

    from stateline.spark import get_or_create_session

    spark = get_or_create_session(
        "stateline-benchmark",
        master="local[2]",
        **{"spark.driver.memory": "4g", "spark.ui.showConsoleProgress": "false"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    peers = spark if arguments.tuned_peers else spark_as_it_comes(spark)
    engines = ("spark stream", "spark batch", "stateline batch", "stateline")
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    files: dict[str, int] = {}
    total = arguments.batches * arguments.rows
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        partitions = arguments.partitions
        make_source(
            source,
            batches=arguments.batches,
            rows=arguments.rows,
            files=arguments.source_files,
            partitions=partitions,
            seed=1,
        )
        for round_ in range(arguments.rounds):
            for engine in engines:
                place = Path(folder, f"{engine.replace(' ', '-')}-{round_}")
                place.mkdir()
                session, sink = (peers, "parquet") if engine.startswith("spark") else (spark, "stateline_files")
                if engine.endswith("batch"):
                    took = run_batch(session, source, partitions, place, sink)
                elif engine == "spark stream":
                    took = run_stream(session, source, arguments.source_files, partitions, place, sink)
                else:
                    took = run_stream(session, source, arguments.source_files, partitions, place, sink)
                    took += finish_stream(place)
                seconds[engine].append(took)
                written = list((place / "out").rglob("*.parquet"))
                files[engine] = len(written)
                found = ds.dataset([str(path) for path in written], format="parquet").count_rows()
                if found != total:
                    raise SystemExit(f"{engine} wrote {found:,} rows of {total:,}")
                print(f"round {round_ + 1} {engine:15} {total / took:12,.0f} rows/s  {len(written)} files", flush=True)
                shutil.rmtree(place)
    ours = median(seconds["stateline"])
    rows = [
        (
            engine,
            f"{total / median(taken):,.0f}",
            spread([total / one for one in taken]),
            files[engine],
            f"{median(taken) / ours:.2f}x",
        )
        for engine, taken in seconds.items()
    ]
    print("\n" + table(("engine", "rows/s (median)", "lowest .. highest", "files", "stateline is"), rows))
    figures = {"settings": vars(arguments), "seconds": seconds, "files": files, "spark": spark.version}
    print(f"\nEvery figure: {write_results('sink', figures)}")
    spark.stop()
    return 0
