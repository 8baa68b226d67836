"""``kill -9`` of a real process at each of its system calls: ``python -m tests.processes.system_call_kills JOB``.

This process imports everything, and touches nothing. It forks a child for each life: one that dies at a given system
call, and one that recovers what is left, which has no more in common with the first than a new interpreter would. So
a kill costs a fork and the work, not the imports.

One trial: a child works until it dies; another looks at what is visible; others go on, dying too where the trial says
so; the last one finishes, and checks every byte. What a child was told before it died is in a log beside the folder,
written before the next system call: what was acknowledged must be there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stateline.testing.crashable import LOCAL_MODULES, scratch_folder
from stateline.testing.faults import FaultKind
from stateline.testing.system_calls import SystemCalls, intercepted
from tests.kit.planted import components as planted_components
from tests.kit.planted import pipeline as planted_pipeline
from tests.kit.planted import store as planted_store
from tests.kit.planted.bugs import planted

assert all((planted_components, planted_pipeline, planted_store))  # They register their bugs.

CHANGES_NOTHING = frozenset({"os.open", "os.scandir"})
HANGS_AFTER_SECONDS = 250


class Kill(NamedTuple):
    """Where a process dies.

    Attributes:
        at: The system call, counted from 0; calls that change nothing do not count.
        when: ``before`` it, ``after`` it, or ``inside``: half of the bytes are written.
    """

    at: int
    when: str


class KillingGate:
    """Stands before each system call. Counts those that change something, and kills its process at one of them."""

    def __init__(self, kill: Kill | None = None, calls: list[str] | None = None) -> None:
        self._kill = kill
        self._calls = [] if calls is None else calls
        self._lock = threading.Lock()
        self._dies_next = False

    def enter(self, operation: str, subject: str) -> FaultKind | None:
        if operation in CHANGES_NOTHING:
            return None
        with self._lock:
            number = len(self._calls)
            self._calls.append(operation)
            if self._dies_next:
                self.crash()
            if self._kill is None or number != self._kill.at:
                return None
            if self._kill.when == "after":
                return FaultKind.CRASH_AFTER
            if self._kill.when == "before" or operation != "os.write":
                self.crash()
            self._dies_next = True
            return FaultKind.SHORT_WRITE

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Job(ABC):
    """Work on a folder that can be killed at any moment and goes on when it is started again.

    Attributes:
        folder: Where it works.
        log: What it was told, for the oracle; written through, outside of the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "disk"
        self.log = folder / "log"

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Makes what is there before the first process starts."""

    @abstractmethod
    def run(self) -> None:
        """Does what is left of the work."""

    @abstractmethod
    def look(self) -> None:
        """Checks what a reader sees now, after a kill and before any recovery."""

    @abstractmethod
    def check(self) -> None:
        """Checks everything, once :meth:`run` has returned."""

    def told(self, *entry: object) -> None:
        """Remembers that somebody was told so."""
        with self.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")

    def was_told(self) -> list[list[object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


def files_below(folder: Path) -> set[str]:
    """Every file on disk, read without the code under test.

    Not the folders: one may stay empty, where a process died between the last file and the folder. It holds nothing.
    """
    return {str((Path(here) / name).relative_to(folder)) for here, _, names in os.walk(folder) for name in names}


class Child(NamedTuple):
    """How a forked child ended."""

    status: int
    story: str

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL


def forked(work: Callable[[], None]) -> Child:
    """Runs ``work`` in a child of its own; its traceback, if it raised."""
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+") as story:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(HANGS_AFTER_SECONDS)
                work()
                status = 0
            except BaseException:
                traceback.print_exc(file=story)
                story.flush()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        story.seek(0)
        return Child(status, story.read())


@contextlib.contextmanager
def gated(gate: KillingGate) -> Iterator[None]:
    with intercepted(LOCAL_MODULES, SystemCalls(gate)):
        yield


class ViolationError(Exception):
    """What became of a trial that shows a bug."""


def dry_run(make_job: Callable[[Path], Job], folder: Path) -> list[str]:
    """The system calls of a life that nobody ends."""
    job = make_job(folder)
    job.prepare()
    names = folder / "calls"

    def work() -> None:
        calls: list[str] = []
        with gated(KillingGate(None, calls)):
            job.run()
        names.write_text(json.dumps(calls))
        job.look()
        job.check()

    child = forked(work)
    if child.status != 0:
        raise ViolationError(f"without any kill: status {child.status}\n{child.story}")
    return json.loads(names.read_text())


def trial(make_job: Callable[[Path], Job], folder: Path, kills: Sequence[Kill]) -> int:
    """One life after the other, each killed as told, then one that finishes; how many were really killed."""
    job = make_job(folder)
    job.prepare()
    killed = 0
    for kill in kills:

        def dies(kill: Kill = kill) -> None:
            with gated(KillingGate(kill)):
                job.run()

        child = forked(dies)
        if child.status not in (0, -signal.SIGKILL):
            raise ViolationError(f"{kills}: it failed at {kill} with {child.status}\n{child.story}")
        killed += child.was_killed
        seen = forked(job.look)
        if seen.status != 0:
            raise ViolationError(f"{kills}: what is visible after {kill}\n{seen.story}")

    def finishes() -> None:
        job.run()
        job.look()
        job.check()

    child = forked(finishes)
    if child.status != 0:
        raise ViolationError(f"{kills}: the recovery ended with {child.status}\n{child.story}")
    return killed


def points(calls: Sequence[str]) -> list[Kill]:
    """Every place where a process can die: between two calls, and inside a write."""
    before = [Kill(number, "before") for number in range(len(calls))]
    inside = [Kill(number, "inside") for number, name in enumerate(calls) if name == "os.write"]
    return [*before, *inside, Kill(len(calls) - 1, "after")]


def explore(make_job: Callable[[Path], Job], *, sample: int | None, seed: int) -> dict[str, object]:
    """Kills at every point, or at ``sample`` of them; each second trial kills the recovery, too."""
    dice = random.Random(seed)
    killed = trials = 0
    failures = []
    with scratch_folder() as scratch:
        try:
            calls = dry_run(make_job, Path(scratch))
        except ViolationError as violation:
            return {"calls": 0, "trials": 0, "kills": 0, "failures": [str(violation)]}
    chosen = points(calls)
    if sample is not None and sample < len(chosen):
        chosen = dice.sample(chosen, sample)
    for number, kill in enumerate(chosen):
        again = [Kill(dice.randrange(len(calls)), "before")] if number % 2 else []
        with scratch_folder() as scratch:
            try:
                killed += trial(make_job, Path(scratch), [kill, *again])
            except ViolationError as violation:
                failures.append(str(violation))
                break
        trials += 1
    return {"calls": len(calls), "trials": trials, "kills": killed, "failures": failures}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", help="a class of tests.processes.jobs")
    parser.add_argument("--sample", type=int, help="points, chosen by the seed; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bug", help="plant this bug")
    arguments = parser.parse_args()
    make_job = getattr(importlib.import_module("tests.processes.jobs"), arguments.job)
    with planted(arguments.bug) if arguments.bug else contextlib.nullcontext():
        found = explore(make_job, sample=arguments.sample, seed=arguments.seed)
    sys.stdout.write(json.dumps({"job": arguments.job, **found}) + "\n")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
