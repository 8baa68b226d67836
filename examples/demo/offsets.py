"""Which source files each micro-batch took, as Spark has written it down.

Usually the k-th file is batch k. But Spark notes first which files it has found and then which of them a batch takes: a
driver killed between the two goes on with a batch of two files.
"""

from __future__ import annotations

import json
from pathlib import Path


def files_through(spark_checkpoint: Path, batch_id: int) -> int:
    """How many source files, in order, all batches up to ``batch_id`` have taken."""
    lines = (spark_checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    return int(json.loads(lines[-1])["logOffset"]) + 1


def batch_of_files(spark_checkpoint: Path) -> list[int]:
    """The batch of each source file, in order."""
    batches: list[int] = []
    for batch_id in range(len([path for path in (spark_checkpoint / "offsets").iterdir() if path.name.isdigit()])):
        batches += [batch_id] * (files_through(spark_checkpoint, batch_id) - len(batches))
    return batches
