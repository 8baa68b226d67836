"""The write path of sections: one object for all of them, none where they are few, several where they are many."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.checksum import crc32c
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.changelog import RetryPolicy
from stateline.changelog.host_cache import HostCache
from stateline.changelog.racing import raced
from stateline.changelog.segment import Section, SectionKind, read_directory
from stateline.changelog.segment_writer import Segments
from stateline.environment import system_environment
from stateline.errors import AccessDeniedError, UnavailableError
from stateline.handles import RowsHandle
from stateline.state import KeyedStateBackend, StateSchema


@pytest.fixture
def store():
    yield InstrumentedStore(MemoryStore("segment-writer"))
    MemoryStore.forget("segment-writer")


def stream(*values: int) -> bytes:
    sink = pa.BufferOutputStream()
    rows = pa.table({"x": pa.array(values, pa.int64())})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def add(writer, owner: str, *values: int) -> RowsHandle:
    data = stream(*values)
    halves = (data[:100], data[100:])
    return writer.add(
        Section(SectionKind.ROWS, owner, 7, halves, len(data), crc32c(data)), RowsHandle, rows=len(values)
    )


def rows_at(store, handle: RowsHandle) -> list[int]:
    data = handle.data or store.get_range(handle.name, handle.offset, handle.end)
    assert crc32c(data) == handle.crc32c
    return pa.ipc.open_stream(data).read_all()["x"].to_pylist()


def test_all_sections_of_a_writer_are_one_object(store):
    writer = Segments(store, system_environment()).writer()
    handles = [add(writer, f"owner-{number}", *range(number + 1)) for number in range(5)]
    assert not store.calls, "nothing is written before it is finished"
    placement = writer.finish()
    assert store.calls == {"put_all_if_absent": 1} or store.calls == {"put_if_absent": 1}
    placed = [placement.of(handle) for handle in handles]
    assert {handle.name for handle in placed} == {info.name for info in store.list("shared/")}
    assert [rows_at(store, handle) for handle in placed] == [list(range(number + 1)) for number in range(5)]
    found = read_directory(store, placed[0].name).entries
    assert [(entry.owner, entry.number, entry.offset, entry.length) for entry in found] == [
        (f"owner-{number}", 7, handle.offset, handle.length) for number, handle in enumerate(placed)
    ]


def test_a_writer_without_sections_makes_no_object(store):
    assert Segments(store, system_environment()).writer().finish().bytes_written == 0
    assert not store.calls


@pytest.mark.parametrize(("spare", "is_inline"), [(0, True), (-1, False)])
def test_sections_up_to_the_threshold_travel_with_their_handles(store, spare, is_inline):
    threshold = len(stream(1)) + len(stream(1, 2)) + spare
    writer = Segments(store, system_environment()).writer(threshold)
    handles = [add(writer, "a", 1), add(writer, "b", 1, 2)]
    placement = writer.finish()
    placed = [placement.of(handle) for handle in handles]
    assert [handle.is_inline for handle in placed] == [is_inline] * 2
    assert bool(store.calls) is not is_inline
    assert [rows_at(store, handle) for handle in placed] == [[1], [1, 2]]
    other = RowsHandle(name="shared/other", offset=0, length=1, crc32c=0, rows=1)
    assert placement.of(other) == other, "what another writer made stays as it is"


def test_more_than_a_segment_holds_goes_while_the_next_one_is_filled(store):
    writer = Segments(store, system_environment(), segment_bytes=2 * len(stream(1)) + 64).writer(1 << 20)
    handles = [add(writer, "a", number) for number in range(5)]
    assert len(list(store.list("shared/"))) == 2, "full ones are there already"
    placement = writer.finish()
    placed = [placement.of(handle) for handle in handles]
    assert [len(read_directory(store, name).entries) for name in dict.fromkeys(handle.name for handle in placed)] == [
        2,
        2,
        1,
    ]
    assert [rows_at(store, handle) for handle in placed] == [[number] for number in range(5)]


class Elsewhere(MemoryStore):
    """A store that is not this host's."""

    @property
    def url(self) -> str:
        return "s3://bucket"


class Stalling(Elsewhere):
    """Its first write waits until it is told to go on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.go_on = threading.Event()
        self.names: list[str] = []
        self.deleted = threading.Event()

    def put_all_if_absent(self, name, pieces, **more):
        self.names.append(name)
        if len(self.names) == 1:
            self.go_on.wait(60)
        return super().put_all_if_absent(name, pieces, **more)

    def delete(self, names):
        super().delete(names)
        self.deleted.set()


def test_a_late_upload_is_raced_under_a_fresh_name_and_its_result_is_thrown_away():
    store = Stalling("segment-writer-stalls")
    racing = raced(store, RetryPolicy.fixed(3, 0.05, 0), system_environment())
    writer = Segments(racing, system_environment()).writer()
    handle = add(writer, "a", 1, 2, 3)
    placed = writer.finish().of(handle)
    assert len(set(store.names)) == 2
    assert placed.name == store.names[1], "the first is still on its way"
    assert rows_at(store, placed) == [1, 2, 3]
    store.go_on.set()
    assert store.deleted.wait(60)
    assert [info.name for info in store.list("shared/")] == [placed.name]
    MemoryStore.forget("segment-writer-stalls")


def test_a_backend_of_keyed_state_races_what_it_writes():
    store = Stalling("segment-writer-backend")
    with KeyedStateBackend.open(store) as backend:
        state = backend.state("counts", StateSchema.of(pa.schema({"key": pa.int64(), "count": pa.int64()}), ["key"]))
        state.put(pa.table({"key": [1], "count": [2]}))
        backend.checkpoint()
        assert len(store.names) == 2
    store.go_on.set()
    assert store.deleted.wait(60)
    MemoryStore.forget("segment-writer-backend")


def test_a_slow_upload_is_never_given_up_for_being_late():
    class Slow(Elsewhere):
        def put_all_if_absent(self, name, pieces, **more):
            time.sleep(0.4)
            return super().put_all_if_absent(name, pieces, **more)

    store = Slow("segment-writer-slow")
    racing = raced(store, RetryPolicy.fixed(3, 0.01, 0), system_environment())
    writer = Segments(racing, system_environment()).writer()
    handle = add(writer, "a", 1)
    assert rows_at(store, writer.finish().of(handle)) == [1]
    MemoryStore.forget("segment-writer-slow")


def test_an_upload_that_fails_raises_what_the_store_says_after_its_own_retries():
    class Failing(Elsewhere):
        def put_all_if_absent(self, name, pieces, **more):
            raise UnavailableError("no", operation="put", subject=name)

    racing = raced(Failing("segment-writer-fails"), RetryPolicy.fixed(3, 0.05, 0), system_environment())
    writer = Segments(racing, system_environment()).writer()
    add(writer, "a", 1)
    with pytest.raises(UnavailableError):
        writer.finish()


def test_a_failure_is_told_when_no_other_segment_is_under_way():
    class FirstRefused(Elsewhere):
        refused, go_on, landed = threading.Event(), threading.Event(), []

        def put_all_if_absent(self, name, pieces, **more):
            if not self.refused.is_set():
                self.refused.set()
                raise AccessDeniedError("no", operation="put", subject=name)
            self.go_on.wait(60)
            self.landed.append(name)
            return super().put_all_if_absent(name, pieces, **more)

    store = FirstRefused("segment-writer-first-refused")
    environment = system_environment()
    segments = Segments(raced(store, RetryPolicy.fixed(2, 60, 0), environment), environment, segment_bytes=1)
    writer = segments.writer()
    add(writer, "a", 1)
    add(writer, "b", 2)
    assert store.refused.wait(60)
    threading.Timer(0.2, store.go_on.set).start()
    with pytest.raises(AccessDeniedError):
        writer.finish()
    assert len(store.landed) == 1
    with pytest.raises(AccessDeniedError):
        writer.finish()
    MemoryStore.forget("segment-writer-first-refused")


def test_an_inline_section_is_known_by_a_fresh_name_also_where_no_host_has_a_copy(store, tmp_path):
    names = set()
    for copies in (None, HostCache(tmp_path, 10**6)):
        writer = Segments(store, system_environment(), copies).writer(inline_bytes=10**6)
        handle = add(writer, "a", 1)
        names.add(writer.finish().of(handle).identity)
    assert len(names) == 2


def test_without_racing_an_error_of_the_store_comes_as_it_is(store):
    class Refusing(MemoryStore):
        def put_all_if_absent(self, name, pieces, **more):
            raise AccessDeniedError("no", operation="put", subject=name)

    writer = Segments(Refusing("segment-writer-refuses"), system_environment()).writer()
    add(writer, "a", 1)
    with pytest.raises(AccessDeniedError):
        writer.finish()


def test_a_copy_is_kept_at_the_moment_of_the_upload(store, tmp_path):
    cache = HostCache(tmp_path, 10**6, copy_timeout=60)
    writer = Segments(store, system_environment(), copies=cache).writer()
    handles = [add(writer, "a", 1, 2), add(writer, "b", 3)]
    placement = writer.finish()
    found = [copy_of(cache, store, placement.of(handle)) for handle in handles]
    assert found == [[stream(1, 2)], [stream(3)]]


def test_the_copy_of_a_raced_upload_has_the_name_of_the_winner(tmp_path):
    store = Stalling("segment-writer-raced-copy")
    cache = HostCache(tmp_path, 10**6, copy_timeout=60)
    writer = Segments(
        raced(store, RetryPolicy.fixed(3, 0.05, 0), system_environment()), system_environment(), cache
    ).writer()
    handle = add(writer, "a", 1)
    placed = writer.finish().of(handle)
    assert placed.name == store.names[1]
    assert copy_of(cache, store, placed) == [stream(1)]
    store.go_on.set()
    assert store.deleted.wait(60)
    MemoryStore.forget("segment-writer-raced-copy")


def test_a_failed_upload_leaves_no_copy(tmp_path):
    class Refusing(MemoryStore):
        def put_all_if_absent(self, name, pieces, **more):
            raise AccessDeniedError("no", operation="put", subject=name)

    cache = HostCache(tmp_path, 10**6)
    writer = Segments(Refusing("segment-writer-refuses"), system_environment(), copies=cache).writer()
    add(writer, "a", 1)
    with pytest.raises(AccessDeniedError):
        writer.finish()
    cache.copier._executor.close()  # Waits for what is under way.
    assert list(tmp_path.glob("*/*.copy")) == []


def test_a_store_on_this_host_needs_no_copies(tmp_path):
    cache = HostCache(tmp_path / "copies", 10**6)
    writer = Segments(LocalStore(tmp_path / "root"), system_environment(), copies=cache).writer()
    add(writer, "a", 1)
    writer.finish()
    assert not (tmp_path / "copies").exists()


def copy_of(cache, store, handle):
    return [bytes(found.buffer) for found in cache.find(store.url, handle.name, handle.offset, handle.length)]


@pytest.mark.parametrize(("kinds", "soon"), [("RR", True), ("RRW", True), ("RWW", False), ("W", False)])
def test_a_segment_that_is_mostly_runs_will_be_read_soon(kinds, soon):
    class Watched(MemoryStore):
        def put_all_if_absent(self, name, pieces, **more):
            asked.append(more)
            return super().put_all_if_absent(name, pieces, **more)

    asked = []
    writer = Segments(Watched("segment-writer-soon"), system_environment()).writer()
    data = b"x" * 100_000
    for kind in kinds:
        section = Section(
            SectionKind.RUN if kind == "R" else SectionKind.ROWS, "a", 7, (data,), len(data), crc32c(data)
        )
        writer.add(section, RowsHandle, rows=1)
    writer.finish()
    assert asked == [{"read_soon": soon}]
    MemoryStore.forget("segment-writer-soon")
