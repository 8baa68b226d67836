"""Property tests judge results, never how long a busy machine takes to draw examples.

Programs that tests start can be interrupted, also where a shell lets its background jobs, and so theirs, ignore that.
JVMs live for seconds, compile with the first of their two compilers, and map an archive of the classes of Spark. Where
many tests of Spark run and there is none, the first process makes it beside them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stateline import redaction
from tests.spark.class_archive import SHORT_LIVED, Maker

settings.register_profile("stateline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stateline")
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)

SPARK = Path(__file__).parent / "spark"
MANY_TESTS = 30
MAKER = Maker()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests of Spark run in one process; see ``make test``.

    Files that use the session ``spark`` share one. The others start what they need themselves, and each of them runs in
    any process: else that of the session would be the last one by minutes, as nobody could help it. Large groups begin
    first.
    """
    ours = [item for item in items if item.path.is_relative_to(SPARK)]
    sharing = {item.path for item in ours if "spark" in getattr(item, "fixturenames", ())}
    for item in ours:
        item.add_marker(pytest.mark.xdist_group("spark" if item.path in sharing else item.path.stem))


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """What one test calls a secret stays readable in the messages of the next."""
    known = dict(redaction._hidden), redaction._hidden_pattern
    yield
    redaction._hidden.clear()
    redaction._hidden.update(known[0])
    redaction._hidden_pattern = known[1]


def pytest_collection_finish(session: pytest.Session) -> None:
    of_spark = sum(item.path.is_relative_to(SPARK) for item in session.items)
    if of_spark >= MANY_TESTS and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        MAKER.begin()


def pytest_sessionfinish() -> None:
    MAKER.end()
