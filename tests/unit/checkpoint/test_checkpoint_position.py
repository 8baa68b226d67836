"""Where the sources of a query stand: what a savepoint carries of Spark's checkpoint, and how that is restored."""

from __future__ import annotations

import json

import pytest
from checkpoint_kit import checkpoint
from msgspec.structs import replace

from stateline.blob.memory import MemoryStore
from stateline.checkpoint import CheckpointStore, FileState, InlineState, create_savepoint, start_from_savepoint
from stateline.checkpoint.offsets import offsets_digest
from stateline.checkpoint.position import (
    POSITION,
    SPARK_CHECKPOINT,
    carry_position,
    check_not_begun,
    has_position,
    lay_position,
    offsets_state,
    spark_states,
)
from stateline.checkpoint.spark_files import StoreFiles
from stateline.environment import SystemIds
from stateline.errors import ConflictError, CorruptDataError, InvalidInputError

HEADER = 'v1\n{"batchWatermarkMs":7,"batchTimestampMs":1,"conf":{}}\n'
BATCH = 5
LONG = "x" * 5000


def memory():
    return MemoryStore(SystemIds().new_id())


def entry(number):
    return f'{{"path":"file:///in/{number}","timestamp":1,"batchId":{number}}}'


def files_of_spark(store=None, *, committed=BATCH, kinds=1):
    """Spark's checkpoint after batch 5 of a query over a folder of files, one of whose logs is compacted."""
    store = store or memory()
    for batch in range(BATCH + 1):
        store.put(f"offsets/{batch}", (HEADER + "\n".join([f'{{"logOffset":{batch}}}'] * kinds)).encode())
        if batch <= committed:
            store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":7}')
        for kind in range(kinds):
            store.put(f"sources/{kind}/{batch}", f"v1\n{entry(batch)}".encode())
    store.put("sources/0/.5.crc", b"checksum")
    store.put("metadata", b'{"id":"old"}')
    store.put("state/0/0/6.delta", LONG.encode())
    return store


def record_of(spark, batch=BATCH, **more):
    read = StoreFiles(spark).read
    digest = offsets_digest(lambda name: (read(name) or b"").decode() or None, "spark", batch)
    made = checkpoint(0, ())
    states = offsets_state(batch, spark.get(f"offsets/{batch}").decode())
    return replace(made, batch_id=batch, offsets_digest=digest, states=states, **more)


def saved(spark, record=None, **more):
    root = CheckpointStore(memory())
    root.publish(record or record_of(spark))
    return create_savepoint(root, memory(), **({"spark_checkpoint": StoreFiles(spark)} | more))


def names(store):
    return sorted(info.name for info in store.list(""))


def lay(savepoint, files):
    return lay_position(savepoint.checkpoint, savepoint.read_state, files, SystemIds())


class Dying:
    """Files of a process that is killed after some of them were created."""

    def __init__(self, files, alive_for):
        self.inner, self.left = files, alive_for
        self.url, self.read, self.names = files.url, files.read, files.names

    def create(self, name, data):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.inner.create(name, data)


def test_a_savepoint_carries_what_spark_needs_and_lays_it_into_an_empty_folder():
    spark, target = files_of_spark(), memory()
    savepoint = saved(spark)
    assert has_position(savepoint.checkpoint)
    assert isinstance(spark_states(savepoint.checkpoint.states)["state/0/0/6.delta"], FileState)
    query_id = lay(savepoint, StoreFiles(target, "new"))
    laid = {name.removeprefix("new/"): target.get(name) for name in names(target)}
    assert json.loads(laid.pop("metadata"))["id"] == query_id != "old"
    assert laid.pop("_stateline_savepoint") == savepoint.checkpoint.nonce.encode()
    expected = ["offsets/4", "offsets/5", "commits/5", "state/0/0/6.delta", *(f"sources/0/{n}" for n in range(6))]
    assert laid == {name: spark.get(name) for name in expected}


@pytest.mark.parametrize("alive_for", range(12))
def test_a_restore_that_is_killed_between_any_two_files_is_completed_by_the_next_start(alive_for):
    spark, target = files_of_spark(), memory()
    savepoint = saved(spark)
    whole = memory()
    lay(savepoint, StoreFiles(whole))
    assert len(names(whole)) == 12
    with pytest.raises(KeyboardInterrupt):
        lay(savepoint, Dying(StoreFiles(target), alive_for))
    if alive_for:
        with pytest.raises(ConflictError, match="restore was not completed"):
            check_not_begun(StoreFiles(target))
        assert "offsets/5" not in names(target), "the entry that Spark continues from is the last one"
    query_id = lay(savepoint, StoreFiles(target))
    assert lay(savepoint, StoreFiles(target)) == query_id, "and again"
    assert names(target) == names(whole)
    assert all(target.get(name) == whole.get(name) for name in names(whole) if name != "metadata")


def test_it_is_laid_into_no_folder_that_is_in_use():
    savepoint, other = saved(files_of_spark()), saved(files_of_spark())
    for name in ("offsets/0", "commits/0", "sources/0/0", "state/0/0/1.delta", "offsets/5"):
        used = memory()
        used.put(name, b"something")
        with pytest.raises(ConflictError, match=f"it has {name}"):
            lay(savepoint, StoreFiles(used))
        assert names(used) == [name]
    begun = memory()
    lay(savepoint, StoreFiles(begun))
    with pytest.raises(ConflictError, match="must be new"):
        lay(other, StoreFiles(begun))
    begun.put("offsets/6", b"the next batch")
    with pytest.raises(ConflictError, match="offsets/6"):
        lay(savepoint, StoreFiles(begun))


def test_a_batch_that_spark_has_not_committed_runs_again_there():
    target = memory()
    lay(saved(files_of_spark(committed=BATCH - 1)), StoreFiles(target))
    assert [name for name in names(target) if name.startswith(("offsets", "commits"))] == [
        "commits/4",
        "offsets/4",
        "offsets/5",
    ]


def test_the_first_batch_has_none_before_it():
    spark = files_of_spark()
    savepoint = saved(spark, record_of(spark, batch=0))
    carried = spark_states(savepoint.checkpoint.states)
    assert [name for name in carried if name.startswith(("offsets", "commits"))] == ["offsets/0", "commits/0"]


def test_an_entry_that_was_compacted_since_still_proves_the_offsets():
    spark = files_of_spark()
    record = record_of(spark, batch=3)
    spark.put("sources/0/5.compact", "\n".join(["v1", *map(entry, range(6))]).encode())
    spark.delete([f"sources/0/{number}" for number in range(6)])
    carried = spark_states(saved(spark, record).checkpoint.states)
    assert {"offsets/3", "commits/3", "sources/0/5.compact"} <= carried.keys()


def test_a_file_that_spark_deletes_meanwhile_is_found_in_the_next_one():
    spark = files_of_spark()

    class Deleting(StoreFiles):
        def read(self, name):
            if name == "sources/0/2":
                spark.put("sources/0/5.compact", "\n".join(["v1", *map(entry, range(6))]).encode())
                spark.delete(["sources/0/2"])
            return super().read(name)

    carried = spark_states(saved(spark, spark_checkpoint=Deleting(spark)).checkpoint.states)
    assert "sources/0/5.compact" in carried
    assert "sources/0/2" not in carried


def test_a_checkpoint_of_another_query_is_refused_or_not_carried():
    spark = files_of_spark()
    other = replace(record_of(spark), offsets_digest="0" * 64)
    states, reason = carry_position(other, StoreFiles(spark), lambda data: InlineState(data=data))
    assert not states
    assert "other offsets" in reason
    with pytest.raises(InvalidInputError, match="other offsets for batch 5"):
        saved(spark, other)
    with pytest.raises(InvalidInputError, match="has no offsets/5"):
        saved(memory(), record_of(spark))


def test_without_access_the_savepoint_says_so_unless_the_offsets_are_all_there_is():
    spark = files_of_spark()
    missing = record_of(spark, properties={SPARK_CHECKPOINT: "hdfs://away/spark"})
    for record, reason in (
        (missing, "not reachable, and it holds a log"),
        (replace(missing, states={}), "no source offsets"),
        (replace(missing, batch_id=-1), "no batch has run"),
    ):
        savepoint = saved(spark, record, spark_checkpoint=None)
        assert not has_position(savepoint.checkpoint)
        assert reason in savepoint.checkpoint.properties[POSITION]
        assert not [name for name in spark_states(savepoint.checkpoint.states) if not name.startswith("offsets")]
    kafka = HEADER + '{"topic":{"0":12,"1":7}}'
    savepoint = saved(spark, replace(missing, states=offsets_state(BATCH, kafka)), spark_checkpoint=None)
    assert has_position(savepoint.checkpoint)
    target = memory()
    lay(savepoint, StoreFiles(target))
    assert target.get("offsets/5").decode() == target.get("offsets/4").decode() == kafka
    assert target.get("commits/5") == b'v1\n{"nextBatchWatermarkMs":7}'


def test_spark_s_checkpoint_is_found_below_the_root_by_what_the_record_says():
    store = memory()
    spark = files_of_spark()
    for name in names(spark):
        store.put(f"spark/{name}", spark.get(name))
    root = CheckpointStore(store)
    root.publish(record_of(spark, properties={SPARK_CHECKPOINT: f"{store.url}/spark"}))
    assert has_position(create_savepoint(root, memory()).checkpoint)


def test_a_damaged_savepoint_lays_no_file_elsewhere():
    savepoint = saved(files_of_spark())
    for name in ("metadata", "../out", "_stateline_savepoint", "sources/../../x", "offsets/.5", "jars/x.jar"):
        states = savepoint.checkpoint.states | {f"spark:{name}": InlineState(data=b"!")}
        target = memory()
        with pytest.raises(CorruptDataError, match="must not carry"):
            lay_position(
                replace(savepoint.checkpoint, states=states), savepoint.read_state, StoreFiles(target), SystemIds()
            )
        assert not names(target)


def test_a_changed_object_of_the_savepoint_is_noticed():
    savepoint = saved(files_of_spark())
    [name] = [info.name for info in savepoint.store.list("") if "shared" in info.name]
    savepoint.store.put(name, b"y" * 5000)
    with pytest.raises(CorruptDataError, match="is not what was written"):
        lay(savepoint, StoreFiles(memory()))


def test_the_new_root_continues_with_the_batch_after_the_savepoint():
    savepoint = saved(files_of_spark())
    root = CheckpointStore(memory())
    first = start_from_savepoint(savepoint, root, query_id="new", continues=True)
    assert (first.checkpoint_id, first.batch_id) == (0, BATCH)
    assert first.offsets_digest == savepoint.checkpoint.offsets_digest
    assert [*first.states] == ["spark:offsets/5"], "Spark's files are in Spark's checkpoint"
    assert not names(root.store)
    anew = start_from_savepoint(savepoint, root, query_id="new")
    assert (anew.batch_id, anew.offsets_digest) == (-1, "")


def test_of_a_claimed_savepoint_spark_s_files_are_deleted_with_it():
    store = memory()
    source = CheckpointStore(memory())
    source.publish(record_of(files_of_spark()))
    savepoint = create_savepoint(source, store, spark_checkpoint=StoreFiles(files_of_spark()))
    root = CheckpointStore(store)
    first = root.publish(start_from_savepoint(savepoint, root, query_id="new", mode="claim", continues=True))
    root.publish(replace(first, checkpoint_id=1, batch_id=BATCH + 1, nonce="next", states={}))
    root.retain(1)
    assert [name for name in names(store) if name.startswith(f"{savepoint.folder}/shared")] == []
