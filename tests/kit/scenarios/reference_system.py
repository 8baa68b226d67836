"""A small, correct coordinator: the protocol of the design in its plainest form, on one page.

The real coordinator is connected by an adapter of its own.

Order of one batch: tasks put runs and stage pieces, under fresh names; the record is created if absent (the decision);
the floor is read; files are published; pieces are discarded; the mark ``published`` is set; retention raises the floor
over a slot, then frees it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c, crc32c_of_parts
from stateline.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    FencedError,
    NotFoundError,
)
from stateline.handles import CommitPoint, Part
from tests.kit.scenarios.micro_batch import MicroBatchAdapter, MicroBatchSystem, Row
from tests.kit.scenarios.retry import certain
from tests.kit.world import Process, World

__all__ = [
    "Record",
    "ReferenceAdapter",
    "ReferenceSystem",
    "Run",
    "encoded",
    "exists",
    "latest_record",
    "merged",
    "read_record",
]

_MERGE_AT: Final = 3
"""State of more runs than this is merged into one."""


class Run(msgspec.Struct, frozen=True):
    """Counts by key, in one object."""

    name: str
    crc32c: int


class Record(msgspec.Struct, frozen=True):
    """One decision."""

    batch: int
    digest: str
    nonce: str
    files: tuple[CommitPoint, ...]
    runs: tuple[Run, ...]


class ReferenceSystem(MicroBatchSystem):
    """See the module docstring.

    Args:
        process: The driver.
        retained: How many records are kept.
    """

    def __init__(self, process: Process, retained: int = 1) -> None:
        self._process = process
        self._root = process.store("root")
        self._out = process.store("out")
        self._retained = retained
        self._newest: Record | None = None

    def start(self) -> None:
        """See :meth:`MicroBatchSystem.start`."""
        self._newest = latest_record(self._root)
        if self._newest is not None:
            self.confirm(self._newest)
            self.finish(self._newest)

    def confirm(self, record: Record) -> None:
        """Makes a record durable that somebody else may have made a moment before he died.

        A record in a freed slot is a ghost: a request that was under way for long, shown by a listing that is old.
        """
        certain(lambda: self._root.put_if_absent(_record_name(record.batch), encoded(record)))
        if self.is_freed(record.batch):
            raise FencedError("the newest record that is listed is history", subject=str(record.batch))

    def run_batch(self, batch_id: int, offsets_digest: str, partitions: Sequence[Sequence[Row]]) -> None:
        """See :meth:`MicroBatchSystem.run_batch`."""
        newest = self._newest
        if newest is not None and newest.batch == batch_id:
            if newest.digest != offsets_digest:
                raise ConflictError("the batch was decided for other offsets", subject=str(batch_id))
            return
        if batch_id != (-1 if newest is None else newest.batch) + 1:
            raise FencedError("another driver decides here", operation="run_batch", subject=str(batch_id))
        nonce = self._process.environment.ids.new_id()
        record: Record | None = None
        try:
            record = self.prepare(batch_id, offsets_digest, nonce, partitions)
            self._newest = record = self.decide(record)
            self.finish(record)
        except Exception:
            self.abort(record)
            raise
        self.retain(record)

    def prepare(self, batch: int, digest: str, nonce: str, partitions: Sequence[Sequence[Row]]) -> Record:
        """Runs the tasks; nothing that they make is visible."""
        tasks = [_task(self, rows, nonce) for rows in partitions]
        made = self._process.run_tasks(tasks)
        files = tuple(file for file, _ in made if file is not None)
        before = () if self._newest is None else self._newest.runs
        runs = before + tuple(run for _, run in made if run is not None)
        if len(runs) > _MERGE_AT:
            runs = (self.write_run(self._root, merged(self._root, runs)),)
        return Record(batch, digest, nonce, files, runs)

    def decide(self, record: Record) -> Record:
        """Creates the record: the one decision of the batch."""
        try:
            self.create_record(_record_name(record.batch), encoded(record))
        except AlreadyExistsError as error:
            raise FencedError("another driver decided the batch", subject=str(record.batch)) from error
        if self.is_freed(record.batch):
            raise FencedError("the slot was freed: this batch is history", subject=str(record.batch))
        return record

    def create_record(self, name: str, data: bytes) -> None:
        """Create-if-absent, until the outcome is known."""
        certain(lambda: self._root.put_if_absent(name, data))

    def is_freed(self, batch: int) -> bool:
        """Whether a slot may have been freed: asked by exact name, because a listing may be old."""
        return exists(self._root, _floor_name(batch))

    def finish(self, record: Record) -> None:
        """Publishes what a decision names; may be repeated by anybody."""
        mark = f"chk-{record.batch}/published"
        if exists(self._root, mark):
            return
        for file in record.files:
            self.publish(file)
        self.discard([part for file in record.files for part in file.parts])
        certain(lambda: self._root.put_if_absent(mark, b"published"))

    def publish(self, file: CommitPoint) -> None:
        """Makes one file visible."""
        certain(lambda: self._out.publish(file.target, file.parts, file.nonce))

    def discard(self, parts: Sequence[Part]) -> None:
        """Deletes pieces by exact name."""
        certain(lambda: self._out.discard(parts))

    def abort(self, record: Record | None) -> None:
        """Nothing: the commit may have happened, and what did not is swept later."""

    def retain(self, record: Record) -> None:
        """Keeps the newest records: raises the floor first, then frees what is below it."""
        ended = record.batch - self._retained
        if ended < 0:
            return
        certain(lambda: self._root.put_if_absent(_floor_name(ended), b"freed"))
        old = read_record(self._root, ended)
        if old is None:
            return
        self.free([_record_name(old.batch), f"chk-{old.batch}/published"])
        self.free(self.unreachable(old, record))

    def unreachable(self, old: Record, newest: Record) -> list[str]:
        """The runs of a freed record that no retained one names."""
        kept = {run.name for run in newest.runs}
        for batch in range(old.batch + 1, newest.batch):
            between = read_record(self._root, batch)
            kept |= {run.name for run in between.runs} if between else set()
        return [run.name for run in old.runs if run.name not in kept]

    def free(self, names: Sequence[str]) -> None:
        """Deletes by exact name."""
        if names:
            certain(lambda: self._root.delete(names))

    def new_name(self, store: BlobStore, rows: Sequence[Row], process: Process) -> str:
        """A name that nobody else can have."""
        return process.environment.ids.new_id()

    def write_run(self, store: BlobStore, counts: Mapping[str, int], name: str = "") -> Run:
        """Puts the counts of one run."""
        data = msgspec.json.encode(dict(sorted(counts.items())))
        name = f"runs/{name or self._process.environment.ids.new_id()}"
        certain(lambda: store.put(name, data))
        return Run(name, crc32c(data))


class ReferenceAdapter(MicroBatchAdapter):
    """Connects :class:`ReferenceSystem`.

    Args:
        retained: See there.
    """

    def __init__(self, retained: int = 1) -> None:
        self._retained = retained

    def open(self, process: Process) -> MicroBatchSystem:
        """See :meth:`MicroBatchAdapter.open`."""
        return ReferenceSystem(process, self._retained)

    def finals(self, world: World) -> Iterable[str]:
        """See :meth:`MicroBatchAdapter.finals`."""
        return [info.name for info in world.objects("out").list("data/")]

    def rows(self, world: World, name: str) -> Sequence[tuple[Row, str]]:
        """See :meth:`MicroBatchAdapter.rows`."""
        try:
            return _rows_of(world.objects("out").get(name))
        except NotFoundError:
            return ()

    def remove_final(self, process: Process, name: str) -> None:
        """See :meth:`MicroBatchAdapter.remove_final`."""
        process.store("out").delete([name])

    def movable(self, world: World) -> Iterable[int]:
        """See :meth:`MicroBatchAdapter.movable`."""
        root = world.objects("root")
        newest = self.decided(world)
        return [batch for batch in range(newest + 1) if batch < newest or exists(root, f"chk-{batch}/published")]

    def decided(self, world: World) -> int:
        """See :meth:`MicroBatchAdapter.decided`."""
        newest = latest_record(world.objects("root"))
        return -1 if newest is None else newest.batch

    def state(self, world: World) -> Mapping[str, int]:
        """See :meth:`MicroBatchAdapter.state`."""
        root = world.objects("root")
        newest = latest_record(root)
        return {} if newest is None else merged(root, newest.runs)

    def missing(self, world: World) -> Iterable[str]:
        """See :meth:`MicroBatchAdapter.missing`."""
        root = world.objects("root")
        newest = latest_record(root)
        return [] if newest is None else [run.name for run in newest.runs if not exists(root, run.name)]

    def unclean(self, world: World, batch_id: int) -> Iterable[str]:
        """See :meth:`MicroBatchAdapter.unclean`."""
        root, out = world.objects("root"), world.objects("out")
        ghost = exists(root, _floor_name(batch_id))  # Whatever is in a freed slot decides nothing.
        record = None if ghost else read_record(root, batch_id)
        parts = [] if record is None else [part.name for file in record.files for part in file.parts]
        return [name for name in parts if exists(out, name)]


def encoded(record: Record) -> bytes:
    """The bytes of a record: a checksum, then JSON."""
    body = msgspec.json.encode(record)
    return b"%08x" % crc32c(body) + body


def read_record(root: BlobStore, batch: int) -> Record | None:
    """The decision of a batch; ``None`` if there is none."""
    try:
        data = root.get(_record_name(batch))
    except NotFoundError:
        return None
    if len(data) < 8 or data[:8] != b"%08x" % crc32c(data[8:]):
        raise CorruptDataError("the checksum does not match", operation="get", subject=_record_name(batch))
    record = msgspec.json.decode(data[8:], type=Record)
    if record.batch != batch:
        raise CorruptDataError("it is the record of another batch", operation="get", subject=_record_name(batch))
    return record


def latest_record(root: BlobStore) -> Record | None:
    """The newest decision."""
    names = [info.name for info in root.list("chk-") if info.name.endswith("/_metadata")]
    batches = [int(name.removeprefix("chk-").removesuffix("/_metadata")) for name in names]
    return read_record(root, max(batches)) if batches else None


def merged(root: BlobStore, runs: Iterable[Run]) -> dict[str, int]:
    """The sum of runs."""
    counts: Counter[str] = Counter()
    for run in runs:
        try:
            data = root.get(run.name)
        except NotFoundError as error:
            raise DataLossError("a run is gone", operation="get", subject=run.name) from error
        if crc32c(data) != run.crc32c:
            raise CorruptDataError("the checksum does not match", operation="get", subject=run.name)
        counts.update(msgspec.json.decode(data, type=dict[str, int]))
    return dict(counts)


def exists(store: BlobStore, name: str) -> bool:
    """Whether an object is there."""
    try:
        store.head(name)
    except NotFoundError:
        return False
    return True


def _task(
    system: ReferenceSystem, rows: Sequence[Row], nonce: str
) -> Callable[[Process], tuple[CommitPoint | None, Run | None]]:
    """One task: stages its rows and puts the counts of its keys; an empty partition makes nothing."""

    def task(process: Process) -> tuple[CommitPoint | None, Run | None]:
        if not rows:
            return None, None
        out = process.store("out")
        name = system.new_name(out, rows, process)
        target = f"data/{name}"
        data = b"".join(f"{row.batch} {row.number} {row.key} {nonce}\n".encode() for row in rows)
        part: Any = certain(lambda: out.stage(target, data))
        run = system.write_run(process.store("root"), Counter(row.key for row in rows), name)
        checksum = crc32c_of_parts([part])
        return CommitPoint(target=target, parts=(part,), length=part.length, crc32c=checksum, nonce=name), run

    return task


def _floor_name(batch: int) -> str:
    return f"floor/{batch}"


def _record_name(batch: int) -> str:
    return f"chk-{batch}/_metadata"


def _rows_of(data: bytes) -> list[tuple[Row, str]]:
    fields = (line.split(" ") for line in data.decode().splitlines())
    return [(Row(int(batch), int(number), key), attempt) for batch, number, key, attempt in fields]
