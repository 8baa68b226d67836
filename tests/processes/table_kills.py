"""Drivers of tables in processes of their own, killed, stopped and woken at random times.

``python -m tests.processes.table_kills delta --kills 20`` prints what it found as JSON. Each driver runs batches, whose
rows are drawn from their number, until there are enough. One is killed, or stopped while another one goes on, others
write and compact the table, and then it is woken. In the end every row must be in the table once.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from stateline.blob import open_store
from stateline.errors import FencedError
from tests.unit.pipeline.test_table_commits import FilesQuery, RowsQuery
from tests.unit.tables.table_kit import places

ROOT = Path(__file__).parents[2]
BATCHES_AHEAD = 6
WAIT_SECONDS = 120
LONGEST_LIFE_SECONDS = 0.6


def keys_of(number: int) -> tuple[int, ...]:
    """The keys of a batch."""
    return tuple(sorted(random.Random(number).sample(range(20), 3)))


def query_in(kind: str, folder: Path) -> FilesQuery | RowsQuery:
    """The query, as any process opens it."""
    place = places(folder)[kind]
    query = FilesQuery(place) if place.target().takes_files else RowsQuery(place)
    query.root = open_store((folder / "root").as_uri(), {"fsync": "false"})
    return query


def drive(kind: str, folder: Path, until: int) -> None:
    """What a driver's process does."""
    query = query_in(kind, folder)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    newest = query.newest()
    number = -1 if newest is None else newest.batch_id - 1
    with suppress(FencedError):
        query.start()
        while number < until:
            number += 1
            query.run(max(number, 0), *keys_of(max(number, 0)))


class Drivers:
    """Processes, and how many batches they are to run."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.kind, self.folder, self.dice = kind, folder, random.Random(seed)
        self.until = BATCHES_AHEAD
        self.complaints: list[str] = []

    def begin(self) -> subprocess.Popen[str]:
        """A driver that has begun."""
        command = [sys.executable, "-m", "tests.processes.table_kills", self.kind, "--drive", str(self.folder)]
        driver = subprocess.Popen(
            [*command, "--until", str(self.until)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert driver.stdout is not None
        driver.stdout.readline()
        return driver

    def kill(self) -> None:
        """A driver is killed at some time."""
        driver = self.begin()
        time.sleep(self.dice.random() * LONGEST_LIFE_SECONDS)
        driver.send_signal(signal.SIGKILL)
        driver.communicate()

    def stop_and_wake(self) -> None:
        """A driver is stopped at some time; another one, and other writers, go on; then it is woken."""
        driver = self.begin()
        time.sleep(self.dice.random() * LONGEST_LIFE_SECONDS)
        driver.send_signal(signal.SIGSTOP)
        try:
            self.until += 2
            self.end(self.begin())
            self.disturb()
        finally:
            driver.send_signal(signal.SIGCONT)
        self.end(driver)

    def disturb(self) -> None:
        """Another writer rewrites the table."""
        if query_in(self.kind, self.folder).newest() is not None:
            places(self.folder)[self.kind].compact()

    def end(self, driver: subprocess.Popen[str]) -> None:
        """Waits for a driver; one that fails for another reason than that it was overtaken is complained of."""
        _, errors = driver.communicate(timeout=WAIT_SECONDS)
        if driver.returncode and "database is locked" not in errors:
            self.complaints.append(errors[-3000:])


def survive(kind: str, folder: Path, kills: int, seed: int) -> list[str]:
    """What is wrong after so many kills."""
    drivers = Drivers(kind, folder, seed)
    # A SQLite transaction that is stopped holds the lock of the file: nobody can go on before it is woken.
    stops = kind.startswith(("delta", "iceberg"))
    for _ in range(kills):
        if stops and drivers.dice.random() < 0.4:
            drivers.stop_and_wake()
        else:
            drivers.kill()
            drivers.until += 1
            if drivers.dice.random() < 0.3:
                drivers.disturb()
    drivers.end(drivers.begin())
    query = query_in(kind, folder)
    newest = query.newest()
    expected = query.expected({number: keys_of(number) for number in range(newest.batch_id + 1)})
    found = query.place.rows()
    if found != expected:
        missing = [row for row in expected if row not in found]
        drivers.complaints.append(f"{len(found)} rows in place of {len(expected)}; missing: {missing[:5]}")
    return drivers.complaints


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", type=Path)
    parser.add_argument("--until", type=int, default=0)
    given: Any = parser.parse_args(arguments)
    if given.drive is not None:
        drive(given.kind, given.drive, given.until)
        return 0
    with tempfile.TemporaryDirectory(prefix="stateline-tables-") as folder:
        failures = survive(given.kind, Path(folder), given.kills, given.seed)
    sys.stdout.write(json.dumps({"kills": given.kills, "failures": failures}) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
