"""Two real drivers in the same batch of the same query, over the same root and the same output."""

from __future__ import annotations

import pytest

from stateline.checkpoint.layout import id_of_fenced
from tests.spark.keyed_model import check, make_source
from tests.spark.killing import start
from tests.spark.marked_processes import wait_for_end, wait_until

FILES, ROWS = 4, 40


@pytest.mark.timeout(900)  # Several sessions, each with a JVM of its own.
def test_two_drivers_at_once_decide_each_batch_once(tmp_path):
    make_source(tmp_path, files=FILES, rows=ROWS)
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    drivers = []
    for number, log in enumerate(logs):
        drivers.append(start(tmp_path, log, "--hold-from", "0", "--parallelism", str(number + 1)))
        wait_until(lambda: len(list(tmp_path.glob("started-*"))) > len(drivers) - 1, 200, "batch 0", log.read_text)
    (tmp_path / "go").touch()
    statuses = [wait_for_end(driver, 250) for driver in drivers]
    assert sorted(statuses) != [0, 0], "one of them has lost a race"
    marks = [name for path in tmp_path.rglob("history/*") if id_of_fenced(f"history/{(name := path.name)}") is not None]
    assert bool(marks) == any("FencedError" in log.read_text() for log in logs)
    for status, log in zip(statuses, logs, strict=True):
        said = log.read_text()
        assert status == 0 or "FencedError" in said or "CONCURRENT_STREAM_LOG_UPDATE" in said, said[-3000:]
    if 0 not in statuses:  # Both may lose: one the record, the other Spark's own log.
        assert wait_for_end(start(tmp_path, logs[0]), 250) == 0, logs[0].read_text()[-3000:]
    check(tmp_path, files=FILES, rows=ROWS)
