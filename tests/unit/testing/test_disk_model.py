"""The model of power loss, state by state, and the store that can be looked at after it."""

import os

from stateline.errors import NotFoundError
from stateline.testing import CrashableStore
from stateline.testing.crashable import scratch_folder
from stateline.testing.disk_model import SECTOR_BYTES, DiskModel, DiskState
from stateline.testing.journal import Action, Change
from stateline.testing.seeds import Dice


def states(*changes, limit=4096):
    model = DiskModel()
    for change in changes:
        model.apply(change)
    return {(state.folders, state.files) for state in model.states(limit, Dice(0))}


def make(node, name, folder=0):
    return Change(action=Action.MAKE_FILE, node=node, folder=folder, name=name)


def folder(node, name, parent=0):
    return Change(action=Action.MAKE_FOLDER, node=node, folder=parent, name=name)


def write(node, data):
    return Change(action=Action.WRITE, node=node, data=data)


def sync(node):
    return Change(action=Action.SYNC, node=node)


def link(node, name, parent=0):
    return Change(action=Action.LINK, node=node, folder=parent, name=name)


def unlink(node, name, parent=0):
    return Change(action=Action.UNLINK, node=node, folder=parent, name=name)


def rename(node, old, new):
    return Change(action=Action.RENAME, node=node, folder=0, name=new, old_folder=0, old_name=old)


def only(*files):
    return ((), tuple(files))


def test_an_untouched_disk_is_empty():
    assert states() == {only()}


def test_a_name_that_is_not_synced_may_be_lost():
    assert states(make(1, "a")) == {only(), only(("a", b""))}
    assert states(make(1, "a"), sync(0)) == {only(("a", b""))}


def test_bytes_that_are_not_synced_may_be_missing_or_zero():
    found = states(make(1, "a"), sync(0), write(1, b"xyz"))
    assert found == {only(("a", b"")), only(("a", b"xyz")), only(("a", b"\0\0\0"))}


def test_synced_bytes_are_there_if_the_name_is():
    assert states(make(1, "a"), write(1, b"xyz"), sync(1)) == {only(), only(("a", b"xyz"))}


def test_long_writes_are_torn_at_sectors():
    data = b"x" * (2 * SECTOR_BYTES + 10)
    found = {files[0][1] for _, files in states(make(1, "a"), sync(0), write(1, data))}
    assert {data[:512], data[:1024], data, b""} <= found
    assert bytes(512) + data[512:] in found
    assert all(len(content) in (0, 512, 1024, len(data)) for content in found)


def test_a_tail_after_a_sync_is_torn_at_the_sectors_of_the_file():
    found = {files[0][1] for _, files in states(
        make(1, "a"), sync(0), write(1, b"x" * 500), sync(1), write(1, b"y" * 600)
    )}  # fmt: skip
    assert b"x" * 500 + b"y" * 12 in found
    assert all(content.startswith(b"x" * 500) for content in found)


def test_bytes_whose_fsync_failed_may_be_lost_whatever_comes_after():
    failed = Change(action=Action.SYNC_FAILED, node=1)
    found = states(make(1, "a"), write(1, b"xyz"), failed, sync(1), sync(0))
    assert only(("a", b"")) in found


def test_entries_are_lost_independently():
    found = states(make(1, "a"), make(2, "b"))
    assert found == {only(), only(("a", b"")), only(("b", b"")), only(("a", b""), ("b", b""))}


def test_what_is_in_a_lost_folder_is_lost():
    found = states(folder(1, "d"), make(2, "a", 1), sync(1))
    assert found == {only(), (("d",), (("d/a", b""),))}


def test_an_unlink_may_be_undone_until_its_folder_is_synced():
    before = (make(1, "a"), sync(0), unlink(1, "a"))
    assert states(*before) == {only(), only(("a", b""))}
    assert states(*before, sync(0)) == {only()}


def test_a_file_with_two_names_keeps_its_bytes_under_both():
    found = states(make(1, "a"), write(1, b"x"), sync(1), sync(0), link(1, "b"))
    assert found == {only(("a", b"x")), only(("a", b"x"), ("b", b"x"))}


def test_a_rename_never_leaves_neither_name():
    found = states(make(1, "a"), sync(0), rename(1, "a", "b"))
    assert found == {only(("a", b"")), only(("b", b"")), only(("a", b""), ("b", b""))}


def test_a_rename_over_a_name_leaves_the_old_or_the_new_content():
    start = (make(1, "a"), write(1, b"old"), sync(1), make(2, "t"), write(2, b"new"), sync(2), sync(0))
    contents = {dict(files)["a"] for _, files in states(*start, rename(2, "t", "a"))}
    assert contents == {b"old", b"new"}


def test_a_rename_before_the_bytes_are_synced_may_leave_an_empty_file():
    start = (make(1, "a"), write(1, b"old"), sync(1), make(2, "t"), write(2, b"new"), sync(0))
    contents = {dict(files)["a"] for _, files in states(*start, rename(2, "t", "a"), sync(0))}
    assert b"" in contents


def test_too_many_states_are_sampled_with_their_corners():
    changes = [make(node, f"f{node}") for node in range(1, 20)]
    found = states(*changes, limit=50)
    assert 50 < len(found) < 200
    counts = {len(files) for _, files in found}
    assert {0, 1, 18, 19} <= counts


def test_a_state_can_be_restored(tmp_path):
    state = DiskState(("d", "d/e"), (("d/e/f", b"1"), ("g", b"")))
    state.restore(str(tmp_path))
    assert (tmp_path / "d/e/f").read_bytes() == b"1"
    assert (tmp_path / "g").read_bytes() == b""
    assert "d/e/f (1 bytes)" in str(state)


def test_a_crashable_store_sees_what_a_missing_fsync_loses(monkeypatch):
    from stateline.blob.folders import Folders

    monkeypatch.setattr(Folders, "fsync", lambda self, descriptor: None)
    with CrashableStore() as store:
        store.put("a", b"1")
        lost = 0
        for recovered in store.after_power_loss():
            try:
                recovered.get("a")
            except NotFoundError:
                lost += 1
        assert lost > 0


def test_a_correct_order_of_syncs_allows_few_states():
    with CrashableStore() as store:
        store.put("a", b"1")
        assert 1 <= len(store.disk_states()) <= 4
        assert store.changes == len(store._journal.changes) > 5


def test_scratch_folders_vanish():
    with scratch_folder() as folder, open(f"{folder}/x", "w") as file:
        file.write("x")
    assert not os.path.exists(folder)
