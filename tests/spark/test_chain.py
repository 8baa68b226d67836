"""One pipeline feeds another through its state, and both are killed."""

from __future__ import annotations

import collections
import random

import pytest

from stateline.checkpoint import CheckpointStore
from stateline.state.stored import StoredState
from tests.spark.keyed_model import make_source, model
from tests.spark.killing import kill, start_program
from tests.spark.marked_processes import wait_until

FILES, ROWS = 12, 40


def start(folder, log, *options):
    return start_program(log, "tests.spark.chain_driver", str(folder), *options)


def newest(folder, name):
    ids = [int(path.parent.name[4:]) for path in (folder / name).glob("chk-*/_metadata")]
    return max(ids, default=-1)


@pytest.mark.timeout(900)  # Several sessions, each with a JVM of its own.
def test_a_killed_chain_of_two_queries_counts_everything_once(tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    make_source(tmp_path, files=FILES, rows=ROWS)
    log = tmp_path / "driver.log"
    for parallelism in (1, 2):
        process = start(tmp_path, log, str(parallelism))
        first = min(newest(tmp_path, "state") + dice.randint(1, 5), FILES - 1)
        second = newest(tmp_path, "second") + 1
        wait_until(
            lambda first=first, second=second, process=process: (
                (newest(tmp_path, "state") >= first and newest(tmp_path, "second") >= second)
                or process.poll() is not None
            ),
            200,
            f"checkpoints {first} and {second} (seed {seed})",
            log.read_text,
        )
        if process.poll() is None:
            kill(process, log)
    for _ in range(3):
        # On a busy machine Spark gives up on a Python worker after ten seconds: one more crash, one more start.
        process = start(tmp_path, log, "2", "--to-the-end")
        if process.wait(timeout=250) == 0:
            break
    assert process.returncode == 0, f"seed {seed}\n{log.read_text()[-3000:]}"
    root = CheckpointStore(f"file://{tmp_path}/second")
    stored = StoredState.of(root.store, root.latest())
    found = {
        row["bucket"]: (row["keys"], row["total"])
        for batch in stored.reader().scan(stored.whole())
        for row in batch.to_pylist()
    }
    expected: dict[int, tuple[int, int]] = collections.defaultdict(lambda: (0, 0))
    for key, (_, total, _) in model(range(FILES), rows=ROWS)[0].items():
        keys, sum_of_totals = expected[key % 3]
        expected[key % 3] = (keys + 1, sum_of_totals + total)
    assert found == expected, f"seed {seed}"
