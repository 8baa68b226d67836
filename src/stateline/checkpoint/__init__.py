"""One atomic record that names output and state: create it, find it, retain it, verify it.

``api`` states what a checkpoint is and the invariants of a root; ``store`` is where users begin.
"""

from stateline.checkpoint.api import (
    MAX_FILE_STATE_THRESHOLD,
    Checkpoint,
    FileState,
    InlineState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.checkpoint.state_handles import FileHandle, InlineHandle, open_state
from stateline.checkpoint.store import CheckpointStore, CheckpointStoreSettings
from stateline.checkpoint.stream_factory import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)

__all__ = [
    "MAX_FILE_STATE_THRESHOLD",
    "Checkpoint",
    "CheckpointStateOutputStream",
    "CheckpointStore",
    "CheckpointStoreSettings",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
    "FileHandle",
    "FileState",
    "InlineHandle",
    "InlineState",
    "OperatorState",
    "OutputState",
    "SubtaskState",
    "open_state",
]
