"""The changelog under the seeded simulator: faults at every store call, processes that die, zombies that go on.

One job after another writes changes, persists them, and decides a record with create-if-absent. Whoever loses a record
stops. At the end, every record must give back exactly the changes of its winner after those of the records before it.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from stateline.blob.checksum import crc32c
from stateline.changelog import ChangelogHandle, ChangelogSettings, ChangelogStorage, ChangelogWriter, SequenceNumber
from stateline.errors import AlreadyExistsError, CorruptDataError, NotFoundError
from stateline.key_groups import KeyGroupRange
from stateline.testing.explore import Setting, single_faults, zombie_sweep
from stateline.testing.faults import FaultKind
from stateline.testing.invariants import require
from stateline.testing.scenario import Scenario
from stateline.testing.scenarios.retry import certain
from stateline.testing.simulation import simulate
from stateline.testing.world import Process, World

RANGE = KeyGroupRange(0, 3)
SETTINGS = ChangelogSettings(
    preemptive_persist_threshold=20,
    persist_size_threshold=60,
    max_in_flight=120,
    num_upload_threads=2,
    upload_timeout=5,
)


class Record(msgspec.Struct):
    """What a checkpoint remembers: the changelog handles since the beginning, oldest first."""

    checkpoint: int
    nonce: str
    handles: list[bytes]


class Changelog(Scenario):
    """``checkpoints`` records, with some changes before each."""

    name: ClassVar[str] = "changelog"

    def __init__(self, checkpoints: int = 3) -> None:
        self.checkpoints = checkpoints

    def start(self, world: World, incarnation: int) -> Process:
        process = world.process(f"job-{incarnation}")
        process.spawn(lambda: self.work(process))
        return process

    def work(self, process: Process) -> None:
        store, environment = process.store(), process.environment
        storage = ChangelogStorage.open(store, SETTINGS, environment=environment)
        try:
            while not self.run(process, storage):
                pass  # Somebody else decided a record: start again from what is there.
        finally:
            storage.close()

    def run(self, process: Process, storage: ChangelogStorage) -> bool:
        records: list[Record] = []
        while len(records) < self.checkpoints:
            try:
                found = process.store().get(record_name(len(records)))
            except NotFoundError:
                break
            records.append(decoded(found, len(records)))
        past = records[-1].handles if records else []
        read_all(storage, past)
        writer = storage.create_writer("operator", RANGE)
        appended: list[tuple[int, bytes]] = []
        for checkpoint in range(len(records), self.checkpoints):
            for number in range(5):
                appended.append((number % 4, f"{process.name}/{checkpoint}/{number}".encode()))
                writer.append(*appended[-1])
            if not self.checkpoint(process, writer, past, checkpoint, list(appended)):
                return False
        writer.close()
        return True

    def checkpoint(
        self,
        process: Process,
        writer: ChangelogWriter,
        past: list[bytes],
        checkpoint: int,
        appended: list[tuple[int, bytes]],
    ) -> bool:
        start = writer.initial_sequence_number()
        handle = self.persisted(writer, start, checkpoint)
        end = writer.next_sequence_number()
        record = Record(checkpoint, process.environment.ids.new_id(), [*past, handle.to_bytes()])
        body = msgspec.json.encode(record)
        data = crc32c(body).to_bytes(4, "big") + body
        process.world.acknowledge(("proposed", checkpoint, record.nonce), appended)
        try:
            certain(lambda: process.store().put_if_absent(record_name(checkpoint), data))
        except AlreadyExistsError:
            writer.reset(start, end, checkpoint)
            writer.truncate_and_close(end)
            return False
        writer.confirm(start, end, checkpoint)
        return True

    def persisted(self, writer: ChangelogWriter, start: SequenceNumber, checkpoint: int) -> ChangelogHandle:
        for _ in range(5):
            try:
                return writer.persist(start, checkpoint).result().remote
            except OSError:
                writer.reset(start, start, checkpoint)
        return writer.persist(start, checkpoint).result().remote

    def check(self, world: World) -> None:
        store = world.objects()
        storage = ChangelogStorage.open(store, ChangelogSettings(scheduler="direct"))
        try:
            for checkpoint in range(self.checkpoints):
                record = decoded(store.get(record_name(checkpoint)), checkpoint)
                found = read_all(storage, record.handles[-1:])
                wanted = world.acknowledged(("proposed", checkpoint, record.nonce))
                require(sorted(found) == sorted(wanted), "D1", f"record {checkpoint}: {found} is not {wanted}")
                for group in RANGE:
                    mine = [value for value in found if value[0] == group]
                    require(mine == [value for value in wanted if value[0] == group], "D1", f"order of {group}")
                read_all(storage, record.handles)  # D4: what a record names stays.
        finally:
            storage.close()


def decoded(data: bytes, checkpoint: int) -> Record:
    """The record of this checkpoint and no other; reads may give damaged or other bytes."""
    if len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise CorruptDataError("the record is damaged")
    record = msgspec.json.decode(data[4:], type=Record)
    if record.checkpoint != checkpoint:
        raise CorruptDataError("it is another record")
    return record


def read_all(storage: ChangelogStorage, handles: list[bytes]) -> list[tuple[int, bytes]]:
    reader = storage.create_reader()
    return [
        (change.key_group, change.value) for data in handles for change in reader.read(ChangelogHandle.from_bytes(data))
    ]


def record_name(checkpoint: int) -> str:
    return f"records/{checkpoint}"


def test_the_changelog_survives_seeded_faults_and_zombies() -> None:
    result = simulate(Changelog(), range(60))
    assert not result.failures, result.failures[0]


@pytest.mark.parametrize("kinds", [[FaultKind.CRASH_AFTER, FaultKind.CRASH_BEFORE], None], ids=["crashes", "all"])
def test_the_changelog_survives_every_single_fault(kinds: list[FaultKind] | None) -> None:
    scenario = Changelog(2)
    result = single_faults(scenario, Setting(), **({"kinds": kinds} if kinds else {}))
    assert not result.failures, result.failures[0]


def test_the_changelog_survives_zombies() -> None:
    result = zombie_sweep(Changelog(2), Setting(), sample=200)
    assert not result.failures, result.failures[0]
