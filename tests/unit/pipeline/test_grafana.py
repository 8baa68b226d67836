"""The dashboard of Grafana asks only for what the exporter gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from stateline.checkpoint import InputState
from stateline.pipeline.messages import BatchReport
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.reporting import BatchReporter
from stateline.prometheus import MetricsCollector
from stateline.state.aggregate import count
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.records import record

FILE = Path(__file__).parents[3] / "grafana" / "stateline.json"
SCHEMA = pa.schema([("k", pa.int64())])
METRIC = re.compile(r"\bstateline_\w+")


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """The names that a pipeline with a watermark exports."""
    engine = Engine(AggregateProgram.bind(SCHEMA, ["k"], {"n": count()}), SCHEMA)
    reporter = BatchReporter(engine.environment.clock)
    reporter(engine.report_batch([{"k": 1}]))
    inputs = (InputState(name="op", column="at", watermark_us=1),)
    reporter(BatchReport(checkpoint=record(inputs=inputs), replayed=True, metrics={"rows_late": 0, "rows": 0}))
    registry = CollectorRegistry()
    registry.register(MetricsCollector("stateline", reporter.metrics, {"job": "x"}))
    return {sample.name for family in registry.collect() for sample in family.samples}


def expressions() -> list[str]:
    board = json.loads(FILE.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [each["definition"] for each in board["templating"]["list"] if "definition" in each]


def test_every_metric_of_the_dashboard_is_exported(exported):
    asked = {name for text in expressions() for name in METRIC.findall(text)}
    assert len(asked) > 20
    assert sorted(asked - exported) == []


def test_panels_have_places_and_ids_of_their_own():
    panels = json.loads(FILE.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["title"] and panel["targets"] for panel in panels)
