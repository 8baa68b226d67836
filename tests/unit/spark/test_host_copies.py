"""The option ``local_copies``: Spark's own folder, one that is named, or none."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pyspark
import pytest

from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.changelog.host_cache import OWN_FOLDER
from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.plan import PLAIN, PipelinePlan, PipelineSettings
from stateline.spark.job.local_copies import host_copies
from stateline.spark.sinks.files_options import FilesSinkOptions


def plan_of(local_copies, output=None):
    files = None if output is None else FileOutput(url=str(output))
    return PipelinePlan(
        root_url="memory://host-copies",
        parallelism=1,
        max_parallelism=1,
        graph=Graph.of_one_input([OperatorPlan(name="sums", tables={}, definition="", output=files)]),
        settings=replace(PLAIN, local_copies=local_copies, local_copies_bytes=1 << 20),
    )


@pytest.fixture
def root():
    yield MemoryStore("host-copies")
    MemoryStore.forget("host-copies")


@pytest.fixture
def spark(monkeypatch):
    """Says what Spark would: whether it runs here, and its folders."""

    def at(*, on_worker=False, in_driver=False, added=".", local=None):
        files = SimpleNamespace(_is_running_on_worker=on_worker, getRootDirectory=lambda: str(added))
        context = SimpleNamespace(_active_spark_context="a context" if in_driver else None)
        monkeypatch.setattr(pyspark, "SparkFiles", files)
        monkeypatch.setattr(pyspark, "SparkContext", context)
        monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
        if local is not None:
            monkeypatch.setenv("SPARK_LOCAL_DIRS", local)

    return at


def test_a_worker_of_an_executor_uses_the_first_of_its_local_folders(root, spark, tmp_path):
    spark(on_worker=True, local=f"{tmp_path / 'one'},{tmp_path / 'two'}")
    copies = host_copies(plan_of("auto"), root)
    assert copies.folder == tmp_path / "one" / OWN_FOLDER
    assert host_copies(plan_of("auto"), root) is copies, "one for all tasks of a process"


def test_a_driver_and_workers_in_one_process_with_it_use_the_same_folder(root, spark, tmp_path):
    spark(on_worker=True, added=tmp_path / "spark-1" / "userFiles-2", local=str(tmp_path / "blockmgr-3"))
    of_worker = host_copies(plan_of("auto"), root)
    spark(in_driver=True, added=tmp_path / "spark-1" / "userFiles-2", local=str(tmp_path / "said by a user"))
    assert host_copies(plan_of("auto"), root) is of_worker
    assert of_worker.folder == tmp_path / "spark-1" / OWN_FOLDER


@pytest.mark.parametrize("local", [None, ""])
def test_where_spark_names_no_folder_there_are_no_copies(root, spark, tmp_path, local):
    spark(on_worker=True, local=local)
    assert host_copies(plan_of("auto"), root) is None
    spark(local=str(tmp_path))
    assert host_copies(plan_of("auto"), root) is None, "not in a process of Spark"


def test_a_root_on_this_host_and_none_need_no_copies(root, spark, tmp_path):
    spark(on_worker=True, local=str(tmp_path))
    assert host_copies(plan_of("none"), root) is None
    for given in ("auto", str(tmp_path / "copies")):
        assert host_copies(plan_of(given), LocalStore(tmp_path / "root")) is None
        assert host_copies(plan_of(given), root) is not None


def test_copies_never_lie_in_an_output(root, spark, tmp_path):
    spark(on_worker=True, local=str(tmp_path / "out" / "spark"))
    for output in (tmp_path / "out", f"file://{tmp_path}/out"):
        assert host_copies(plan_of("auto", output), root) is None
        with pytest.raises(InvalidInputError, match=r"local_copies.* must be apart"):
            host_copies(plan_of(str(tmp_path / "out" / "copies"), output), root)
    assert host_copies(plan_of("auto", "memory://host-copies-out"), root) is not None


def test_the_default_is_auto_in_pipelines_and_in_the_sink():
    settings = PipelineSettings()
    options = FilesSinkOptions(path="/out")
    assert (settings.local_copies, settings.local_copies_bytes) == ("auto", 10_000_000_000)
    assert (options.local_copies, options.local_copies_bytes) == ("auto", 10_000_000_000)
    with pytest.raises(InvalidInputError, match="is not a folder"):
        PipelineSettings(local_copies="")
    assert os.fspath(PipelineSettings(local_copies="/x").local_copies) == "/x"
