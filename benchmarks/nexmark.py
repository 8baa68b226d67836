"""The queries of Nexmark in Stateline, in Spark's own operators, and in Flink SQL where it is asked for.

All engines read the same events and compute every row of their output, which goes nowhere. In Spark, state is in
RocksDB with changelog checkpointing. A rate is rows read in a second of wall time, from the first batch that counts to
the end of the query: closing what the last watermark has passed belongs to it.
"""

import argparse
import datetime as dt
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import median, own_workers, spark_as_it_comes, spread, table, write_results
from benchmarks.nexmark_spark import SPARK_QUERIES
from benchmarks.stateful import ROCKSDB
from examples.nexmark.events import EventSettings
from examples.nexmark.queries import QUERIES
from examples.nexmark.run import open_streams
from examples.nexmark.source import prepare

WANTED_MEAN, WANTED_LOWEST = 5.0, 2.0


def run_stateline(name: str, streams: Any, place: Path) -> Any:
    return QUERIES[name](streams).state_only().start(str(place / "spark"), trigger={"availableNow": True})


def run_spark(name: str, streams: Any, place: Path) -> Any:
    query = SPARK_QUERIES[name]
    writer = query.build(streams).writeStream.outputMode(query.mode).format("noop")
    return writer.option("checkpointLocation", str(place / "spark")).trigger(availableNow=True).start()


def rate(query: Any, skip: int) -> tuple[float, list[Any]]:
    """Rows per second of all batches but the first ones, and what Spark says of each batch."""
    query.awaitTermination()
    ended = time.time()
    batches = query.recentProgress
    counted = [batch for batch in batches if batch["batchId"] >= skip]
    if not counted:
        raise SystemExit(f"--events make {len(batches)} batches, of which --skip {skip} leaves none")
    began = dt.datetime.fromisoformat(counted[0]["timestamp"]).timestamp()
    rows = sum(batch["numInputRows"] for batch in counted)
    return rows / (ended - began), [(one["batchId"], one["numInputRows"], one["durationMs"]) for one in batches]


def geometric_mean(values: list[float]) -> float:
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks nexmark", description=__doc__)
    parser.add_argument("--queries", default=",".join(SPARK_QUERIES), help="which, separated by commas")
    parser.add_argument("--events", type=int, default=4_000_000, help="events of all kinds")
    parser.add_argument("--batch", type=int, default=500_000, help="events per micro-batch")
    parser.add_argument("--rate", type=int, default=10_000, help="events in a second of event time")
    parser.add_argument("--skip", type=int, default=2, help="first batches of a run that are not counted")
    parser.add_argument("--rounds", type=int, default=1, help="rounds; the median counts")
    parser.add_argument("--parallelism", type=int, default=2, help="cores, shuffle partitions and subtasks")
    parser.add_argument("--folder", type=Path, help="where events are kept (default: a temporary folder)")
    arguments = parser.parse_args(argv)
    arguments.queries = arguments.queries.split(",")
    unknown = set(arguments.queries) - set(SPARK_QUERIES)
    if unknown:
        parser.error(f"cannot be compared: {', '.join(sorted(unknown))}; those that can: {', '.join(SPARK_QUERIES)}")
    return arguments


def make_session(parallelism: int) -> Any:
    from stateline.spark import get_or_create_session

    spark = get_or_create_session(
        "stateline-benchmark",
        master=f"local[{parallelism}]",
        **{
            "spark.sql.shuffle.partitions": str(parallelism),
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "6g",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(arguments: argparse.Namespace, source: Path, settings: EventSettings, folder: Path) -> dict[str, Any]:
    """Rates of each query and engine, in turn."""
    spark = make_session(arguments.parallelism)
    peers = spark_as_it_comes(spark)
    peers.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    peers.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    figures: dict[str, Any] = {name: {"stateline": [], "spark": [], "batches": []} for name in arguments.queries}
    for round_ in range(arguments.rounds):
        for name in arguments.queries:
            for engine, session, run in (("stateline", spark, run_stateline), ("spark", peers, run_spark)):
                own_workers(session, engine, tuned=session is spark)
                place = folder / f"{name}-{engine}-{round_}"
                streams = open_streams(
                    session, source, place / "state", arguments.parallelism, settings.longest_auction
                )
                figure, batches = rate(run(name, streams, place), arguments.skip)
                figures[name][engine].append(figure)
                figures[name]["batches"].append((engine, batches))
                print(f"round {round_ + 1} {name:4} {engine:10} {figure:12,.0f} rows/s", flush=True)
                shutil.rmtree(place)
    figures["spark_version"] = spark.version
    spark.stop()
    return figures


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    settings = EventSettings(events=arguments.events, rate=arguments.rate, block=arguments.batch)
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as temporary:
        source = prepare(settings, arguments.folder or Path(temporary))
        figures = measure(arguments, source, settings, Path(temporary))
    ratios = {name: median(figures[name]["stateline"]) / median(figures[name]["spark"]) for name in arguments.queries}
    rows = [
        (
            name,
            f"{median(figures[name]['stateline']):,.0f}",
            spread(figures[name]["stateline"]),
            f"{median(figures[name]['spark']):,.0f}",
            spread(figures[name]["spark"]),
            f"{ratio:.2f}x",
            SPARK_QUERIES[name].instead,
        )
        for name, ratio in ratios.items()
    ]
    headers = (
        "query",
        "Stateline rows/s",
        "lowest .. highest",
        "Spark rows/s",
        "lowest .. highest",
        "ratio",
        "in Spark",
    )
    print("\n" + table(headers, rows))
    print(
        f"\nGeometric mean {geometric_mean(list(ratios.values())):.2f}x (wanted: {WANTED_MEAN:.0f}x), "
        f"lowest {min(ratios.values()):.2f}x (wanted: {WANTED_LOWEST:.0f}x)"
    )
    told = {"settings": vars(arguments), "ratios": ratios, "figures": figures}
    print(f"Every figure: {write_results('nexmark', told)}")
    return 0
