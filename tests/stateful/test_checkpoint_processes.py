"""Real processes on a real disk: drivers that race, one of them killed again and again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stateline.blob.local import LocalStore
from stateline.checkpoint import CheckpointStore, verify_root

WORKER = Path(__file__).with_name("checkpoint_process.py")
UNTIL = 60


def start_driver(root, label):
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(root), str(UNTIL), label],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_racing_and_killed_processes_decide_each_checkpoint_once(tmp_path, monkeypatch):
    monkeypatch.setattr("stateline.checkpoint.layout.FLOOR_BLOCK", 4)
    drivers = [start_driver(tmp_path / "root", f"driver-{number}") for number in range(2)]
    acknowledged = []
    try:
        for kill in range(4):
            victim = start_driver(tmp_path / "root", f"victim-{kill}")
            drivers.append(victim)
            acknowledged.extend(victim.stdout.readline() for _ in range(2))
            victim.kill()
        for driver in drivers:
            acknowledged.extend(driver.communicate(timeout=120)[0].splitlines())
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
            driver.stdout.close()
    assert [driver.returncode for driver in drivers[:2]] == [0, 0]
    decided = {}
    for line in filter(None, map(str.split, acknowledged)):
        if len(line) == 2:  # A killed process may have printed half a line.
            decided.setdefault(int(line[0]), set()).add(line[1])
    assert {checkpoint_id: names for checkpoint_id, names in decided.items() if len(names) > 1} == {}
    assert len(decided) > UNTIL / 2

    store = CheckpointStore(LocalStore(tmp_path / "root"))
    store.retain(2)
    assert [found.checkpoint_id for found in store.list()] == [UNTIL - 1, UNTIL]
    report = verify_root(store)
    assert report.is_sound
    assert len(report.reachable) == 3
    for checkpoint_id in range(UNTIL - 4):
        with pytest.raises(FileNotFoundError):
            store.get(checkpoint_id)
