"""``make demo``: prepares the data, lets the supervisor run and kill, verifies, and says what happened."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.demo import verification
from examples.demo.display import make_display, megabytes
from examples.demo.flights import load_flights, write_source
from examples.demo.progress import RecordProgress
from examples.demo.supervisor import DemoError, Situation, Supervisor, plan_kills
from stateline.spark import describe_java


@dataclass(frozen=True)
class Run:
    """One run of the demo: a folder that holds everything, and what was asked for."""

    folder: Path
    seed: int
    kills: int
    parallelism: int
    last_parallelism: int
    file_events: tuple[int, ...]

    @property
    def total_events(self) -> int:
        return sum(self.file_events)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def root(self) -> Path:
        return self.folder / "state"

    @property
    def spark_checkpoint(self) -> Path:
        return self.folder / "spark"

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def command(self, parallelism: int) -> list[str]:
        """The command line of a driver."""
        options = [
            f"--source={self.source}",
            f"--root={self.root}",
            f"--output={self.output}",
            f"--spark-checkpoint={self.spark_checkpoint}",
        ]
        program = [sys.executable, "-m", "examples.demo.pipeline"]
        return [*program, *options, f"--parallelism={parallelism}", "--end-with-parent"]

    def save(self) -> None:
        """Writes what ``--resume`` needs."""
        facts = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / "run.json").write_text(json.dumps(facts, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Run:
        """The run in a folder that an earlier demo has made."""
        try:
            facts = json.loads((folder / "run.json").read_text())
        except FileNotFoundError:
            raise DemoError(f"{folder} holds no run of the demo: there is no run.json in it") from None
        return cls(folder=folder, **{**facts, "file_events": tuple(facts["file_events"])})


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo", description="Streams a year of flights, kills its driver, and compares every row."
    )
    parser.add_argument("--kills", type=int, default=3, help="how often the driver is killed (default: 3)")
    parser.add_argument("--seed", type=int, help="chooses the moments of the kills (default: a new one)")
    parser.add_argument("--parallelism", type=int, default=2, help="of all drivers but the last (default: 2)")
    parser.add_argument(
        "--last-parallelism", type=int, default=3, help="of the driver after the last kill (default: 3)"
    )
    parser.add_argument("--folder", type=Path, default=Path("demo-data"), help="where runs are kept")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="goes on with a run that was interrupted")
    return parser.parse_args(arguments)


def prepare(options: argparse.Namespace, console: Console) -> Run:
    """A fresh folder with the source files in it. Nothing of earlier runs is touched."""
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    folder = Path(os.path.abspath(options.folder)) / f"{time.strftime('run-%Y%m%d-%H%M%S')}-seed-{seed}"
    folder.mkdir(parents=True)
    flights = load_flights()
    file_events = write_source(flights, folder / "source")
    run = Run(folder, seed, options.kills, options.parallelism, options.last_parallelism, tuple(file_events))
    run.save()
    console.print(f"{run.total_events:,} flights of 2013 in {len(file_events)} weekly files, one per micro-batch.")
    return run


def supervise(run: Run, console: Console) -> Situation:
    console.print(f"Spark runs on {describe_java()}", highlight=False, soft_wrap=True)
    console.print(f"Everything of this run is in {run.folder}; seed {run.seed}.", highlight=False, soft_wrap=True)
    with make_display(console, run.total_events, run.kills) as display:
        supervisor = Supervisor(
            command=run.command,
            read_progress=RecordProgress(run.root, run.spark_checkpoint, run.file_events),
            display=display,
            total_events=run.total_events,
            kills=plan_kills(run.kills, run.seed),
            parallelism=run.parallelism,
            last_parallelism=run.last_parallelism,
            logs=run.folder / "logs",
        )
        return supervisor.run()


def report(run: Run, situation: Situation, seconds: float, console: Console) -> bool:
    """Verifies, prints the results, and returns whether everything is equal."""
    comparisons = verification.verify(run.source, run.spark_checkpoint, run.root, run.output)
    table = Table(title="Compared row by row with pandas over the same files")
    for column in ("what", "rows", "differences"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for comparison in comparisons:
        table.add_row(comparison.what, f"{comparison.rows:,}", f"{comparison.count:,}")
    console.print(table)
    files = verification.output_files(run.output)
    size = megabytes(sum(path.stat().st_size for path in files))
    console.print(
        f"{situation.progress.events:,} events in {seconds:.0f} s with {situation.kills} kills and "
        f"{situation.starts} starts, the last one with parallelism {situation.parallelism}. "
        f"{situation.progress.checkpoint_id + 1} checkpoints, {len(files)} output files, {size}.",
        highlight=False,
    )
    for comparison in comparisons:
        for difference in comparison.differences:
            console.print(f"{comparison.what}: {difference}", style="red", highlight=False, markup=False)
    return all(comparison.count == 0 for comparison in comparisons)


def suggest(run: Run, console: Console) -> None:
    """Where things lie, and what to try next."""
    here = os.path.relpath(run.folder)
    console.print(
        f"\nTo look at:\n"
        f"  {here}/output/aircraft    a Delta table: all rows of each aircraft\n"
        f"  {here}/output/routes      Parquet files by origin; read them with anything\n"
        f"  {here}/output/newest.db   SQLite: the newest row of each route\n"
        f"  {here}/state/chk-*/_metadata    the newest checkpoint, as JSON\n"
        f"  {here}/logs               what each driver said\n"
        f"To try next:\n"
        f'  make demo ARGS="--kills 8 --last-parallelism 7"\n'
        f'  make demo ARGS="--seed {run.seed}"    kills at the same places\n'
        f"  press Ctrl-C while it runs, and follow what it says",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def say_how_to_go_on(run: Run | None, console: Console) -> None:
    if run is not None:
        command = f'make demo ARGS="--resume {os.path.relpath(run.folder)}"'
        console.print(f"Go on with: {command}", highlight=False, soft_wrap=True, markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 all equal, 1 a difference or a failure, 130 interrupted."""
    options = parse(arguments)
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    run = None
    started = time.monotonic()
    try:
        run = Run.load(Path(os.path.abspath(options.resume))) if options.resume else prepare(options, console)
        situation = supervise(run, console)
        equal = report(run, situation, time.monotonic() - started, console)
    except KeyboardInterrupt:
        console.print("\nInterrupted. The driver is gone; what its newest checkpoint names is safe.")
        say_how_to_go_on(run, console)
        return 130
    except DemoError as error:
        console.print(f"The demo failed: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        say_how_to_go_on(run, console)
        return 1
    if not equal:
        console.print("OUTPUT OR STATE DIFFER FROM THE MODEL.", style="bold red")
        return 1
    console.print("Every row is there, once, and equal.", style="bold green")
    suggest(run, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
