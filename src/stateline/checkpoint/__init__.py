"""One atomic record that names output and state: create it, find it, retain it, verify it.

``api`` states what a checkpoint is and the invariants of a root; ``store`` is where users begin.
"""

from stateline.checkpoint.api import (
    MAX_FILE_STATE_THRESHOLD,
    Checkpoint,
    DeliveryState,
    FileState,
    InlineState,
    InputState,
    OperatorState,
    OutputState,
    SubtaskState,
    checkpoint_time,
)
from stateline.checkpoint.pointer import Located, Snapshot, locate, resolve_pointer
from stateline.checkpoint.relocation import Relocation, relocate_outputs
from stateline.checkpoint.savepoint import (
    Savepoint,
    create_savepoint,
    drop_savepoint,
    list_savepoints,
    open_savepoint,
    start_from_savepoint,
)
from stateline.checkpoint.state_handles import FileHandle, InlineHandle, open_state
from stateline.checkpoint.store import CheckpointStore, CheckpointStoreSettings
from stateline.checkpoint.stream_factory import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from stateline.checkpoint.sweep import RootSweep, sweep_root
from stateline.checkpoint.verify import Finding, Problem, VerifyReport, verify_root, verify_savepoint

__all__ = [
    "MAX_FILE_STATE_THRESHOLD",
    "Checkpoint",
    "CheckpointStateOutputStream",
    "CheckpointStore",
    "CheckpointStoreSettings",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
    "DeliveryState",
    "FileHandle",
    "FileState",
    "Finding",
    "InlineHandle",
    "InlineState",
    "InputState",
    "Located",
    "OperatorState",
    "OutputState",
    "Problem",
    "Relocation",
    "RootSweep",
    "Savepoint",
    "Snapshot",
    "SubtaskState",
    "VerifyReport",
    "checkpoint_time",
    "create_savepoint",
    "drop_savepoint",
    "list_savepoints",
    "locate",
    "open_savepoint",
    "open_state",
    "relocate_outputs",
    "resolve_pointer",
    "start_from_savepoint",
    "sweep_root",
    "verify_root",
    "verify_savepoint",
]
