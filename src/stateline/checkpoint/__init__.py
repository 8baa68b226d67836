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
from stateline.checkpoint.store import CheckpointStore, CheckpointStoreSettings

__all__ = [
    "MAX_FILE_STATE_THRESHOLD",
    "Checkpoint",
    "CheckpointStore",
    "CheckpointStoreSettings",
    "FileState",
    "InlineState",
    "OperatorState",
    "OutputState",
    "SubtaskState",
]
