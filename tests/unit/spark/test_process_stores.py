"""What the processes of a long-lived application hold open for pipelines that are gone."""

from __future__ import annotations

import os

from stateline.environment import system_environment
from stateline.files import FileOutput
from stateline.pipeline.driver_stores import DriverStores
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.plan import PipelinePlan
from stateline.spark.job.batch_job import task_resources

PIPELINES = 50


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def plan_in(folder):
    output = FileOutput(url=f"file://{folder}/out")
    operator = OperatorPlan(name="op", tables={}, definition="", output=output)
    return PipelinePlan(
        root_url=f"file://{folder}/root", parallelism=1, max_parallelism=1, graph=Graph.of_one_input([operator])
    )


def write(store, folders):
    for number in range(folders):
        store.put(f"k={number}/object", b"bytes")


def test_a_worker_keeps_the_stores_of_its_latest_pipelines_only(tmp_path):
    before = open_descriptors()
    for number in range(PIPELINES):
        plan = plan_in(tmp_path / str(number))
        context = task_resources(plan, "op")
        write(context.root, 20)
        write(context.output, 20)
        assert task_resources(plan, "op").root is context.root, "the next task finds them open"
    assert open_descriptors() - before < PIPELINES * 2 * 20 / 2


def test_the_stores_of_a_driver_are_closed_together(tmp_path):
    before = open_descriptors()
    with DriverStores.open(plan_in(tmp_path), system_environment()) as stores:
        write(stores.root, 20)
        write(stores.outputs["op"], 20)
        assert open_descriptors() > before
    assert open_descriptors() == before
