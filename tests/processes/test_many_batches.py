"""Thousands of micro-batches need no more memory, threads, open files and disk than hundreds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("job", ["pipeline", "changelog"])
def test_nothing_piles_up_over_two_thousand_batches(job):
    command = [sys.executable, "-m", "tests.processes.many_batches", job]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)
    assert samples[-1]["batch"] == 2000
    half = len(samples) // 2
    before, after = samples[half - 1], samples[-1]
    assert after["threads"] == before["threads"]
    assert after["open_files"] == before["open_files"]
    assert after["objects"] - before["objects"] < 50, "not one Python object for each of a thousand batches"
    assert after["rss_kib"] - before["rss_kib"] < 4096
    earlier, later = (max(sample["files"] for sample in part) for part in (samples[:half], samples[half:]))
    assert later <= earlier + 30, samples
