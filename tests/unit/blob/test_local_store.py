"""What is particular to the store on local disk: rights, links, full and failing disks, folders that come and go."""

import contextlib
import errno
import gc
import os
import pickle
import resource
import stat
import subprocess
import threading
import weakref

import pytest

from stateline.blob import folders as folders_module
from stateline.blob.folders import make_private_folder
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.blob.mapping import map_object
from stateline.errors import (
    AccessDeniedError,
    ClosedError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    StorageFullError,
    TooManyOpenFilesError,
    UnavailableError,
)
from stateline.testing import CrashableStore, FaultKind
from stateline.testing.crashable import LOCAL_MODULES
from stateline.testing.system_calls import SystemCalls, intercepted


@pytest.fixture
def root(tmp_path):
    return tmp_path / "a" / "root"


@pytest.fixture
def store(root):
    made = LocalStore(root)
    yield made
    made.close()


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def names(folder):
    return sorted(os.listdir(folder)) if folder.exists() else []


class Fail:
    """Fails one system call, once: the ``at``-th of that name."""

    def __init__(self, operation, kind, at=0):
        self.operation, self.kind, self.left = operation, kind, at

    def enter(self, operation, subject):
        if operation != self.operation:
            return None
        self.left -= 1
        return self.kind if self.left == -1 else None

    def crash(self):
        raise AssertionError("not asked for")


def failing(operation, kind, at=0):
    return intercepted(LOCAL_MODULES, SystemCalls(Fail(operation, kind, at)))


# -- rights -----------------------------------------------------------------------------------------------------------


def test_files_and_folders_are_private(store, root):
    store.put("x/y/f", b"1")
    part = store.stage("t", b"2")
    assert [mode(root / name) for name in ("x/y/f", part.name)] == [0o600, 0o600]
    assert [mode(root / name) for name in ("", "x", "x/y", ".inprogress")] == [0o700] * 4


def test_output_can_follow_the_umask_but_staging_stays_private(root):
    before = os.umask(0o027)
    try:
        store = LocalStore(root, LocalStoreSettings(permissions="umask"))
        store.put("x/f", b"1")
        part = store.stage("t", b"2")
    finally:
        os.umask(before)
    assert (mode(root / "x"), mode(root / "x/f")) == (0o750, 0o640)
    assert (mode(root / ".inprogress"), mode(root / part.name)) == (0o700, 0o640)


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_nobody_else_may_write_to_folders_that_are_made_on_the_way_to_a_private_root(tmp_path):
    with umask(0):
        LocalStore(tmp_path / "a/b/root").put("x/f", b"1")
        make_private_folder(tmp_path / "c/d/private")
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert {"a", "b", "root", "x", "c", "d", "private"} <= {path.name for path in made}
    assert [path for path in made if mode(path) & 0o022] == []
    assert mode(tmp_path / "c/d/private") == 0o700


def test_a_folder_that_exists_keeps_its_rights(tmp_path):
    (tmp_path / "there").mkdir(0o750)
    make_private_folder(tmp_path / "there")
    assert mode(tmp_path / "there") == 0o750


@pytest.mark.parametrize("name", ["link", "folder/f", "linked/f", "linked/folder/f", "pipe"])
def test_what_get_refuses_is_not_mapped(store, root, tmp_path, name):
    store.put("f", b"own")
    (tmp_path / "elsewhere/folder").mkdir(parents=True)
    for path in ("f", "folder/f"):
        (tmp_path / "elsewhere" / path).write_bytes(b"foreign")
    (root / "link").symlink_to(tmp_path / "elsewhere/f")
    (root / "folder").symlink_to(tmp_path / "elsewhere/folder")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(root / "pipe")
    with pytest.raises(StatelineError) as got:
        store.get(name)
    with pytest.raises(StatelineError) as mapped:
        map_object(store, name)
    assert (type(mapped.value), mapped.value.kind) == (type(got.value), got.value.kind)
    assert bytes(map_object(store, "f")) == b"own"


def test_a_mapped_object_holds_no_descriptor_and_outlives_its_file(store):
    store.put("a/b", b"bytes")
    before = len(descriptors())
    buffer = map_object(store, "a/b")
    assert len(descriptors()) == before
    store.delete(["a/b"])
    assert bytes(buffer) == b"bytes"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_refusal_of_the_system_is_an_error_of_rights(store, root, monkeypatch, number):
    store.put("a", b"1")
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if path == "a":
            raise OSError(number, os.strerror(number))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AccessDeniedError, match="rights on the folder"):
        store.get("a")


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="Did you mean 'fsync'"):
        LocalStore.open(str(tmp_path), {"fsink": "no"}, None)
    with pytest.raises(InvalidInputError):
        LocalStoreSettings(permissions="0777")


# -- links and strange files ------------------------------------------------------------------------------------------


def test_a_link_inside_the_root_is_never_followed(store, root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store.put("plain", b"1")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for call in (
        lambda: store.get("folder/secret"),
        lambda: store.get("file"),
        lambda: store.head("file"),
        lambda: store.put("folder/x", b"2"),
        lambda: store.put_if_absent("folder/x", b"2"),
        lambda: store.put_if_absent("file", b"2"),
        lambda: store.delete(["folder/secret"]),
        lambda: store.publish("folder/x", [store.stage("folder/x", b"2")], "n"),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert [info.name for info in store.list("") if not info.name.startswith(".")] == ["plain"]
    assert list(store.list("folder/")) == []
    assert names(outside) == ["secret"]


def test_a_put_over_a_link_replaces_the_link(store, root, tmp_path):
    (tmp_path / "victim").write_bytes(b"safe")
    store.put("other", b"1")
    (root / "file").symlink_to(tmp_path / "victim")
    store.put("file", b"2")
    assert (tmp_path / "victim").read_bytes() == b"safe"
    assert store.get("file") == b"2"


def test_a_fifo_does_not_block_a_reader(store, root):
    store.put("a", b"1")
    os.mkfifo(root / "pipe")
    for call in (store.get, store.head):
        with pytest.raises(InvalidInputError, match="not a regular file"):
            call("pipe")
    assert [info.name for info in store.list("")] == ["a"]


def test_a_folder_is_no_object_and_an_object_is_no_folder(store):
    store.put("a/b", b"1")
    for call in (
        lambda: store.get("a"),
        lambda: store.put("a", b"2"),
        lambda: store.put("a/b/c", b"2"),
        lambda: store.put_if_absent("a", b"2"),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert store.get("a/b") == b"1"


def test_the_root_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "link")
    store.put("a", b"1")
    assert names(tmp_path / "real") == [".inprogress", "a"]
    assert store.url == (tmp_path / "real").as_uri()


def test_a_copy_of_the_store_opens_the_same_place(store):
    store.put("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get("a") == b"1"
    assert str(copy.local_path("a")) == str(store.local_path("a"))


def test_an_error_holds_nothing_that_its_callers_held(store):
    class Held:
        pass

    def call():
        held = Held()
        with pytest.raises(NotFoundError):
            store.get("absent")
        store.put_if_absent("new", b"1")
        return weakref.ref(held)

    gc.disable()
    try:
        assert call()() is None, "it lives on until a garbage collection"
    finally:
        gc.enable()


# -- full and failing disks -------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB where we may mount one; else a limit on the size of files, which gives EFBIG."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder]).returncode:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
        yield folder, UnavailableError
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return
    yield folder, StorageFullError
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("call", ["put", "put_if_absent", "stage"])
def test_a_full_disk_leaves_nothing_behind(small_disk, call):
    folder, expected = small_disk
    store = LocalStore(folder / "root")
    store.put("kept", b"1")
    with pytest.raises(expected):
        getattr(store, call)("big", bytes(2**21))
    assert names(folder / "root" / ".inprogress") == []
    assert [info.name for info in store.list("")] == ["kept"]
    store.put("after", b"2")
    store.close()


def test_a_publication_of_several_pieces_on_a_full_disk_can_be_repeated(small_disk):
    folder, expected = small_disk
    if expected is not StorageFullError:
        return
    store = LocalStore(folder / "root")
    parts = [store.stage("t", bytes(300_000)) for _ in range(2)]
    with pytest.raises(StorageFullError):
        store.publish("t", parts, "n")
    assert [info.name for info in store.list("t")] == []
    subprocess.run(["mount", "-o", "remount,size=4m", folder], check=True)
    store.publish("t", parts, "n")
    assert store.head("t").size == 600_000
    store.close()


@pytest.mark.parametrize("call", ["put", "put_if_absent", "stage"])
@pytest.mark.parametrize("kind", [FaultKind.IO_ERROR, FaultKind.NO_SPACE])
def test_a_failed_fsync_of_the_bytes_gives_the_file_up(store, root, call, kind):
    store.put("warm", b"0")
    before = names(root / ".inprogress")
    with failing("os.fsync", kind), pytest.raises(UnavailableError if kind is FaultKind.IO_ERROR else StorageFullError):
        getattr(store, call)("a", b"1")
    assert names(root / ".inprogress") == before
    with pytest.raises(NotFoundError):
        store.get("a")


@pytest.mark.parametrize("call", ["put", "put_if_absent"])
def test_a_failed_fsync_of_the_folder_leaves_the_outcome_unknown(store, call):
    store.put("warm", b"0")
    with failing("os.fsync", FaultKind.IO_ERROR, at=1), pytest.raises(OutcomeUnknownError, match="repeat"):
        getattr(store, call)("a", b"1")
    getattr(store, call)("a", b"1")
    assert store.get("a") == b"1"


def test_a_link_that_fails_by_an_io_error_may_have_been_made(store):
    store.put("warm", b"0")
    with failing("os.link", FaultKind.IO_ERROR_AFTER), pytest.raises(OutcomeUnknownError):
        store.put_if_absent("a", b"1")
    assert store.put_if_absent("a", b"1").size == 1


def test_a_link_that_was_refused_was_not_made(store):
    store.put("warm", b"0")
    with failing("os.link", FaultKind.NO_SPACE), pytest.raises(StorageFullError):
        store.put_if_absent("a", b"1")
    with pytest.raises(NotFoundError):
        store.get("a")


@pytest.mark.parametrize(("operation", "at"), [("os.unlink", 1), ("os.fsync", 0)])
def test_a_deletion_that_fails_half_way_is_unknown(store, operation, at):
    for name in ("f/a", "f/b"):
        store.put(name, b"1")
    with failing(operation, FaultKind.NO_ACCESS if at else FaultKind.IO_ERROR, at), pytest.raises(OutcomeUnknownError):
        store.delete(["f/a", "f/b"])
    store.delete(["f/a", "f/b"])
    assert list(store.list("f/")) == []


def test_a_deletion_that_was_refused_deleted_nothing(store):
    store.put("f/a", b"1")
    with failing("os.unlink", FaultKind.NO_ACCESS), pytest.raises(AccessDeniedError):
        store.delete(["f/a"])
    assert store.get("f/a") == b"1"


def test_a_deletion_over_several_folders_that_fails_in_the_second_is_unknown(store):
    store.put("f/a", b"1")
    store.put("g/a", b"1")
    with failing("os.unlink", FaultKind.NO_ACCESS, at=1), pytest.raises(OutcomeUnknownError):
        store.delete(["f/a", "g/a"])


def test_short_writes_are_completed(store):
    with failing("os.write", FaultKind.SHORT_WRITE):
        store.put("a", b"0123456789")
    assert store.get("a") == b"0123456789"


@pytest.mark.parametrize("call", ["put", "put_if_absent", "stage"])
@pytest.mark.parametrize("at", range(12))
def test_no_failing_call_leaves_a_visible_half(tmp_path, call, at):
    """Every open and create of a call, failing in turn."""
    for operation in ("os.open", "os.create", "os.mkdir"):
        store = LocalStore(tmp_path / operation / "root")
        with contextlib.suppress(UnavailableError, OutcomeUnknownError), failing(operation, FaultKind.IO_ERROR, at):
            getattr(store, call)("x/a", b"12")
        assert b"".join(store.get(info.name) for info in store.list("x/")) in (b"", b"12")
        store.close()


# -- pieces -----------------------------------------------------------------------------------------------------------


def test_pieces_are_verified_before_anything_is_visible(store, root):
    for count in (1, 2):
        parts = [store.stage("t", b"piece") for _ in range(count)]
        (root / parts[-1].name).chmod(0o600)
        (root / parts[-1].name).write_bytes(b"pieCe")
        with pytest.raises(CorruptDataError):
            store.publish("t", parts, "n")
        (root / parts[-1].name).write_bytes(b"piece and more")
        with pytest.raises(CorruptDataError):
            store.publish("t", parts, "n")
        (root / parts[-1].name).write_bytes(b"pie")
        with pytest.raises(CorruptDataError):
            store.publish("t", parts, "n")
        with pytest.raises(NotFoundError):
            store.get("t")


def test_both_missing_is_data_loss(store):
    for count in (1, 3):
        parts = [store.stage("t", b"piece") for _ in range(count)]
        store.discard(parts)
        with pytest.raises(DataLossError, match="piece"):
            store.publish("t", parts, "n")


def test_a_foreign_object_of_equal_length_is_a_conflict(store):
    store.put("t", b"theirs")
    with pytest.raises(ConflictError):
        store.publish("t", [store.stage("t", b"mine!!")], "n")
    assert store.get("t") == b"theirs"


def test_a_discard_ends_publications_that_had_copied_the_pieces(store, root):
    """Regression: a publisher asleep between copy and link published again what was published and moved away."""
    parts = [store.stage("t", data) for data in (b"one ", b"two")]
    real_link, woken = os.link, []

    def link_after_the_others(source, target, **kwargs):
        if not woken:
            woken.append(1)
            rival = LocalStore(root)
            rival.publish("t", parts, "n")
            rival.discard(parts)
            rival.delete(["t"])  # A consumer moves the file away.
            rival.close()
        real_link(source, target, **kwargs)

    calls = SystemCalls()
    calls.link = link_after_the_others
    with intercepted(LOCAL_MODULES, calls), pytest.raises(DataLossError):
        store.publish("t", parts, "n")
    assert list(store.list("")) == []


def test_joining_leaves_nothing_behind(store, root):
    parts = [store.stage("t", data) for data in (b"one ", b"two")]
    store.publish("t", parts, "n")
    store.discard(parts)
    assert names(root) == ["t"]


# -- folders that come and go -----------------------------------------------------------------------------------------


class RemoveOnce:
    """Removes an empty folder just before one system call, as a concurrent delete does."""

    def __init__(self, folder, operation):
        self.folder, self.operation, self.done = folder, operation, False

    def enter(self, operation, subject):
        if operation == self.operation and not self.done and os.path.isdir(self.folder):
            self.done = True
            os.rmdir(self.folder)
        return

    def crash(self):
        raise AssertionError("not asked for")


@pytest.mark.parametrize("call", ["put", "put_if_absent", "stage"])
def test_a_staging_folder_that_vanishes_is_made_again(store, root, call):
    gate = RemoveOnce(root / ".inprogress", "os.create")
    with intercepted(LOCAL_MODULES, SystemCalls(gate)):
        getattr(store, call)("a", b"1")
    assert gate.done


@pytest.mark.parametrize(("call", "operation"), [("put", "os.rename"), ("put_if_absent", "os.link")])
def test_a_target_folder_that_vanishes_is_made_again(store, root, call, operation):
    gate = RemoveOnce(root / "x" / "y", operation)
    with intercepted(LOCAL_MODULES, SystemCalls(gate)):
        getattr(store, call)("x/y/a", b"1")
    assert gate.done
    assert store.get("x/y/a") == b"1"


@pytest.mark.parametrize("count", [1, 2])
def test_a_target_folder_that_vanishes_is_no_data_loss(store, root, count):
    """Regression: the publication of one piece took the missing folder for a missing piece."""
    parts = [store.stage("x/t", b"piece") for _ in range(count)]
    gate = RemoveOnce(root / "x", "os.link")
    with intercepted(LOCAL_MODULES, SystemCalls(gate)):
        store.publish("x/t", parts, "n")
    assert gate.done
    assert store.get("x/t") == b"piece" * count


def test_an_inner_folder_whose_parent_vanishes_is_made_again(store, root):
    class Gate(RemoveOnce):
        def enter(self, operation, subject):
            return super().enter(operation, subject) if subject == "y" else None

    gate = Gate(root / "x", "os.mkdir")
    with intercepted(LOCAL_MODULES, SystemCalls(gate)):
        store.put("x/y/a", b"1")
    assert gate.done
    assert store.get("x/y/a") == b"1"


def test_a_folder_that_always_vanishes_is_given_up(store, root):
    class Gate:
        def enter(self, operation, subject):
            if operation == "os.create" and os.path.isdir(root / ".inprogress"):
                os.rmdir(root / ".inprogress")

        def crash(self):
            raise AssertionError

    with intercepted(LOCAL_MODULES, SystemCalls(Gate())), pytest.raises(UnavailableError, match="as fast as"):
        store.stage("a", b"1")


def test_threads_that_make_and_remove_share_a_folder(store):
    errors: list[BaseException] = []

    def churn(number: int) -> None:
        try:
            for turn in range(30):
                name = f"deep/er/{number}-{turn}"
                store.put_if_absent(name, b"1")
                store.discard([store.stage(name, b"2")])
                store.delete([name])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(store.list("")) == []


# -- power loss -------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_survives_power_loss():
    with CrashableStore() as store:
        store.put("a/b/put", b"1" * 2000)
        store.put_if_absent("c/created", b"2")
        parts = [store.stage("d/published", data) for data in (b"3", b"4")]
        store.publish("d/published", parts, "n")
        store.discard(parts[:1])
        for recovered in store.after_power_loss():
            assert recovered.get("a/b/put") == b"1" * 2000
            assert recovered.get("c/created") == b"2"
            assert recovered.get("d/published") == b"34"
            assert recovered.get(parts[1].name) == b"4"
            with pytest.raises(NotFoundError):
                recovered.get(parts[0].name)


def test_at_no_moment_is_half_an_object_visible():
    with CrashableStore() as store:
        store.put("f/a", b"x" * 1500)
        store.publish("f/b", [store.stage("f/b", b"y" * 1500), store.stage("f/b", b"z")], "n")
        whole = {"f/a": b"x" * 1500, "f/b": b"y" * 1500 + b"z"}
        for moment in range(store.changes + 1):
            for recovered in store.after_power_loss(moment, limit=64):
                for info in recovered.list("f/"):
                    assert recovered.get(info.name) == whole[info.name]


def test_a_folder_made_again_is_synced_again_though_its_inode_number_is_the_old_one():
    """Regression: the store remembered durable folders by inode number, and file systems reuse those."""
    with CrashableStore() as store:
        store.put("f/a", b"1")
        store.delete(["f/a"])
        store.put("f/b", b"2")
        for recovered in store.after_power_loss():
            assert recovered.get("f/b") == b"2"


def test_a_root_that_somebody_else_has_just_made_is_synced():
    """Regression: only the maker of the root synced its parent, and he may die before he does."""
    with CrashableStore() as store:
        root = store.local_path("x").parent
        folders_module.os.mkdir(str(root))
        store.put("a", b"1")
        for recovered in store.after_power_loss():
            assert recovered.get("a") == b"1"


def test_a_name_that_somebody_else_has_just_made_is_synced():
    with CrashableStore() as store:
        rival = LocalStore(store.local_path("x").parent)
        store.put("f/warm", b"0")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalStore, "_fsync_entry", lambda self, folder: None)
            rival.put_if_absent("f/a", b"1")
        store.put_if_absent("f/a", b"1")
        rival.close()
        for recovered in store.after_power_loss():
            assert recovered.get("f/a") == b"1"


def test_without_fsync_nothing_is_promised():
    calls: list[str] = []

    class Gate:
        def enter(self, operation, subject):
            calls.append(operation)

        def crash(self):
            raise AssertionError

    with CrashableStore() as outer, intercepted(LOCAL_MODULES, SystemCalls(Gate())):
        store = LocalStore(outer.local_path("x").parent / "fast", LocalStoreSettings(fsync=False))
        store.put("a/b", b"1")
        store.publish("c", [store.stage("c", b"2")], "n")
        store.close()
    assert "os.fsync" not in calls


# -- descriptors ------------------------------------------------------------------------------------------------------


def descriptors():
    return set(os.listdir("/proc/self/fd"))


def test_descriptors_are_bounded_and_given_back(store):
    before = len(descriptors())
    for number in range(200):
        store.put(f"folder-{number}/a", b"1")
    assert len(descriptors()) <= before + 70
    store.close()
    assert len(descriptors()) <= before


def test_a_store_that_is_closed_meanwhile_holds_no_descriptor(tmp_path):
    store, before = LocalStore(tmp_path / "root"), len(descriptors())
    calls = SystemCalls()

    def close_first(path, mode=0o777, **kwargs):
        store.close()
        os.mkdir(path, mode, **kwargs)

    calls.mkdir = close_first
    with intercepted(LOCAL_MODULES, calls), pytest.raises(ClosedError):
        store.put("x/a", b"1")
    assert len(descriptors()) <= before


def test_a_store_that_syncs_nothing_holds_no_descriptor(tmp_path):
    before = len(descriptors())
    store = LocalStore(tmp_path / "root", LocalStoreSettings(fsync=False))
    store.put("x/y/a", b"1")
    assert len(descriptors()) <= before
    store.close()


def test_a_store_that_is_forgotten_gives_its_descriptors_back(tmp_path):
    before = len(descriptors())
    LocalStore(tmp_path / "root").put("x/y/a", b"1")
    assert len(descriptors()) <= before


@contextlib.contextmanager
def no_descriptor_left():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_too_many_open_files_are_not_a_full_disk(store):
    store.put("x/a", b"1")
    part = store.stage("t", b"2")
    for call in (
        lambda: store.put("x/b", b"1"),
        lambda: store.put_if_absent("x/b", b"1"),
        lambda: store.get("x/a"),
        lambda: store.head("x/a"),
        lambda: list(store.list("")),
        lambda: store.delete(["x/a"]),
        lambda: store.stage("t", b"1"),
        lambda: store.publish("t", [part], "n"),
        lambda: map_object(store, "x/a"),
    ):
        with (
            no_descriptor_left(),
            pytest.raises(TooManyOpenFilesError, match=r"Close .*ulimit -n") as caught,
        ):
            call()
        assert caught.value.kind is ErrorKind.TOO_MANY_OPEN_FILES
    assert sorted(info.name for info in store.list("")) == sorted(["x/a", part.name])
    assert store.publish("t", [part], "n").size == 1


def test_too_many_open_files_of_the_whole_machine_are_told_so(store):
    calls = SystemCalls()

    def refuse(*_, **__):
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    calls.open = refuse
    with intercepted(LOCAL_MODULES, calls), pytest.raises(TooManyOpenFilesError, match="in system"):
        store.put("a", b"1")


def test_failures_leak_no_descriptor(store):
    store.put("a/b", b"1")
    before = len(descriptors())
    for call in (
        lambda: store.get("a/missing"),
        lambda: store.get("missing/b"),
        lambda: store.get("a/b/c"),
        lambda: store.get_range("a/b", 0, 9),
        lambda: store.put("a", b"2"),
    ):
        with pytest.raises((NotFoundError, InvalidInputError, CorruptDataError)):
            call()
    assert len(descriptors()) <= before


def test_folders_that_were_removed_are_not_held_open(tmp_path):
    store = LocalStore(tmp_path / "root")

    def live(batch):
        store.put(f"chk-{batch}/a", b"x")
        store.discard([store.stage("t", b"x")])
        store.delete([f"chk-{batch}/a"])
        return len(os.listdir("/proc/self/fd"))

    held = [live(batch) for batch in range(20)]
    assert max(held[2:]) <= held[1] + 1
    store.close()


def test_a_root_that_is_a_file_is_not_listed_as_an_empty_one(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for prefix in ("", "a", "a/b"):
        with pytest.raises(InvalidInputError, match="in the way"):
            list(LocalStore(tmp_path / "file").list(prefix))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "object").write_bytes(b"x")
    assert list(LocalStore(tmp_path / "folder").list("object/")) == []
    assert list(LocalStore(tmp_path / "none").list("")) == []
