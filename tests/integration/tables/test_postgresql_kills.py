"""Some kills of real processes that write into PostgreSQL; ``make soak`` has many more."""

from __future__ import annotations

import pytest

from tests.processes.table_drivers import Setup
from tests.processes.table_kills import survive


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-upsert"])
def test_every_row_is_there_once_after_kills_of_drivers(kind, tmp_path, uri):
    found = survive(Setup(kind, tmp_path, uri), kills=10, seed=1)
    assert found["failures"] == []
    assert found["kills"] + found["stops"] >= 10
