"""Output handed to a function: a DataFrame of durable rows, under a key that survives crashes and restarts."""

from __future__ import annotations

import collections

import pytest

from stateline.errors import InvalidInputError, UserCodeError
from stateline.spark import KeyedStream, count, last, max
from tests.spark.event_files import EventFiles, minutes


@pytest.fixture
def events(tmp_path, spark):
    return EventFiles(tmp_path, spark)


class Database:
    """A sink that stores a key with its rows, in one step, and knows the keys that it has."""

    def __init__(self):
        self.calls, self.rows, self.fails = [], {}, False

    def __call__(self, rows, key):
        self.calls.append(str(key))
        found = collections.Counter((row["key"], row["n"], row["latest"]) for row in rows.toArrow().to_pylist())
        assert self.rows.setdefault(str(key), found) == found, "the same rows under the same key"
        if self.fails:
            raise ConnectionError("the database went away after it had stored the rows")


def run(events, function, **options):
    stage = events.keyed(**options).aggregate(n=count(), latest=max("at"))
    query = stage.for_each_batch(function).start(str(events.folder / "spark"), trigger={"availableNow": True})
    query.awaitTermination()
    return query


def test_each_checkpoint_is_delivered_and_a_failed_delivery_comes_again_with_the_same_key(events):
    database = Database()
    events.add([("a", 1), ("b", 2)], [("a", 3)])
    run(events, database)
    query_id = events.newest().query_id
    keys = [f"{query_id}/by_key/{number}" for number in range(3)]
    assert database.calls == keys[:2]
    assert database.rows[keys[0]] == {("a", 1, minutes(1)): 1, ("b", 1, minutes(2)): 1}
    assert database.rows[keys[1]] == {("a", 2, minutes(3)): 1}
    events.add([("b", 4)])
    database.fails = True
    with pytest.raises(UserCodeError, match=r"(?s)for_each_batch.*the database went away"):
        run(events, database)
    with pytest.raises(UserCodeError, match=r"(?s)for_each_batch.*/by_key/2.*ConnectionError"):
        run(events, database, parallelism=1)
    database.fails = False
    run(events, database, parallelism=1)
    assert database.calls == [*keys, *keys[2:], *keys[2:]]
    assert database.rows[keys[2]] == {("b", 2, minutes(4)): 1}
    assert events.newest().batch_id == 2
    run(events, database)
    assert len(database.calls) == 5, "what was delivered is marked"


async def returns_a_coroutine(rows, key):
    raise AssertionError("nobody awaits this")


def returns_a_generator(rows, key):
    yield rows.count()


@pytest.mark.parametrize("function", [returns_a_coroutine, returns_a_generator])
def test_a_function_of_which_nothing_has_run_has_delivered_nothing(events, function):
    events.add([("a", 1)])
    with pytest.raises(UserCodeError, match="so nothing of it has run"):
        run(events, function)
    database = Database()
    run(events, database)
    assert len(database.calls) == 1, "the rows come to the function that runs"


@pytest.mark.parametrize(("raised", "named"), [(SystemExit(3), "SystemExit: 3"), (KeyboardInterrupt(), "Keyboard")])
def test_a_function_that_exits_fails_its_query_which_would_wait_for_ever(events, raised, named):
    def leave(rows, key):
        raise raised

    events.add([("a", 1)])
    with pytest.raises(UserCodeError, match=rf"for_each_batch.*the function raised {named}"):
        run(events, leave)


def test_elements_without_a_type_are_refused_before_any_row_would_wait_for_the_function(events):
    """Their rows were durable and could not be read back: a start after that could not go on."""
    rows = events.events().selectExpr("key", "at", "map('a', null, 'b', null) AS v")
    stage = KeyedStream(rows, key="key", checkpoint=f"file://{events.folder}/state").aggregate(v=last("v", by="at"))
    with pytest.raises(InvalidInputError, match=r"column 'v': .* has elements without a type"):
        stage.for_each_batch(print)
