"""Each row of each table of each operator is found by its key, and with others by its grouping key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor

from stateline.spark import count, count_distinct, max
from stateline.state.stored import StoredState
from stateline.testing import KeyedStreamHarness
from stateline.testing.keyed_stream_harness import KeyedStageHarness

# ruff: noqa: N802, N803 - methods and arguments are Spark's

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000


class Everything(StatefulProcessor):
    """Keeps what it gets in each kind of state."""

    def init(self, handle):
        self.handle = handle
        self.value = handle.getValueState("last", "v long")
        self.list = handle.getListState("all", "v long", 3_600_000)
        self.map = handle.getMapState("by_value", "v long", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.value.update((row.value,))
            self.list.appendValue((row.value,))
            self.map.updateValue((row.value,), (1,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1000 * row.value)
        return iter(())

    def close(self):
        pass


def stream() -> KeyedStreamHarness:
    return KeyedStreamHarness(SCHEMA, "key", watermark=("at", "1 hour"))


def joined(how: Callable[[KeyedStreamHarness, KeyedStreamHarness], KeyedStageHarness]) -> KeyedStageHarness:
    return how(stream(), stream())


def updating_top() -> KeyedStageHarness:
    counts = stream().aggregate(n=count())
    return counts.key_by("n", name="best").top(2, "key")


OPERATORS: dict[str, tuple[Callable[[], KeyedStageHarness], int]] = {
    "aggregate": (lambda: stream().aggregate(n=count()), 1),
    "count_distinct": (lambda: stream().aggregate(n=count_distinct("value"), best=max("value")), 2),
    "sessions": (lambda: stream().sessions("at", "2 seconds").aggregate("append", n=count()), 1),
    "drop_duplicates": (lambda: stream().drop_duplicates(within_watermark=True), 1),
    "top": (lambda: stream().top(3, "value"), 1),
    "top_of_updates": (updating_top, 1),
    "join": (lambda: joined(lambda left, right: left.join(right, within=("-1 minute", "1 minute"))), 2),
    "join_for_good": (lambda: joined(lambda left, right: left.join(right, "semi")), 1),
    "join_asof": (lambda: joined(lambda left, right: left.join_asof(right)), 2),
    "process": (lambda: stream().process(Everything(), "x long", "update", "ProcessingTime"), 4),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_each_row_is_found_by_its_key_and_by_its_grouping_key(name: str) -> None:
    make, tables = OPERATORS[name]
    harness = make()
    inputs = len(harness.plan.graph.inputs)
    for number in range(3):
        rows = [
            {"key": f"k{row % 4}", "value": number * 10 + row, "at": (number * 20 + row) * SECOND} for row in range(12)
        ]
        harness.run_batch(*[rows] * inputs)
    record = harness.checkpoint
    assert record is not None
    looked_at = 0
    for operator in record.operators:
        stored = StoredState.of(harness.root, record, operator.name)
        reader, whole = stored.reader(), stored.whole()
        rows = [row for batch in reader.scan(whole) for row in batch.to_pylist()]
        looked_at += bool(rows)
        for keys in (stored.schema.keys, stored.schema.grouping.keys):
            of_key = Counter(tuple(map(repr, (row[field.name] for field in keys))) for row in rows)
            for row in rows:
                key = [pa.array([row[field.name]], field.type) for field in keys]
                found = reader.get(whole, key).to_pylist()
                assert row in found
                assert len(found) == of_key[tuple(map(repr, (row[field.name] for field in keys)))]
    assert looked_at >= tables
