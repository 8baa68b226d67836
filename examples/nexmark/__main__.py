"""``make nexmark``: makes events, runs one query, compares its output with SQL over the same events, shows rows."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from examples.nexmark.answers import ANSWERS
from examples.nexmark.events import EventSettings
from examples.nexmark.run import Batch, run_query
from examples.nexmark.source import prepare
from examples.nexmark.verification import Comparison, compare
from stateline.errors import StatelineError
from stateline.spark import describe_java, get_or_create_session

FULL_TEXT = 24
"""Characters of a value that are shown."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make nexmark",
        description="Runs a query of Nexmark over generated events, and compares every row with SQL.",
        epilog="queries:\n" + "\n".join(f"  {name:4} {answer.title}" for name, answer in ANSWERS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--query", default="q5", choices=list(ANSWERS), metavar="Q", help="which (default: q5)")
    parser.add_argument("--events", type=positive, default=1_000_000, metavar="N", help="how many (default: 1000000)")
    parser.add_argument(
        "--rate", type=positive, default=10_000, metavar="N", help="events in a second of event time (default: 10000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the generator (default: 1)")
    parser.add_argument(
        "--batch", type=positive, default=100_000, metavar="N", help="events in a micro-batch (default: 100000)"
    )
    parser.add_argument("--parallelism", type=positive, default=2, metavar="N", help="subtasks (default: 2)")
    parser.add_argument(
        "--folder", type=Path, default=Path("nexmark-data"), help="where events are kept (default: nexmark-data)"
    )
    parser.add_argument("--keep", action="store_true", help="keeps state and output, and says where they are")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A whole number above 0."""
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def run(options: argparse.Namespace, folder: Path, place: Path, console: Console) -> bool:
    """Everything; returns whether all rows are equal."""
    settings = EventSettings(events=options.events, rate=options.rate, seed=options.seed, block=options.batch)
    console.print(f"{options.query}: {ANSWERS[options.query].title}.", highlight=False)
    with console.status("Events are generated, or found"):
        source = prepare(settings, folder)
    seconds = (settings.last_time - settings.start).total_seconds()
    console.print(
        f"{options.events:,} events in {seconds:,.1f} s of event time: {source}", highlight=False, soft_wrap=True
    )
    console.print(f"Spark runs on {describe_java()}", highlight=False, soft_wrap=True)
    began = time.monotonic()
    with console.status("The query runs"):
        spark = open_session()
        started = time.monotonic()
        batches = run_query(spark, options.query, source, settings, place, options.parallelism)
        ended = time.monotonic()
    with console.status("Every row is compared"):
        comparison = compare(options.query, source, place / "output")
    show(comparison, console)
    report(batches, started - began, ended - started, console)
    for difference in comparison.differences:
        console.print(difference, style="red", highlight=False, markup=False)
    return comparison.is_equal


def open_session() -> SparkSession:
    """Spark on two cores.

    It begins in a thread of its own: in the main one it would take Ctrl-C for itself, and ask the JVM first.
    """
    settings = {"spark.sql.session.timeZone": "UTC"}
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(get_or_create_session, "stateline-nexmark", "local[2]", quiet=True, **settings).result()


def end_at_once() -> None:
    """Lets Ctrl-C and SIGTERM interrupt this program wherever it is, without the log of calls that end so."""

    def interrupt(*_: object) -> None:
        logging.disable()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)


def show(comparison: Comparison, console: Console) -> None:
    """The first rows of the output."""
    table = Table(title=f"{comparison.rows:,} rows, of which these are some")
    for column in comparison.columns:
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    for row in comparison.first_rows:
        table.add_row(*(shortened(value) for value in row))
    console.print(table, markup=False)


def shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= FULL_TEXT else text[: FULL_TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"


def report(batches: list[Batch], spark_seconds: float, seconds: float, console: Console) -> None:
    if not batches:
        console.print(f"No rows were read. From start to end {seconds:.1f} s.", highlight=False)
        return
    rows, working = sum(batch.rows for batch in batches), sum(batch.seconds for batch in batches)
    rates = [batch.rows / batch.seconds for batch in batches]
    console.print(
        f"{rows:,} rows were read in {len(batches)} micro-batches and {working:.1f} s: {rows / working:,.0f} rows/s, "
        f"{max(rates):,.0f} in the fastest one. From start to end {seconds:.1f} s; Spark took {spark_seconds:.1f} s "
        "before.",
        highlight=False,
    )


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 all equal, 1 a difference or a failure, 2 a wrong option, 130 interrupted."""
    options = parse(arguments)
    console = Console()
    end_at_once()
    folder = Path(os.path.abspath(options.folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f"{options.query}-", dir=folder))
    except OSError as error:
        console.print(f"--folder: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        return 2
    try:
        equal = run(options, folder, place, console)
    except KeyboardInterrupt:
        console.print("\nInterrupted. Events that were complete are kept.")
        return 130
    except StatelineError as error:
        console.print(f"{options.query} failed: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(place, ignore_errors=True)
    if not equal:
        console.print("THE OUTPUT DIFFERS FROM THE ANSWER.", style="bold red")
        return 1
    console.print("Every row is there, once, and equal.", style="bold green")
    if options.keep:
        console.print(f"State and output: {place}", highlight=False, soft_wrap=True, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
