"""The state changelog: every change of keyed state, streamed to an object store as it happens.

``api`` says what it is and how a change lives; ``segment`` is the format of objects. A checkpoint costs what changed,
and a restart at any parallelism reads exactly its key groups::

    storage = ChangelogStorage.open("file:///data/changelog")
    writer = storage.create_writer("operator", KeyGroupRange(0, 127))
    writer.append(5, b"...")
    handle = writer.persist(writer.initial_sequence_number(), 1).result().remote
    changes = list(storage.create_reader().read(handle, KeyGroupRange(0, 63)))
"""

from stateline.changelog.api import (
    AvailabilityProvider,
    RetriableAction,
    SequenceNumber,
    SnapshotResult,
    StateChange,
    UploadResult,
)
from stateline.changelog.change_set import StateChangeSet
from stateline.changelog.handle import ChangelogHandle, SegmentHandle
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.reader import ChangelogReader
from stateline.changelog.registry import LocalChangelogRegistry, TaskChangelogRegistry
from stateline.changelog.retry import RetryingExecutor
from stateline.changelog.scheduler import batching_scheduler, direct_scheduler, scheduler_from_options
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.storage import ChangelogStorage
from stateline.changelog.upload_table import RetryPolicy, UploadThrottle
from stateline.changelog.upload_task import (
    StateChangeUploader,
    StateChangeUploadScheduler,
    UploadTask,
    UploadTasksResult,
)
from stateline.changelog.uploader import BlobUploader, DuplicatingUploader
from stateline.changelog.writer import ChangelogWriter

__all__ = [
    "AvailabilityProvider",
    "BlobUploader",
    "ChangelogHandle",
    "ChangelogMetrics",
    "ChangelogReader",
    "ChangelogSettings",
    "ChangelogStorage",
    "ChangelogWriter",
    "DuplicatingUploader",
    "LocalChangelogRegistry",
    "RetriableAction",
    "RetryPolicy",
    "RetryingExecutor",
    "SegmentHandle",
    "SequenceNumber",
    "SnapshotResult",
    "StateChange",
    "StateChangeSet",
    "StateChangeUploadScheduler",
    "StateChangeUploader",
    "TaskChangelogRegistry",
    "UploadResult",
    "UploadTask",
    "UploadTasksResult",
    "UploadThrottle",
    "batching_scheduler",
    "direct_scheduler",
    "scheduler_from_options",
]
