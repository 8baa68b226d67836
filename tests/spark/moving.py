"""A query that is killed, saved and moved to a new root and a new Spark checkpoint, again and again."""

from __future__ import annotations

import collections
import contextlib
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint, verify_root
from stateline.checkpoint.position import POSITION
from stateline.errors import InvalidInputError
from tests.spark.keyed_model import model, newest_id, stored_state, write_source
from tests.spark.killing import kill, start_program, wait_for_checkpoint, wait_for_death
from tests.spark.marked_processes import wait_for_end
from tests.spark.moving_driver import COPY, FOLDERS, LAY

ROWS = 40
"""Rows of each file. They have every key of the model, so a micro-batch emits each key once."""

BEFORE = (
    *(f"{point}:{when}:2" for point in ("record", "floor") for when in ("before", "after")),
    *(f"{point}:{when}" for point in ("publish", "mark") for when in ("before", "after")),
    "discard:after",
    "acknowledge:after",
    "",
)
"""Where the driver dies before the savepoint; empty for a random time."""

RESTORE = (
    *(f"{LAY}:{when}:{number}" for number in range(1, 6) for when in ("before", "after")),
    f"{COPY}:before",
    f"{COPY}:after",
    "record:before",
    "record:after",
)
"""Where the driver dies in the restore: at each file in Spark's new checkpoint, an object, and the first record."""

AFTER = ("record:before:2", "record:after:2", "publish:before", "publish:after", "acknowledge:after", "")
"""Where the driver dies after the move."""


@dataclass(frozen=True)
class Move:
    """Where drivers die on the way to the next root.

    Attributes:
        before: One of :data:`BEFORE`.
        restore: Some of :data:`RESTORE`; each driver continues the restore that the one before it began.
        after: Some of :data:`AFTER`.
    """

    before: str
    restore: Sequence[str]
    after: Sequence[str] = ()


class MovedQuery:
    """A query in a folder, its files, and the stage that it has reached.

    Args:
        folder: An empty one.
        union: Whether it reads two folders.
        dice: For parallelism and random times.
        inline_bytes: What a subtask writes without an object of its own; ``0`` leaves objects to copy.
    """

    def __init__(self, folder: Path, *, union: bool, dice: random.Random, inline_bytes: str = "0") -> None:
        self.folder, self.dice, self.stage, self.files = folder, dice, 0, 0
        self.log = folder / "driver.log"
        self._start_from: list[str] = []
        self._names = FOLDERS if union else FOLDERS[:1]
        self._options = ["--inline-bytes", inline_bytes, *(["--union"] if union else [])]

    @property
    def root(self) -> CheckpointStore:
        """The root of the stage."""
        return CheckpointStore(open_store(f"file://{self.folder}/{self.stage}/state"))

    def add_files(self, count: int) -> None:
        """Adds files to each folder."""
        for name in self._names:
            for _ in range(count):
                write_source(self.folder / name, self.files, rows=ROWS)
                self.files += 1

    def run(self, step: str | None = None) -> None:
        """Runs a driver that dies at a step, at a random time for an empty one, or that ends for ``None``."""
        place = self.folder / str(self.stage)
        parallelism = ["--parallelism", str(self.dice.randint(1, 3))]
        options = [*self._options, *self._start_from, *parallelism, *(["--kill", step] if step else [])]
        target = newest_id(place) + self.dice.randint(1, 2)
        process = start_program(
            self.log, "tests.spark.moving_driver", "local[2]", str(self.folder), str(self.stage), *options
        )
        if step == "":
            wait_for_checkpoint(place, target, process)
            kill(process, self.log)
        elif step is None:
            assert wait_for_end(process, 250, self.log.read_text) == 0, self.log.read_text()[-3000:]
        else:
            wait_for_death(process, self.log)
            assert process.returncode == -signal.SIGKILL, f"{step}\n{self.log.read_text()[-3000:]}"

    def save(self) -> str:
        """Makes a savepoint of a query that does not run; its URL.

        A killed driver may leave files that no reader sees yet. Then the query is started again, as the error says.
        """
        with contextlib.suppress(InvalidInputError):
            return self._saved()
        self.add_files(1)
        self.run("acknowledge:after")
        return self._saved()

    def _saved(self) -> str:
        saved = create_savepoint(self.root, f"file://{self.folder}/saved", patience=0.0)
        assert saved.checkpoint.properties[POSITION] == "", "it carries where the sources stand"
        return saved.url

    def move(self, move: Move) -> None:
        """Kills the query, saves it, and starts it in the next stage, where it dies again."""
        self.add_files(3)
        self.run(move.before)
        url = self.save()
        saved = self.root.latest()
        assert saved is not None
        self.stage += 1
        self._start_from = ["--start-from", url]
        self.add_files(2)
        for step in move.restore:
            self.run(step)
        for step in move.after:
            self.add_files(1)
            self.run(step)
        self.add_files(1)
        self.run()
        first = self.root.get(0)
        assert first.batch_id == saved.batch_id, "the first record is the state of the savepoint"
        assert first.query_id != saved.query_id

    def check(self) -> None:
        """Compares totals with those of a query that ran through, and that each row was shown once."""
        state, _ = model([0] * self.files, rows=ROWS)
        assert stored_state(self.folder / str(self.stage)) == state
        newest = self.root.latest()
        assert newest is not None
        shown = ds.dataset(self.folder / "out", format="parquet").to_table().to_pylist()
        batches = collections.Counter(row["key"] for row in shown)
        assert batches == dict.fromkeys(state, newest.batch_id + 1), "each batch shows each key once"
        assert len({(row["key"], row["n"]) for row in shown}) == len(shown), "no row was counted twice"
        last = {row["key"]: row for row in sorted(shown, key=lambda row: row["n"])}
        assert {key: (row["n"], row["total"], row["largest"]) for key, row in last.items()} == state
        assert verify_root(self.root).is_sound


def survive_moves(folder: Path, moves: Sequence[Move], dice: random.Random, *, union: bool) -> None:
    """Moves a query again and again, killed at the steps of each move, and compares what it made with the model."""
    query = MovedQuery(folder, union=union, dice=dice)
    for move in moves:
        query.move(move)
    query.check()


def drawn_moves(number: int, dice: random.Random) -> list[Move]:
    """Two moves; over all numbers, drivers die at each step. After the first record no file is laid any more."""
    files = [step for step in RESTORE if step.startswith(LAY)]
    return [
        Move(
            before=BEFORE[index % len(BEFORE)],
            restore=[dice.choice(files), RESTORE[index % len(RESTORE)]],
            after=[AFTER[index % len(AFTER)]],
        )
        for index in (2 * number, 2 * number + 1)
    ]


def kills_of(moves: Sequence[Move]) -> int:
    """How many drivers die on some moves."""
    return sum(1 + len(move.restore) + len(move.after) for move in moves)
