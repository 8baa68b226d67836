"""Drivers of tables in processes of their own, killed, stopped and woken at random times.

``python -m tests.processes.table_kills delta --kills 20`` prints what it found as JSON. One driver is killed, or
stopped while another one goes on, others write, compact and vacuum the table, and then it is woken. In the end every
row must be in the table once.

Kills are cheap: drivers are forked by a server that has imported all that they need and has run nothing of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from stateline.tables import TABLE_FORMATS
from tests.integration.tables.postgresql_server import PostgresqlServer
from tests.processes.table_drivers import TABLES, Setup, drive, keys_of
from tests.unit.pipeline.test_table_commits import FilesQuery

BATCHES_AHEAD = 4
"""So many batches a driver has before it, whenever it begins."""

WAIT_SECONDS = 120
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "tests.processes.table_drivers",
        "pandas",  # Which pyarrow looks for when it is given a list.
        "pyarrow.pandas_compat",
        "pyiceberg.catalog.sql",
        "pyiceberg.avro.file",
        "pyiceberg.io.pyarrow",
        "rich.console",
        *(form.module for form in TABLE_FORMATS.values()),
    ]
)
_STOPPED = 0.4
_DISTURBED = 0.3
_SHORT_SECONDS = 0.2


@dataclass
class Driver:
    """A process that runs batches."""

    process: ForkServerProcess
    pipe: Connection

    def signal(self, number: signal.Signals) -> bool:
        """Sends a signal; whether it was alive."""
        if not self.process.is_alive() or self.process.pid is None:
            return False
        try:
            os.kill(self.process.pid, number)
        except ProcessLookupError:  # It has ended since.
            return False
        return True

    def end(self) -> str:
        """Waits for its end; what it complained of."""
        self.process.join(WAIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            return f"goes on for more than {WAIT_SECONDS} s"
        with suppress(EOFError), closing(self.pipe):
            return str(self.pipe.recv())
        return ""


@dataclass
class Drivers:
    """Processes, one after the other and beside each other, and what became of them."""

    setup: Setup
    dice: random.Random
    longest_seconds: float = 0.0
    kills: int = 0
    stops: int = 0
    foreign: int = 0
    complaints: list[str] = field(default_factory=list)

    def until(self) -> int:
        """The number of the last batch of a driver that begins now."""
        newest = self.setup.query().newest()
        return BATCHES_AHEAD + (-1 if newest is None else newest.batch_id)

    def begin(self, until: int | None = None) -> Driver:
        """A driver that has begun."""
        until = self.until() if until is None else until
        pipe, theirs = _SERVER.Pipe(duplex=False)
        process = _SERVER.Process(target=drive, args=(self.setup, until, theirs))
        process.start()
        theirs.close()
        pipe.recv()
        return Driver(process, pipe)

    def end(self, driver: Driver) -> None:
        """Waits for a driver; one that fails for another reason than that it was overtaken is complained of."""
        if complaint := driver.end():
            self.complaints.append(complaint[-3000:])

    def measure(self) -> None:
        """Lets two drivers live, so that others are killed while they do something. The first one waits for imports."""
        self.end(self.begin())
        driver = self.begin()
        began = time.monotonic()
        self.end(driver)
        self.longest_seconds = time.monotonic() - began

    def kill(self) -> None:
        """A driver is killed at some time."""
        driver = self.begin()
        time.sleep(self.dice.random() * self.longest_seconds)
        self.kills += driver.signal(signal.SIGKILL)
        driver.process.join()
        driver.pipe.close()

    def stop_and_wake(self) -> None:
        """A driver is stopped at some time; another one, and other writers, go on; then it is woken."""
        until = self.until()  # Before anybody is stopped who may hold the lock of its table.
        driver = self.begin(until)
        time.sleep(self.dice.random() * self.longest_seconds)
        self.stops += driver.signal(signal.SIGSTOP)
        try:
            rival = self.begin(until + BATCHES_AHEAD)
            if self.setup.holds_locks:
                time.sleep(self.dice.random() * _SHORT_SECONDS)
            else:
                self.end(rival)
                self.disturb()
        finally:
            driver.signal(signal.SIGCONT)
        self.end(driver)
        if self.setup.holds_locks:
            self.end(rival)
            self.disturb()

    def disturb(self) -> None:
        """Other writers append where the rows of the query are theirs alone, rewrite the table, and clean up."""
        query = self.setup.query()
        if query.newest() is None:
            return
        if isinstance(query, FilesQuery):
            self.foreign += 1
            query.place.append_foreign(1000 + self.foreign)
        query.place.compact()
        query.place.vacuum()

    def expected(self) -> list[tuple[Any, ...]]:
        """The rows that must be there."""
        query = self.setup.query()
        newest = query.newest()
        batches = range(0 if newest is None else newest.batch_id + 1)
        ours: list[tuple[Any, ...]] = query.expected({number: keys_of(number) for number in batches})
        return [*ours, *((1000 + number, "foreign") for number in range(1, self.foreign + 1))]


def survive(setup: Setup, kills: int, seed: int) -> dict[str, Any]:
    """What was done and what is wrong after so many kills."""
    began = time.monotonic()
    drivers = Drivers(setup, random.Random(seed))
    drivers.measure()
    while drivers.kills + drivers.stops < kills and not drivers.complaints:
        if drivers.dice.random() < _STOPPED:
            drivers.stop_and_wake()
        else:
            drivers.kill()
            if drivers.dice.random() < _DISTURBED:
                drivers.disturb()
    drivers.end(drivers.begin())
    found, expected = setup.place().rows(), drivers.expected()
    if found != expected:
        missing = [row for row in expected if row not in found]
        twice = [row for row in found if found.count(row) != expected.count(row)]
        drivers.complaints.append(f"{len(found)} rows in place of {len(expected)}; missing {missing[:5]}, {twice[:5]}")
    seconds = round(time.monotonic() - began, 1)
    return {"kills": drivers.kills, "stops": drivers.stops, "seconds": seconds, "failures": drivers.complaints}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=TABLES)
    parser.add_argument("--kills", type=int, default=10, help="kills and stops")
    parser.add_argument("--seed", type=int, default=0)
    given: Any = parser.parse_args(arguments)
    serving = closing(PostgresqlServer()) if given.kind.startswith("postgresql") else nullcontext(None)
    with tempfile.TemporaryDirectory(prefix="stateline-tables-") as folder, serving as server:
        found = survive(Setup(given.kind, Path(folder), "" if server is None else server.uri), given.kills, given.seed)
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
