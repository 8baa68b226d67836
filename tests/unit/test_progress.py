"""What a log hears of long work, and that it hears nothing of short work."""

from __future__ import annotations

import logging

from stateline.progress import ProgressLog
from stateline.testing import ManualClock

LOGGER = logging.getLogger("stateline.test")


def test_short_work_says_nothing(caplog):
    caplog.set_level(logging.INFO)
    log = ProgressLog(LOGGER, "copying", ManualClock())
    for _ in range(10):
        log.advance(1, 10)
    assert caplog.records == []


def test_long_work_is_told_every_few_seconds_and_at_its_end(caplog):
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    log = ProgressLog(LOGGER, "copying", clock)
    for _ in range(10):
        clock.advance(2.0)
        log.advance(1, 10)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "copying: 3 of 10 (30 %), 0.5/s, about 14 s left"
    assert told[-1] == "copying: done, 10 in 20 s"
    assert len(told) == 4
