"""Files that are encoded before they roll: the same files, and nothing depends on what was encoded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateline.blob import BlobStore, open_store
from stateline.blob.instrumented import InstrumentedStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import CheckpointStore
from stateline.environment import Environment, SystemExecutors, system_environment
from stateline.errors import DataLossError
from stateline.files import EncodingAhead, FileOutput, FilesResult, RollingPolicy
from stateline.files.encoding import PartialFile, first_full_group, row_groups
from stateline.files.pending import add_rows
from stateline.handles import OpenFile, RowsHandle
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PLAIN

SCHEMA = pa.schema([("x", pa.int64())])
ROWS = 40_000
"""Of a batch: 320 KB, which is no short piece."""


class _AtOnce:
    """An executor that runs what it is given before it returns."""

    def submit(self, function: Any, /, *args: Any) -> Future[Any]:
        function(*args)
        return Future()

    def close(self, *, wait: bool = True) -> None:
        """Nothing."""


class _ExecutorsAtOnce(SystemExecutors):
    def executor(self, name: str, num_threads: int) -> Any:
        return _AtOnce()


class _NoThreads(SystemExecutors):
    def executor(self, name: str, num_threads: int) -> Any:
        class Exhausted(_AtOnce):
            def submit(self, function: Any, /, *args: Any) -> Future[Any]:
                raise RuntimeError("can't start new thread")

        return Exhausted()


AT_ONCE = Environment(executors=_ExecutorsAtOnce())


class Stream:
    """A stream into one folder, one batch after the other."""

    def __init__(self, folder: Path, **output: Any) -> None:
        self.folder = folder / "out"
        self.root, self.out = open_store(f"file://{folder}/root"), open_store(f"file://{folder}/out")
        settings = {"row_group_rows": 100_000, "rolling": RollingPolicy(roll_bytes=6 * ROWS * 8), **output}
        self.output = FileOutput(url=self.out.url, **settings)
        self.batch = 0

    def decision(self, ahead: EncodingAhead | None) -> FilesDecision:
        plan = files_plan(self.root.url, self.output, replace(PLAIN, retained_checkpoints=2), schema=SCHEMA)
        environment = system_environment()
        records = CheckpointStore(self.root, environment=environment)
        return FilesDecision(plan, self.root, self.out, SCHEMA, environment, records, ahead)

    def run(self, ahead: EncodingAhead | None, *, tasks: Sequence[int] = (ROWS,)) -> Sequence[OpenFile]:
        """One batch, of tasks with so many rows; returns the files that are open then."""
        decision, start = self.decision(ahead), self.batch * 1_000_000
        made: list[FilesResult] = []
        for rows in tasks:
            made.append(decision.stage([pa.record_batch({"x": range(start, start + rows)})]))
            start += rows
        report = decision.commit(made, batch_id=self.batch, offsets_digest=f"{self.batch}", query_id="q")
        self.batch += 1
        (output,) = report.checkpoint.outputs
        return output.open

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("part-*"))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pieces of each file that rolled were encoded before."""
    counts: list[int] = []
    real = EncodingAhead.take

    def take(self: EncodingAhead, target: str, output: FileOutput, pending: Sequence[RowsHandle]) -> PartialFile | None:
        begun = real(self, target, output, pending)
        counts.append(len(begun.handles) if begun else 0)
        return begun

    monkeypatch.setattr(EncodingAhead, "take", take)
    return counts


@pytest.mark.parametrize(
    ("file_format", "compression"),
    [("parquet", None), ("arrow", None), ("jsonl", None), ("csv", "gzip"), ("csv", "none")],
)
def test_a_file_is_the_same_whether_it_was_begun_before_or_not(
    tmp_path: Path, taken: list[int], file_format: str, compression: str | None
) -> None:
    contents = []
    for name, ahead in (("ahead", EncodingAhead(AT_ONCE)), ("whole", None)):
        stream = Stream(tmp_path / name, format=file_format, compression=compression)
        for _ in range(6):
            assert stream.files() == []
            stream.run(ahead)
        (file,) = stream.files()
        contents.append(file.read_bytes())
    assert contents[0] == contents[1]
    assert taken == [4]


def test_row_groups_are_full_and_in_order(tmp_path: Path, taken: list[int]) -> None:
    stream, ahead = Stream(tmp_path), EncodingAhead(AT_ONCE)
    for _ in range(12):
        stream.run(ahead)
    files = sorted(stream.files(), key=lambda path: pq.read_table(path)["x"][0].as_py())
    for first, file in zip((0, 6), files, strict=True):
        opened = pq.ParquetFile(file)
        assert [opened.metadata.row_group(index).num_rows for index in range(3)] == [2 * ROWS] * 3
        expected = [batch * 1_000_000 + row for batch in range(first, first + 6) for row in range(ROWS)]
        assert opened.read()["x"].to_pylist() == expected
    assert taken == [4, 4]


def test_what_was_encoded_may_be_lost_at_any_time(tmp_path: Path, taken: list[int]) -> None:
    """Also where short pieces are joined, tasks differ, and the settings of the output change."""
    for seed in range(4):
        dice = random.Random(seed)
        stream, ahead = Stream(tmp_path / str(seed)), EncodingAhead(AT_ONCE)
        expected: list[int] = []
        for _ in range(40):
            if dice.random() < 0.15:
                ahead = EncodingAhead(AT_ONCE)
            if dice.random() < 0.1:
                stream.output = FileOutput(
                    url=stream.out.url,
                    compression=dice.choice(["snappy", "zstd"]),
                    row_group_rows=dice.choice([50_000, 100_000]),
                    rolling=stream.output.rolling,
                )
            tasks = [dice.choice([300, *[ROWS] * 9]) for _ in range(dice.choice([1, 2]))]
            start = stream.batch * 1_000_000
            expected += range(start, start + sum(tasks))
            stream.run(ahead if dice.random() < 0.9 else None, tasks=tasks)
        stream.output = FileOutput(url=stream.out.url, rolling=RollingPolicy(every_checkpoint=True))
        expected.append(stream.batch * 1_000_000)
        stream.run(ahead, tasks=[1])
        found = [value for file in stream.files() for value in pq.read_table(file)["x"].to_pylist()]
        assert sorted(found) == expected
    assert any(taken)
    assert not all(taken)


def test_encoding_on_a_real_thread_gives_the_same_rows(tmp_path: Path) -> None:
    stream, ahead = Stream(tmp_path), EncodingAhead(system_environment())
    for _ in range(12):
        stream.run(ahead)
    ahead.close()
    found = [value for file in stream.files() for value in pq.read_table(file)["x"].to_pylist()]
    assert sorted(found) == [batch * 1_000_000 + row for batch in range(12) for row in range(ROWS)]


def test_rows_that_are_gone_are_told_when_the_file_rolls(tmp_path: Path, taken: list[int]) -> None:
    stream, ahead = Stream(tmp_path), EncodingAhead(AT_ONCE)
    stream.run(ahead)
    (file,) = stream.run(None)
    stream.root.delete([file.pending[0].name])
    for _ in range(3):
        stream.run(ahead)
    with pytest.raises(DataLossError):
        stream.run(ahead)
    assert taken == [0]


def test_memory_is_bounded(tmp_path: Path, taken: list[int]) -> None:
    stream, ahead = Stream(tmp_path), EncodingAhead(AT_ONCE, max_bytes=1)
    for _ in range(6):
        stream.run(ahead)
    assert taken == [2], "one row group, after which there is no room"
    assert len(stream.files()) == 1


def handle(rows: int, length: int) -> RowsHandle:
    return RowsHandle(name="n", offset=0, length=length, crc32c=0, rows=rows)


def test_a_row_group_ends_before_the_piece_that_does_not_fit() -> None:
    long = 20 * 1024 * 1024
    assert first_full_group([handle(1, 1)] * 3, 3) == ()
    assert first_full_group([handle(1, 1)] * 4, 3) == (handle(1, 1),) * 3
    assert first_full_group([handle(1, long)] * 2, 3) == (handle(1, long),)
    assert first_full_group([handle(9, 1), handle(1, 1)], 3) == (handle(9, 1),)
    assert first_full_group([], 3) == ()
    tables = [pa.table({"x": range(count)}) for count in (2, 1, 1, 9, 1)]
    assert [group.num_rows for group in row_groups(tables, 3)] == [3, 1, 9, 1]
    wide = pa.table({"x": [b"x" * long]})
    assert [group.num_rows for group in row_groups([wide, wide, wide], 100)] == [1, 1, 1]


def test_files_that_are_no_longer_open_are_forgotten(tmp_path: Path) -> None:
    stream, ahead = Stream(tmp_path), EncodingAhead(AT_ONCE)
    stream.run(ahead)
    stream.run(ahead)
    stream.run(ahead)
    (file,) = stream.run(ahead)
    store: BlobStore = stream.root
    ahead.go_on(stream.output, Segments(store, system_environment()), [])
    assert ahead.take(file.target, stream.output, file.pending) is None


@pytest.mark.parametrize("change", ["nothing", "a piece", "settings", "another file"])
def test_only_what_a_file_still_begins_with_is_used(tmp_path: Path, change: str) -> None:
    stream, ahead = Stream(tmp_path), EncodingAhead(AT_ONCE)
    for _ in range(4):
        (file,) = stream.run(ahead)
    target, output, pending = file.target, stream.output, file.pending
    if change == "a piece":
        pending = (pending[0], handle(ROWS, 400_000), *pending[2:])
    elif change == "settings":
        output = FileOutput(url=output.url, row_group_rows=100_000, rolling=output.rolling, compression="zstd")
    elif change == "another file":
        target = "part-0.parquet"
    begun = ahead.take(target, output, pending)
    assert (begun is not None) == (change == "nothing")
    if begun is not None:
        assert begun.handles == pending[:2]


def test_rows_that_may_be_joined_are_not_encoded_and_none_after_them(tmp_path: Path, taken: list[int]) -> None:
    stream, ahead = Stream(tmp_path, row_group_rows=10), EncodingAhead(AT_ONCE)
    for rows in (ROWS, 300, ROWS, ROWS, ROWS, ROWS, ROWS):
        stream.run(ahead, tasks=[rows])
    assert taken == [0], "the first piece is not known to be a whole row group before a piece follows that stays"


def test_where_no_thread_is_to_be_had_nothing_fails(tmp_path: Path, taken: list[int]) -> None:
    stream, ahead = Stream(tmp_path), EncodingAhead(Environment(executors=_NoThreads()))
    for _ in range(6):
        stream.run(ahead)
    assert taken == [0]
    assert len(stream.files()) == 1


def test_rows_are_read_from_the_copies_of_the_host(tmp_path: Path) -> None:
    root = InstrumentedStore(open_store("memory://ahead-from-copies"))
    segments = Segments(root, system_environment(), HostCache(str(tmp_path / "copies"), 100_000_000))
    output = FileOutput(url="memory://out", row_group_rows=ROWS)
    segment = segments.writer()
    handles = [add_rows(segment, "file", pa.table({"x": range(ROWS)})) for _ in range(2)]
    placement = segment.finish()
    pending = tuple(map(placement.of, handles))
    file = OpenFile(
        target="part-1.parquet",
        subtask=0,
        layout="",
        opened_at=0,
        written_at=0,
        rows=2 * ROWS,
        bytes=1,
        pending=pending,
    )
    ahead = EncodingAhead(AT_ONCE)
    ahead.go_on(output, segments, [file])
    begun = ahead.take(file.target, output, pending)
    assert begun is not None
    assert begun.handles == pending[:1]
    assert root.calls["get_range"] == 0
