"""State streams on every store: inline or file by size alone, one object per file, nothing left of what is given up."""

import contextlib
import pickle
import threading

import pytest
from checkpoint_kit import PiecesOfOneTarget
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateline.blob import InstrumentedStore, StoreDecorator
from stateline.blob.checksum import crc32c
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import (
    MAX_FILE_STATE_THRESHOLD,
    Checkpoint,
    CheckpointedStateScope,
    CheckpointStore,
    CheckpointStreamFactory,
    FileHandle,
    InlineHandle,
    open_state,
    state_handles,
)
from stateline.checkpoint import stream_factory as module
from stateline.environment import SystemIds
from stateline.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ClosedError,
    CorruptDataError,
    DataLossError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    UnavailableError,
)

EXCLUSIVE, SHARED = CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED


def memory_store(tmp_path):
    return MemoryStore(SystemIds().new_id())


def local_store(tmp_path):
    return LocalStore(tmp_path / "root", LocalStoreSettings(fsync=False))


STORES = {"memory": memory_store, "local": local_store}
"""Add a backend here and everything below runs on it."""


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def factory(store, threshold=100, write_buffer_size=0, **more):
    return CheckpointStreamFactory(store, "chk-7", "shared", threshold, write_buffer_size, **more)


def stream(store, threshold=100, scope=EXCLUSIVE, **more):
    return factory(store, threshold, **more).create_checkpoint_state_output_stream(scope)


def names(store):
    return sorted(info.name for info in store.list(""))


def read(handle):
    with handle.open() as file:
        return file.read()


class Faulty(StoreDecorator):
    """Raises the given errors, one for each creation or clean-up, before or after the effect."""

    def __init__(self, inner, errors, operations=("put_if_absent", "publish"), *, after=False):
        super().__init__(inner)
        self.errors, self.operations, self.after, self.tried = list(errors), operations, after, []

    def _do(self, operation, name, call):
        if operation not in self.operations or not self.errors:
            return call()
        self.tried.append(name)
        if self.after:
            call()
        raise self.errors.pop(0)

    def put_if_absent(self, name, data):
        return self._do("put_if_absent", name, lambda: self.inner.put_if_absent(name, data))

    def publish(self, target, parts, nonce):
        return self._do("publish", target, lambda: self.inner.publish(target, parts, nonce))

    def stage(self, target, data):
        return self._do("stage", target, lambda: self.inner.stage(target, data))

    def discard(self, parts):
        return self._do("discard", "", lambda: self.inner.discard(parts))

    def delete(self, names):
        return self._do("delete", names, lambda: self.inner.delete(names))


class Keeping(StoreDecorator):
    """Keeps every view that it was given, and errors that it has cured, with the frames of all callers, for ever."""

    def __init__(self, inner, *, failures=0):
        super().__init__(inner)
        self.kept, self.failures = [], failures

    def stage(self, target, data):
        self.kept.append(memoryview(data))
        try:
            raise UnavailableError("busy", operation="stage", subject=target)
        except UnavailableError as error:
            self.kept.append(error)
            if self.failures:
                self.failures -= 1
                raise
        return self.inner.stage(target, data)


# -- inline or file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", CheckpointedStateScope)
@pytest.mark.parametrize("pieces", [[], [b""], [b"", b""]])
def test_no_bytes_are_no_handle_and_no_file(store, scope, pieces):
    out = stream(store, 0, scope)
    for piece in pieces:
        assert out.write(piece) == 0
    out.flush()
    out.sync()
    assert out.close_and_get_handle() is None
    assert names(store) == []


@pytest.mark.parametrize("threshold", [0, 1, 99, 100, 20 * 1024, MAX_FILE_STATE_THRESHOLD])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("step", [1, None])
def test_the_threshold_is_the_largest_inline_size(store, threshold, beyond, step):
    size = threshold + beyond
    if size < 1 or (step and size > 1000):
        return
    data = bytes(index % 251 for index in range(size))
    out = stream(store, threshold)
    for start in range(0, size, step or size):
        out.write(data[start : start + (step or size)])
    handle = out.close_and_get_handle()
    assert isinstance(handle, InlineHandle if beyond <= 0 else FileHandle)
    assert (handle.size, read(handle)) == (size, data)
    assert names(store) == ([] if beyond <= 0 else [handle.name])


operations = st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(["flush", "sync"])), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(operations, st.integers(0, 60), st.integers(0, 60), st.sampled_from(CheckpointedStateScope))
def test_size_alone_decides_however_the_bytes_come(store, operations, threshold, buffer_bytes, scope):
    out = stream(store, threshold, scope, write_buffer_size=buffer_bytes)
    out._piece_bytes = threshold + 1 + buffer_bytes
    data = b""
    for operation in operations:
        if isinstance(operation, bytes):
            out.write(operation)
            data += operation
        else:
            getattr(out, operation)()
        assert out.position == len(data)
    handle = out.close_and_get_handle()
    if not data:
        assert handle is None
    else:
        assert isinstance(handle, InlineHandle if len(data) <= threshold else FileHandle)
        assert (read(handle), handle.size, out.position) == (data, len(data), len(data))
        handle.discard()
    assert names(store) == []


def test_every_kind_of_buffer_is_taken_by_its_bytes(store):
    out = stream(store)
    assert [
        out.write(piece) for piece in (b"a", bytearray(b"bc"), memoryview(b"de"), memoryview(b"\1\0\2\0").cast("H"))
    ] == [
        1,
        2,
        2,
        4,
    ]
    assert out.close_and_get_handle() == InlineHandle(b"abcde\1\0\2\0")


def test_a_buffer_may_be_reused_after_the_write(store):
    data = bytearray(b"x" * 200)
    out = stream(store)
    out.write(data)
    data[:] = b"y" * 200
    assert read(out.close_and_get_handle()) == b"x" * 200


# -- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", CheckpointedStateScope)
def test_a_file_costs_one_create_and_inline_state_costs_nothing(store, scope):
    counted = InstrumentedStore(store)
    makes = factory(counted)
    assert counted.calls == {}
    for size, calls in ((100, {}), (101, {"put_if_absent": 1}), (1_000_000, {"put_if_absent": 2})):
        out = makes.create_checkpoint_state_output_stream(scope)
        out.write(b"x" * size)
        assert isinstance(out.close_and_get_handle().size, int)
        out.close()
        assert counted.calls == calls


def test_no_folder_is_made_before_there_is_a_file(tmp_path):
    out = stream(LocalStore(tmp_path / "root"))
    out.write(b"x" * 100)
    out.flush()
    out.sync()
    out.close_and_get_handle()
    assert not (tmp_path / "root").exists()


def test_a_large_file_goes_through_pieces_and_leaves_none(store, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    counted = InstrumentedStore(store)
    out = stream(counted, 100)
    data = bytes(range(250)) * 14
    for start in range(0, len(data), 300):
        out.write(data[start : start + 300])
    handle = out.close_and_get_handle()
    assert counted.calls == {"stage": 3, "publish": 1, "discard": 1}
    assert (read(handle), handle.crc32c, names(store)) == (data, crc32c(data), [handle.name])


def test_flush_makes_no_small_files(store):
    counted = InstrumentedStore(store)
    out = stream(counted, 100)
    out.write(b"x" * 100)
    out.flush()
    out.sync()
    assert counted.calls == {}
    out.write(b"x")
    out.flush()
    out.flush()
    assert counted.calls == {"stage": 1}


# -- names ----------------------------------------------------------------------------------------------------------


def test_exclusive_handles_are_relative_and_shared_ones_are_absolute(store):
    for scope, folder, relative in ((EXCLUSIVE, "chk-7", True), (SHARED, "shared", False)):
        out = stream(store, 0, scope)
        out.write(b"state")
        handle = out.close_and_get_handle()
        assert handle.name.startswith(folder + "/")
        assert handle.state.relative is relative
        assert handle.state.name == (handle.name.removeprefix(folder + "/") if relative else handle.name)
        assert open_state(handle.state, store, "chk-7") == handle


def test_a_relative_handle_moves_with_its_folder_and_an_absolute_one_stays(store):
    handles = []
    for scope in (EXCLUSIVE, SHARED):
        out = stream(store, 0, scope)
        out.write(scope.value.encode())
        handles.append(out.close_and_get_handle())
    moved = handles[0].name.replace("chk-7/", "backup/chk-7/")
    store.put(moved, store.get(handles[0].name))
    store.delete([handles[0].name])
    assert [read(open_state(handle.state, store, "backup/chk-7")) for handle in handles] == [b"exclusive", b"shared"]


def test_handles_survive_the_record_of_their_checkpoint(store):
    handles = {}
    for word, threshold, scope in (("inline", 100, SHARED), ("own", 0, EXCLUSIVE), ("common", 0, SHARED)):
        out = stream(store, threshold, scope)
        out.write(word.encode())
        handles[word] = out.close_and_get_handle()
    record = Checkpoint(
        checkpoint_id=7,
        batch_id=7,
        query_id="q",
        offsets_digest="d",
        max_parallelism=1,
        parallelism=1,
        nonce="n",
        created_at=0.0,
        states={word: handle.state for word, handle in handles.items()},
    )
    checkpoints = CheckpointStore(store)
    checkpoints.publish(record)
    found = CheckpointStore(store).latest()
    assert {word: open_state(state, store, found.folder) for word, state in found.states.items()} == handles
    checkpoints.publish(
        Checkpoint(
            **{name: getattr(record, name) for name in record.__struct_fields__}
            | {"checkpoint_id": 8, "nonce": "m", "states": {"common": handles["common"].state}}
        )
    )
    checkpoints.retain(1)
    assert handles["common"].name in names(store)
    assert handles["own"].name not in names(store)


# -- giving up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 101, 5000])
def test_a_stream_that_is_closed_without_its_handle_leaves_nothing(store, size, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    out = stream(store)
    out.write(b"x" * size)
    out.flush()
    out.close()
    out.close()
    assert names(store) == []
    with pytest.raises(ClosedError):
        out.close_and_get_handle()


def test_leaving_the_with_block_gives_the_stream_up(store):
    with stream(store) as out:
        out.write(b"x" * 101)
        out.flush()
        assert names(store) != []
    assert names(store) == []


def test_a_file_is_kept_after_its_handle_was_taken(store):
    with stream(store, 0) as out:
        out.write(b"state")
        handle = out.close_and_get_handle()
    out.close()
    assert read(handle) == b"state"


@pytest.mark.parametrize("end", ["close", "close_and_get_handle"])
def test_nothing_can_be_done_with_a_closed_stream(store, end):
    out = stream(store)
    out.write(b"x" * 5)
    getattr(out, end)()
    for call in (lambda: out.write(b"x"), out.flush, out.sync, out.close_and_get_handle):
        with pytest.raises(ClosedError):
            call()
    assert out.position == 5
    assert names(store) == []


@pytest.mark.parametrize("size", [101, 5000])
@pytest.mark.parametrize("error", [AlreadyExistsError, UnavailableError, OutcomeUnknownError])
def test_creation_is_tried_ten_times_each_under_a_new_name(store, size, error, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    faulty = Faulty(store, [error("no")] * 9)
    out = stream(faulty)
    out.write(b"x" * size)
    handle = out.close_and_get_handle()
    assert len({*faulty.tried, handle.name}) == 10
    assert names(store) == [handle.name]

    out = stream(Faulty(store, [error("no")] * 10))
    out.write(b"x" * size)
    with pytest.raises(error) as caught:
        out.close_and_get_handle()
    assert "10 names were tried" in caught.value.__notes__[0]
    assert names(store) == [handle.name]
    with pytest.raises(ClosedError):
        out.close_and_get_handle()


def test_pieces_are_staged_for_the_name_that_the_file_gets(store, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    bound = PiecesOfOneTarget(store)
    out = stream(bound)
    for _ in range(5):
        out.write(b"x" * 700)
    out.flush()
    handle = out.close_and_get_handle()
    assert read(handle) == b"x" * 3500
    assert set(bound.target_of.values()) == {handle.name}


@pytest.mark.parametrize("refusal", [DataLossError, InvalidInputError])
def test_a_failure_is_told_as_it_was_where_pieces_fit_no_other_name(store, monkeypatch, refusal):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    out = stream(Faulty(PiecesOfOneTarget(store, refusal), [UnavailableError("the first failure")]))
    out.write(b"x" * 5000)
    with pytest.raises(UnavailableError, match="the first failure"):
        out.close_and_get_handle()
    assert names(store) == []


def test_a_file_whose_answer_was_lost_is_deleted_and_another_one_made(store):
    faulty = Faulty(store, [OutcomeUnknownError("lost")], after=True)
    out = stream(faulty)
    out.write(b"x" * 101)
    handle = out.close_and_get_handle()
    assert names(store) == [handle.name]
    assert faulty.tried != [handle.name]


def test_a_name_that_is_taken_is_never_overwritten_and_never_deleted(store):
    class OneName(SystemIds):
        def __init__(self):
            self.given = iter(["taken", "free"])

        def new_id(self):
            return next(self.given)

    from stateline.environment import Environment

    store.put("chk-7/taken", b"foreign")
    out = stream(store, 0, environment=Environment(ids=OneName()))
    out.write(b"x")
    assert out.close_and_get_handle().name == "chk-7/free"
    assert store.get("chk-7/taken") == b"foreign"


def test_what_no_other_name_can_mend_fails_at_once(store):
    faulty = Faulty(store, [AccessDeniedError("no")] * 2)
    out = stream(faulty)
    out.write(b"x" * 101)
    with pytest.raises(AccessDeniedError):
        out.close_and_get_handle()
    assert len(faulty.tried) == 1
    assert names(store) == []


def test_clean_up_that_fails_is_logged_and_never_raised(store, monkeypatch, caplog):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    out = stream(Faulty(store, [UnavailableError("no")], ["discard"]))
    out.write(b"x" * 1000)
    out.close()
    assert "stay until the next sweep" in caplog.text
    out = stream(Faulty(store, [OutcomeUnknownError("no"), UnavailableError("no")], ["put_if_absent", "delete"]))
    out.write(b"x" * 101)
    assert read(out.close_and_get_handle()) == b"x" * 101
    assert "a file that nobody names" in caplog.text


def test_a_piece_that_cannot_be_staged_is_an_error_and_nothing_stays(store, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    out = stream(Faulty(store, [UnavailableError("no")], ["stage"]))
    with pytest.raises(UnavailableError):
        out.write(b"x" * 1000)
    out.close()
    assert names(store) == []


@pytest.mark.parametrize("error", [UnavailableError("no"), KeyboardInterrupt()])
def test_a_write_that_failed_has_accepted_nothing_and_may_be_repeated(store, error, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 100)
    out = stream(Faulty(store, [error, error], ["stage"]), 10)
    out.write(b"a" * 90)
    for _ in range(2):
        with pytest.raises(type(error)):
            out.write(b"b" * 20)
        assert out.position == 90
    out.write(b"b" * 20)
    out.write(b"c")
    handle = out.close_and_get_handle()
    assert (read(handle), handle.size) == (b"a" * 90 + b"b" * 20 + b"c", 111)


@pytest.mark.parametrize("while_doing", ["close_and_get_handle", "flush"])
def test_a_concurrent_close_waits_and_leaks_nothing(store, while_doing, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    entered, go = threading.Event(), threading.Event()

    class Slow(StoreDecorator):
        def stage(self, target, data):
            entered.set()
            assert go.wait(30)
            return self.inner.stage(target, data)

        def put_if_absent(self, name, data):
            entered.set()
            assert go.wait(30)
            return self.inner.put_if_absent(name, data)

    out = stream(Slow(store))
    out.write(b"x" * 101)
    results = []
    writer = threading.Thread(target=lambda: results.append(getattr(out, while_doing)()))
    writer.start()
    assert entered.wait(30)
    closer = threading.Thread(target=out.close)
    closer.start()
    go.set()
    writer.join(30)
    closer.join(30)
    if while_doing == "flush":
        assert names(store) == []
    else:
        assert read(results[0]) == b"x" * 101  # The handle was given: the file is its owner's.


def test_many_threads_close_while_one_writes(store, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 300)
    for _ in range(20):
        out = stream(store)
        start = threading.Barrier(4)
        handles = []

        def write(out=out, start=start, handles=handles):
            start.wait(30)
            try:
                for _ in range(20):
                    out.write(b"x" * 50)
                handles.append(out.close_and_get_handle())
            except ClosedError:
                pass

        def close(out=out, start=start):
            start.wait(30)
            out.close()

        threads = [threading.Thread(target=write), *(threading.Thread(target=close) for _ in range(3))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for handle in handles:
            assert read(handle) == b"x" * 1000
            handle.discard()
        assert names(store) == []


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"file_state_size_threshold": -1},
        {"file_state_size_threshold": MAX_FILE_STATE_THRESHOLD + 1},
        {"file_state_size_threshold": "2MiB"},
        {"write_buffer_size": -1},
        {"checkpoint_dir": "../x"},
        {"checkpoint_dir": ""},
        {"checkpoint_dir": None},
        {"shared_dir": "/x"},
        {"shared_dir": 7},
        {"checkpoint_dir": ".inprogress"},
        {"shared_dir": ".inprogress/chk-7"},
        {"shared_dir": "floor"},
    ],
)
def test_bad_arguments_are_refused(store, arguments):
    with pytest.raises(InvalidInputError):
        CheckpointStreamFactory(store, **({"checkpoint_dir": "chk-7", "shared_dir": "shared"} | arguments))


@pytest.mark.parametrize("scope", ["exclusive", None])
def test_a_scope_that_is_none_is_refused(store, scope):
    makes = factory(store)
    with pytest.raises(InvalidInputError, match="scope"):
        makes.create_checkpoint_state_output_stream(scope)
    with pytest.raises(InvalidInputError, match="scope"):
        makes.duplicate([file_of(store, b"a")], scope)


def test_sizes_and_stores_may_be_strings(tmp_path):
    makes = CheckpointStreamFactory(f"file://{tmp_path}", "chk-7/", "shared", "1KiB", "4KiB")
    out = makes.create_checkpoint_state_output_stream(SHARED)
    out.write(b"x" * 1025)
    assert isinstance(out.close_and_get_handle(), FileHandle)


def test_the_largest_threshold_is_allowed(store):
    assert factory(store, MAX_FILE_STATE_THRESHOLD)


# -- handles --------------------------------------------------------------------------------------------------------


def file_of(store, data, scope=EXCLUSIVE):
    out = stream(store, 0, scope)
    out.write(data)
    return out.close_and_get_handle()


def test_a_file_can_be_read_in_pieces_and_from_anywhere(store):
    data = bytes(range(256)) * 20
    with file_of(store, data).open() as file:
        assert file.read(10) == data[:10]
        assert file.seek(-5, 2) == len(data) - 5
        assert file.read() == data[-5:]
        assert file.read() == b""
        assert file.seek(0) == 0
        assert file.seek(7) == 7
        assert file.seek(3, 1) == 10
        assert file.read(1) == data[10:11]
        assert file.tell() == 11
        assert file.seek(10**6) == 10**6
        assert file.read() == b""
        with pytest.raises(ValueError):
            file.seek(-1)


def test_a_file_is_read_as_a_whole_in_few_requests(store, monkeypatch):
    counted = InstrumentedStore(store)
    data = bytes(range(256)) * 4096 * 3
    handle = file_of(counted, data)
    counted.reset()
    assert read(handle) == data
    assert counted.calls == {"get_range": 1}
    monkeypatch.setattr(state_handles, "_READ_ALL_BYTES", 1000)
    with handle.open() as file:
        file.seek(len(data) - 2500)
        assert file.read() == data[-2500:]
        assert file.read() == b""


def test_a_changed_file_is_never_read_to_its_end(store):
    handle = file_of(store, b"state" * 100)
    for wrong in (b"State" + b"state" * 99, b"state" * 99, b""):
        store.put(handle.name, wrong)
        with pytest.raises(CorruptDataError):
            read(handle)
    store.delete([handle.name])
    with pytest.raises(NotFoundError):
        read(handle)


def test_discard_deletes_one_object_and_may_be_repeated(store):
    handle, neighbour = file_of(store, b"a"), file_of(store, b"b")
    for _ in range(2):
        handle.discard()
        assert names(store) == [neighbour.name]
    InlineHandle(b"x").discard()


def test_a_discard_that_failed_raises_only_if_the_file_is_still_there(store):
    for after in (False, True):
        handle = file_of(store, b"a")
        faulty = Faulty(store, [UnavailableError("no")], ["delete"], after=after)
        view = open_state(handle.state, faulty, "chk-7")
        if after:
            view.discard()
        else:
            with pytest.raises(StatelineError):
                view.discard()


# -- duplication ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", CheckpointedStateScope)
@pytest.mark.parametrize("original_scope", CheckpointedStateScope)
def test_files_are_duplicated_inside_the_store(store, scope, original_scope):
    counted = InstrumentedStore(store)
    out = CheckpointStreamFactory(counted, "chk-6", "old", 0).create_checkpoint_state_output_stream(original_scope)
    out.write(b"state")
    original = out.close_and_get_handle()
    makes = factory(counted)
    assert makes.can_fast_duplicate(original, scope)
    counted.reset()
    (copy,) = makes.duplicate([original], scope)
    assert (counted.calls, counted.bytes_read, counted.bytes_written) == ({"copy": 1}, 0, 0)
    assert copy.name == f"{'chk-7' if scope is EXCLUSIVE else 'shared'}/{original.name.rpartition('/')[2]}"
    assert copy.state.relative is (scope is EXCLUSIVE and original_scope is EXCLUSIVE)
    original.discard()
    assert (read(copy), copy.size) == (b"state", 5)


def test_a_file_is_duplicated_through_another_view_of_its_store(store):
    makes = factory(InstrumentedStore(store))
    (copy,) = makes.duplicate([file_of(InstrumentedStore(store), b"state", EXCLUSIVE)], SHARED)
    assert read(copy) == b"state"


def test_what_cannot_be_duplicated_is_refused_before_anything_is_copied(store):
    class Plain(StoreDecorator):
        copies_cheaply = False

    handle = file_of(store, b"a", SHARED)
    foreign = file_of(MemoryStore(SystemIds().new_id()), b"a", SHARED)
    for makes, handles in (
        (factory(store), [handle, InlineHandle(b"x")]),
        (factory(store), [handle, foreign]),
        (factory(Plain(store)), [handle]),
        (CheckpointStreamFactory(store, "shared", "chk-7"), [handle]),  # Into the folder where it is.
    ):
        assert not makes.can_fast_duplicate(handles[-1], EXCLUSIVE)
        with pytest.raises(InvalidInputError):
            makes.duplicate(handles, EXCLUSIVE)
    assert names(store) == [handle.name]


class Refusing(StoreDecorator):
    """A store of somebody else's: its errors are not ours."""

    def __init__(self, inner, failures):
        super().__init__(inner)
        self.failures = failures
        self.names = []

    def put_if_absent(self, name, data):
        self.names.append(name)
        info = self.inner.put_if_absent(name, data)
        if len(self.names) <= self.failures:
            raise ConnectionResetError("after it was done")
        return info

    def delete(self, names):
        self.inner.delete(names)
        raise ConnectionResetError("after it was done")

    def discard(self, parts):
        raise ConnectionResetError("not done")


def test_an_io_error_of_a_foreign_store_is_tried_under_ten_names(store):
    refusing = Refusing(store, failures=9)
    out = factory(refusing, 0).create_checkpoint_state_output_stream(SHARED)
    out.write(b"abc")
    handle = out.close_and_get_handle()
    assert len(set(refusing.names)) == 10
    assert [info.name for info in store.list("")] == [handle.name]  # What the failed ones made is gone.
    handle.discard()  # It is gone, and that is all that was wanted.
    out = factory(Refusing(store, failures=10), 0).create_checkpoint_state_output_stream(SHARED)
    out.write(b"abc")
    with pytest.raises(ConnectionResetError) as raised:
        out.close_and_get_handle()
    assert "10 names" in raised.value.__notes__[0]


def test_an_io_error_of_a_foreign_store_does_not_take_a_file_that_was_made(store):
    out = factory(Refusing(store, failures=0), 0).create_checkpoint_state_output_stream(SHARED)
    out.write(b"abc")
    out.flush()  # It is staged, and the piece cannot be discarded.
    assert out.close_and_get_handle().open().read() == b"abc"
    out = factory(Refusing(store, failures=0), 0).create_checkpoint_state_output_stream(SHARED)
    out.write(b"abc")
    out.flush()
    out.close()  # Never raises.


def test_handles_of_one_object_are_equal(store):
    out = factory(store, 0).create_checkpoint_state_output_stream(SHARED)
    out.write(b"abc")
    handle = out.close_and_get_handle()
    again = pickle.loads(pickle.dumps(handle))
    assert again == handle
    assert len({handle, again, open_state(handle.state, store, "chk-1")}) == 1
    assert handle != FileHandle(store, handle.name + "x", handle.size, handle.crc32c, handle.relative)
    assert handle != InlineHandle(b"abc")


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_a_stream_goes_on_over_a_store_that_keeps_every_view(store, failures):
    keeping = Keeping(store, failures=failures)
    out = stream(keeping, threshold=0, write_buffer_size=1000)
    expected = b""
    for number in range(12):
        piece = bytearray([number]) * (300 + 100 * number)
        while True:
            try:
                expected += bytes(piece)[: out.write(piece)]
                break
            except UnavailableError:
                pass
        piece.clear()  # The caller's again, whatever the store keeps.
        with contextlib.suppress(UnavailableError):
            out.flush()
    assert read(out.close_and_get_handle()) == expected
