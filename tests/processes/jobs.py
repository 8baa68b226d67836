"""Jobs that are killed at their system calls: a file, a changelog, a pipeline with its retention and sweeps.

Each decides its progress in records of its own, as drivers do, and everything that one attempt writes differs from what
another attempt writes. So a mixture of two attempts is seen.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pandas  # noqa: F401, ICN001 - pyarrow loads it with the first array; here once, not in every child
import pyarrow as pa

from stateline.blob.local import LocalStore
from stateline.blob.sweep import reachable_names, sweep
from stateline.changelog import ChangelogHandle, ChangelogSettings, ChangelogStorage
from stateline.checkpoint import Checkpoint, CheckpointStore, layout, sweep_root, verify_root
from stateline.environment import Environment, system_environment
from stateline.errors import NotFoundError
from stateline.files import RollingPolicy
from stateline.handles import CommitPoint, ResumePoint
from stateline.key_groups import KeyGroupRange
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.pipeline import PipelineSystem
from tests.processes.system_call_kills import Job, files_below


class Record(msgspec.Struct, frozen=True):
    """What a checkpoint of a small job remembers."""

    number: int
    attempt: str
    points: dict[str, bytes]
    content: dict[str, str]


class WithRecords(Job):
    """A job that decides records with create-if-absent, each after the one before."""

    count: ClassVar[int]

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.folder)

    def records(self) -> list[Record]:
        found = []
        for number in range(self.count):
            try:
                found.append(msgspec.json.decode(self.store.get(f"records/{number}"), type=Record))
            except NotFoundError:
                break
        return found

    def decide(self, store: LocalStore, record: Record) -> None:
        store.put_if_absent(f"records/{record.number}", msgspec.json.encode(record))
        self.told("decided", record.number, record.attempt)

    def check_records(self) -> list[Record]:
        """Those that somebody was told of are there, whole, and no half one is."""
        records = self.records()
        for what, number, attempt in (entry for entry in self.was_told() if entry[0] == "decided"):
            assert len(records) > number, f"{what} {number} is gone"
            assert records[number].attempt == attempt
        on_disk = {name for name in files_below(self.folder) if name.startswith("records/")}
        assert on_disk == {f"records/{record.number}" for record in records}
        return records


class FileJob(WithRecords):
    """Two files over six checkpoints: written, persisted, recovered, cleaned up, committed, and swept at the end."""

    count = 6
    targets = ("out/first", "out/deep/er/second")
    settings = RecoverableWriterSettings(chunk_size=40, fold_size=30)

    def run(self) -> None:
        environment = system_environment()
        store = self.store
        writer = RecoverableWriter(store, self.settings, environment)
        attempt = environment.ids.new_id()
        records = self.records()
        content = dict(records[-1].content) if records else dict.fromkeys(self.targets, "")
        if len(records) < self.count:
            streams = {
                target: writer.recover(resume_point(writer, records[-1].points[target]))
                if records
                else writer.open(target)
                for target in self.targets
            }
            for number in range(len(records), self.count):
                is_last = number == self.count - 1
                points: dict[str, CommitPoint] = {}
                for target, stream in streams.items():
                    for line in range(number % 3 + 1):
                        text = f"{attempt}/{number}/{line};"
                        stream.write(text.encode())
                        content[target] += text
                    points[target] = stream.close_for_commit().commit_point if is_last else stream.persist()
                serialized = {target: to_bytes(writer, point) for target, point in points.items()}
                self.decide(store, Record(number, attempt, serialized, dict(content)))
                for point in points.values():
                    if isinstance(point, ResumePoint):
                        writer.cleanup(point)
            records = self.records()
        for target in self.targets:
            point = writer.commit_serializer.deserialize(1, records[-1].points[target])
            writer.recover_for_commit(point).commit_after_recovery()
            self.told("committed", target)
        sweep(store, set(), min_age=0, delete=True, environment=environment)

    def look(self) -> None:
        records = self.check_records()
        committed = {entry[1] for entry in self.was_told() if entry[0] == "committed"}
        for target in self.targets:
            path = self.folder / target
            assert path.exists() or target not in committed
            if path.exists():
                assert len(records) == self.count, "it is visible before it was decided"
                assert path.read_text() == records[-1].content[target]
        previous = dict.fromkeys(self.targets, "")
        for record in records:
            for target in self.targets:
                added = record.content[target].removeprefix(previous[target])
                assert record.content[target] == previous[target] + added
                lines = [line.split("/", 1) for line in added.split(";")[:-1]]
                assert lines == [[record.attempt, f"{record.number}/{line}"] for line in range(record.number % 3 + 1)]
            previous = record.content

    def check(self) -> None:
        assert {(self.folder / target).exists() for target in self.targets} == {True}
        wanted = {*self.targets, *(f"records/{number}" for number in range(self.count))}
        assert files_below(self.folder) == wanted, "only the sweep's leftovers may be more, and it has run"


def to_bytes(writer: RecoverableWriter, point: CommitPoint) -> bytes:
    if isinstance(point, ResumePoint):
        return writer.resume_serializer.serialize(point)
    return writer.commit_serializer.serialize(point)


def resume_point(writer: RecoverableWriter, data: bytes) -> ResumePoint:
    return writer.resume_serializer.deserialize(writer.resume_serializer.version, data)


class ChangelogJob(WithRecords):
    """Appends, persists, confirms and truncates, with the threads of a real process and local copies."""

    count = 4
    operator = "operator"
    groups = KeyGroupRange(0, 3)

    def settings(self) -> ChangelogSettings:
        return ChangelogSettings(
            preemptive_persist_threshold=60,
            persist_delay=0.001,
            persist_size_threshold=150,
            max_in_flight=400,
            num_upload_threads=2,
            local_recovery_dir=str(self.folder.with_name("local")),
        )

    def open(self) -> ChangelogStorage:
        return ChangelogStorage.open(LocalStore(self.folder), self.settings(), job_id="job")

    def run(self) -> None:
        attempt = system_environment().ids.new_id()
        records = self.records()
        with self.open() as storage:
            past = dict(records[-1].points) if records else {}
            self.read(storage, records)
            writer = storage.create_writer(self.operator, self.groups)
            start = writer.initial_sequence_number()
            pending = ""
            for number in range(len(records), self.count):
                for line in range(5):
                    text = f"{attempt}/{number}/{line}"
                    writer.append(line % len(self.groups), text.encode())
                    pending += f"{text};"
                handle = writer.persist(start, number).result().remote
                end = writer.next_sequence_number()
                truncates = number % 2 == 0
                if truncates:
                    writer.truncate(end)  # Before the record exists: what it will name must stay.
                key = f"{start}:{attempt}"
                self.decide(self.store, Record(number, attempt, {**past, key: handle.to_bytes()}, {key: pending}))
                writer.confirm(start, end, number)
                if truncates:
                    past[key], start, pending = handle.to_bytes(), end, ""
            writer.close()

    def read(self, storage: ChangelogStorage, records: Sequence[Record]) -> None:
        """What each record adds is exactly what its attempt appended; what it names besides can be read."""
        reader = storage.create_reader()
        for record in records:
            for key, handle in record.points.items():
                changes = list(reader.read(ChangelogHandle.from_bytes(handle), self.groups))
                if key in record.content:
                    wanted = record.content[key].split(";")[:-1]
                    assert sorted(change.value.decode() for change in changes) == sorted(wanted)
                    for group in self.groups:
                        mine = [change.value.decode() for change in changes if change.key_group == group]
                        assert mine == [text for text in wanted if int(text[-1]) % len(self.groups) == group]

    def look(self) -> None:
        records = self.check_records()
        with self.open() as storage:
            self.read(storage, records)

    def check(self) -> None:
        records = self.records()
        assert len(records) == self.count
        written = [record.content for record in records]
        per_record = [[text.split("/")[1] for text in "".join(content.values()).split(";")[:-1]] for content in written]
        for number, numbers in enumerate(per_record):
            assert numbers[-5:] == [str(number)] * 5, "each change of the record, once"
        strangers = {
            name
            for name in files_below(self.folder)
            if not name.startswith(("records/", "job/changelog/", ".inprogress"))
        }
        assert strangers == set()


class InOneProcess:
    """Stands where the simulator has a process: real stores, real time, tasks one after the other."""

    def __init__(self, stores: Mapping[str, LocalStore], number: int, environment: Environment) -> None:
        self.name = f"driver-{number}"
        self.environment = environment
        self._stores = stores

    def store(self, name: str) -> LocalStore:
        return self._stores[name]

    def run_tasks(self, functions: Sequence[Callable[[Any], Any]]) -> list[Any]:
        return [function(self) for function in functions]


class PipelineJob(Job):
    """The real coordinator, tasks, state and files: batches, retention, the end of the stream, and both sweeps."""

    batches = 5
    rows = 6
    keys = 5
    retained = 2
    state = StateSchema.of(pa.schema([("key", pa.string()), ("count", pa.int64()), ("attempt", pa.string())]), ["key"])

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        layout.FLOOR_BLOCK = 2  # So that slots are freed within these few batches.

    @property
    def root(self) -> LocalStore:
        return LocalStore(self.folder / "root")

    @property
    def out(self) -> LocalStore:
        return LocalStore(self.folder / "out")

    def source(self, batch: int) -> list[Row]:
        return [Row(batch, number, f"k{(batch * batch + number) % self.keys}") for number in range(self.rows)]

    def prepare(self) -> None:
        """Leaves what a process that died long ago would have left, for the sweeps."""
        self.root.put_if_absent(f"shared/{0:032x}.arrow", b"x")
        self.root.put_if_absent(f"chk-0/{0:032x}", b"x")
        self.out.stage("part-0", b"x")

    def run(self) -> None:
        environment = system_environment()
        incarnation = sum(entry[0] == "started" for entry in self.was_told())
        self.told("started")
        process = InOneProcess({"root": self.root, "out": self.out}, incarnation, environment)
        dice = random.Random(os.getpid())
        system = PipelineSystem(
            process,  # type: ignore[arg-type]
            parallelism=(2, 1, 3)[incarnation % 3],
            retained=self.retained,
            rolling=RollingPolicy(roll_bytes=400),
            merging=MergeSettings(runs_max=1 + incarnation % 2, piece_bytes=(1 << 20, 1)[incarnation % 2]),
        )
        newest = system.coordinator.start()
        for batch in range(0 if newest is None else newest.batch_id, self.batches):
            rows = self.source(batch)
            dice.shuffle(rows)
            cut = dice.randrange(len(rows))
            system.run_batch(batch, f"digest-{batch}", [rows[:cut], rows[cut:]])
            self.told("acknowledged", batch)
        system.finish()
        self.told("finished")
        self.sweep(environment)

    def sweep(self, environment: Environment) -> None:
        """As the next batch and an operator would: retention, which a kill may have interrupted, and both sweeps."""
        checkpoints = CheckpointStore(self.root)
        checkpoints.retain(self.retained)
        points = [file.commit for record in checkpoints.list() for output in record.outputs for file in output.finished]
        for store, reachable in ((self.out, reachable_names(points)), (self.root, set())):
            sweep(store, reachable, min_age=0, delete=True, environment=environment)
        sweep_root(checkpoints, min_age=0, delete=True, environment=environment)

    def look(self) -> None:
        """No row is visible twice or before its batch is decided; what is retained is whole; nothing told is lost."""
        checkpoints = CheckpointStore(self.root)
        newest = checkpoints.latest()
        decided = -1 if newest is None else newest.batch_id
        visible = Counter(row for row, _ in self.visible())
        assert set(visible.values()) <= {1}
        assert all(row.batch <= decided for row in visible)
        told = self.was_told()
        assert max((entry[1] for entry in told if entry[0] == "acknowledged"), default=-1) <= decided
        if newest is not None:
            report = verify_root(checkpoints, outputs={output.url: self.out for output in newest.outputs})
            assert report.is_sound, report.findings

    def check(self) -> None:
        checkpoints = CheckpointStore(self.root)
        newest = checkpoints.latest()
        assert newest is not None
        source = [row for batch in range(self.batches) for row in self.source(batch)]
        visible = list(self.visible())
        assert Counter(row for row, _ in visible) == Counter(source)
        last = {}
        for row, attempt in sorted(visible):
            last[row.key] = attempt
        state = {row["key"]: row for row in self.state_rows(newest)}
        assert {key: row["count"] for key, row in state.items()} == Counter(row.key for row in source)
        assert {key: row["attempt"] for key, row in state.items()} == last, "output and state are of the same attempts"
        self.check_disk(checkpoints)

    def check_disk(self, checkpoints: CheckpointStore) -> None:
        """After the sweeps: the retained checkpoints, what they reach, floors, history, marks, final files; no more."""
        live = list(checkpoints.list())
        assert len(live) == self.retained
        out = files_below(self.folder / "out")
        assert all(name.startswith("part-") for name in out), out
        reached = {name for record in live for name in record.object_names()}
        own = (layout.FLOOR_PREFIX, layout.HISTORY_PREFIX)
        rest = {name for name in files_below(self.folder / "root") if name not in reached and not name.startswith(own)}
        first = live[0].checkpoint_id // layout.FLOOR_BLOCK * layout.FLOOR_BLOCK
        slots = {f"chk-{number}" for number in range(first, live[-1].checkpoint_id + 1)}
        assert {name.split("/")[0] for name in rest} == slots, (rest, slots)
        assert {name.split("/")[1] for name in rest} <= {"_metadata", "_published"}

    def visible(self) -> Iterator[tuple[Row, str]]:
        for info in self.out.list("part-"):
            for row in pa.ipc.open_file(self.out.get(info.name)).read_all().to_pylist():
                yield Row(row["batch"], row["number"], row["key"]), row["attempt"]

    def state_rows(self, newest: Checkpoint) -> Iterator[dict[str, Any]]:
        reader = RunReader(self.root, self.state, open_runs=OpenRuns())
        (operator,) = newest.operators
        for subtask in operator.subtasks:
            runs = [reader.open(run) for run in subtask.runs]
            for batch in StateTable(self.state, subtask.key_groups, newest.max_parallelism, runs).scan():
                yield from batch.to_pylist()
