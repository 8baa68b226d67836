"""One file written over many checkpoints by processes that die: resumed at its last point, published once.

Checkpoint ``c`` is a record, created if absent, that holds the point of the file; the last one holds its commit point.
Whoever loses a record starts again from the winner's. Pieces that a decided point has superseded are cleaned up.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar, Final, NamedTuple

import msgspec

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.errors import AlreadyExistsError, ConflictError, CorruptDataError, NotFoundError, StatelineError
from stateline.handles import CommitPoint, ResumePoint
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.testing.faults import FaultKind
from tests.kit.effects import Effect
from tests.kit.invariants import require
from tests.kit.scenario import Scenario
from tests.kit.scenarios.retry import certain
from tests.kit.world import Process, World

__all__ = ["RecoverableFile"]

_TARGET: Final = "out/file"
_SETTINGS: Final = RecoverableWriterSettings(chunk_size=100, fold_size=60)
_ATTEMPTS: Final = 4


class _Record(msgspec.Struct, frozen=True):
    """What a checkpoint remembers of the file: a point in bytes."""

    checkpoint: int
    nonce: str
    point: bytes


class _Found(NamedTuple):
    """The newest record, and what was written up to it."""

    checkpoint: int
    point: bytes
    content: bytes


class RecoverableFile(Scenario):
    """See the module docstring.

    Args:
        checkpoints: Records; the last commits the file.
        writes: Writes between two of them.
    """

    name: ClassVar[str] = "recoverable"
    kinds = frozenset(FaultKind) - {FaultKind.MISSING}  # A record that the store denies cannot be seen.

    def __init__(self, checkpoints: int = 4, writes: int = 2) -> None:
        self.checkpoints = checkpoints
        self.writes = writes

    def start(self, world: World, incarnation: int) -> Process:
        """See :meth:`Scenario.start`."""
        process = world.process(f"writer-{incarnation}")
        process.spawn(lambda: self._work(process))
        return process

    def watch(self, world: World, effect: Effect) -> None:
        """C2: the file is visible only once a record commits it."""
        if effect.operation == "publish":
            decided = _read(world.objects(), self.checkpoints - 1)
            require(decided is not None, "C2", f"{effect.names[0]} is visible before it was decided")

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`."""
        store = world.objects()
        record = _read(store, self.checkpoints - 1)
        require(record is not None, "H1", "the file was never committed")
        if record is None:
            return
        wanted = world.acknowledged(("proposed", self.checkpoints - 1, record.nonce))
        found = store.get(_TARGET)
        require(found == wanted, "B2", f"the file holds {found!r}, accepted was {wanted!r}")
        point = _commit_point(RecoverableWriter(store), record.point)
        left = [part.name for part in point.parts if _exists(store, part.name)]
        require(not left, "C5", f"the file is committed and its pieces {left} are still there")

    def _work(self, process: Process) -> None:
        for _ in range(_ATTEMPTS):
            if self._run(process):
                return
        raise ConflictError("others decide every record", operation="write", subject=process.name)

    def _run(self, process: Process) -> bool:
        """Goes on from the newest record; ``False`` where somebody else decides one meanwhile."""
        store, ids = process.store(), process.environment.ids
        writer = RecoverableWriter(store, _SETTINGS, process.environment)
        found = self._newest(process)
        if found is not None and found.checkpoint == self.checkpoints - 1:
            self._commit(writer, _commit_point(writer, found.point))
            return True
        last = None if found is None else _resume_point(writer, found.point)
        stream = writer.open(_TARGET) if last is None else writer.recover(last)
        content = b"" if found is None else found.content
        if last is not None:
            require(stream.position == last.length == len(content), "B1", f"resumed at {stream.position}, not {last}")
        dice = process.world.dice("bytes", process.name)
        for checkpoint in range(0 if found is None else found.checkpoint + 1, self.checkpoints):
            for number in range(self.writes):
                line = f"{process.name}/{checkpoint}/{number}".encode() * (1 + dice.below(6))
                stream.write(line)
                content += line
            final = checkpoint == self.checkpoints - 1
            point: CommitPoint = stream.close_for_commit().commit_point if final else stream.persist()
            record = _Record(checkpoint, ids.new_id(), _serialized(writer, point))
            process.world.acknowledge(("proposed", checkpoint, record.nonce), content)
            if not _decided(store, record):
                return False
            if isinstance(point, ResumePoint):
                with contextlib.suppress(StatelineError):
                    writer.cleanup(point)  # Garbage at worst.
            else:
                self._commit(writer, point)
        return True

    def _commit(self, writer: RecoverableWriter, point: CommitPoint) -> None:
        certain(lambda: writer.recover_for_commit(point).commit_after_recovery())

    def _newest(self, process: Process) -> _Found | None:
        newest = None
        for checkpoint in range(self.checkpoints):
            record = _read(process.store(), checkpoint)
            if record is None:
                break
            content = process.world.acknowledged(("proposed", checkpoint, record.nonce))
            newest = _Found(checkpoint, record.point, content)
        return newest


def _serialized(writer: RecoverableWriter, point: CommitPoint) -> bytes:
    if isinstance(point, ResumePoint):
        return writer.resume_serializer.serialize(point)
    return writer.commit_serializer.serialize(point)


def _commit_point(writer: RecoverableWriter, data: bytes) -> CommitPoint:
    return writer.commit_serializer.deserialize(writer.commit_serializer.version, data)


def _resume_point(writer: RecoverableWriter, data: bytes) -> ResumePoint:
    return writer.resume_serializer.deserialize(writer.resume_serializer.version, data)


def _decided(store: BlobStore, record: _Record) -> bool:
    """Whether this record is the one of its checkpoint."""
    body = msgspec.json.encode(record)
    try:
        certain(lambda: store.put_if_absent(_name(record.checkpoint), b"%08x" % crc32c(body) + body))
    except AlreadyExistsError:
        winner = _read(store, record.checkpoint)
        return winner is not None and winner.nonce == record.nonce
    return True


def _read(store: BlobStore, checkpoint: int) -> _Record | None:
    try:
        data = store.get(_name(checkpoint))
    except NotFoundError:
        return None
    if data[:8] != b"%08x" % crc32c(data[8:]):
        raise CorruptDataError("the checksum does not match", operation="get", subject=_name(checkpoint))
    record = msgspec.json.decode(data[8:], type=_Record)
    if record.checkpoint != checkpoint:
        raise CorruptDataError("it is another record", operation="get", subject=_name(checkpoint))
    return record


def _name(checkpoint: int) -> str:
    return f"records/{checkpoint}"


def _exists(store: BlobStore, name: str) -> bool:
    try:
        store.head(name)
    except NotFoundError:
        return False
    return True
