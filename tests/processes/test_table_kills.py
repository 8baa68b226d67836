"""Some kills of real processes for each kind of table; ``make soak`` has many more."""

from __future__ import annotations

import pytest

from tests.processes.table_drivers import Setup
from tests.processes.table_kills import survive
from tests.unit.tables.table_kit import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_there_once_after_kills(kind, tmp_path):
    found = survive(Setup(kind, tmp_path), kills=10, seed=1)
    assert found["failures"] == []
    assert found["kills"] + found["stops"] >= 10
