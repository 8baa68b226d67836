"""``kill -9`` of the real driver, JVM included: at steps of the protocol, and at random times."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.spark.cluster import descendants, is_alive, wait_until
from tests.spark.keyed_model import check, make_source, newest_id

ROOT = Path(__file__).parents[2]


def start(folder: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.keyed_driver", "local[2]", str(folder), *options],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def wait_for_checkpoint(folder: Path, target: int, process: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: newest_id(folder) >= target or process.poll() is not None, 200, f"checkpoint {target}")


def kill(process: subprocess.Popen[bytes], log: Path) -> None:
    family = descendants(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    wait_until(lambda: not any(is_alive(pid) for pid in family), 60, "the end of the workers", log.read_text)


def wait_for_death(process: subprocess.Popen[bytes], log: Path) -> None:
    """Also of the Python workers, which have groups of their own and end with their JVM."""
    family = descendants(process.pid)
    process.wait(timeout=200)
    wait_until(lambda: not any(is_alive(pid) for pid in family), 60, "the end of the workers", log.read_text)


STEPS = ("record:after", "publish:after", "mark:before", "acknowledge:after", "discard:after", "tombstone:after")
"""Where the driver dies here; ``make soak`` takes every point. The simulator takes every store call."""


@pytest.mark.timeout(900)  # Several sessions, each with a JVM of its own.
def test_a_driver_that_is_killed_again_and_again_loses_nothing_and_repeats_nothing(tmp_path):
    """Each start dies at another step or time, goes on from where the one before died, with another parallelism."""
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    steps = [*dice.sample(STEPS, 3), "", ""]
    dice.shuffle(steps)
    survive(tmp_path, steps, dice)


def survive(folder: Path, steps: Sequence[str], dice: random.Random) -> None:
    """Runs drivers until each has died at its step, or at a random time for an empty one; then one that lives."""
    files, rows = 6 * len(steps), 40
    make_source(folder, files=files, rows=rows)
    log = folder / "driver.log"
    for number, step in enumerate(steps):
        target = newest_id(folder) + dice.randint(1, 3)
        process = start(folder, log, "--kill", step, "--parallelism", str(1 + number % 3))
        if step:
            wait_for_death(process, log)
            assert process.returncode == -signal.SIGKILL, f"{steps} {step}\n{log.read_text()[-3000:]}"
        else:
            wait_for_checkpoint(folder, target, process)
            kill(process, log)
    process = start(folder, log)
    assert process.wait(timeout=250) == 0, f"{steps}\n{log.read_text()[-3000:]}"
    check(folder, files=files, rows=rows)
