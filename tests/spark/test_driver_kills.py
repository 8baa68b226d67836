"""``kill -9`` of the real driver, JVM included: at steps of the protocol, and at random times."""

from __future__ import annotations

import os
import random
import shutil
import signal

import pytest

from tests.spark.keyed_model import make_source, model, stored_state
from tests.spark.killing import newest_id, start, survive, wait_for_death
from tests.spark.marked_processes import wait_for_end

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
    assert newest_id(tmp_path) >= len(steps), "every start decided something"


@pytest.mark.timeout(900)
def test_joins_chains_and_sessions_of_a_killed_driver_are_whole(tmp_path):
    dice = random.Random(random.SystemRandom().randrange(2**32))
    steps = [*dice.sample(STEPS, 2), ""]
    survive(tmp_path, steps, dice, operators=True)
    assert newest_id(tmp_path) >= len(steps), "every start decided something"


@pytest.mark.timeout(900)
def test_a_driver_killed_between_our_record_and_sparks_commit_goes_on_where_spark_keeps_state_too(tmp_path):
    """Rows that come again are dropped by Spark, which must find the state of the batch that came again."""
    options = ["--distinct"]
    for setting in (
        "providerClass=org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "checkpointFormatVersion=2",
    ):
        options += ["--conf", f"spark.sql.streaming.stateStore.{setting}"]
    make_source(tmp_path, files=2, rows=40)
    again = shutil.copyfile(tmp_path / "source" / "000.parquet", tmp_path / "source" / "002.parquet")
    os.utime(again, (2, 2))
    log = tmp_path / "driver.log"
    killed = start(tmp_path, log, "--kill", "acknowledge:after", *options)
    wait_for_death(killed, log)
    assert killed.returncode == -signal.SIGKILL
    assert newest_id(tmp_path) == 0
    assert not (tmp_path / "spark" / "commits" / "0").exists()
    assert wait_for_end(start(tmp_path, log, *options), 250, log.read_text) == 0, log.read_text()[-3000:]
    assert newest_id(tmp_path) >= 2
    assert stored_state(tmp_path) == model([0, 1], rows=40)[0]
