"""Options of stores may hold credentials, so nothing that has them shows them."""

from __future__ import annotations

import pytest

from stateline.files import FileOutput
from stateline.pipeline.graph import Graph
from stateline.pipeline.plan import PipelinePlan, SavepointStart
from stateline.spark.sinks.files_options import FilesSinkOptions
from stateline.spark.sources.state_options import StateSourceOptions

CANARY = {"secret_access_key": "canary-in-the-options"}


@pytest.mark.parametrize(
    "holder",
    [
        FileOutput(url="s3://bucket", store_options=CANARY),
        FilesSinkOptions(path="s3://bucket", store_options=CANARY, root_options=CANARY),
        PipelinePlan(root_url="s3://bucket", parallelism=1, max_parallelism=1, graph=Graph(), root_options=CANARY),
        SavepointStart(url="s3://bucket", options=CANARY),
        StateSourceOptions.from_spark({"path": "s3://bucket", "root.secret_access_key": "canary-in-the-options"}),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_options_of_stores_are_not_shown(holder):
    assert "s3://bucket" in repr(holder)
    assert "canary" not in repr(holder)
    assert "canary" not in f"{holder}"
