"""The changelog against a model: appends, persists, failures, late results, confirms, aborts, truncations, restarts.

The model is a list of lists of changes. The real thing runs whole (writer, batching scheduler, retries, uploader,
registries, reader) in a world of one thread, over a store that fails before and after the effect, and hangs.

Invariants, by the names of the reliability plan: D1 a handle gives exactly the acknowledged changes, in order; D2
numbers have no gap; D4 what a snapshot names survives until it is decided, and for ever once it is confirmed; D5 late
duplicates
disappear and never take the winner along; D6 bytes in flight stay within the limit; H2 nothing else is left at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stateline.changelog import ChangelogHandle, ChangelogSettings, ChangelogStorage, ChangelogWriter, SequenceNumber
from stateline.changelog.columns import EMPTY_CHANGE_BYTES
from stateline.changelog.inspection import inspect_segment
from stateline.errors import OutcomeUnknownError, UnavailableError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.worlds import ManualWorld, memory_store, values

RANGE = KeyGroupRange(0, 15)
Change = tuple[int, bytes]

change_values = st.binary(max_size=12)
key_groups = st.integers(RANGE.start, RANGE.end)


@dataclass
class Pending:
    """A persist, and what it must give if it succeeds."""

    checkpoint_id: int
    start: int
    end: int
    expected: list[Change]
    future: Any


def read_back(changes: list[list[Change]]) -> list[Change]:
    return [change for part in changes for change in sorted(part, key=lambda change: change[0])]


class ChangelogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ManualWorld()
        self.store = memory_store(self.world)
        self.confirmed: list[tuple[ChangelogHandle, list[Change]]] = []
        self.next_checkpoint = 1

    @initialize(
        threshold=st.sampled_from([0, 10, 40, 10_000]),
        batch=st.sampled_from([1, 20, 100]),
        attempts=st.integers(1, 3),
        compression=st.sampled_from(["none", "lz4"]),
    )
    def open(self, threshold: int, batch: int, attempts: int, compression: str) -> None:
        self.settings = ChangelogSettings(
            preemptive_persist_threshold=threshold,
            persist_size_threshold=batch,
            max_in_flight=200,
            max_attempts=attempts,
            compression=compression,
        )
        self.start_writer()

    def start_writer(self) -> None:
        self.storage = ChangelogStorage.open(
            self.store, self.settings, job_id="job", environment=self.world.environment
        )
        self.writer: ChangelogWriter = self.storage.create_writer("operator", RANGE)
        self.sets: list[list[Change]] = []
        self.active: list[Change] = []
        self.lowest = 0
        self.pending: list[Pending] = []
        self.done: list[Pending] = []

    # -- what the writer is asked to do ---------------------------------------------------------------------------

    def note(self, *changes: Change) -> None:
        """Changes were appended; the writer may have closed the set by itself."""
        self.active += changes
        if self.writer._active.number > len(self.sets):
            assert self.writer._active.number == len(self.sets) + 1
            self.close_set()

    def close_set(self) -> None:
        if self.active:
            self.sets.append(self.active)
            self.active = []

    @rule(key_group=key_groups, value=change_values)
    def append(self, key_group: int, value: bytes) -> None:
        self.attempt(lambda: self.writer.append(key_group, value), (key_group, value))

    @rule(value=change_values)
    def append_meta(self, value: bytes) -> None:
        self.attempt(lambda: self.writer.append_meta(value), (-1, value))

    @rule(changes=st.lists(st.tuples(key_groups, change_values), max_size=4))
    def append_batch(self, changes: list[Change]) -> None:
        if sum(len(change[1]) or EMPTY_CHANGE_BYTES for change in changes) > self.settings.persist_size_threshold:
            return  # Would be cut into several sets: a unit test of its own.
        groups, found = [change[0] for change in changes], [change[1] for change in changes]
        self.attempt(lambda: self.writer.append_batch(groups, found), *changes)

    def attempt(self, append: Any, *changes: Change) -> None:
        try:
            append()
        except UnavailableError:
            assert sum(known.weight for known in self.writer._sets.failed.values()) > self.settings.max_in_flight
        else:
            self.note(*changes)

    @rule()
    def next_sequence_number(self) -> None:
        self.close_set()
        assert self.writer.next_sequence_number() == SequenceNumber(len(self.sets))

    @rule(back=st.integers(0, 6))
    def persist(self, back: int) -> None:
        start = max(self.lowest, len(self.sets) - back)
        self.close_set()
        future = self.writer.persist(SequenceNumber(start), self.next_checkpoint)
        expected = read_back(self.sets[start:])
        self.pending.append(Pending(self.next_checkpoint, start, len(self.sets), expected, future))
        self.next_checkpoint += 1

    # -- what the world does --------------------------------------------------------------------------------------

    @rule(fault=st.sampled_from(["away", "lost answer", "slow", "very slow"]), count=st.integers(1, 4))
    def faults(self, fault: str, count: int) -> None:
        act: Any = {
            "away": UnavailableError("away"),
            "lost answer": (OutcomeUnknownError("lost"),),
            "slow": 1.5,
            "very slow": 30.0,
        }[fault]
        self.store.script.extend([act] * count)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 2.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.look()

    def look(self) -> None:
        """Checks every persist that has ended."""
        self.writer.run_callbacks()
        for item in [item for item in self.pending if item.future.done()]:
            self.pending.remove(item)
            if item.future.exception() is None:
                self.check(item.future.result().remote, item)
                self.done.append(item)
            else:
                assert isinstance(item.future.exception(), OSError)

    def check(self, handle: ChangelogHandle, item: Pending) -> None:
        assert [segment.sequence_number for segment in handle.segments] == list(range(item.start, item.end))
        assert handle.state_size == sum(len(change[1]) for change in item.expected)
        self.check_readable(handle, item.expected)

    def check_readable(self, handle: ChangelogHandle, expected: list[Change]) -> None:
        again = ChangelogHandle.from_bytes(handle.to_bytes())
        assert values(self.storage.create_reader().read(again)) == expected
        part = KeyGroupRange(3, 7)
        found = values(self.storage.create_reader().read(again, part))
        assert found == [change for change in expected if change[0] < 0 or change[0] in part]

    # -- checkpoints ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.done)
    @rule(data=st.data(), decision=st.sampled_from(["confirm", "reset"]))
    def decide(self, data: st.DataObject, decision: str) -> None:
        item = data.draw(st.sampled_from(self.done))
        handle = item.future.result().remote
        self.check_readable(handle, item.expected)  # It was pinned all the time.
        start, end = SequenceNumber(item.start), SequenceNumber(item.end)
        if decision == "confirm":
            self.writer.confirm(start, end, item.checkpoint_id)
            self.confirmed.append((handle, item.expected))
            self.done = [other for other in self.done if other.checkpoint_id > item.checkpoint_id]
        else:
            self.writer.reset(start, end, item.checkpoint_id)
            self.done.remove(item)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def abort_one_that_waits(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.pending))
        self.writer.reset(SequenceNumber(item.start), SequenceNumber(item.end), item.checkpoint_id)
        self.pending.remove(item)

    @rule(to=st.integers(0, 40))
    def truncate(self, to: int) -> None:
        to = min(to, len(self.sets))
        self.writer.truncate(SequenceNumber(to))
        self.lowest = max(self.lowest, to)

    @rule(kind=st.sampled_from(["crash", "close", "truncate and close"]))
    def restart(self, kind: str) -> None:
        """A new process takes over the store; what was confirmed must be there, whatever the old one still does."""
        if kind == "close":
            self.writer.close()
        elif kind == "truncate and close":
            self.writer.truncate_and_close(SequenceNumber(len(self.sets)))
        if kind != "crash":
            self.storage.close()
            assert all(item.future.done() for item in self.pending)
        self.start_writer()

    # -- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def bytes_in_flight_are_bounded(self) -> None:
        if hasattr(self, "storage"):
            assert self.storage._scheduler._uploads.throttle.in_flight <= self.settings.max_in_flight

    @invariant()
    def every_set_is_in_one_place(self) -> None:
        if hasattr(self, "writer"):
            writer = self.writer
            places = [*writer._sets.waiting, *writer._sets.in_flight, *writer._sets.uploaded]
            assert len(places) == len(set(places))
            assert writer._active.number == len(self.sets)

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        self.store.script.clear()
        self.world.advance(1000)
        self.look()
        assert not self.pending
        self.close_set()
        item = Pending(
            self.next_checkpoint,
            self.lowest,
            len(self.sets),
            read_back(self.sets[self.lowest :]),
            self.writer.persist(SequenceNumber(self.lowest), self.next_checkpoint),
        )
        self.check(item.future.result().remote, item)
        for handle, expected in self.confirmed:
            self.check_readable(handle, expected)
        self.check_garbage()

    def check_garbage(self) -> None:
        """Once nothing is wanted any more, only what was confirmed or belongs to an older process is left."""
        end = SequenceNumber(len(self.sets))
        for checkpoint_id in range(self.next_checkpoint + 1):
            self.writer.reset(end, end, checkpoint_id)
        self.writer.truncate(end)
        self.world.advance(1000)
        kept = {name for handle, _ in self.confirmed for name in handle.object_names()}
        seen = set()
        for name in self.store.names():
            for section in inspect_segment(self.store, name).sections:
                if section.table.log_id == self.writer.log_id:
                    assert name in kept, "an object of this process was not deleted"
                    assert section.table.sequence_number not in seen, "a set was uploaded twice"
                    seen.add(section.table.sequence_number)
        self.storage.close()


TestChangelogMachine = ChangelogMachine.TestCase
TestChangelogMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
