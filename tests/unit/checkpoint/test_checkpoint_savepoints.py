"""Savepoints: whole or not there, movable as a folder, started from by copy or by claim; pointers and verification."""

import itertools
import shutil

import pytest
from checkpoint_kit import checkpoint, finished_file, open_file, run
from msgspec.structs import replace

from stateline.blob import InstrumentedStore, StoreDecorator
from stateline.blob.checksum import crc32c
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import (
    CheckpointStore,
    FileState,
    OperatorState,
    OutputState,
    Problem,
    SubtaskState,
    create_savepoint,
    drop_savepoint,
    list_savepoints,
    open_savepoint,
    resolve_pointer,
    start_from_savepoint,
    verify_root,
    verify_savepoint,
)
from stateline.checkpoint import objects as objects_module
from stateline.checkpoint.layout import record_name
from stateline.checkpoint.metadata import Retired, encode_floor, encode_published, encode_retired
from stateline.environment import Environment, SystemIds
from stateline.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from stateline.handles import Part, RowsHandle, RunHandle
from stateline.sizes import Sizes
from stateline.testing import ManualClock

URL = "memory://old-out"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(objects_module, "sizes", lambda: Sizes(copied_bytes=64))


def memory():
    return MemoryStore(SystemIds().new_id())


@pytest.fixture(params=["memory", "local"])
def stores(request, tmp_path):
    """Makes stores of one kind."""
    counter = itertools.count()

    def make(name):
        if request.param == "memory":
            return memory()
        return LocalStore(tmp_path / f"{next(counter)}-{name}", LocalStoreSettings(fsync=False))

    return make


RUNS = {"shared/small": b"run" * 5, "shared/large": bytes(range(200))}
ROWS = b"----first rows----second rows--"


class Query:
    """A root with one checkpoint that reaches one of everything, and its output."""

    def __init__(self, stores, checkpoint_id=3):
        self.store, self.out = stores("root"), stores("out")
        self.root = CheckpointStore(self.store)
        for retired in range(checkpoint_id):
            self.store.put(record_name(retired), encode_retired(Retired(checkpoint_id=retired)))
        for name, data in RUNS.items():
            self.store.put(name, data)
        self.store.put("shared/rows", ROWS)
        self.store.put(f"chk-{checkpoint_id}/model", b"exclusive")
        self.store.put("shared/tables", b"common")
        self.record = self.root.publish(self.checkpoint(checkpoint_id))

    def checkpoint(self, checkpoint_id):
        runs = tuple(
            RunHandle(
                name=name,
                offset=0,
                length=len(data),
                crc32c=crc32c(data),
                rows=1,
                first_key_group=0,
                last_key_group=0,
                checkpoint_id=checkpoint_id,
            )
            for name, data in RUNS.items()
        )
        state = OperatorState(
            name="flights",
            schema="schema",
            definition="count",
            subtasks=(SubtaskState(first_key_group=0, last_key_group=0, runs=runs),),
        )
        rows = tuple(
            RowsHandle(
                name="shared/rows", offset=start, length=length, crc32c=crc32c(ROWS[start : start + length]), rows=1
            )
            for start, length in ((4, 10), (18, 11))
        )
        files = (open_file("f", rows[0]), open_file("g", *rows))
        return replace(
            checkpoint(checkpoint_id, operators=(state,)),
            outputs=(OutputState(operator="flights", url=URL, open=files),),
            states={
                "model": FileState(name="model", relative=True, size=9, crc32c=crc32c(b"exclusive")),
                "tables": FileState(name="shared/tables", relative=False, size=6, crc32c=crc32c(b"common")),
            },
            properties={"program": "demo"},
        )

    def savepoint(self, target=None, **more):
        return create_savepoint(self.root, target or self.store, **more)


def names(store, prefix=""):
    return sorted(info.name for info in store.list(prefix))


def start(savepoint, root, mode="copy", **more):
    return start_from_savepoint(savepoint, root, query_id="new", mode=mode, **more)


def assert_same_state(record, root, original):
    """All that the original reached is behind the new record's names, byte for byte."""
    runs = [handle.name for handle in record.operators[0].subtasks[0].runs]
    assert [root.get(name) for name in runs] == list(RUNS.values())
    waiting = [
        [root.get(rows.name)[rows.offset : rows.offset + rows.length] for rows in file.pending]
        for file in record.outputs[0].open
    ]
    assert waiting == [[b"first rows"], [b"first rows", b"second rows"]]
    states = {key: root.get(state.object_name(record.folder)) for key, state in record.states.items()}
    assert states == {"model": b"exclusive", "tables": b"common"}
    assert record.operators[0].schema == original.operators[0].schema
    assert record.max_parallelism == original.max_parallelism


# -- making ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_savepoint_holds_all_it_needs(stores, elsewhere):
    query = Query(stores)
    target = stores("savepoints") if elsewhere else query.store
    savepoint = query.savepoint(target, label="before the upgrade")
    for store in (query.store, query.out):
        store.delete([name for name in names(store) if not name.startswith("savepoint-")])
    found = open_savepoint(target, list_savepoints(target)[0])
    assert found == savepoint
    seen = []
    assert verify_savepoint(found, progress=lambda done, total: seen.append((done, total))).is_sound
    assert seen == [(number, 5) for number in range(1, 6)]
    assert found.checkpoint.properties == {
        "program": "demo",
        "savepoint.source": query.store.url,
        "savepoint.label": "before the upgrade",
        "savepoint.position": "Spark's checkpoint was not reachable, and the record has no source offsets",
    }
    fresh = stores("fresh")
    record = start(found, CheckpointStore(fresh))
    assert_same_state(record, fresh, query.record)
    assert record.earlier_checkpoints == query.record.checkpoint_id + 1


def test_the_query_goes_on_and_the_savepoint_stays(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    for checkpoint_id in (4, 5):
        query.root.publish(checkpoint(checkpoint_id))
    query.root.retain(1)
    assert names(query.store, "shared/") == []
    assert verify_savepoint(savepoint).is_sound


def test_large_objects_cross_stores_in_pieces_and_leave_none(stores):
    query = Query(stores)
    target = InstrumentedStore(memory())
    query.savepoint(target)
    assert (target.calls["stage"], target.calls["publish"]) == (4, 1)  # 200 bytes in pieces of 64.
    assert all(name.startswith("savepoint-") for name in names(target))


def test_copies_inside_a_store_move_no_bytes(tmp_path):
    query = Query(lambda name: LocalStore(tmp_path / name))
    counted = InstrumentedStore(query.store)
    create_savepoint(CheckpointStore(counted), counted)
    assert counted.calls["copy"] == 5
    assert counted.calls["put_if_absent"] == 1  # _metadata.


def test_metadata_is_written_last_and_an_interrupted_savepoint_is_none(stores):
    query = Query(stores)

    class Dying(StoreDecorator):
        def put_if_absent(self, name, data):
            raise UnavailableError("gone")

    with pytest.raises(UnavailableError):
        query.savepoint(Dying(query.store))
    assert list_savepoints(query.store) == []
    (folder,) = {name.split("/")[0] for name in names(query.store, "savepoint-")}
    with pytest.raises(NotFoundError, match="never completed"):
        open_savepoint(query.store, folder)
    assert drop_savepoint(query.store, folder) != []
    assert names(query.store, "savepoint-") == []


def test_an_older_checkpoint_can_be_chosen(stores):
    query = Query(stores)
    query.root.publish(checkpoint(4))
    assert query.savepoint(checkpoint_id=3).checkpoint.checkpoint_id == 3
    assert query.savepoint().checkpoint.checkpoint_id == 4
    with pytest.raises(NotFoundError, match="no checkpoint 9"):
        query.savepoint(checkpoint_id=9)
    with pytest.raises(NotFoundError, match="no checkpoint"):
        create_savepoint(CheckpointStore(stores("empty")), query.store)


def test_corrupt_state_is_never_copied(stores):
    for name in (*RUNS, "shared/rows"):
        query = Query(stores)
        query.store.put(name, query.store.get(name)[:-3] + b"???")
        target = memory()
        with pytest.raises(CorruptDataError, match=name):
            query.savepoint(target)
        assert list_savepoints(target) == []


def test_an_object_that_is_gone_is_data_loss(stores):
    query = Query(stores)
    query.store.delete(["shared/small"])
    with pytest.raises(DataLossError, match=r"checkpoint 3 of .* needs .*shared/small"):
        query.savepoint(memory())


class Retiring(StoreDecorator):
    """A query that goes on, and retires what is being copied, at the first ``times`` copies."""

    def __init__(self, query, times):
        super().__init__(query.store)
        self.query, self.times = query, times

    def head(self, name):
        if name == "shared/small" and self.times:
            self.times -= 1
            newest = self.query.root.latest().checkpoint_id
            for path, data in RUNS.items():
                self.query.store.put(f"{path}-{newest}", data)
            self.query.store.delete(["shared/small"])
            self.query.root.publish(self.query.checkpoint(newest + 1) if self.times else checkpoint(newest + 1))
            self.query.root.retain(1)
        return self.inner.head(name)


def test_the_newest_checkpoint_is_tried_again_when_retention_takes_it_away(stores):
    query = Query(stores)
    savepoint = create_savepoint(CheckpointStore(Retiring(query, 1)), memory())
    assert savepoint.checkpoint.checkpoint_id == 4


def test_a_checkpoint_that_retention_takes_away_is_named(stores):
    query = Query(stores)
    with pytest.raises(NotFoundError, match="checkpoint 3 was retired while it was copied"):
        create_savepoint(CheckpointStore(Retiring(query, 1)), memory(), checkpoint_id=3)


def test_files_that_are_not_visible_yet_are_never_lost(stores):
    query = Query(stores)
    output = OutputState(operator="flights", url=URL, finished=(finished_file("f", ()),))
    query.root.publish(checkpoint(4, outputs=(output,)))
    clock = ManualClock()
    with pytest.raises(InvalidInputError, match=r"after 30 s.*not visible yet.*If the query runs, try again"):
        query.savepoint(environment=Environment(clock=clock))
    assert 30 <= clock.monotonic() < 31
    query.root.mark_published(4)
    assert query.savepoint().checkpoint.outputs[0].finished == ()


class RunningQuery(ManualClock):
    """A clock on which a query does something when others wait."""

    def __init__(self, *steps):
        super().__init__()
        self.steps = list(steps)

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.steps:
            self.steps.pop(0)()


def test_a_savepoint_waits_for_a_query_that_is_about_to_publish_its_files(stores):
    query = Query(stores)
    output = OutputState(operator="flights", url=URL, finished=(finished_file("f", ()),))
    query.root.publish(checkpoint(4, outputs=(output,)))
    clock = RunningQuery(lambda: None, lambda: query.root.mark_published(4))
    assert query.savepoint(environment=Environment(clock=clock)).checkpoint.checkpoint_id == 4
    assert clock.steps == []


@pytest.mark.parametrize("checkpoint_id", [None, 4])
def test_a_savepoint_takes_the_next_checkpoint_if_its_own_is_retired_meanwhile(stores, checkpoint_id):
    query = Query(stores)
    output = OutputState(operator="flights", url=URL, finished=(finished_file("f", ()),))
    query.root.publish(checkpoint(4, outputs=(output,)))

    def next_batch():
        query.root.publish(checkpoint(5))
        query.root.retain(1)

    world = Environment(clock=RunningQuery(next_batch))
    if checkpoint_id is None:
        assert query.savepoint(environment=world).checkpoint.checkpoint_id == 5
    else:
        with pytest.raises(NotFoundError, match="checkpoint 4 was retired"):
            query.savepoint(checkpoint_id=4, environment=world)


def test_objects_whose_names_end_alike_are_kept_apart(stores):
    store = stores("root")
    store.put("shared/a/run", b"run")
    store.put("shared/b/run", b"nur")
    handles = (run("shared/a/run"), run("shared/b/run", data=b"nur"))
    state = OperatorState(
        name="o", schema="", definition="", subtasks=(SubtaskState(first_key_group=0, last_key_group=0, runs=handles),)
    )
    root = CheckpointStore(store)
    root.publish(checkpoint(0, operators=(state,)))
    savepoint = create_savepoint(root, memory())
    runs = savepoint.checkpoint.operators[0].subtasks[0].runs
    assert [savepoint.store.get(savepoint.name_in_store(handle.name)) for handle in runs] == [b"run", b"nur"]


# -- moving ---------------------------------------------------------------------------------------------------------


def test_a_savepoint_moves_by_copying_its_folder(tmp_path):
    query = Query(lambda name: LocalStore(tmp_path / name))
    savepoint = query.savepoint()
    shutil.copytree(tmp_path / "root" / savepoint.folder, tmp_path / "elsewhere" / "my backup")
    shutil.rmtree(tmp_path / "root")
    for pointer in (f"{tmp_path}/elsewhere/my backup", f"{tmp_path}/elsewhere/my backup/_metadata/"):
        moved = open_savepoint(pointer)
        assert verify_savepoint(moved).is_sound
    fresh = LocalStore(tmp_path / "fresh")
    record = start(moved, CheckpointStore(fresh))
    assert_same_state(record, fresh, query.record)


# -- starting -------------------------------------------------------------------------------------------------------


def test_a_new_query_starts_from_a_copy_and_owns_it(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    fresh = stores("fresh")
    root = CheckpointStore(fresh)
    record = root.publish(start(savepoint, root, outputs={URL: "memory://new-out"}))
    assert (record.checkpoint_id, record.batch_id, record.query_id) == (0, -1, "new")
    assert record.offsets_digest != query.record.offsets_digest
    assert record.outputs[0].url == "memory://new-out"
    assert verify_root(root).is_sound
    root.publish(replace(checkpoint(1, query_id="new"), batch_id=0))
    root.retain(1)
    assert names(fresh, "shared/") == []
    assert verify_savepoint(savepoint).is_sound


def test_starting_may_be_repeated_until_it_is_published(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    for mode, store in (("copy", stores("fresh")), ("claim", query.store)):
        if mode == "claim":
            store.delete(names(store, "chk-"))
        root = CheckpointStore(store)
        first = start(savepoint, root, mode)
        again = start(savepoint, root, mode)
        assert extents(first) == extents(again)
        root.publish(again)
        with pytest.raises(InvalidInputError, match="without checkpoints"):
            start(savepoint, root, mode)


def extents(record):
    from stateline.checkpoint.objects import extents_of

    return extents_of(record)


def test_the_url_of_every_savepoint_opens_it(stores):
    savepoint = Query(stores).savepoint()
    assert open_savepoint(savepoint.url).checkpoint == savepoint.checkpoint


def test_a_claimed_savepoint_is_used_where_it_is_and_goes_with_its_query(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    store = query.store
    store.delete([name for name in names(store) if not name.startswith("savepoint-")])
    root = CheckpointStore(store)
    assert savepoint.owner() is None
    record = root.publish(start(savepoint, root, "claim"))
    assert savepoint.owner() == "new"
    assert_same_state(record, store, query.record)
    assert names(store, "shared/") == []
    assert verify_root(root).is_sound
    root.publish(replace(checkpoint(1, query_id="new"), batch_id=0))
    assert len(names(store, f"{savepoint.folder}/shared/")) == 5, "the first checkpoint may still be read"
    root.retain(1)
    kept = [f"{savepoint.folder}/_claimed", f"{savepoint.folder}/_metadata"]
    assert [name for name in names(store) if name.startswith("savepoint-")] == kept


def test_a_savepoint_is_claimed_by_its_url(tmp_path):
    root = LocalStore(tmp_path / "root", LocalStoreSettings(fsync=False))
    query = Query({"root": root, "out": memory()}.__getitem__)
    made = query.savepoint()
    query.store.delete(names(query.store, "chk-"))
    root = CheckpointStore(query.store)
    record = root.publish(start(open_savepoint(made.url), root, "claim"))
    assert made.owner() == "new"
    assert_same_state(record, query.store, query.record)


def test_a_savepoint_has_one_owner(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    query.store.delete(names(query.store, "chk-"))
    root = CheckpointStore(query.store)
    start(savepoint, root, "claim")
    with pytest.raises(ConflictError, match="query new owns it"):
        start_from_savepoint(savepoint, root, query_id="third", mode="claim")
    with pytest.raises(ConflictError, match="query new owns it"):
        start_from_savepoint(savepoint, CheckpointStore(memory()), query_id="third")
    with pytest.raises(ConflictError, match="query new owns it"):
        drop_savepoint(query.store, savepoint.folder)
    assert verify_savepoint(savepoint).is_sound


def test_a_savepoint_that_was_dropped_before_it_was_claimed_starts_nothing(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    query.store.delete(names(query.store, "chk-"))
    drop_savepoint(query.store, savepoint.folder)
    with pytest.raises(NotFoundError, match="is not a savepoint"):
        start(savepoint, CheckpointStore(query.store), "claim")


def test_whoever_gives_the_folder_of_savepoints_is_told_of_one_in_it(stores):
    query = Query(stores)
    with pytest.raises(NotFoundError, match="prints it"):
        open_savepoint(query.store)
    savepoint = query.savepoint()
    with pytest.raises(NotFoundError, match=f"such as {query.store.url.rstrip('/')}/{savepoint.folder}$"):
        open_savepoint(query.store)


def test_a_savepoint_is_claimed_only_where_the_root_is(stores):
    query = Query(stores)
    with pytest.raises(InvalidInputError, match=r"only where the new root is.*start_mode"):
        start(query.savepoint(), CheckpointStore(stores("fresh")), "claim")


def test_a_damaged_savepoint_starts_nothing(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    name = f"{savepoint.folder}/shared/large"
    query.store.put(name, query.store.get(name)[:-1] + b"?")
    with pytest.raises(CorruptDataError):
        start(savepoint, CheckpointStore(memory()))
    assert [finding.problem for finding in verify_savepoint(savepoint).findings] == [Problem.CORRUPT]
    query.store.delete([name])
    with pytest.raises(DataLossError):
        start(savepoint, CheckpointStore(memory()))
    assert [finding.problem for finding in verify_savepoint(savepoint).findings] == [Problem.MISSING]


def test_a_copy_that_the_store_makes_itself_is_compared_with_the_record(stores):
    query = Query(stores)
    query.store.put("shared/tables", b"common?")
    with pytest.raises(CorruptDataError, match="the object has 7 bytes"):
        query.savepoint()
    assert list_savepoints(query.store) == []


def test_a_foreign_object_in_the_new_root_is_never_taken_for_state(stores):
    query = Query(stores)
    savepoint = query.savepoint()
    fresh = stores("fresh")
    fresh.put("shared/small", b"foreign")
    with pytest.raises(AlreadyExistsError):
        start(savepoint, CheckpointStore(fresh))


# -- dropping -------------------------------------------------------------------------------------------------------


def test_a_dropped_savepoint_is_gone_and_nothing_else_is(stores):
    query = Query(stores)
    kept, dropped = query.savepoint(), query.savepoint()
    before = set(names(query.store))
    deleted = drop_savepoint(query.store, dropped.folder)
    assert before - set(names(query.store)) == set(deleted)
    assert all(name.startswith(dropped.folder + "/") for name in deleted)
    assert drop_savepoint(query.store, dropped.folder) == []
    assert list_savepoints(query.store) == [kept.folder]
    with pytest.raises(NotFoundError):
        open_savepoint(query.store, dropped.folder)


def test_dropping_can_be_taken_up_after_a_crash_at_any_call(stores):
    for number in range(4):
        query = Query(stores)
        savepoint = query.savepoint()

        class Dying(StoreDecorator):
            left = number

            def _do(self, call):
                if not self.left:
                    raise UnavailableError("gone")
                self.left -= 1
                return call()

            def put_if_absent(self, name, data):
                return self._do(lambda: self.inner.put_if_absent(name, data))

            def delete(self, names):
                return self._do(lambda: self.inner.delete(names))

        with pytest.raises(UnavailableError):
            drop_savepoint(Dying(query.store), savepoint.folder)
        if number:
            with pytest.raises(ConflictError, match="was dropped"):
                start(savepoint, CheckpointStore(memory()))
        drop_savepoint(query.store, savepoint.folder)
        assert names(query.store, "savepoint-") == []


@pytest.mark.parametrize("folder", ["chk-3", "shared", "savepoint-1/shared", "../x", ""])
def test_only_savepoints_can_be_dropped(stores, folder):
    query = Query(stores)
    before = names(query.store)
    with pytest.raises(InvalidInputError):
        drop_savepoint(query.store, folder)
    assert names(query.store) == before


# -- pointers -------------------------------------------------------------------------------------------------------


def test_pointers_name_checkpoints_and_savepoints(tmp_path):
    query = Query(lambda name: LocalStore(tmp_path / name))
    savepoint = query.savepoint()
    newest = query.root.publish(checkpoint(4))
    root = f"{tmp_path}/root"
    for pointer, expected, is_savepoint in (
        (root, newest, False),
        (f"file://{root}/", newest, False),
        (f"{root}/chk-3", query.record, False),
        (f"file://{root}/chk-3/_metadata", query.record, False),
        (f"{root}/{savepoint.folder}", savepoint.checkpoint, True),
        (f"file://{root}/{savepoint.folder}/_metadata", savepoint.checkpoint, True),
    ):
        found = resolve_pointer(pointer)
        assert (found.checkpoint, found.is_savepoint) == (expected, is_savepoint), pointer
        for handle in found.checkpoint.operators[0].subtasks[0].runs:
            assert crc32c(found.store.get(handle.name)) == handle.crc32c


def test_a_checkpoint_of_a_root_is_no_savepoint_and_not_called_damaged(tmp_path):
    query = Query(lambda name: LocalStore(tmp_path / name))
    for where in (f"{query.store.url}/chk-3", f"{query.store.url}/chk-3/_metadata"):
        with pytest.raises(InvalidInputError, match="Make a savepoint of it"):
            open_savepoint(where)


def test_pointers_to_nothing_say_so(tmp_path):
    query = Query(lambda name: LocalStore(tmp_path / name))
    query.root.publish(checkpoint(4))
    query.root.retain(1)
    for pointer, error, words in (
        ("", InvalidInputError, "empty"),
        ("/", InvalidInputError, "empty"),
        ("ftp://x/y", InvalidInputError, "unknown scheme"),
        (f"{tmp_path}/nowhere", NotFoundError, "neither a checkpoint nor a savepoint"),
        (f"{tmp_path}/root/chk-3", NotFoundError, "checkpoint 3 was retired"),
        (f"{tmp_path}/root/chk-9/_metadata", NotFoundError, "there is no checkpoint 9"),
    ):
        with pytest.raises(error, match=words):
            resolve_pointer(pointer)


# -- verifying ------------------------------------------------------------------------------------------------------


def verified(query, **more):
    return verify_root(query.root, outputs={URL: query.out}, **more)


def test_a_sound_root_is_read_whole(stores):
    query = Query(stores)
    query.root.publish(query.checkpoint(4).__class__(**{**as_dict(query.checkpoint(4)), "states": {}}))
    seen = []
    report = verified(query, progress=lambda done, total: seen.append((done, total)))
    assert report.is_sound
    assert report.checkpoint_ids == [3, 4]
    assert report.reachable == ["chk-3/model", "shared/large", "shared/rows", "shared/small", "shared/tables"]
    expected = sum(map(len, RUNS.values())) + len(ROWS) + 9 + 6
    assert report.bytes_read == expected
    assert seen == [(number, 5) for number in range(1, 6)]
    assert report.orphaned == []


def as_dict(value):
    return {name: getattr(value, name) for name in value.__struct_fields__}


def test_every_damage_is_found_and_named_with_the_checkpoints_that_need_it(stores):
    for name in ("shared/small", "shared/large", "shared/rows", "shared/tables", "chk-3/model"):
        query = Query(stores)
        data = query.store.get(name)
        middle = len(data) // 2
        for damaged, problem in (
            (data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], Problem.CORRUPT),
            (data[: middle - 1], Problem.CORRUPT),
            (None, Problem.MISSING),
        ):
            if damaged is None:
                query.store.delete([name])
            else:
                query.store.put(name, b"X" * len(damaged) if name == "shared/rows" else damaged)
            (finding,) = verified(query).findings
            assert (finding.problem, finding.name, finding.checkpoint_ids) == (problem, name, (3,))
            assert not verified(query).is_sound


def test_bytes_between_ranges_belong_to_nobody(stores):
    query = Query(stores)
    query.store.put("shared/rows", ROWS.replace(b"----", b"++++"))
    assert verified(query).is_sound


def test_a_longer_object_is_not_the_one_that_was_written(stores):
    query = Query(stores)
    query.store.put("shared/tables", b"commonx")
    assert [finding.problem for finding in verified(query).findings] == [Problem.CORRUPT]


def test_damaged_records_are_findings(stores):
    query = Query(stores)
    for checkpoint_id in (4, 5, 6):
        query.root.publish(checkpoint(checkpoint_id))
    query.store.put("chk-4/_metadata", b"garbage")
    query.store.delete(["chk-5/_metadata"])
    found = {(finding.problem, finding.name) for finding in verified(query).findings}
    assert found == {(Problem.CORRUPT, "chk-4/_metadata"), (Problem.MISSING, "chk-5/_metadata")}
    query.store.put("chk-6/_metadata", b"garbage")
    assert (Problem.CORRUPT, "chk-6/_metadata") in {(f.problem, f.name) for f in verified(query).findings}


def test_a_newest_record_that_was_deleted_is_a_finding(stores):
    query = Query(stores)
    query.root.publish(checkpoint(4))
    query.root.retain(1)
    query.store.delete(["chk-4/_metadata"])
    assert [finding.problem for finding in verified(query).findings] == [Problem.MISSING]


@pytest.mark.parametrize(
    ("name", "written", "other"),
    [
        ("chk-3/_published", encode_published(3), encode_published(4)),
        ("floor/7", encode_floor(7), encode_floor(8)),
    ],
)
def test_damaged_marks_are_findings(stores, name, written, other):
    query = Query(stores)
    query.store.put(name, written)
    assert verified(query).is_sound
    newer = written.replace(b'"version": 1', b'"version": 2')
    newer = newer[: newer.rindex(b',\n  "crc32c"')]
    newer += b',\n  "crc32c": "%08x"\n}\n' % crc32c(newer)
    flipped = written[:40] + bytes([written[40] ^ 1]) + written[41:]
    for bad, words in (
        (flipped, "byte"),
        (written[:50], "byte"),
        (b"", "byte 0"),
        (newer, "version 2"),
        (other, "mark"),
    ):
        query.store.put(name, bad)
        (finding,) = verified(query).findings
        assert (finding.problem, finding.name) == (Problem.CORRUPT, name)
        assert words in finding.detail
        assert verify_root(query.root, checkpoint_id=3).is_sound is name.startswith("floor/")


def test_finished_files_are_there_or_can_be_made_until_they_were_visible(stores):
    query = Query(stores)
    piece = query.out.stage("done", b"done rows")
    step = Part(name=".inprogress/step", length=0, crc32c=0)  # For the store alone: nobody else can look at it.
    file = finished_file("done", (piece, step))
    file = replace(file, commit=replace(file.commit, crc32c=crc32c(b"done rows")))
    query.root.publish(checkpoint(4, outputs=(OutputState(operator="flights", url=URL, finished=(file,)),)))
    assert verified(query).is_sound

    class Blind(StoreDecorator):
        def read_staged(self, part):
            return None

    unreadable = verify_root(query.root, outputs={URL: Blind(query.out)}).findings
    assert [finding.problem for finding in unreadable] == [Problem.UNREADABLE]
    query.out.put(piece.name, b"DONE rows")
    assert [(finding.problem, finding.name) for finding in verified(query).findings] == [
        (Problem.CORRUPT, f"{query.out.url}/{piece.name}")
    ]
    assert verify_root(query.root).is_sound
    query.out.discard([piece])
    assert [finding.problem for finding in verified(query).findings] == [Problem.MISSING]
    query.out.put("done", b"wrong row")
    assert [finding.problem for finding in verified(query).findings] == [Problem.CORRUPT]
    query.out.put("done", b"done rows")
    assert verified(query).is_sound
    query.root.mark_published(4)
    query.out.delete(["done"])
    assert verified(query).is_sound


def test_what_nobody_needs_is_listed(stores):
    query = Query(stores)
    query.savepoint()
    query.root.mark_published(3)
    query.store.put("shared/orphan", b"x")
    query.store.put("chk-9/orphan", b"x")
    staged = query.store.stage("shared/x", b"piece")
    report = verified(query)
    assert sorted(info.name for info in report.orphaned) == sorted(["chk-9/orphan", "shared/orphan", staged.name])
    assert report.is_sound


def test_one_checkpoint_can_be_verified_alone(stores):
    query = Query(stores)
    query.root.publish(checkpoint(4))
    query.store.put("shared/orphan", b"x")
    query.store.delete(["shared/small"])
    assert verified(query, checkpoint_id=4).is_sound
    assert not verified(query, checkpoint_id=3).is_sound
    with pytest.raises(NotFoundError):
        verified(query, checkpoint_id=9)


def test_what_is_retired_meanwhile_is_no_finding(stores):
    query = Query(stores)
    query.root.publish(checkpoint(4))

    class Retiring(StoreDecorator):
        def head(self, name):
            query.root.retain(1)
            return self.inner.head(name)

    report = verify_root(CheckpointStore(Retiring(query.store)))
    assert report.is_sound
