"""A root as its records tell it, whatever is damaged or missing."""

from __future__ import annotations

import pytest

from stateline.blob import InstrumentedStore
from stateline.checkpoint.history import with_summaries
from stateline.checkpoint.layout import HISTORY_BLOCK, history_name, record_name
from stateline.dashboard.roots import RootFollower
from stateline.errors import UnavailableError
from tests.unit.dashboard.dashboard_kit import damaged, long_root, new_store, record, state_root, summary


@pytest.fixture
def store():
    return InstrumentedStore(new_store())


def test_an_empty_root_has_nothing_and_is_no_failure(store):
    view = RootFollower(store).look()
    assert (view.newest, view.summaries, view.notes, view.failure) == (None, (), (), "")


def test_all_of_the_history_is_there_once_and_in_order(store):
    long_root(store, 300)
    view = RootFollower(store).look()
    assert [each.checkpoint_id for each in view.summaries] == list(range(300))
    assert [each.checkpoint_id for each in view.records] == [297, 298, 299]
    assert view.fenced == (260,)
    assert view.notes == ()


def test_a_second_look_reads_by_exact_name_and_lists_nothing(store):
    long_root(store, 300)
    follower = RootFollower(store)
    first = follower.look()
    store.reset()
    second = follower.look()
    assert second.version == first.version
    assert "list" not in store.calls
    assert store.calls["get"] < 8


def test_what_comes_is_found_and_objects_of_the_history_are_read_once(store):
    root = long_root(store, 300)
    follower = RootFollower(store)
    before = follower.look()
    root.publish(with_summaries(record(300), [summary(number) for number in range(256, 301)]))
    store.reset()
    after = follower.look()
    assert after.newest.checkpoint_id == 300
    assert [each.checkpoint_id for each in after.summaries] == list(range(301))
    assert after.version != before.version
    assert store.calls["get"] < 20


def test_a_damaged_object_of_the_history_is_a_gap_and_a_note(store):
    long_root(store, 300)
    damaged(store, history_name(1))
    view = RootFollower(store).look()
    ids = {each.checkpoint_id for each in view.summaries}
    assert ids == set(range(300)) - set(range(HISTORY_BLOCK, 2 * HISTORY_BLOCK))
    (note,) = view.notes
    assert history_name(1) in note


def test_a_damaged_record_is_a_note_beside_the_others(store):
    long_root(store, 300)
    damaged(store, record_name(299))
    view = RootFollower(store).look()
    assert view.newest.checkpoint_id == 298
    assert any(record_name(299) in note for note in view.notes)
    assert view.failure == ""


def test_what_is_damaged_while_a_root_is_followed_is_a_note_too(store):
    long_root(store, 300)
    follower = RootFollower(store)
    follower.look()
    damaged(store, record_name(299))
    view = follower.look()
    assert (view.newest.checkpoint_id, view.failure) == (298, "")
    assert len(view.summaries) == 300 - 1
    assert view.notes


def test_a_root_that_cannot_be_reached_is_a_failure_and_then_it_can_again(store, monkeypatch):
    long_root(store, 10)
    follower = RootFollower(store)

    def away(*_):
        raise UnavailableError("the store is away", operation="get")

    monkeypatch.setattr(store.inner, "get", away)
    assert "the store is away" in follower.look().failure
    monkeypatch.undo()
    assert follower.look().newest.checkpoint_id == 9


def test_records_without_a_history_are_shown_as_far_as_they_tell():
    view = RootFollower(state_root().url).look()
    assert [(each.checkpoint_id, each.run) for each in view.summaries] == [(0, 0), (1, 0), (2, 0)]


def test_rows_that_are_not_handed_over_yet_are_told(store):
    root = long_root(store, 10)
    follower = RootFollower(store)
    assert not follower.look().is_published
    root.mark_published(9)
    assert follower.look().is_published


def test_a_follower_closes_what_it_opened_and_nothing_else(store):
    RootFollower(store).close()
    store.put("x", b"1")
    assert store.get("x") == b"1"
