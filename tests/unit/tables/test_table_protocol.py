"""What every table promises: each checkpoint once, whoever comes, comes again, or comes late."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
import pytest

from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.tables import Outcome, Table, TableChange, TableState, TableToken, commit_once
from stateline.tables.commit import CommitStep, next_commit_step
from tests.unit.tables.table_kit import APP, KINDS, SCHEMA, Place, PostgresqlPlace, SqlitePlace, places

ENVIRONMENT = system_environment()


@pytest.fixture(params=KINDS)
def place(request, tmp_path) -> Iterator[Place]:
    with places(tmp_path)[request.param] as found:
        yield found


def commit(table: Table, change: TableChange) -> TableState:
    return commit_once(table, change, ENVIRONMENT)


def test_commits_one_after_the_other_and_again(place):
    first, second = place.change(0, None, [1, 2]), place.change(3, 0, [3])
    state = commit(place.open(), first)
    assert (state.committed, place.open().look(APP).committed) == (0, 0)
    again = commit(place.open(), first)
    assert again.committed == 0
    assert commit(place.open(), second).committed == 3
    for change in (first, second, first):
        assert commit(place.open(), change).committed == 3
    assert place.rows() == [(1, "c0"), (2, "c0"), (3, "c3")]


def test_a_second_driver_at_the_same_moment_adds_nothing(place):
    one, other = place.open(), place.open()
    commit(one, place.change(0, None, [1]))
    change = place.change(1, 0, [2])
    looks = one.look(APP), other.look(APP)
    assert one.attempt(change, looks[0]).outcome is Outcome.DONE
    assert other.attempt(change, looks[1]).outcome is not Outcome.DONE
    assert commit(other, change).committed == 1
    assert place.rows() == [(1, "c0"), (2, "c1")]


def test_two_first_commits_at_the_same_moment(place):
    one, other = place.open(), place.open()
    change = place.change(0, None, [1])
    one.create()
    other.create()
    looks = one.look(APP), other.look(APP)
    outcomes = {one.attempt(change, looks[0]).outcome, other.attempt(change, looks[1]).outcome}
    assert Outcome.DONE in outcomes
    assert len(outcomes) == 2
    assert place.rows() == [(1, "c0")]


def test_a_driver_that_slept_since_its_look_loses(place):
    late, change = place.open(), place.change(1, 0, [2])
    commit(late, place.change(0, None, [1]))
    look = late.look(APP)
    commit(place.open(), change)
    commit(place.open(), place.change(2, 1, [3]))
    assert late.attempt(change, look).outcome is not Outcome.DONE
    assert commit(late, change).committed == 2
    assert place.rows() == [(1, "c0"), (2, "c1"), (3, "c2")]


def test_other_writers_between_look_and_commit(place):
    table = place.open()
    commit(table, place.change(0, None, [1]))
    change = place.change(1, 0, [2])
    look = table.look(APP)
    place.append_foreign(7)
    place.compact()
    if table.attempt(change, look).outcome is not Outcome.DONE:
        commit(table, change)
    place.compact()
    for _ in range(2):
        commit(place.open(), change)
    assert place.rows() == [(1, "c0"), (2, "c1"), (7, "foreign")]


def test_two_applications_do_not_see_each_other(place):
    for app, k in (("a", 1), ("b", 2)):
        commit(place.open(), place.change(0, None, [k], app=app))
    commit(place.open(), place.change(1, 0, [3], app="b"))
    assert [place.open().look(app).committed for app in ("a", "b", "c")] == [0, 1, None]
    assert place.rows() == [(1, "c0"), (2, "c0"), (3, "c1")]


def test_a_table_that_lost_commits_is_not_filled_anew(place):
    identity = commit(place.open(), place.change(0, None, [1])).identity or ""
    commit(place.open(), place.change(1, 0, [2], identity))
    place.drop()
    with pytest.raises(InvalidInputError, match=r"is missing|rolled back"):
        commit(place.open(), place.change(2, 1, [3], identity))
    place.open().create()
    place.append_foreign(9)
    with pytest.raises(InvalidInputError, match=r"made anew|rolled back"):
        commit(place.open(), place.change(2, 0, [3], identity))


def test_a_commit_that_was_lost_in_between_is_refused(place):
    commit(place.open(), place.change(0, None, [1]))
    with pytest.raises(InvalidInputError, match="checkpoint 4"):
        commit(place.open(), place.change(5, 4, [3]))
    assert place.rows() == [(1, "c0")]


def test_without_columns_nothing_is_created(place):
    with pytest.raises(InvalidInputError, match="nobody knows its columns"):
        commit(place.open(None), place.change(0, None, [1]))
    commit(place.open(), place.change(0, None, [1]))
    commit(place.open(None), place.change(1, 0, [2]))
    assert place.rows() == [(1, "c0"), (2, "c1")]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([SCHEMA.field("k"), ("w", pa.string())]), "'w'"),
        (pa.schema([("k", pa.int64()), ("v", pa.string())]), "no nulls"),
        (pa.schema([("v", pa.string())]), r"needs values for \['k'\]"),
    ],
)
def test_other_columns_are_refused_before_rows_are_decided(place, schema, said):
    if place.mode == "upsert" and "k" not in schema.names:
        return
    place.open().create()
    table = place.open(schema)
    if isinstance(place, SqlitePlace | PostgresqlPlace) and place.mode == "upsert" and said == "no nulls":
        table.check(table.look(APP))  # Tasks refuse rows without a key: see ``check_rows``.
        return
    with pytest.raises(InvalidInputError, match=said):
        table.check(table.look(APP))
    place.open().check(place.open().look(APP))


def test_an_upsert_replaces_rows_of_its_keys(tmp_path):
    for kind in ("delta-upsert", "sqlite-upsert"):
        place = places(tmp_path)[kind]
        commit(place.open(), place.change(0, None, [1, 2]))
        commit(place.open(), place.change(1, 0, [2, 3]))
        assert place.rows() == [(1, "c0"), (2, "c1"), (3, "c1")]
        twice = pa.table({"k": [5, 5], "v": ["a", "b"]}, schema=SCHEMA)
        with pytest.raises(InvalidInputError, match="one row of each key"):
            commit(place.open(), place.change(2, 1, [], rows=twice))
        assert place.open().look(APP).committed == 1


def loses_rows_in_the_same_step(place: Place) -> None:
    commit(place.open(), place.change(0, None, [1, 2, 3]))
    change = dataclasses.replace(
        place.change(1, 0, [3, 4]), gone=lambda: iter([pa.table({"k": pa.array([1, 3, 9], pa.int64())})])
    )
    for _ in range(2):
        assert commit(place.open(), change).committed == 1
    assert place.rows() == [(2, "c0"), (3, "c1"), (4, "c1")], "what goes and comes is there"
    alone = dataclasses.replace(place.change(2, 1, []), gone=lambda: iter([pa.table({"k": pa.array([2], pa.int64())})]))
    commit(place.open(), alone)
    assert place.rows() == [(3, "c1"), (4, "c1")]


@pytest.mark.parametrize("kind", ["delta-upsert", "sqlite-upsert"])
def test_rows_go_in_the_step_in_which_others_come(kind, tmp_path):
    loses_rows_in_the_same_step(places(tmp_path)[kind])


def test_the_rule_of_a_commit():
    def step(committed, number, previous, identity: str | None = "t", known="t"):
        token = TableToken(app="a", checkpoint_id=number, previous=previous, identity=known)
        return next_commit_step(TableState(identity=identity, committed=committed), token, "t")

    assert step(None, 0, None) is CommitStep.COMMIT
    assert step(None, 0, None, None, "") is CommitStep.CREATE
    assert step(4, 5, 4) is CommitStep.COMMIT
    assert step(5, 5, 4) is step(6, 5, 4) is CommitStep.NOTHING
    for refused in ((None, 5, 4), (3, 5, 4), (4, 5, None)):
        with pytest.raises(InvalidInputError):
            step(*refused)
    for committed in (4, 5, 9):
        with pytest.raises(InvalidInputError, match="made anew"):
            step(committed, 5, 4, identity="other")
    with pytest.raises(InvalidInputError, match="is missing"):
        step(None, 5, None, None)


PROMISES = [
    test_commits_one_after_the_other_and_again,
    test_a_second_driver_at_the_same_moment_adds_nothing,
    test_two_first_commits_at_the_same_moment,
    test_a_driver_that_slept_since_its_look_loses,
    test_other_writers_between_look_and_commit,
    test_two_applications_do_not_see_each_other,
    test_a_table_that_lost_commits_is_not_filled_anew,
    test_a_commit_that_was_lost_in_between_is_refused,
]
"""What tables keep that are not among :data:`KINDS`, too: models, and tables of a server."""
