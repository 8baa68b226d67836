"""What a soak is made of: short pieces of work, each another one for each number."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from stateline.errors import StatelineError
from stateline.sizes import VARIABLE, resized
from tests.kit.explore import Setting, zombie_sweep
from tests.kit.power_failure import power_losses
from tests.kit.results import Exploration
from tests.kit.scenarios import SCENARIOS, ScenarioEntry
from tests.kit.simulation import simulate
from tests.kit.sizes import SIZES, as_text
from tests.processes.table_drivers import TABLES
from tests.readers.drawing import SPARK_READS
from tests.readers.drawing import TABLES as DRAWN_TABLES
from tests.spark.keyed_driver import STEPS
from tests.spark.killing import survive
from tests.spark.moving import drawn_moves, kills_of, survive_moves

ROOT = Path(__file__).parents[2]

SHARES = {
    "seeds": 0.04,
    "zombies": 0.05,
    "powerloss": 0.03,
    "processes": 0.02,
    "spark": 0.52,
    "moves": 0.07,
    "scripts": 0.03,
    "batches": 0.02,
    "tables": 0.17,
    "readers": 0.05,
}
"""How much of its time a soak gives to each suite. A kill of a driver takes a session of Spark, and is what a soak has
too little of: the other suites find in minutes what they find."""

SEEDS = 200
KILLS = 10
TABLE_KILLS = 60
BATCHES = 400
DRAWN_CASES = 40
DRAWN_CASES_WITHOUT_SPARK = 400

SIZES_BY_NUMBER = ("default", "tiny")
"""Slices of even and of odd numbers: the same work with the sizes of production, and with tiny ones."""

Found = dict[str, Any]
"""``points``: how much was tried. ``failures``: stories, none for a good end. Figures by name."""


class Slice(NamedTuple):
    """One piece of work; ``run(number)`` says what it found."""

    suite: str
    scenario: str
    work: Callable[[int], Found]

    def run(self, number: int) -> Found:
        """Does the work with the sizes of its number, also in the processes that it starts."""
        chosen = SIZES_BY_NUMBER[number % len(SIZES_BY_NUMBER)]
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = as_text(SIZES[chosen])
        try:
            with resized(SIZES[chosen]):
                return {"sizes": chosen, **self.work(number)}
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


def _simulated(suite: str, name: str, explore: Callable[[ScenarioEntry, int], Exploration]) -> Slice:
    def run(number: int) -> Found:
        found = explore(SCENARIOS[name], number).named(name).to_dict()
        return {"points": found["points"], "failures": found["failures"]}

    return Slice(suite, name, run)


def _seeds(entry: ScenarioEntry, number: int) -> Exploration:
    wanted = range(number * SEEDS, (number + 1) * SEEDS)
    return simulate(entry.large(), wanted, Setting(backend=entry.backend), kinds=entry.kinds)


def _zombies(entry: ScenarioEntry, number: int) -> Exploration:
    return zombie_sweep(entry.small(), Setting(seed=number, backend=entry.backend), sample=2000)


def _power_losses(entry: ScenarioEntry, number: int) -> Exploration:
    if entry.name.startswith("pipeline"):  # Thousands of states in each of its runs.
        return power_losses(entry.small(), number, races=1, deaths=2, failing=1, limit=1)
    return power_losses(entry.small(), number, limit=16)


def _json_of(module: str, *options: str) -> Any:
    """What a program prints; its complaint where it does not."""
    done = subprocess.run([sys.executable, "-m", module, *options], cwd=ROOT, capture_output=True, text=True)
    if not done.stdout:
        return {"points": 0, "failures": [done.stderr[-4000:]]}
    return json.loads(done.stdout)


def _killed_process(job: str) -> Slice:
    def run(number: int) -> Found:
        found = _json_of("tests.processes.system_call_kills", job, "--seed", str(number))
        return {"points": found.get("kills", 0), "failures": found["failures"]}

    return Slice("processes", job, run)


def _killed_tables(kind: str) -> Slice:
    """A format that has no upsert gets as many kills as one that has two kinds."""
    kills = TABLE_KILLS * (1 if f"{kind}-upsert" in TABLES or kind.endswith("-upsert") else 2)

    def run(number: int) -> Found:
        found = _json_of("tests.processes.table_kills", kind, "--seed", str(number), "--kills", str(kills))
        return {"points": found.pop("kills", 0), **found}

    return Slice("tables", kind, run)


def _read_tables(table: str) -> Slice:
    cases = DRAWN_CASES if table.startswith(SPARK_READS) else DRAWN_CASES_WITHOUT_SPARK

    def run(number: int) -> Found:
        options = ("--seed", str(number * cases), "--cases", str(cases), "--keep-going")
        found = _json_of("tests.readers", table, *options)
        return {"points": found.pop("cases", 0), **found}

    return Slice("readers", table, run)


def _killed_drivers(number: int) -> Found:
    """Every step in turn, from slice to slice, and as many random times; row by row against a model."""
    dice = random.Random(number)
    first = number * KILLS // 2
    steps = [STEPS[(first + index) % len(STEPS)] for index in range(KILLS // 2)] + [""] * (KILLS - KILLS // 2)
    dice.shuffle(steps)
    failures = []
    with tempfile.TemporaryDirectory(prefix="stateline-soak-") as folder:
        try:
            survive(Path(folder), steps, dice, files_per_start=5)
        except (AssertionError, TimeoutError) as error:
            failures.append(f"{steps}\n{error}"[-6000:])
    return {"points": KILLS, "steps": steps, "failures": failures}


def _moved(number: int, *, union: bool) -> Found:
    """A query that is killed, saved and moved twice, of one folder of files or of two."""
    dice = random.Random(number)
    moves = drawn_moves(number, dice)
    failures = []
    with tempfile.TemporaryDirectory(prefix="stateline-soak-") as folder:
        try:
            survive_moves(Path(folder), moves, dice, union=union)
        except (AssertionError, TimeoutError, StatelineError) as error:
            failures.append(f"{moves}\n{error}"[-6000:])
    return {"points": kills_of(moves), "steps": [repr(move) for move in moves], "failures": failures}


def _killed_scripts(number: int) -> Found:
    return _json_of("tests.spark.killed_scripts", "--seed", str(number))


def _ended_scripts(number: int) -> Found:
    return _json_of("tests.spark.last_lines", "--seed", str(number))


def _many_batches(number: int) -> Found:
    return _json_of("tests.spark.many_batches", "--batches", str(BATCHES))


SLICES = [
    *(
        _simulated(suite, name, explore)
        for name, entry in sorted(SCENARIOS.items())
        for suite, explore in (("seeds", _seeds), ("zombies", _zombies), ("powerloss", _power_losses))
        if suite != "powerloss" or entry.loses_power
    ),
    *(_killed_process(job) for job in ("FileJob", "ChangelogJob", "PipelineJob")),
    *(_killed_tables(kind) for kind in TABLES),
    *(_read_tables(table) for table in DRAWN_TABLES),
    Slice("spark", "driver kills", _killed_drivers),
    *(Slice("moves", name, partial(_moved, union=union)) for name, union in (("folder", False), ("union", True))),
    Slice("scripts", "killed", _killed_scripts),
    Slice("scripts", "ended", _ended_scripts),
    Slice("batches", "spark", _many_batches),
]
