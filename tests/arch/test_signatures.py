"""The signatures that users and their tests rely on: parameters may be added, none may be renamed."""

from __future__ import annotations

import importlib
import inspect
from functools import reduce

import pytest

PINNED = {
    "stateline.key_groups": {
        "range_for_subtask": "index parallelism max_parallelism",
        "subtask_for_key_group": "key_group parallelism max_parallelism",
        "key_group_of": "hash64 max_parallelism",
        "default_max_parallelism": "parallelism",
        "KeyGroupRange": "start end",
        "KeyGroupRange.intersection": "other",
        "KeyGroupRange.__contains__": "key_group",
    },
    "stateline.blob": {
        "open_store": "url options",
    },
    "stateline.changelog": {
        "ChangelogSettings": (
            "preemptive_persist_threshold persist_delay persist_size_threshold max_in_flight "
            "compression buffer_size num_upload_threads num_discard_threads retry_policy upload_timeout "
            "max_attempts retry_delay local_recovery_dir local_recovery_max_bytes cache_idle_timeout"
        ),
        "ChangelogStorage.open": "url_or_store settings job_id uploader scheduler environment",
        "ChangelogStorage.create_writer": "operator_id key_group_range",
        "ChangelogWriter.append": "key_group value",
        "ChangelogWriter.append_meta": "value",
        "ChangelogWriter.append_batch": "key_groups values",
        "ChangelogWriter.persist": "from_ checkpoint_id",
        "ChangelogWriter.confirm": "from_ to checkpoint_id",
        "ChangelogWriter.reset": "from_ to checkpoint_id",
        "ChangelogWriter.truncate": "to",
        "ChangelogWriter.truncate_and_close": "from_",
        "ChangelogReader.read": "handle key_groups",
        "StateChangeSet": "log_id sequence_number changes",
        "UploadTask": "change_sets on_success on_failure",
        "UploadTask.complete": "results",
        "UploadTask.fail": "error",
        "UploadTasksResult": "successful failed",
        "UploadResult": "sequence_number handle local_handle offset size",
        "DuplicatingUploader": "remote local",
        "direct_scheduler": "uploader",
        "batching_scheduler": "uploader settings executor clock metrics",
        "UploadThrottle": "max_in_flight",
        "UploadThrottle.seize": "n",
        "UploadThrottle.release": "n",
        "RetryPolicy.fixed": "max_attempts timeout delay_after_failure",
        "RetryPolicy.retry_after": "attempt error",
        "RetryingExecutor": "num_threads",
        "RetryingExecutor.execute": "policy action",
        "TaskChangelogRegistry.start_tracking": "handle n",
        "TaskChangelogRegistry.stop_tracking": "handle",
        "TaskChangelogRegistry.release": "handle",
        "TaskChangelogRegistry.retain": "handle",
        "LocalChangelogRegistry.register": "handle checkpoint_id",
        "LocalChangelogRegistry.discard_up_to": "checkpoint_id",
        "ChangelogHandle.from_bytes": "b",
        "StateChange": "key_group value",
        "SequenceNumber": "value",
        "SnapshotResult": "remote local",
        "StateChangeUploader.upload": "tasks",
        "ChangelogSettings.from_options": "options",
    },
    "stateline.recoverable": {
        "RecoverableWriter.for_url": "url options",
        "RecoverableWriter.open": "url",
        "RecoverableWriter.recover": "point",
        "RecoverableWriter.recover_for_commit": "point",
        "RecoverableWriter.cleanup": "point",
        "RecoverableStream.write": "b",
    },
    "stateline.checkpoint": {
        "CheckpointStreamFactory": "store checkpoint_dir shared_dir file_state_size_threshold write_buffer_size",
        "CheckpointStreamFactory.create_checkpoint_state_output_stream": "scope",
        "CheckpointStateOutputStream.write": "b",
        "CheckpointStore": "root_url",
        "CheckpointStore.get": "checkpoint_id",
        "CheckpointStore.publish": "checkpoint",
        "CheckpointStore.retain": "n",
    },
}


@pytest.mark.parametrize(
    ("module", "name", "wanted"), [(module, *pin) for module, pins in PINNED.items() for pin in pins.items()]
)
def test_parameters_keep_their_names(module: str, name: str, wanted: str) -> None:
    found = reduce(getattr, name.split("."), importlib.import_module(module))
    assert set(wanted.split()) <= set(inspect.signature(found).parameters)
