"""A driver that dies again and again: at steps of the protocol, and at random times, JVM included."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.spark import operator_pipelines
from tests.spark.keyed_model import check, make_source, newest_id
from tests.spark.marked_processes import descendants, is_alive, wait_for_end, wait_until

ROOT = Path(__file__).parents[2]

FILES_PER_START = 6
"""Micro-batches for each driver: more than any needs to reach its step or its time."""


def start(folder: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    return start_program(log, "tests.spark.keyed_driver", "local[2]", str(folder), *options)


def start_program(log: Path, module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Runs a driver as the leader of a group, to which its JVM belongs; all that they print goes into ``log``."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
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


def kill_with_workers(process: subprocess.Popen[bytes]) -> list[int]:
    """Kills driver, JVM and Python workers, each by its own signal: no worker goes on until it notices.

    Returns:
        The processes below the driver. They may take a moment to end.
    """
    family = descendants(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return family


def wait_for_death(process: subprocess.Popen[bytes], log: Path) -> None:
    """Also of the Python workers, which have groups of their own and end with their JVM."""
    family = descendants(process.pid)
    wait_for_end(process, 200, log.read_text)
    wait_until(lambda: not any(is_alive(pid) for pid in family), 60, "the end of the workers", log.read_text)


def survive(
    folder: Path,
    steps: Sequence[str],
    dice: random.Random,
    *,
    files_per_start: int = FILES_PER_START,
    operators: bool = False,
) -> None:
    """Runs drivers until each has died at its step, or at a random time for an empty one; then one that lives.

    Args:
        folder: An empty one.
        steps: Where each driver dies.
        dice: For its times.
        files_per_start: Micro-batches for each driver.
        operators: Joins, chains, sessions and best rows in place of counts.
    """
    program = ("--operators",) if operators else ()
    files, rows = files_per_start * len(steps), 40
    make_source(folder, files=files, rows=rows)
    log = folder / "driver.log"
    for number, step in enumerate(steps):
        target = newest_id(folder) + dice.randint(1, 3)
        # A record that carries all sections itself leaves no object to delete.
        inline = ("--inline-bytes", "0") if step.startswith("delete") else ()
        process = start(folder, log, "--kill", step, "--parallelism", str(1 + number % 3), *inline, *program)
        if step:
            wait_for_death(process, log)
            assert process.returncode == -signal.SIGKILL, f"{steps} {step}\n{log.read_text()[-3000:]}"
        else:
            wait_for_checkpoint(folder, target, process)
            kill(process, log)
    process = start(folder, log, *program)
    assert wait_for_end(process, 250, log.read_text) == 0, f"{steps}\n{log.read_text()[-3000:]}"
    (operator_pipelines.check if operators else check)(folder, files=files, rows=rows)
