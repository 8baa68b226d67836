"""The end of a program: when a script has waited for its stream, all rows are there, in the next line or process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.spark import last_lines, scripts
from tests.spark.killing import ROOT
from tests.spark.marked_processes import START_SECONDS_MAX
from tests.spark.scripts import KILLED, SCRIPTS, expected, prepare

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_finds_its_rows_on_the_next_line(spark, tmp_path, name):
    assert scripts.run(SCRIPTS[name], prepare(tmp_path)) == expected(name)


KILLS = """
import os, signal, sys
from pathlib import Path
from stateline.spark import get_or_create_session
from tests.spark import scripts
from tests.spark.killing import ROOT
get_or_create_session("killed", "local[2]", **{"spark.driver.memory": "512m"})
for name in scripts.KILLED:
    scripts.run(scripts.endless(name), Path(sys.argv[1]) / name)
os.killpg(0, signal.SIGKILL)
"""


def test_a_script_without_new_rows_shows_those_of_a_run_that_was_killed(spark, tmp_path):
    for name in KILLED:
        prepare(tmp_path / name)
    program = [sys.executable, "-c", KILLS, str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        killed = subprocess.run(program, cwd=ROOT, stderr=log, start_new_session=True, timeout=START_SECONDS_MAX)
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert not any((tmp_path / "files" / "out").glob("*.parquet")), "its files were open"
    found = {name: scripts.run(SCRIPTS[name], tmp_path / name) for name in KILLED}
    assert found == {name: expected(name) for name in KILLED}


def test_a_script_may_end_with_its_stream_and_says_nothing_of_broken_pipes(tmp_path):
    assert last_lines.run_to_its_end(tmp_path) == []
