"""Some kills of real processes for each kind of table; ``make soak`` has many more."""

from __future__ import annotations

import pytest

from tests.processes.table_kills import survive


@pytest.mark.parametrize("kind", ["delta", "delta-upsert", "iceberg", "sqlite", "sqlite-upsert"])
def test_every_row_is_there_once_after_kills(kind, tmp_path):
    assert survive(kind, tmp_path, kills=6, seed=1) == []
