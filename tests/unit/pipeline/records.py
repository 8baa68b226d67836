"""Records of checkpoints as values, for what reads only a part of them."""

from __future__ import annotations

from typing import Any

from stateline.checkpoint import Checkpoint


def record(**members: Any) -> Checkpoint:
    """The record of a first batch of one subtask, with these members."""
    first: dict[str, Any] = {
        "checkpoint_id": 0,
        "batch_id": 0,
        "query_id": "q",
        "offsets_digest": "",
        "max_parallelism": 1,
        "parallelism": 1,
        "nonce": "0" * 32,
        "created_at": 0.0,
    }
    return Checkpoint(**first | members)
