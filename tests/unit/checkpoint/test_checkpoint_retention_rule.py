"""How many checkpoints a rule keeps: those that changed state, whatever records lie in between."""

from __future__ import annotations

import itertools

import pytest
from checkpoint_kit import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import CheckpointStore, verify_root
from stateline.checkpoint.retention import Reach, RetentionRule
from stateline.environment import SystemIds
from stateline.errors import UnavailableError
from stateline.pipeline.plan import PLAIN, PipelineSettings

AUTO = PipelineSettings().retention


def reaches(*states, times=None):
    """Live checkpoints, newest first, from their states, oldest first."""
    made = [
        Reach(checkpoint_id=number, state=state, created_at=0.0 if times is None else times[number])
        for number, state in enumerate(states)
    ]
    return made[::-1]


def test_records_that_change_no_state_do_not_count():
    rule = RetentionRule.of_states(2)
    assert rule.kept(reaches(1)) == 1
    assert rule.kept(reaches(1, 2, 2, 2)) == 4
    assert rule.kept(reaches(1, 1, 1, 2, 2, 2)) == 4, "of the older state one record is enough"
    assert rule.kept(reaches(1, 2, 3, 3, 3)) == 4
    assert RetentionRule.of_states(3).kept(reaches(1, 2, 3, 3, 3)) == 5


def test_records_without_end_that_change_no_state_are_bounded():
    assert RetentionRule.of_states(2).kept(reaches(*[1] * 500)) == 20
    assert AUTO.kept(reaches(*[1] * 500)) == 100


def test_states_of_the_last_hour_stay_up_to_a_bound():
    every_minute = reaches(*range(500), times=[60.0 * number for number in range(500)])
    assert AUTO.kept(every_minute) == 61
    every_second = reaches(*range(500), times=[float(number) for number in range(500)])
    assert AUTO.kept(every_second) == 100
    every_day = reaches(*range(500), times=[86400.0 * number for number in range(500)])
    assert AUTO.kept(every_day) == 10
    no_time_passes = reaches(*range(500))
    assert AUTO.kept(no_time_passes) == 100
    assert PipelineSettings(retained_checkpoints=7).retention.kept(no_time_passes) == 7


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 9000)), min_size=1, max_size=150),
    st.integers(1, 5),
    st.sampled_from([0.0, 3600.0]),
)
def test_any_rule_keeps_the_newest_and_enough_states(records, states, seconds):
    rule = RetentionRule.of_states(states, seconds=seconds)
    newest_first = reaches(*(state for state, _ in records), times=[time for _, time in records])
    kept = newest_first[: rule.kept(newest_first)]
    assert 1 <= len(kept) <= max(1, rule.most)
    changes = 1 + sum(older.state != newer.state for newer, older in itertools.pairwise(kept))
    assert changes >= states or len(kept) in (len(newest_first), rule.most)
    assert seconds or changes <= states


def test_settings_say_which_rule():
    assert RetentionRule.of_states(10, seconds=3600.0) == AUTO
    assert PipelineSettings(retained_checkpoints="auto") == PipelineSettings()
    assert PipelineSettings(retained_checkpoints="12").retention == RetentionRule.of_states(12)
    assert PLAIN.retention == 3, "files alone have no state to look back at"


class Root:
    """A root whose every third record changes no state."""

    def __init__(self):
        self.blobs = MemoryStore(SystemIds().new_id())
        self.store = CheckpointStore(self.blobs)
        self.states = {}
        self.next = 0

    def add(self, store=None):
        number = self.next
        self.next += 1
        name = f"run-{number - 1 if number % 3 == 2 else number}-{0:032x}"
        if number % 3 != 2:
            self.blobs.put_if_absent(f"shared/{name}", b"run")
        self.states[number] = name
        (store or self.store).publish(replace(checkpoint(number, (name,)), created_at=float(number)))

    def kept(self):
        return [record.checkpoint_id for record in CheckpointStore(self.blobs).list()]

    def check(self):
        assert verify_root(CheckpointStore(self.blobs)).is_sound
        objects = {info.name.removeprefix("shared/") for info in self.blobs.list("shared/")}
        assert objects == {self.states[number] for number in self.kept()}


def test_what_a_rule_retires_is_deleted_and_what_it_keeps_can_be_restored():
    root, rule = Root(), RetentionRule.of_states(3)
    for _ in range(600):
        root.add()
        root.store.retain(rule)
    kept = root.kept()
    assert len({root.states[number] for number in kept}) == 3
    assert kept == list(range(kept[0], 600)), "without gaps, up to the newest"
    root.check()


def test_one_call_retires_few_and_the_next_ones_go_on():
    root, rule = Root(), RetentionRule.of_states(2)
    for _ in range(40):
        root.add()
    assert len(root.store.retirable(rule)) == 38
    left = []
    for _ in range(6):
        CheckpointStore(root.blobs).retain(rule)
        left.append(len(root.kept()))
    assert left == [32, 24, 16, 8, 2, 2]
    root.check()
    root.store.retain(1)
    assert len(root.kept()) == 1


def test_nothing_is_listed_or_read_after_the_start():
    root, rule = Root(), RetentionRule.of_states(3)
    counted = InstrumentedStore(root.blobs)
    store = CheckpointStore(counted)
    for _ in range(20):
        root.add(store)
        store.retain(rule)
    counted.reset()
    for _ in range(21):
        root.add(store)
        store.retain(rule)
    # A state spans up to two records, so some calls retire two and some none.
    assert counted.calls == {"put_if_absent": 21, "get": 21, "put": 21, "delete": 14}


@pytest.mark.parametrize(("operation", "times"), [("put", 6), ("delete", 4)])
def test_a_call_that_fails_anywhere_is_finished_by_the_next_process(operation, times):
    for fails_at in range(times):
        root, rule = Root(), RetentionRule.of_states(2)
        for _ in range(9):
            root.add()
        calls, plain = [], getattr(root.blobs, operation)

        def failing(*arguments, calls=calls, plain=plain, fails_at=fails_at):
            calls.append(arguments)
            if len(calls) == fails_at + 1:
                raise UnavailableError("no", operation=operation)
            return plain(*arguments)

        setattr(root.blobs, operation, failing)
        with pytest.raises(UnavailableError):
            root.store.retain(rule)
        setattr(root.blobs, operation, plain)
        assert verify_root(CheckpointStore(root.blobs)).is_sound
        CheckpointStore(root.blobs).retain(rule)
        assert len({root.states[each] for each in root.kept()}) == 2
        root.check()
