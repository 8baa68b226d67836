"""How long a restart takes: a stateful job is killed at 5 M keys, and the first batch after the restart is timed.

Each engine builds its state in one process, which is killed, and goes on in another. What is timed runs from
``start()`` to the end of the first batch; the start of the session and of a first Python worker is not counted.
Stateline goes on at the same and at twice the parallelism.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.harness import ROCKSDB, table, write_results
from benchmarks.stateful import IN_MEMORY, make_source

SCHEMA = "k long, v long"
PROVIDERS = {"rocksdb": ROCKSDB, "memory": IN_MEMORY}


def start(spark: Any, source: Path, place: Path, engine: str, parallelism: int) -> Any:
    """Starts the job, or goes on with it."""
    from pyspark.sql import functions as F

    from stateline.spark import KeyedStream, count, max, sum

    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    if engine == "stateline":
        stream = KeyedStream(events, key="k", checkpoint=f"file://{place}/state", parallelism=parallelism)
        pipeline = stream.aggregate(n=count(), s=sum("v"), m=max("v")).state_only()
        return pipeline.start(str(place / "spark"), trigger={"availableNow": True})
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[engine])
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    aggregated = events.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))
    writer = aggregated.writeStream.outputMode("update").format("noop")
    return writer.option("checkpointLocation", str(place / "spark")).trigger(availableNow=True).start()


def child(engine: str, source: Path, place: Path, parallelism: int) -> None:
    """One process: runs all there is, says how long its first batch took, and waits to be killed."""
    from stateline.spark import get_or_create_session

    spark = get_or_create_session(
        "stateline-benchmark",
        master="local[2]",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "6g",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).mapInArrow(lambda batches: batches, "id long").count()
    began = time.perf_counter()
    query = start(spark, source, place, engine, parallelism)
    while not [item for item in query.recentProgress if item["numInputRows"]] and query.isActive:
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    query.awaitTermination()
    print(json.dumps({"first_batch_seconds": seconds}), flush=True)
    time.sleep(600)


def run_and_kill(engine: str, source: Path, place: Path, parallelism: int) -> float:
    """Seconds of the first batch of a process that is killed once it has processed all there is."""
    arguments = ["--child", engine, str(source), str(place), str(parallelism)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "recovery", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    if process.stdout is None:
        raise SystemExit("the child has no output")
    found = next((line for line in process.stdout if line.startswith("{")), "")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if not found:
        raise SystemExit(f"{engine} did not come to its end")
    return float(json.loads(found)["first_batch_seconds"])


def main(argv: list[str]) -> int:
    if argv[:1] == ["--child"]:
        engine, source, place, parallelism = argv[1:]
        child(engine, Path(source), Path(place), int(parallelism))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks recovery", description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000, help="distinct keys, about")
    parser.add_argument("--batches", type=int, default=6, help="batches that build the state")
    parser.add_argument("--engines", default="rocksdb,memory,stateline", help="which, in which order")
    arguments = parser.parse_args(argv)
    seconds: dict[str, float] = {}
    rows = arguments.keys * 2 // arguments.batches
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        for engine in arguments.engines.split(","):
            place = Path(folder, engine)
            source = place / "source"
            source.mkdir(parents=True)
            make_source(
                source, batches=arguments.batches, rows=rows, keys=arguments.keys, kind="long", seed=1, zipf=None
            )
            run_and_kill(engine, source, place, 2)
            for parallelism in (2, 4) if engine == "stateline" else (2,):
                extra = pq.read_table(source / "00000.parquet").slice(0, 10_000)
                pq.write_table(extra, source / f"more-{parallelism}.parquet")
                name = f"{engine}, parallelism {parallelism}"
                seconds[name] = run_and_kill(engine, source, place, parallelism)
                print(f"{name:26} {seconds[name]:6.2f} s", flush=True)
            shutil.rmtree(place)
    base = seconds.get("rocksdb, parallelism 2", float("nan"))
    lines = [(name, f"{took:.2f}", f"{took / base:.2f}") for name, took in seconds.items()]
    print("\n" + table(("engine", "seconds to the first batch", "of RocksDB's (wanted <= 0.2)"), lines))
    print(f"\nEvery figure: {write_results('recovery', {'settings': vars(arguments), 'seconds': seconds})}")
    return 0
