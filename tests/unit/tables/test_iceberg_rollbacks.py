"""Iceberg tables that others roll back, replace and clean up: which of it takes rows away while the tag stays."""

from __future__ import annotations

import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from stateline.checkpoint import CheckpointStore
from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.pipeline.table_repair import Repair, repair_tables
from stateline.pipeline.table_status import Verdict, table_statuses
from stateline.tables import commit_once, move_token
from stateline.tables.api import Outcome
from tests.unit.pipeline.test_table_commits import query_of
from tests.unit.tables.table_kit import APP, IcebergPlace

WORLD = Environment()
OTHER = "another/operator"


@pytest.fixture
def place(tmp_path):
    with IcebergPlace(tmp_path) as found:
        yield found


def commit(place, number, app=APP):
    commit_once(place.open(), place.change(number, number - 1 if number else None, [number], app=app), WORLD)
    return place.table().current_snapshot().snapshot_id


def filled(place, commits=3):
    return [commit(place, number) for number in range(commits)]


def roll_back(place, snapshot):
    """As ``rollback_to_snapshot`` of Spark; ``None`` as ``REPLACE TABLE``, which leaves a branch without a snapshot."""
    table = place.table()
    head = table.current_snapshot().snapshot_id
    update = (
        RemoveSnapshotRefUpdate(ref_name="main")
        if snapshot is None
        else SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot)
    )
    table.catalog.commit_table(table, (AssertRefSnapshotId(ref="main", snapshot_id=head),), (update,))


def expire(place, *snapshots):
    for snapshot in snapshots:
        place.table().maintenance.expire_snapshots().by_id(snapshot).commit()


def loss_of(place, checked="", app=APP):
    table = place.open()
    return table.loss(table.look(app), app, checked)


@pytest.mark.parametrize("follows", [False, True], ids=["at once", "after an append of others"])
@pytest.mark.parametrize("checked", [None, 1, 2])
def test_a_rollback_that_takes_rows_is_refused(place, follows, checked):
    snapshots = filled(place)
    roll_back(place, snapshots[1])
    if follows:
        place.append_foreign(9)
    before = place.rows()
    found = loss_of(place, "" if checked is None else str(snapshots[checked]))
    assert (found.kept, found.is_certain) == (1, True)
    assert str(snapshots[2]) in found.reason
    with pytest.raises(InvalidInputError, match=r"rolled back.*up to checkpoint 1 of 2 are left"):
        commit(place, 3)
    assert place.rows() == before


def test_a_rollback_to_before_all_rows_keeps_none(place):
    place.open().create()
    place.append_foreign(9)
    head = place.table().current_snapshot().snapshot_id
    filled(place)
    roll_back(place, head)
    found = loss_of(place)
    assert (found.kept, found.is_certain) == (None, True)


def test_a_table_that_was_replaced_is_refused(place):
    filled(place)
    roll_back(place, None)
    found = loss_of(place)
    assert (found.kept, found.is_certain) == (None, True)
    assert "has no snapshot" in found.reason
    with pytest.raises(InvalidInputError, match="rolled back"):
        commit(place, 3)


@pytest.mark.parametrize("appends", [1, 2])
def test_a_table_that_was_replaced_with_rows_is_refused(place, appends):
    """As ``CREATE OR REPLACE TABLE .. AS`` of Spark, which keeps the identity, the tag and the log."""
    filled(place)
    roll_back(place, None)
    for k in range(appends):
        place.append_foreign(k)
    found = loss_of(place)
    assert (found.kept, found.is_certain) == (None, True)


def test_a_table_that_was_replaced_after_others_wrote_is_refused(place):
    filled(place)
    place.append_foreign(9)
    between = place.table().current_snapshot().snapshot_id
    roll_back(place, None)
    place.append_foreign(10)
    expire(place, between)
    table = place.open()
    state = table.look(APP)
    # Spark cuts the log before a snapshot that expires; pyiceberg leaves it.
    log = state.snapshot.metadata.snapshot_log[-1:]
    state.snapshot.metadata = state.snapshot.metadata.model_copy(update={"snapshot_log": log})
    assert table.loss(state, APP, "").kept is None


def test_a_rollback_and_back_is_harmless(place):
    snapshots = filled(place)
    roll_back(place, snapshots[0])
    assert loss_of(place).kept == 0
    roll_back(place, snapshots[2])
    assert loss_of(place) is None
    commit(place, 3)
    assert [row[0] for row in place.rows()] == [0, 1, 2, 3]


def test_expiry_commits_and_compactions_of_others_are_no_rollback(place):
    snapshots = filled(place)
    for k in (10, 11, 12):
        place.append_foreign(k)
        head = place.table().current_snapshot().snapshot_id
        snapshots.append(head)
    assert loss_of(place) is None
    place.compact()
    expire(place, *snapshots[:2], *snapshots[3:])
    assert next(each.snapshot_id for each in place.table().snapshots()) == snapshots[2]
    for checked in ("", str(snapshots[2]), str(snapshots[4]), "12345"):
        assert loss_of(place, checked) is None
    commit(place, 3)
    assert len(place.rows()) == 7


def test_a_rollback_is_found_by_the_log_after_snapshots_expired(place):
    snapshots = filled(place)
    roll_back(place, snapshots[1])
    place.append_foreign(10)
    between = place.table().current_snapshot().snapshot_id
    place.append_foreign(11)
    expire(place, snapshots[0])
    found = loss_of(place)
    assert found.kept == 1
    assert between != snapshots[2]


def test_commits_of_another_query_are_not_ours(place):
    first = commit(place, 0)
    commit(place, 0, OTHER)
    commit(place, 1, OTHER)
    other = place.table().current_snapshot().snapshot_id
    commit(place, 1)
    roll_back(place, other)
    assert loss_of(place, app=OTHER) is None
    found = loss_of(place)
    assert (found.kept, found.is_certain) == (0, True)
    roll_back(place, first)
    assert (loss_of(place, app=OTHER).kept, loss_of(place).kept) == (None, 0)


def test_a_token_is_set_without_rows_and_taken_away(place):
    snapshots = filled(place)
    roll_back(place, snapshots[0])
    rows = place.rows()
    move_token(place.open(), APP, 2, WORLD)
    assert loss_of(place) is None
    assert place.open().look(APP).committed == 2
    assert place.rows() == rows
    move_token(place.open(), APP, None, WORLD)
    assert place.open().look(APP).committed is None
    move_token(place.open(), APP, None, WORLD)


def test_a_token_is_not_set_from_an_old_look(place):
    filled(place)
    table = place.open()
    state = table.look(APP)
    commit(place, 3)
    for checkpoint in (1, None):
        assert table.set_token(APP, checkpoint, state).outcome is Outcome.NOT_DONE
    assert place.open().look(APP).committed == 3


@pytest.mark.parametrize("way", list(Repair))
def test_a_query_continues_in_the_way_that_the_user_chose(tmp_path, way):
    query = query_of("iceberg", tmp_path)
    heads = []
    for number in range(3):
        query.run(number, number)
        heads.append(query.place.table().current_snapshot().snapshot_id)
    roll_back(query.place, heads[0])
    with pytest.raises(InvalidInputError, match="rolled back"):
        query.run(3, 3)
    options = query.place.target().options
    (status,) = table_statuses(CheckpointStore(query.root), options)
    assert status.verdict is Verdict.ROLLED_BACK
    (repaired,) = repair_tables(CheckpointStore(query.root), options, way, dry_run=False)
    assert repaired.rewritten == ((1, 2) if way is Repair.REWRITE else ())
    for number in (3, 4):
        query.run(number, number)
    kept = [0, 1, 2, 3, 4] if way is Repair.REWRITE else [0]
    assert [row[0] for row in query.place.rows()][: len(kept)] == kept
    (status,) = table_statuses(CheckpointStore(query.root), options)
    assert status.verdict is Verdict.IN_STEP
