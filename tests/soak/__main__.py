"""``make soak``: new seeds, zombies and power losses, and kills of a real driver, for as long as ``SOAK_MINUTES`` says.

Each slice appends one line of JSON to the report, so that a soak can be stopped and resumed: it goes on with the seeds
after those of the report. Exit status 1 at the first violation, whose line has the whole story.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stateline.testing import Exploration, Setting, power_losses, simulate, zombie_sweep
from stateline.testing.scenarios import SCENARIOS, ScenarioEntry

REPORT = Path(os.environ.get("SOAK_REPORT", "soak-report.jsonl"))
MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
SEEDS = 200
KILLS = 5
SPARK = os.environ.get("SOAK_SPARK", "1") != "0"

Slice = Callable[[ScenarioEntry, int], Exploration]


def seeds(entry: ScenarioEntry, number: int) -> Exploration:
    wanted = range(number * SEEDS, (number + 1) * SEEDS)
    return simulate(entry.large(), wanted, Setting(backend=entry.backend), kinds=entry.kinds)


def zombies(entry: ScenarioEntry, number: int) -> Exploration:
    return zombie_sweep(entry.small(), Setting(seed=number, backend=entry.backend), sample=2000)


def powerloss(entry: ScenarioEntry, number: int) -> Exploration:
    return power_losses(entry.small(), number, limit=16)


def slices(first: int) -> Iterator[tuple[str, Slice, int]]:
    for number in itertools.count(first):
        for name, entry in sorted(SCENARIOS.items()):
            yield name, seeds, number
            yield name, zombies, number
            if entry.backend is not None:
                yield name, powerloss, number
        if SPARK:
            yield "spark", seeds, number


def kill_spark(number: int) -> dict[str, object]:
    """The demo with kills at random times; it compares every row with a model of its own."""
    command = [sys.executable, "-m", "examples.demo", "--kills", str(KILLS), "--seed", str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failures = [] if done.returncode == 0 else [done.stdout[-4000:] + done.stderr[-4000:]]
    return {"suite": "spark", "scenario": "demo", "points": KILLS, "failures": failures}


def next_number() -> int:
    if not REPORT.exists():
        return 0
    return 1 + max((json.loads(line)["number"] for line in REPORT.read_text().splitlines()), default=-1)


def main() -> int:
    ends_at = time.monotonic() + MINUTES * 60
    with REPORT.open("a") as report:
        for name, run, number in slices(next_number()):
            if time.monotonic() >= ends_at:
                return 0
            began = time.monotonic()
            found = kill_spark(number) if name == "spark" else run(SCENARIOS[name], number).named(name).to_dict()
            line = {
                "number": number,
                "suite": found["suite"],
                "scenario": found["scenario"],
                "points": found["points"],
                "seconds": round(time.monotonic() - began, 1),
                "failures": found["failures"],
            }
            report.write(json.dumps(line) + "\n")
            report.flush()
            sys.stdout.write(
                f"{line['suite']:<10} {line['scenario']:<24} {line['points']:>7,} {line['seconds']:>7} s\n"
            )
            sys.stdout.flush()
            if line["failures"]:
                sys.stdout.write(f"{json.dumps(line['failures'], indent=2)}\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
