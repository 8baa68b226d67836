"""Functions over Arrow tables on Spark: state by key, restarts, and everything that can be returned wrongly."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.errors import InvalidInputError, UserCodeError
from stateline.spark import Aggregator
from tests.spark.event_files import EventFiles, minutes


@pytest.fixture
def events(tmp_path, spark):
    return EventFiles(tmp_path, spark)


def running_total():
    """A function made here travels to the workers as it is; one of a module would have to be there."""

    def total(events, state):
        sums = events.group_by("key_index").aggregate([("value", "sum")]).sort_by("key_index")
        new = pc.add(state["total"].fill_null(0), sums["value_sum"])
        state = state.set_column(state.schema.get_field_index("total"), "total", new)
        return state, state

    return total


def test_totals_go_on_over_batches_and_restarts_at_another_parallelism(events):
    for parallelism in (1, 3):
        events.add([("a", 1), ("b", 2), ("a", 3)], [("b", 1), (None, 5)])
        stage = events.keyed(parallelism=parallelism).apply_arrow(
            running_total(), "total long", "key string, total long", columns=["value"]
        )
        stage.write_files(f"file://{events.folder}/out", every_checkpoint=True).start(
            str(events.folder / "spark"), trigger={"availableNow": True}
        ).awaitTermination()
    found = sorted((row["total"], row["key"] or "") for row in events.output()[None])
    # Values are 1 + the row's place, and "None" has four letters.
    assert found == sorted([(4, "a"), (2, "b"), (3, "b"), (5, ""), (8, "a"), (5, "b"), (6, "b"), (10, "")])


def test_what_a_function_keeps_may_evolve_and_old_keys_have_the_defaults(events):
    def seen(rows, state):
        known = set(state.column_names) - {"key", "total"}
        return state.select(["key", *sorted(known)]), state.set_column(
            state.schema.get_field_index("total"), "total", pc.fill_null(state["total"], 1)
        )

    events.add([("a", 1), ("b", 2)])
    events.run(events.keyed().apply_arrow(seen, "total int, kind string", "key string, kind string"))
    events.add([("a", 1), ("c", 2)])
    evolved = "total long, weight double"
    stage = events.keyed().apply_arrow(
        seen, evolved, "key string, weight double", state_defaults={"weight": 0.5, "total": None}
    )
    events.run(stage)
    rows = events.spark.read.format("stateline").load(f"file://{events.folder}/state").collect()
    assert sorted((row.key, row.total, row.weight) for row in rows) == [("a", 1, 0.5), ("b", 1, 0.5), ("c", 1, None)]
    with pytest.raises(InvalidInputError, match="another default"):
        events.run(events.keyed().apply_arrow(seen, evolved, "key string, weight double"))


def test_a_function_that_raises_fails_the_query_with_its_traceback_and_nothing_is_committed(events):
    def broken(rows, state):
        return rows["no such column"], None

    events.add([("a", 1)])
    with pytest.raises(UserCodeError, match=r"(?s)KeyError.*in broken"):
        events.run(events.keyed().apply_arrow(broken, "n long", "n long"))
    assert events.newest() is None
    assert events.output() == {}


def test_late_events_do_not_reach_the_function(events):
    def pass_on(rows, state, moment):
        marks = pa.array([moment.watermark_us] * rows.num_rows, pa.int64())
        return rows.select(["at"]).append_column("watermark", marks), None

    events.add([("a", 60)], [("a", 50), ("a", 70)], [("a", 50), ("a", 51), ("a", None)])
    stage = events.keyed(events.events().withWatermark("at", "10 minutes"))
    found = events.run(stage.apply_arrow(pass_on, "n long", "at timestamp, watermark long"))[None]
    first, second = (int(minutes(number).timestamp() * 1e6) for number in (50, 60))
    expected = [(60, None), (50, first), (70, first), (51, second), (None, second)]
    assert sorted(((row["at"], row["watermark"]) for row in found), key=str) == sorted(
        ((minutes(at), mark) for at, mark in expected), key=str
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k: k.apply_arrow(lambda a: a, "n long", "n long"), r"fn\(events, state\)"),
        (lambda k: k.apply_arrow(running_total(), "n lung", "n long"), "state_schema"),
        (lambda k: k.apply_arrow(running_total(), 5, "n long"), "state_schema"),
        (lambda k: k.apply_arrow(running_total(), "n long", "n long", "complete"), "append, update"),
        (lambda k: k.apply_arrow(running_total(), "key string", "n long"), "twice"),
        (lambda k: k.apply_arrow(running_total(), "n long", "n long", columns=["valu"]), "Did you mean 'value'"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(events, make, message):
    events.add([("a", 1)])
    with pytest.raises(InvalidInputError, match=message):
        make(events.keyed())


def test_a_function_or_an_aggregator_that_cannot_go_to_the_tasks_is_refused_before_anything_runs(events):
    held = threading.Lock()

    def holds(rows, state):
        with held:
            return None, None

    class Holds(Aggregator):
        state_schema = pa.schema([("n", pa.int64())])
        output_type = pa.int64()

        def __init__(self):
            super().__init__("value")
            self.held = held

        def reduce(self, rows, group, num_groups):
            return pa.table({"n": pa.array([0] * num_groups)})

        def merge(self, older, newer):
            return newer

        def result(self, state):
            return state["n"]

    for make in (lambda k: k.apply_arrow(holds, "n long", "n long"), lambda k: k.aggregate(n=Holds())):
        with pytest.raises(InvalidInputError, match=r"operator by_key: cannot be copied to the tasks"):
            make(events.keyed())
