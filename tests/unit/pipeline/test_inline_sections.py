"""Small checkpoints: what subtasks changed comes with their results, and goes into the record or into one object."""

from __future__ import annotations

import dataclasses
import shutil

import msgspec
import pyarrow as pa
import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.changelog.host_cache import OWN_FOLDER, HostCache
from stateline.changelog.segment import SectionKind, read_directory
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import CheckpointStore, create_savepoint, start_from_savepoint
from stateline.checkpoint.packing import packed
from stateline.environment import system_environment
from stateline.errors import CorruptDataError
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.state import aggregate
from stateline.state.stored import StoredState
from tests.unit.pipeline.engine import Engine

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
INLINE = 64 * 1024


@pytest.fixture
def root():
    yield InstrumentedStore(MemoryStore("inline-sections"))
    MemoryStore.forget("inline-sections")


def program():
    return AggregateProgram.bind(SCHEMA, ["key"], {"n": aggregate.count(), "total": aggregate.sum("value")})


def rows(number, count=20):
    return [{"key": f"k{(number * 3 + each) % 150}", "value": number} for each in range(count)]


def state_of(engine):
    stored = StoredState.of(engine.root, engine.coordinator.newest)
    batches = stored.reader().scan(stored.whole())
    return sorted((row["key"], row["n"], row["total"]) for batch in batches for row in batch.to_pylist())


def expected(batches):
    sums = {}
    for row in (row for batch in batches for row in batch):
        n, total = sums.get(row["key"], (0, 0))
        sums[row["key"]] = n + 1, total + row["value"]
    return sorted((key, *values) for key, values in sums.items())


def requests(store):
    return sum(count for name, count in store.calls.items() if name.startswith("put"))


@pytest.mark.parametrize(
    ("inline_bytes", "record_bytes", "objects"), [(0, 0, 8), (INLINE, 0, 1), (INLINE, 1 << 20, 0), (1, 1 << 20, 8)]
)
def test_a_checkpoint_of_little_costs_a_record_and_one_object_at_most(root, inline_bytes, record_bytes, objects):
    engine = Engine(
        program(), SCHEMA, root=root, parallelism=8, inline_bytes=inline_bytes, record_bytes=record_bytes, deliver=print
    )
    batches = [rows(number, 200) for number in range(3)]
    for number, batch in enumerate(batches):
        engine.run(batch)
        if number == 0:
            names = [info.name for info in root.list("shared/")]
            assert len(names) == objects
    assert state_of(engine) == expected(batches)


def test_state_that_travels_inline_goes_on_with_later_records_and_after_a_restart(root):
    batches = [rows(number) for number in range(40)]
    for start in range(0, 40, 10):
        engine = Engine(
            program(), SCHEMA, root=root, parallelism=2 + start // 10, inline_bytes=INLINE, record_bytes=12_000
        )
        for batch in batches[start : start + 10]:
            record = engine.run(batch)
            inline = [section for section in record.sections() if section.is_inline]
            assert sum(section.length for section in inline) <= 12_000
    assert state_of(engine) == expected(batches)
    delivered = [row for rows in engine.output.values() for row in rows]
    assert len(delivered) == sum(len({row["key"] for row in batch}) for batch in batches[30:])


def test_packed_sections_are_named_by_their_owners(root):
    engine = Engine(program(), SCHEMA, root=root, parallelism=4, inline_bytes=INLINE)
    record = engine.run(rows(0))
    (name,) = set(record.object_names())
    entries = read_directory(root, name).entries
    assert {(entry.kind, entry.owner) for entry in entries} == {(SectionKind.RUN, "op"), (SectionKind.ROWS, "op")}
    assert {entry.number for entry in entries} == {0}
    assert sorted((entry.offset, entry.length, entry.crc32c) for entry in entries) == sorted(
        (section.offset, section.length, section.crc32c) for section in record.sections()
    )


def test_a_section_that_was_damaged_on_its_way_is_refused(root):
    engine = Engine(program(), SCHEMA, root=root, inline_bytes=INLINE, record_bytes=1 << 20)
    record = engine.run(rows(0))
    operator = record.operators[0]
    subtask = operator.subtasks[0]
    run = subtask.runs[0]
    damaged = msgspec.structs.replace(run, data=bytes([run.data[0] ^ 1]) + run.data[1:])
    subtasks = (msgspec.structs.replace(subtask, runs=(damaged,)), *operator.subtasks[1:])
    broken = msgspec.structs.replace(record, operators=(msgspec.structs.replace(operator, subtasks=subtasks),))
    with pytest.raises(CorruptDataError, match="a section of op"):
        packed(broken, Segments(root, system_environment()), 0)


def test_an_open_file_has_one_inline_piece_however_many_batches_it_grows(root):
    files = FileOutput(url="memory://inline-sections-out", format="jsonl", rolling=RollingPolicy())
    engine = Engine(program(), SCHEMA, root=root, files=files, inline_bytes=INLINE, record_bytes=1 << 20)
    for number in range(12):
        record = engine.run(rows(number, 3))
        assert all(len(file.pending) == 1 and file.pending[0].is_inline for file in record.outputs[0].open)
    assert sum(file.pending[0].rows for file in record.outputs[0].open) == 36
    assert not list(root.list("shared/"))


def test_the_driver_takes_a_bounded_sum_of_all_subtasks():
    small = Engine(program(), SCHEMA, parallelism=2, inline_bytes=INLINE).plan
    assert small.subtask_inline_bytes == INLINE
    large = dataclasses.replace(small, parallelism=32_768, max_parallelism=32_768)
    assert large.subtask_inline_bytes * 32_768 <= 256 * 1024 * 1024


def test_a_host_finds_its_copies_of_sections_that_the_driver_packed(root, tmp_path):
    """Not by the name of the segment, which the host that made them never knew."""
    cache = HostCache(tmp_path, 1 << 30)
    engine = Engine(program(), SCHEMA, root=root, inline_bytes=INLINE, cache=lambda subtask: cache)
    for number in range(4):
        root.reset()
        record = engine.run(rows(number))
        delivered = [handle for delivery in record.deliveries for handle in delivery.rows]
        assert root.calls["get_range"] == len(delivered), "the driver's function reads its rows, tasks read nothing"
    assert state_of(engine) == expected([rows(number) for number in range(4)])
    shutil.rmtree(tmp_path / OWN_FOLDER)
    root.reset()
    engine.run(rows(4))
    assert root.calls["get_range"] > len(delivered)


def test_a_savepoint_takes_inline_sections_along(root):
    engine = Engine(program(), SCHEMA, root=root, inline_bytes=INLINE, record_bytes=1 << 20)
    for number in range(3):
        record = engine.run(rows(number))
    assert any(section.is_inline for section in record.sections())
    kept, fresh = MemoryStore("inline-sections-kept"), CheckpointStore(MemoryStore("inline-sections-fresh"))
    savepoint = create_savepoint(engine.checkpoints, kept)
    first = fresh.publish(start_from_savepoint(savepoint, fresh, query_id="second"))
    stored = StoredState.of(fresh.store, first)
    found = sorted(
        (row["key"], row["n"], row["total"])
        for batch in stored.reader().scan(stored.whole())
        for row in batch.to_pylist()
    )
    assert found == expected([rows(number) for number in range(3)])
    for name in ("inline-sections-kept", "inline-sections-fresh"):
        MemoryStore.forget(name)
