"""``kill -9`` at the system calls of real processes, and what is there afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def explore(job: str, *options: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.processes.system_call_kills", job, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("job", "sample"), [("FileJob", 80), ("ChangelogJob", 60), ("PipelineJob", 30)])
def test_a_process_killed_at_any_system_call_loses_nothing_and_repeats_nothing(job, sample):
    """A sample; ``python -m tests.processes.system_call_kills JOB`` takes every point."""
    found = explore(job, "--sample", str(sample))
    assert not found["failures"], found["failures"][0]
    assert found["kills"] >= sample


@pytest.mark.parametrize(
    ("job", "bug"),
    [
        ("FileJob", "recoverable_discard_first"),
        ("FileJob", "recoverable_tail_dropped"),
        ("FileJob", "local_written_in_place"),
        ("ChangelogJob", "changelog_snapshot_not_pinned"),
        ("ChangelogJob", "changelog_confirmed_is_deleted"),
        ("PipelineJob", "pipeline_publish_first"),
    ],
)
def test_a_planted_bug_is_seen(job, bug):
    found = explore(job, "--bug", bug)
    assert found["failures"]
