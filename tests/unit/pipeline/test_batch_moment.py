"""The moment of a batch, which is a float of seconds, as the milliseconds that timers and times to live count in."""

from __future__ import annotations

import numpy as np

from stateline.pipeline.operators.api import BatchContext


def test_a_round_that_is_due_at_a_millisecond_has_come_to_it():
    """The coordinator waits until ``ms / 1000``; a timer that is due then would wait for one more round otherwise."""
    dice = np.random.default_rng(1)
    for ms in (1_001, 1_700_000_000_001, *dice.integers(0, 2**42, 10_000).tolist()):
        assert BatchContext(1, ms / 1_000).now_ms == ms


def test_time_that_has_not_come_does_not_count():
    assert BatchContext(1, 1_700_000_000.001_99).now_ms == 1_700_000_000_001
