"""No crash, lost answer, late request or second driver breaks a root: exhaustive at small size."""

import checkpoint_world
import pytest
from checkpoint_sweeps import SWEEPS


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("stateline.checkpoint.layout.FLOOR_BLOCK", checkpoint_world.FLOOR_BLOCK)


@pytest.mark.parametrize("name", SWEEPS)
def test_the_root_survives(name):
    assert sum(1 for _ in SWEEPS[name]()) > 50
