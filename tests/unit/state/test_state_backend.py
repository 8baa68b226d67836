"""Keyed state without Spark: put, get, delete, aggregate, checkpoint, restore, and who may write."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.errors import (
    ClosedError,
    CorruptDataError,
    ErrorKind,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from stateline.key_groups import KeyGroupRange, key_group_of, range_for_subtask, stable_hash
from stateline.state import aggregate as agg
from stateline.state.aggregate import KeyedAggregation
from stateline.state.backend import KeyedState, KeyedStateBackend
from stateline.state.evolution import carried_properties, check_evolution
from stateline.state.merge import MergeSettings
from stateline.state.schema import StateSchema

PLANES = StateSchema(
    pa.schema([("tailnum", pa.string())]), pa.schema([("flights", pa.int64()), ("origin", pa.string())])
)
NAMES = itertools.count()


@pytest.fixture
def root() -> Iterator[str]:
    name = f"backend-{next(NAMES)}"
    yield f"memory://{name}"
    MemoryStore.forget(name)


def rows(**by_key: tuple[int | None, str | None]) -> pa.Table:
    return pa.table(
        {
            "origin": pa.array([value[1] for value in by_key.values()], pa.string()),
            "tailnum": pa.array(list(by_key), pa.string()),
            "flights": pa.array([value[0] for value in by_key.values()], pa.int64()),
        }
    )


def keys(*names: str | None) -> pa.Table:
    return pa.table({"tailnum": pa.array(names, pa.string())})


def contents(state: KeyedState) -> dict[Any, tuple[Any, ...]]:
    return {row["tailnum"]: (row["flights"], row["origin"]) for row in state.to_table().to_pylist()}


def test_what_was_put_is_found_at_once_and_after_a_restart(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        assert (backend.checkpoint_id, backend.names(), backend.position) == (None, [], "")
        planes = backend.state("planes", PLANES)
        planes.put(rows(N1=(1, "JFK"), N2=(2, None)))
        planes.put(rows(N1=(10, "EWR")))
        planes.delete(keys("N3", "N2"))
        found = planes.get(keys("N1", "N9", "N1", "N2", None))
        assert found.mask.to_pylist() == [True, False, True, False, False]
        assert found.rows.schema == PLANES.row
        assert found.rows.to_pylist()[:2] == [
            {"tailnum": "N1", "flights": 10, "origin": "EWR"},
            {"tailnum": "N9", "flights": None, "origin": None},
        ]
        made = backend.checkpoint("row 17")
        assert contents(planes) == {"N1": (10, "EWR")}
        planes.put(rows(N4=(4, None)))  # Never checkpointed.
    with KeyedStateBackend.open(root) as again:
        assert (again.checkpoint_id, again.position, again.names()) == (made.checkpoint_id, "row 17", ["planes"])
        assert contents(again.state("planes")) == {"N1": (10, "EWR")}


def test_the_last_row_of_a_key_in_a_batch_wins(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        planes = backend.state("planes", PLANES)
        planes.put(pa.concat_tables([rows(a=(1, None), b=(2, None)), rows(a=(3, None))]))
        assert contents(planes) == {"a": (3, None), "b": (2, None)}
        planes.put(rows())
        planes.delete(keys())
        assert planes.get(keys()).rows.num_rows == 0


def test_a_checkpoint_is_one_object_per_changed_state_and_one_record(root: str) -> None:
    store = InstrumentedStore(MemoryStore(root.removeprefix("memory://")))
    with KeyedStateBackend.open(store) as backend:
        planes, routes = backend.state("planes", PLANES), backend.state("routes", PLANES)
        for number in range(30):
            planes.put(rows(**{f"N{number}": (number, None)}))
            routes.put(rows(**{f"R{number}": (number, None)}))
        backend.checkpoint()
        store.reset()
        for number in range(30):
            planes.put(rows(**{f"N{number % 7}": (-number, None)}))
        backend.checkpoint()
        assert store.calls["put_if_absent"] == 2
        assert store.calls["list"] + store.calls["head"] == 0
        assert len(contents(planes)) == len(contents(routes)) == 30


def test_states_that_were_not_opened_stay(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        backend.state("planes", PLANES).put(rows(N1=(1, None)))
        backend.checkpoint()
    with KeyedStateBackend.open(root) as backend:
        backend.state("other", PLANES).put(rows(X=(1, None)))
        backend.checkpoint()
    with KeyedStateBackend.open(root) as backend:
        assert backend.names() == ["other", "planes"]
        assert contents(backend.state("planes")) == {"N1": (1, None)}


def test_many_checkpoints_merge_and_retire(root: str) -> None:
    store = MemoryStore(root.removeprefix("memory://"))
    with KeyedStateBackend.open(
        store, retained_checkpoints=2, merging=MergeSettings(runs_max=3, small_rows=10)
    ) as backend:
        planes = backend.state("planes", PLANES)
        for number in range(25):
            planes.put(rows(**{f"N{number % 10}": (number, None)}))
            planes.delete(keys(f"N{(number + 5) % 10}"))
            record = backend.checkpoint()
            assert len(record.operators[0].subtasks[0].runs) <= 3
        assert contents(planes) == {f"N{number % 10}": (number, None) for number in range(20, 25)}
    assert len(list(store.list("shared/"))) <= 6
    with KeyedStateBackend.open(store, checkpoint_id=23) as older:
        assert max(flights for flights, _ in contents(older.state("planes")).values()) == 23
    with pytest.raises(NotFoundError):
        KeyedStateBackend.open(store, checkpoint_id=3)


def test_state_is_restored_by_key_group_range_at_any_parallelism(root: str) -> None:
    with KeyedStateBackend.open(root, max_parallelism=12) as backend:
        backend.state("planes", PLANES).put(rows(**{f"N{n}": (n, None) for n in range(200)}))
        backend.checkpoint()
    for parallelism in (1, 2, 5, 12):
        seen: dict[Any, Any] = {}
        for index in range(parallelism):
            owned = range_for_subtask(index, parallelism, 12)
            with KeyedStateBackend.open(root, key_groups=owned) as part:
                planes = part.state("planes")
                mine = contents(planes)
                assert all(key_group_of(stable_hash(key), 12) in owned for key in mine)
                assert not seen.keys() & mine.keys()
                seen |= mine
                if parallelism > 1:
                    with pytest.raises(InvalidInputError, match="only the key groups"):
                        part.checkpoint()
        assert seen == {f"N{n}": (n, None) for n in range(200)}


@pytest.mark.parametrize("wrong", [KeyGroupRange(0, 12), KeyGroupRange.EMPTY, KeyGroupRange(20, 25)])
def test_key_groups_out_of_bounds_are_refused(root: str, wrong: KeyGroupRange) -> None:
    with pytest.raises(InvalidInputError, match="key_groups"):
        KeyedStateBackend.open(root, max_parallelism=12, key_groups=wrong)


def test_aggregations_go_on_after_a_restart(root: str, tmp_path: Path) -> None:
    schema = pa.schema([("origin", pa.string()), ("delay", pa.int64())])
    wanted = {"n": agg.count(), "mean": agg.mean("delay"), "worst": agg.max("delay")}
    plan = KeyedAggregation.bind(schema, ["origin"], wanted)
    with KeyedStateBackend.open(tmp_path.as_uri()) as backend:
        flights = backend.aggregation("flights", plan)
        first = flights.update(pa.table({"origin": ["JFK", "EWR", "JFK"], "delay": [10, None, 30]}, schema=schema))
        assert sorted(first.to_pylist(), key=lambda row: row["origin"]) == [
            {"origin": "EWR", "n": 1, "mean": None, "worst": None},
            {"origin": "JFK", "n": 2, "mean": 20.0, "worst": 30},
        ]
        backend.checkpoint()
    with KeyedStateBackend.open(tmp_path.as_uri()) as backend:
        flights = backend.aggregation("flights", plan)
        second = flights.update(pa.table({"origin": ["JFK"], "delay": [-10]}, schema=schema))
        assert second.to_pylist() == [{"origin": "JFK", "n": 3, "mean": 10.0, "worst": 30}]
        assert flights.results().num_rows == 2
        assert backend.state("flights").to_table().column_names == ["origin", "n", "mean.sum", "mean.count", "worst"]
        other = KeyedAggregation.bind(schema, ["origin"], {**wanted, "worst": agg.min("delay")})
        with pytest.raises(InvalidInputError, match=r"max\(delay\)") as caught:
            backend.aggregation("flights", other)
        assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH


def test_another_schema_than_the_stored_one_is_refused(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        with pytest.raises(InvalidInputError, match="needs a schema"):
            backend.state("planes")
        backend.state("planes", PLANES)
        wider = StateSchema(PLANES.keys, pa.schema([("flights", pa.float64())]))
        with pytest.raises(InvalidInputError, match="double") as caught:
            backend.state("planes", wider)
        assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH
        assert backend.state("planes") is backend.state("planes", PLANES)


def test_columns_are_added_with_defaults_dropped_and_widened(root: str) -> None:
    key = pa.schema([("tailnum", pa.string())])
    with KeyedStateBackend.open(root) as backend:
        narrow = StateSchema(key, pa.schema([("flights", pa.int32()), ("origin", pa.string())]))
        backend.state("planes", narrow).put(pa.table({"tailnum": ["a"], "flights": [1], "origin": ["JFK"]}, narrow.row))
        backend.checkpoint()
    wide = StateSchema(key, pa.schema([("flights", pa.int64()), ("seats", pa.int16())])).with_defaults({"seats": 100})
    with KeyedStateBackend.open(root) as backend:
        planes = backend.state("planes", wide)
        planes.put(pa.table({"tailnum": ["b"], "flights": [2**40], "seats": [None]}, wide.row))
        backend.checkpoint()
    with KeyedStateBackend.open(root) as backend:
        planes = backend.state("planes")
        assert planes.schema == wide
        assert sorted(planes.to_table().to_pylist(), key=str) == [
            {"tailnum": "a", "flights": 1, "seats": 100},
            {"tailnum": "b", "flights": 2**40, "seats": None},
        ]
    for changed, message in (
        (wide.with_defaults({"seats": 99}), "another default.*seats: int16 = 100.*seats: int16 = 99"),
        (wide.with_defaults({}), "another default"),
        (
            StateSchema(key, pa.schema([*wide.values, ("origin", pa.string())])).with_defaults({"seats": 100}),
            "origin was dropped before.*stored.*got",
        ),
        (StateSchema(key, pa.schema([("flights", pa.int32())])), "cannot change its type.*stored.*got"),
    ):
        with KeyedStateBackend.open(root) as backend, pytest.raises(InvalidInputError, match=message) as caught:
            backend.state("planes", changed)
        assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH


def test_a_column_that_was_added_with_a_default_becomes_wider(root: str) -> None:
    key = pa.schema([("tailnum", pa.string())])
    stored = {"tailnum": ["a"]}
    with KeyedStateBackend.open(root) as backend:
        backend.state("planes", StateSchema(key, pa.schema([]))).put(pa.table(stored))
        backend.checkpoint()
    for width in (pa.int16(), pa.int32(), pa.float64()):
        seats = StateSchema(key, pa.schema([("seats", width)])).with_defaults({"seats": 100})
        with KeyedStateBackend.open(root) as backend:
            planes = backend.state("planes", seats)
            assert planes.to_table().column("seats").to_pylist() == [100]
            backend.checkpoint()
    for default in ({"seats": 99}, {}):
        wider = StateSchema(key, pa.schema([("seats", pa.float64())])).with_defaults(default)
        with KeyedStateBackend.open(root) as backend, pytest.raises(InvalidInputError, match="another default"):
            backend.state("planes", wider)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["a"'])
def test_a_memory_of_dropped_columns_that_cannot_be_read_is_told(root: str, text: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        backend.state("planes", PLANES).put(rows(N1=(1, None)))
        stored = backend.checkpoint()
    record = msgspec.structs.replace(stored, properties={"dropped.planes": text})
    wider = StateSchema(PLANES.keys, pa.schema([*PLANES.values, ("added", pa.int64())]))
    with pytest.raises(CorruptDataError, match="columns that were dropped"):
        check_evolution(record, "planes", wider)
    with pytest.raises(CorruptDataError, match="columns that were dropped"):
        carried_properties(record, {"planes": wider.encode()})


def test_rows_that_do_not_fit_are_refused_and_change_nothing(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        planes = backend.state("planes", PLANES)
        good = rows(N1=(1, None))
        for wrong in (
            good.drop_columns("origin"),
            good.drop_columns("tailnum"),
            good.set_column(2, "flights", [["x"]]),
        ):
            with pytest.raises(InvalidInputError) as caught:
                planes.put(wrong)
            assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH
        assert contents(planes) == {}


@pytest.mark.parametrize("wrong", [0, -1, "few", True, None])
def test_a_number_of_checkpoints_to_retain_is_checked_before_the_first(root: str, wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="retained_checkpoints"):
        KeyedStateBackend.open(root, retained_checkpoints=wrong)


def test_a_second_writer_loses(root: str) -> None:
    one, other = KeyedStateBackend.open(root), KeyedStateBackend.open(root)
    one.state("planes", PLANES).put(rows(N1=(1, None)))
    other.state("planes", PLANES).put(rows(N1=(2, None)))
    one.checkpoint()
    with pytest.raises(FencedError):
        other.checkpoint()
    assert contents(KeyedStateBackend.open(root).state("planes")) == {"N1": (1, None)}


class LosesAnswers(InstrumentedStore):
    """The answer to the next creation of a record is lost, after or before its effect."""

    lose: str | None = None

    def put_if_absent(self, name: str, data: Any) -> Any:
        if self.lose is not None and name.endswith("_metadata"):
            how, self.lose = self.lose, None
            if how == "after":
                super().put_if_absent(name, data)
                raise OutcomeUnknownError("lost", operation="put_if_absent", subject=name)
            raise UnavailableError("no", operation="put_if_absent", subject=name)
        return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes:
        if name.endswith("_metadata") and self.blind:
            raise UnavailableError("no", operation="get", subject=name)
        return super().get(name)

    blind = False


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_checkpoint_whose_answer_was_lost_is_repeated(root: str, how: str) -> None:
    store = LosesAnswers(MemoryStore(root.removeprefix("memory://")))
    with KeyedStateBackend.open(store) as backend:
        planes = backend.state("planes", PLANES)
        planes.put(rows(N1=(1, None)))
        store.lose, store.blind = how, True
        with pytest.raises((OutcomeUnknownError, UnavailableError)):
            backend.checkpoint()
        store.blind = False
        planes.put(rows(N2=(2, None)))
        backend.checkpoint()
        assert contents(planes) == {"N1": (1, None), "N2": (2, None)}
    assert contents(KeyedStateBackend.open(root).state("planes")) == {"N1": (1, None), "N2": (2, None)}


def test_the_root_of_a_pipeline_can_be_read_but_not_written(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        backend.state("planes", PLANES).put(rows(N1=(1, None)))
        own = backend.checkpoint()
    import msgspec

    CheckpointStore(root).publish(
        msgspec.structs.replace(own, checkpoint_id=1, batch_id=1, nonce="n", query_id="spark", properties={})
    )
    with KeyedStateBackend.open(root) as backend:
        assert contents(backend.state("planes")) == {"N1": (1, None)}
        with pytest.raises(InvalidInputError, match="belongs to query spark") as caught:
            backend.checkpoint()
        assert caught.value.kind is ErrorKind.FOREIGN_ROOT


def test_a_closed_backend_says_so(root: str) -> None:
    backend = KeyedStateBackend.open(root)
    planes = backend.state("planes", PLANES)
    backend.close()
    backend.close()
    for call in (
        lambda: planes.put(rows(N1=(1, None))),
        lambda: planes.get(keys("N1")),
        planes.scan,
        backend.checkpoint,
        lambda: backend.state("x", PLANES),
    ):
        with pytest.raises(ClosedError):
            call()


def test_an_empty_checkpoint_is_a_checkpoint(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        backend.state("planes", PLANES)
        made = backend.checkpoint()
        assert isinstance(made, Checkpoint)
        assert made.operators[0].subtasks[0].runs == ()
        planes = backend.state("planes")
        planes.put(rows(N1=(1, None)))
        planes.delete(keys("N1"))
        assert backend.checkpoint().operators[0].subtasks[0].runs == ()


NOT_ROWS = [None, [], {"tailnum": ["N1"]}, pa.array(["N1"]), pa.chunked_array([["N1"]])]


@pytest.mark.parametrize("wrong", NOT_ROWS, ids=lambda wrong: type(wrong).__name__)
def test_what_are_no_rows_is_refused(root: str, wrong: Any) -> None:
    with KeyedStateBackend.open(root) as backend:
        planes = backend.state("planes", PLANES)
        flights = backend.aggregation("flights", KeyedAggregation.bind(PLANES.row, ["origin"], {"n": agg.count()}))
        for call in (planes.put, planes.get, planes.delete, flights.update):
            with pytest.raises(InvalidInputError, match=f"rows: expected .*, got {type(wrong).__name__}"):
                call(wrong)


@pytest.mark.parametrize("wrong", [1, None, b"planes", "\ud800"])
def test_a_name_or_position_that_no_record_can_keep_is_refused_at_once(root: str, wrong: Any) -> None:
    with KeyedStateBackend.open(root) as backend:
        with pytest.raises(InvalidInputError, match="name"):
            backend.state(wrong, PLANES)
        with pytest.raises(InvalidInputError, match="position"):
            backend.checkpoint(wrong)
        assert backend.names() == []
        assert backend.checkpoint("the program goes on").checkpoint_id == 0


def test_arguments_of_another_class_are_refused_by_name(root: str) -> None:
    with KeyedStateBackend.open(root) as backend:
        schema: Any = PLANES.row
        planes = backend.state("planes", PLANES)
        for call, name in (
            (lambda: backend.state("others", schema), "schema"),
            (lambda: backend.aggregation("n", {"n": agg.count()}), "aggregation"),  # type: ignore[arg-type]
            (lambda: planes.scan((0, 3)), "key_groups"),  # type: ignore[arg-type]
            (lambda: StateSchema.of(PLANES, ["tailnum"]), "schema"),  # type: ignore[arg-type]
            (lambda: StateSchema.of(schema, None), "key_names"),  # type: ignore[arg-type]
            (lambda: KeyedAggregation.bind(schema, "origin", {"n": agg.count()}), "keys"),
            (lambda: KeyedAggregation.bind(schema, ["origin"], [agg.count()]), "aggregations"),  # type: ignore[arg-type]
            (lambda: KeyedAggregation.bind(schema, ["origin"], {1: agg.count()}), "name"),  # type: ignore[dict-item]
        ):
            with pytest.raises(InvalidInputError, match=name):
                call()
        assert backend.names() == ["planes"], "nothing that fails at the next checkpoint"
    for settings in ({"key_groups": (0, 3)}, {"merging": 1}, {"runs": {}}, {"fetching": 1}, {"cache": "/tmp"}):
        (name,) = settings
        with pytest.raises(InvalidInputError, match=name):
            KeyedStateBackend.open(root, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 123, b"x"])
def test_a_root_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a URL or a store, got "):
        KeyedStateBackend.open(wrong)


def test_a_root_may_be_a_path(tmp_path: Path) -> None:
    with KeyedStateBackend.open(tmp_path) as backend:
        assert backend.checkpoint().checkpoint_id == 0


@pytest.mark.parametrize("column", [["5"], [5.0], pa.array([5], pa.int32())], ids=["text", "double", "int"])
def test_a_batch_of_other_types_than_those_bound_is_refused(root: str, column: Any) -> None:
    with KeyedStateBackend.open(root) as backend:
        bound = KeyedAggregation.bind(PLANES.row, ["origin"], {"n": agg.sum("flights"), "c": agg.count("flights")})
        flights = backend.aggregation("flights", bound)
        with pytest.raises(InvalidInputError, match=r"'flights': expected type int64, got ") as caught:
            flights.update(pa.table({"origin": ["LGA"], "flights": column}))
        assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH
        assert flights.results().num_rows == 0
