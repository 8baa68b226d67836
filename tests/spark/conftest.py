"""One Spark session for all tests of this folder: a JVM takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from stateline.spark import get_or_create_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session: ``local[2]``, on the loopback address, writing nothing outside pytest's folder."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = get_or_create_session(
        "stateline-tests",
        "local[2]",
        quiet=True,
        **{
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
        },
    )
    yield session
    session.stop()
