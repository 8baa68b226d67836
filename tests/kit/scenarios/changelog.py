"""The changelog: persist, confirm, truncate; under faults at every store call, with processes that go on as zombies.

One job after another writes changes, persists them, and decides a record with create-if-absent. Whoever loses a record
starts again from what is there. At the end, every record must give back exactly the changes of its winner after those
of the records before it.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from stateline.blob.checksum import crc32c
from stateline.changelog import ChangelogHandle, ChangelogSettings, ChangelogStorage, ChangelogWriter, SequenceNumber
from stateline.errors import AlreadyExistsError, CorruptDataError, NotFoundError
from stateline.key_groups import KeyGroupRange
from tests.kit.invariants import require
from tests.kit.scenario import Scenario
from tests.kit.scenarios.retry import certain
from tests.kit.world import Process, World

__all__ = ["Changelog"]

_RANGE: Final = KeyGroupRange(0, 3)
_SETTINGS: Final = ChangelogSettings(
    preemptive_persist_threshold=20,
    persist_size_threshold=60,
    max_in_flight=120,
    num_upload_threads=2,
    upload_timeout=5,
)


class _Record(msgspec.Struct):
    """What a checkpoint remembers: the changelog handles since the beginning, oldest first."""

    checkpoint: int
    nonce: str
    handles: list[bytes]


class Changelog(Scenario):
    """See the module docstring.

    Args:
        checkpoints: How many records are decided, with some changes before each.
    """

    name: ClassVar[str] = "changelog"

    def __init__(self, checkpoints: int = 3) -> None:
        self.checkpoints = checkpoints

    def start(self, world: World, incarnation: int) -> Process:
        """See :meth:`Scenario.start`."""
        process = world.process(f"job-{incarnation}")
        process.spawn(lambda: self._work(process))
        return process

    def _work(self, process: Process) -> None:
        store, environment = process.store(), process.environment
        storage = ChangelogStorage.open(store, _SETTINGS, environment=environment)
        try:
            while not self._run(process, storage):
                pass  # Somebody else decided a record: start again from what is there.
        finally:
            storage.close()

    def _run(self, process: Process, storage: ChangelogStorage) -> bool:
        records: list[_Record] = []
        while len(records) < self.checkpoints:
            try:
                found = process.store().get(_record_name(len(records)))
            except NotFoundError:
                break
            records.append(_decoded(found, len(records)))
        past = records[-1].handles if records else []
        _read_all(storage, past)
        writer = storage.create_writer("operator", _RANGE)
        start = writer.initial_sequence_number()
        appended: list[tuple[int, bytes]] = []
        for checkpoint in range(len(records), self.checkpoints):
            for number in range(5):
                appended.append((number % 4, f"{process.name}/{checkpoint}/{number}".encode()))
                writer.append(*appended[-1])
            handle = self._persisted(writer, start, checkpoint)
            end = writer.next_sequence_number()
            truncated = checkpoint % 2 == 0
            if truncated:
                writer.truncate(end)  # Before the checkpoint is decided: what it names must stay.
            if not self._decide(
                process, _Record(checkpoint, process.environment.ids.new_id(), [*past, handle]), appended
            ):
                writer.reset(start, end, checkpoint)
                writer.truncate_and_close(end)
                return False
            writer.confirm(start, end, checkpoint)
            if truncated:
                past, start, appended = [*past, handle], end, []
        writer.close()
        return True

    def _decide(self, process: Process, record: _Record, appended: list[tuple[int, bytes]]) -> bool:
        """Whether ``record`` is the one of its checkpoint."""
        body = msgspec.json.encode(record)
        data = crc32c(body).to_bytes(4, "big") + body
        process.world.acknowledge(("proposed", record.checkpoint, record.nonce), list(appended))
        name = _record_name(record.checkpoint)
        try:
            certain(lambda: process.store().put_if_absent(name, data))
        except AlreadyExistsError:
            return _decoded(process.store().get(name), record.checkpoint).nonce == record.nonce
        return True

    def _persisted(self, writer: ChangelogWriter, start: SequenceNumber, checkpoint: int) -> bytes:
        for _ in range(5):
            try:
                return writer.persist(start, checkpoint).result().remote.to_bytes()
            except OSError:
                writer.reset(start, start, checkpoint)
        return writer.persist(start, checkpoint).result().remote.to_bytes()

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`."""
        store = world.objects()
        storage = ChangelogStorage.open(store, ChangelogSettings(scheduler="direct"))
        try:
            for checkpoint in range(self.checkpoints):
                record = _decoded(store.get(_record_name(checkpoint)), checkpoint)
                found = _read_all(storage, record.handles[-1:])
                wanted = world.acknowledged(("proposed", checkpoint, record.nonce))
                require(sorted(found) == sorted(wanted), "D1", f"record {checkpoint}: {found} is not {wanted}")
                for group in _RANGE:
                    mine = [value for value in found if value[0] == group]
                    require(mine == [value for value in wanted if value[0] == group], "D1", f"order of {group}")
                _read_all(storage, record.handles)  # D4: what a record names stays.
        finally:
            storage.close()


def _decoded(data: bytes, checkpoint: int) -> _Record:
    """The record of this checkpoint and no other; reads may give damaged or other bytes."""
    if len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise CorruptDataError("the record is damaged")
    record = msgspec.json.decode(data[4:], type=_Record)
    if record.checkpoint != checkpoint:
        raise CorruptDataError("it is another record")
    return record


def _read_all(storage: ChangelogStorage, handles: list[bytes]) -> list[tuple[int, bytes]]:
    reader = storage.create_reader()
    return [
        (change.key_group, change.value) for data in handles for change in reader.read(ChangelogHandle.from_bytes(data))
    ]


def _record_name(checkpoint: int) -> str:
    return f"records/{checkpoint}"
