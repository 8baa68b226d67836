"""How far the pipeline is: what its newest checkpoint record says.

The record is JSON, and the demo reads it as JSON, with no Stateline code: that is a promise of the format.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.offsets import files_through


@dataclass(frozen=True)
class Progress:
    """A checkpoint, in figures.

    Attributes:
        events: Events of the source that are decided.
        checkpoint_id: The newest checkpoint; -1 before the first.
        state_bytes: Bytes of all runs that it reaches.
        open_files: Output files that still grow.
    """

    events: int = 0
    checkpoint_id: int = -1
    state_bytes: int = 0
    open_files: int = 0


class RecordProgress:
    """Reads the progress from a checkpoint root.

    Args:
        root: The folder.
        spark_checkpoint: Where Spark notes what each micro-batch takes.
        file_events: Events of each source file, in order.
    """

    def __init__(self, root: Path, spark_checkpoint: Path, file_events: Sequence[int]) -> None:
        self._root = root
        self._spark_checkpoint = spark_checkpoint
        self._events_through = list(itertools.accumulate(file_events))

    def __call__(self) -> Progress:
        record = newest_record(self._root)
        if record is None:
            return Progress()
        return Progress(
            events=self._events_through[files_through(self._spark_checkpoint, record["batch_id"]) - 1],
            checkpoint_id=record["checkpoint_id"],
            state_bytes=sum({place_of(run): run["length"] for run in runs_of(record)}.values()),
            open_files=sum(len(output["open"]) for output in record["outputs"]),
        )


def newest_record(root: Path) -> dict[str, Any] | None:
    """The checkpoint with the highest id; ``None`` before the first."""
    for number in sorted(_checkpoint_ids(root), reverse=True):
        try:
            record = json.loads((root / f"chk-{number}" / "_metadata").read_bytes())
        except FileNotFoundError:
            continue  # Its folder exists already, its record does not: it is being made.
        if record["format"] == "stateline.checkpoint":
            return record
    return None


def runs_of(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The runs of all operators."""
    for operator in record["operators"]:
        for subtask in operator["subtasks"]:
            yield from subtask["runs"]


def place_of(run: dict[str, Any]) -> tuple[str, int, str]:
    """What tells a run from all others: its segment and its place there, or its bytes, where the record holds them."""
    return run["name"], run["offset"], run.get("data", "")


def bytes_of(root: Path, run: dict[str, Any]) -> bytes:
    """The bytes of a run, which any reader of Arrow files opens."""
    name, offset, data = place_of(run)
    if data:
        return base64.b64decode(data)
    with (root / name).open("rb") as segment:
        segment.seek(offset)
        return segment.read(run["length"])


def _checkpoint_ids(root: Path) -> Iterator[int]:
    for path in root.glob("chk-*"):
        number = path.name.removeprefix("chk-")
        if number.isdigit():
            yield int(number)
