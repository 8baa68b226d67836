"""Sessions that nobody has told of Stateline find its data sources, and are not told twice."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateline.spark import register
from stateline.spark.sinks.files import FilesSink
from stateline.spark.sources.state import StateSource


def test_formats_are_found_in_a_session_without_register(spark: SparkSession, tmp_path: Path) -> None:
    untold = spark.newSession()
    untold.range(7).write.format("stateline_files").mode("append").save(str(tmp_path / "out"))
    assert untold.read.parquet(str(tmp_path / "out")).count() == 7
    with pytest.raises(Exception, match="there is no checkpoint yet"):
        untold.read.format("stateline").load(str(tmp_path / "out"))


def test_a_stream_that_nobody_watches_shows_its_rows_at_once(spark: SparkSession, tmp_path: Path) -> None:
    untold = spark.newSession()
    untold.range(7).write.parquet(str(tmp_path / "in"))
    rows = untold.readStream.schema("id long").parquet(str(tmp_path / "in"))
    writer = rows.writeStream.format("stateline_files").option("checkpointLocation", str(tmp_path / "spark"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    assert untold.read.parquet(str(tmp_path / "out")).count() == 7


def test_register_leaves_sources_that_were_found_as_they_are(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    session = spark.newSession()
    monkeypatch.setattr(type(session.dataSource), "register", lambda _, source: told.append(source))
    register(session)
    assert told == []
    assert session.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


@pytest.mark.parametrize(
    ("module", "source"), [("pyspark_stateline", StateSource), ("pyspark_stateline_files", FilesSink)]
)
def test_each_module_has_the_source_that_it_is_named_after(module: str, source: type) -> None:
    assert importlib.import_module(module).DefaultSource is source
    assert source.name() == module.removeprefix("pyspark_")


@pytest.mark.parametrize("module", ["pyspark_stateline", "pyspark_stateline_files"])
def test_a_missing_dependency_does_not_fail_the_search_for_the_sources_of_others(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stateline.spark.sinks.files", "stateline.spark.sources.state"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert not hasattr(importlib.import_module(module), "DefaultSource")
    monkeypatch.delitem(sys.modules, module)
