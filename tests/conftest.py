"""Property tests judge results, never how long a busy machine takes to draw examples."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("stateline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stateline")

SPARK = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of Spark run in one process, so that they share one session; see ``make test``."""
    for item in items:
        if item.path.is_relative_to(SPARK):
            item.add_marker(pytest.mark.xdist_group("spark"))
