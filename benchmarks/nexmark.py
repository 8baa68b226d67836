"""The queries of Nexmark in Stateline, in Spark's own operators, and in Flink SQL where it is asked for.

All engines read the same events and compute every row of their output, which goes nowhere. In Spark, state is in
RocksDB with changelog checkpointing. A rate is events of all kinds in a second of wall time, from the first batch that
counts to the end of the query: closing what the last watermark has passed belongs to it.
"""

import argparse
import datetime as dt
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import median, own_workers, spark_as_it_comes, spread, table, use_rocksdb, write_results
from benchmarks.nexmark_flink import WARM_UP_EVENTS, FlinkJobs, make_environment, write_csv
from benchmarks.nexmark_spark import SPARK_QUERIES, floor
from examples.nexmark.events import EventSettings
from examples.nexmark.queries import QUERIES
from examples.nexmark.run import open_streams
from examples.nexmark.source import prepare

WANTED = {"spark": (5.0, 2.0), "flink": (2.0, 0.0)}
"""Geometric mean of the ratios, and the lowest of them."""


def run_stateline(name: str, streams: Any, place: Path) -> Any:
    return QUERIES[name](streams).state_only().start(str(place / "spark"), trigger={"availableNow": True})


def run_spark(name: str, streams: Any, place: Path) -> Any:
    query = SPARK_QUERIES[name]
    return run_nowhere(query.build(streams), query.mode, place)


def run_floor(name: str, streams: Any, place: Path) -> Any:
    return run_nowhere(floor(name, streams), "append", place)


def run_nowhere(rows: Any, mode: str, place: Path) -> Any:
    writer = rows.writeStream.outputMode(mode).format("noop")
    return writer.option("checkpointLocation", str(place / "spark")).trigger(availableNow=True).start()


def rate(query: Any, arguments: argparse.Namespace) -> tuple[float, list[Any]]:
    """Events per second of all batches but the first ones, and what Spark says of each batch."""
    query.awaitTermination()
    ended = time.time()
    batches = query.recentProgress
    counted = [batch for batch in batches if batch["batchId"] >= arguments.skip]
    began = dt.datetime.fromisoformat(counted[0]["timestamp"]).timestamp()
    events = arguments.events - arguments.skip * arguments.batch
    return events / (ended - began), [(one["batchId"], one["numInputRows"], one["durationMs"]) for one in batches]


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
    parser.add_argument("--floor", action="store_true", help="also what any operator in Python costs")
    parser.add_argument("--flink", action="store_true", help="beside Flink SQL, over CSV files, in place of Spark")
    parser.add_argument(
        "--flink-environment", type=Path, default=Path(".venv-flink"), help="where Flink is installed (.venv-flink)"
    )
    parser.add_argument("--folder", type=Path, help="where events are kept (default: a temporary folder)")
    arguments = parser.parse_args(argv)
    arguments.queries = arguments.queries.split(",")
    if arguments.skip * arguments.batch >= arguments.events:
        parser.error(f"--skip {arguments.skip} leaves no batch of {arguments.events:,} events")
    if arguments.flink and arguments.events <= WARM_UP_EVENTS:
        parser.error(f"--flink needs more than {WARM_UP_EVENTS:,} events")
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


def measure_stateline(
    spark: Any, name: str, source: Path, arguments: argparse.Namespace, place: Path, **options: str
) -> tuple[float, list[Any]]:
    """The rate of a query in Stateline, and its batches."""
    own_workers(spark, "stateline", tuned=True)
    longest = settings_of(arguments).longest_auction
    streams = open_streams(spark, source, place / "state", arguments.parallelism, longest, **options)
    return rate(run_stateline(name, streams, place), arguments)


def measure_beside_spark(arguments: argparse.Namespace, folder: Path) -> "Figures":
    """Rates of each query in Stateline and in Spark, in turn."""
    source = prepare(settings_of(arguments), arguments.folder or folder)
    spark = make_session(arguments.parallelism)
    peers = spark_as_it_comes(spark)
    use_rocksdb(peers)
    figures = Figures(arguments.queries, "spark", *(["floor"] if arguments.floor else []))
    for round_ in range(arguments.rounds):
        for name in arguments.queries:
            place = folder / f"{name}-{round_}"
            figures.add(name, "stateline", *measure_stateline(spark, name, source, arguments, place / "stateline"))
            own_workers(peers, "spark", tuned=False)
            longest = settings_of(arguments).longest_auction
            streams = open_streams(peers, source, place / "state", arguments.parallelism, longest)
            figures.add(name, "spark", *rate(run_spark(name, streams, place / "spark"), arguments))
            if arguments.floor:
                own_workers(spark, "floor", tuned=True)
                streams = open_streams(spark, source, place / "state", arguments.parallelism, longest)
                figures.add(name, "floor", *rate(run_floor(name, streams, place / "floor"), arguments))
            shutil.rmtree(place)
    spark.stop()
    return figures


def measure_beside_flink(arguments: argparse.Namespace, folder: Path) -> "Figures":
    """Rates of each query in Stateline and in Flink, in turn, over the same events as CSV."""
    python = make_environment(arguments.flink_environment.absolute())
    settings = settings_of(arguments)
    source, warm_up = folder / "csv", folder / "warm-up"
    write_csv(settings, source)
    write_csv(replace(settings, events=WARM_UP_EVENTS), warm_up)
    spark = make_session(arguments.parallelism)
    figures = Figures(arguments.queries, "flink")
    with FlinkJobs(python, source, warm_up, folder / "flink", arguments.parallelism) as flink:
        for round_ in range(arguments.rounds):
            for name in arguments.queries:
                place = folder / f"{name}-{round_}"
                ours, batches = measure_stateline(spark, name, source / "batches", arguments, place, file_format="csv")
                figures.add(name, "stateline", ours, batches)
                shutil.rmtree(place)
                few, all_ = flink.run(name)
                figures.add(name, "flink", (settings.events - WARM_UP_EVENTS) / (all_ - few), [few, all_])
    spark.stop()
    return figures


class Figures:
    """Rates of Stateline and of other engines, by query; the first of the others is the peer."""

    def __init__(self, queries: list[str], peer: str, *others: str) -> None:
        self.peer = peer
        self.engines = ("stateline", peer, *others)
        self.rates: dict[str, dict[str, list[float]]] = {name: {each: [] for each in self.engines} for name in queries}
        self.details: list[tuple[str, str, list[Any]]] = []

    def add(self, name: str, engine: str, figure: float, details: list[Any]) -> None:
        self.rates[name][engine].append(figure)
        self.details.append((name, engine, details))
        print(f"{name:4} {engine:10} {figure:12,.0f} events/s", flush=True)

    @property
    def ratios(self) -> dict[str, float]:
        return {name: median(each["stateline"]) / median(each[self.peer]) for name, each in self.rates.items()}

    def told(self) -> str:
        """A table, and what the ratios are together."""
        rows = [
            (
                name,
                *(text for values in each.values() for text in (f"{median(values):,.0f}", spread(values))),
                f"{self.ratios[name]:.2f}x",
                SPARK_QUERIES[name].instead if self.peer == "spark" else "",
            )
            for name, each in self.rates.items()
        ]
        rates = [text for each in self.engines for text in (f"{each.capitalize()} events/s", "lowest .. highest")]
        ratios = list(self.ratios.values())
        mean, lowest = WANTED[self.peer]
        wanted = f"(wanted: {lowest:.0f}x)" if lowest else ""
        return (
            f"{table(('query', *rates, 'ratio', f'in {self.peer.capitalize()}'), rows)}\n\n"
            f"Geometric mean {geometric_mean(ratios):.2f}x (wanted: {mean:.0f}x), lowest {min(ratios):.2f}x {wanted}"
        )


def settings_of(arguments: argparse.Namespace) -> EventSettings:
    return EventSettings(events=arguments.events, rate=arguments.rate, block=arguments.batch)


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    measure = measure_beside_flink if arguments.flink else measure_beside_spark
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        figures = measure(arguments, Path(folder))
    print(f"\n{figures.told()}")
    told = {"settings": vars(arguments), "ratios": figures.ratios, "rates": figures.rates, "details": figures.details}
    print(f"Every figure: {write_results('nexmark-flink' if arguments.flink else 'nexmark', told)}")
    return 0
