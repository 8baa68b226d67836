"""The operator of docs/internals/write-an-operator.md does what the page says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pages import run_page
from tests.unit.pipeline.engine import Engine

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "write-an-operator.md"
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
ROWS = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.none() | st.integers(0, 9)), max_size=6)


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    return run_page(PAGE, tmp_path_factory.mktemp("page"))["Newest"](SCHEMA, "key")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(ROWS, st.sampled_from([1, 2, 3])), min_size=1, max_size=4))
def test_the_operator_of_the_page_equals_a_model_over_restarts(newest, batches):
    root, model = None, {}
    for number, (rows, parallelism) in enumerate(batches):
        engine = Engine(newest, SCHEMA, root=root, parallelism=parallelism)
        given_rows = [{"key": key, "value": value} for key, value in rows]
        for key, value in rows:
            model[key] = (value, model.get(key, (None, 0))[1] + 1)
        record = engine.run(given_rows)
        found = {row["key"]: (row["value"], row["seen"]) for row in engine.output.get(record.checkpoint_id, [])}
        assert found == {key: model[key] for key, _ in rows}
        assert engine.run(given_rows, batch_id=number) == record, "a batch that comes twice counts once"
        root = engine.root
