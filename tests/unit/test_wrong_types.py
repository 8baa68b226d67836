"""What public names make of arguments of another type: our error, which says what came, and where."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stateline.blob import open_store
from stateline.changelog import (
    BlobUploader,
    ChangelogSettings,
    ChangelogStorage,
    LocalChangelogRegistry,
    RetryingExecutor,
    RetryPolicy,
    SequenceNumber,
    StateChangeSet,
    TaskChangelogRegistry,
    UploadTask,
    UploadTasksResult,
    UploadThrottle,
    batching_scheduler,
    scheduler_from_options,
)
from stateline.checkpoint import (
    CheckpointedStateScope,
    CheckpointStore,
    CheckpointStreamFactory,
    create_savepoint,
    drop_savepoint,
    list_savepoints,
    locate,
    open_savepoint,
    resolve_pointer,
    start_from_savepoint,
)
from stateline.errors import InvalidInputError
from stateline.key_groups import (
    KeyGroupRange,
    default_max_parallelism,
    key_group_of,
    range_for_subtask,
    stable_hash,
    subtask_for_key_group,
)
from stateline.recoverable import RecoverableWriter
from stateline.state import KeyedStateBackend

STORE = open_store("memory://wrong-types")
ZERO = SequenceNumber.of(0)


def stream_of_a_checkpoint() -> Any:
    factory = CheckpointStreamFactory(STORE, "chk", "shared")
    return factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)


CALLS: dict[str, Callable[[Any], object]] = {
    "KeyGroupRange": lambda it: KeyGroupRange(it, it),
    "KeyGroupRange.intersection": KeyGroupRange(0, 5).intersection,
    "range_for_subtask": lambda it: range_for_subtask(it, 2, 8),
    "subtask_for_key_group": lambda it: subtask_for_key_group(it, 2, 8),
    "key_group_of": lambda it: key_group_of(it, 8),
    "stable_hash": stable_hash,
    "default_max_parallelism": default_max_parallelism,
    "open_store": open_store,
    "open_store options": lambda it: open_store("memory://x", it),
    "for_url": lambda it: RecoverableWriter.for_url("memory://x", it),
    "SequenceNumber": SequenceNumber.of,
    "ChangelogSettings.from_options": ChangelogSettings.from_options,
    "ChangelogStorage.open": ChangelogStorage.open,
    "ChangelogStorage settings": lambda it: ChangelogStorage.open(STORE, it),
    "ChangelogStorage job": lambda it: ChangelogStorage.open(STORE, job_id=it),
    "ChangelogStorage environment": lambda it: ChangelogStorage.open(STORE, environment=it),
    "UploadThrottle": UploadThrottle,
    "UploadThrottle.seize": UploadThrottle(5).seize,
    "UploadThrottle.release": UploadThrottle(5).release,
    "RetryPolicy.fixed": lambda it: RetryPolicy.fixed(it, 1, 1),
    "RetryPolicy.retry_after": lambda it: RetryPolicy.none().retry_after(it, OSError()),
    "RetryingExecutor": RetryingExecutor,
    "RetryingExecutor.execute": lambda it: RetryingExecutor(1).execute(it, it),
    "StateChangeSet": lambda it: StateChangeSet(uuid.uuid4(), ZERO, it),
    "StateChangeSet change": lambda it: StateChangeSet(uuid.uuid4(), ZERO, [it]),
    "StateChangeSet log": lambda it: StateChangeSet(it, ZERO, []),
    "UploadTask": lambda it: UploadTask(it, print, print),
    "UploadTask set": lambda it: UploadTask([it], print, print),
    "UploadTask callback": lambda it: UploadTask([], it, print),
    "UploadTasksResult": UploadTasksResult,
    "BlobUploader": lambda it: BlobUploader(STORE, it),
    "batching_scheduler": lambda it: batching_scheduler(BlobUploader(STORE), it),
    "scheduler_from_options": lambda it: scheduler_from_options(BlobUploader(STORE), it),
    "TaskChangelogRegistry handle": TaskChangelogRegistry(STORE).release,
    "LocalChangelogRegistry handle": lambda it: LocalChangelogRegistry(STORE).register(it, 1),
    "LocalChangelogRegistry": LocalChangelogRegistry(STORE).discard_up_to,
    "BlobStore.list": STORE.list,
    "BlobStore.get_range": lambda it: STORE.get_range("x", 0, it),
    "CheckpointStreamFactory": lambda it: CheckpointStreamFactory(it, "chk", "shared"),
    "CheckpointStateOutputStream.write": lambda it: stream_of_a_checkpoint().write(it),
    "CheckpointStore": CheckpointStore,
    "CheckpointStore.retain": CheckpointStore(STORE).retain,
    "KeyedStateBackend": KeyedStateBackend.open,
    "create_savepoint": lambda it: create_savepoint(it, STORE),
    "create_savepoint target": lambda it: create_savepoint(CheckpointStore(STORE), it),
    "open_savepoint": open_savepoint,
    "open_savepoint folder": lambda it: open_savepoint(STORE, it),
    "list_savepoints": list_savepoints,
    "drop_savepoint": lambda it: drop_savepoint(STORE, it),
    "start_from_savepoint": lambda it: start_from_savepoint(it, CheckpointStore(STORE), query_id="q"),
    "locate": locate,
    "resolve_pointer": resolve_pointer,
}
WRONG = (None, object(), 1.5, b"\xff", np.array([1, 2]), [None])
WORKS = {
    "key_group_of": (WRONG[4],),
    "stable_hash": (None, 1.5, b"\xff"),
    "ChangelogSettings.from_options": (None,),
    "ChangelogStorage settings": (None,),
    "ChangelogStorage job": (None,),
    "ChangelogStorage environment": (None,),
    "open_store options": (None,),
    "for_url": (None,),
    "UploadTasksResult": (None,),
    "BlobUploader": (None,),
    "batching_scheduler": (None,),
    "scheduler_from_options": (None,),
    "CheckpointStateOutputStream.write": (b"\xff", WRONG[4]),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_type_is_refused_in_our_words(name: str) -> None:
    works = [id(it) for it in WORKS.get(name, ())]
    for wrong in WRONG:
        if id(wrong) in works:
            continue
        with pytest.raises(InvalidInputError) as caught:
            CALLS[name](wrong)
        assert caught.value.operation or caught.value.subject, name


def test_text_that_is_no_unicode_is_refused_as_a_key() -> None:
    with pytest.raises(InvalidInputError, match="cannot be a key"):
        stable_hash("caf\udce9")


def test_numbers_of_numpy_are_numbers() -> None:
    assert default_max_parallelism(np.int64(100)) == 256
    assert range_for_subtask(np.int64(1), np.int64(2), 8) == KeyGroupRange(4, 7)
    assert key_group_of(np.int64(-1), np.int64(8)) == 7
