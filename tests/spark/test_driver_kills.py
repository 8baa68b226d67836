"""``kill -9`` of the real driver, JVM included: at every step of the protocol, and at random times."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.spark.cluster import descendants, is_alive, wait_until
from tests.spark.keyed_driver import POINTS
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


def test_every_step_of_the_protocol_may_be_the_last(tmp_path):
    """Each start dies at another step, goes on from where the one before died, and with another parallelism."""
    steps = [f"{point}:{when}" for point in POINTS for when in ("before", "after")] + ["acknowledge:after"]
    files = 4 * len(steps)
    make_source(tmp_path, files=files, rows=40)
    log = tmp_path / "driver.log"
    for number, step in enumerate(steps):
        process = start(tmp_path, log, "--kill", step, "--parallelism", str(1 + number % 3))
        wait_for_death(process, log)
        assert process.returncode == -signal.SIGKILL, f"{step}\n{log.read_text()[-3000:]}"
    process = start(tmp_path, log)
    assert process.wait(timeout=250) == 0, log.read_text()[-3000:]
    check(tmp_path, files=files, rows=40)


def test_kills_at_random_times_lose_nothing_and_repeat_nothing(tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    files = 40
    make_source(tmp_path, files=files, rows=60)
    log = tmp_path / "driver.log"
    for number in range(3):
        before = newest_id(tmp_path)
        process = start(tmp_path, log, "--parallelism", str(1 + number))
        target = before + dice.randint(1, 6)
        wait_for_checkpoint(tmp_path, target, process)
        kill(process, log)
    process = start(tmp_path, log)
    assert process.wait(timeout=250) == 0, f"seed {seed}\n{log.read_text()[-3000:]}"
    check(tmp_path, files=files, rows=60)
