"""Roots to look at: one that a small pipeline made, one of ten thousand checkpoints, odd ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import (
    Checkpoint,
    CheckpointStore,
    DeliveryState,
    InputState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.checkpoint.history import CheckpointSummary, by_block, create_block, create_fenced_mark, with_summaries
from stateline.checkpoint.layout import HISTORY_BLOCK
from stateline.checkpoint.table_records import TableRecord, table_properties
from stateline.environment import system_environment
from stateline.handles import OpenFile, RowsHandle, RunHandle
from stateline.key_groups import range_for_subtask
from stateline.state import KeyedStateBackend, StateSchema

SCHEMA = StateSchema(
    pa.schema([("tailnum", pa.string())]), pa.schema([("flights", pa.int64()), ("mean_delay", pa.float64())])
)
LONG_NAME = "delays_of_every_aircraft_by_origin_destination_and_hour_of_the_local_day_including_cancelled_ones"
STARTED = 1_760_000_000.0
KEY_GROUPS = 128


def new_store() -> BlobStore:
    return open_store(f"memory://{system_environment().ids.new_id()}")


def run(first: int, last: int, rows: int, length: int, checkpoint_id: int, name: str) -> RunHandle:
    return RunHandle(
        name=f"shared/{name}",
        offset=0,
        length=length,
        crc32c=0,
        rows=rows,
        first_key_group=first,
        last_key_group=last,
        checkpoint_id=checkpoint_id,
    )


def state(name: str, checkpoint_id: int, parallelism: int = 4, skewed: bool = False) -> OperatorState:
    """Stacks of three runs, each smaller than the one below; one subtask may have much more."""
    subtasks = []
    for index in range(parallelism):
        owned = range_for_subtask(index, parallelism, KEY_GROUPS)
        weight = (6 if skewed and index == 1 else 1) * (5 + index % 3)
        runs = tuple(
            run(
                owned.start,
                owned.end,
                8_000 * weight // 8**age,
                600_000 * weight // 8**age,
                checkpoint_id,
                f"{name}-{index}-{age}",
            )
            for age in range(3)
        )
        subtasks.append(SubtaskState(first_key_group=owned.start, last_key_group=owned.end, runs=runs))
    return OperatorState(name=name, schema=SCHEMA.encode(), definition="", subtasks=tuple(subtasks))


def record(checkpoint_id: int, *, parallelism: int = 4) -> Checkpoint:
    """A record with everything that a page shows."""
    now = STARTED + checkpoint_id * 10.0
    rows = RowsHandle(name="shared/rows", offset=0, length=10, crc32c=0, rows=7)
    growing = [
        OpenFile(
            target=f"origin=JFK/part-{number}.parquet",
            subtask=number,
            layout="l",
            opened_at=now - 120,
            written_at=now,
            rows=5_000,
            bytes=640_000,
            pending=(rows,),
        )
        for number in range(3)
    ]
    tables = {
        "flights": TableRecord(
            format="delta",
            target="s3://warehouse/flights",
            app="a",
            mode="upsert",
            key=("tailnum",),
            committed=checkpoint_id - 1,
            version="418",
        )
    }
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        batch_id=checkpoint_id,
        query_id="5d1f4c0e",
        offsets_digest=f"{checkpoint_id:064}",
        max_parallelism=KEY_GROUPS,
        parallelism=parallelism,
        nonce=f"{checkpoint_id:032x}",
        created_at=now,
        operators=(
            state("flights", checkpoint_id, parallelism),
            state(LONG_NAME, checkpoint_id, parallelism, skewed=True),
        ),
        outputs=(OutputState(operator="flights", url="s3://lake/flights/out", open=tuple(growing)),),
        deliveries=(DeliveryState(operator=LONG_NAME, rows=(rows,)),) if checkpoint_id % 2 else (),
        inputs=(
            InputState(
                name="flights",
                column="departed_at",
                watermark_us=int((now - 35) * 1e6),
                late_watermark_us=int((now - 45) * 1e6),
            ),
            InputState(name=LONG_NAME, column="at"),
        ),
        properties=table_properties(tables),
    )


def summary(checkpoint_id: int, *, of: int = 10_000) -> CheckpointSummary:
    """Figures as a busy pipeline has them: they wander, merges come now and then, and some checkpoints are slow."""
    draw = np.random.default_rng(checkpoint_id)
    wave = 1 + 0.35 * math.sin(checkpoint_id / 90) + 0.15 * math.sin(checkpoint_id / 7)
    rows = int(52_000 * wave * draw.uniform(0.9, 1.1))
    merges = checkpoint_id % 8 == 0
    slow = 4.0 if draw.random() < 0.006 else 1.0
    job = slow * (0.55 * wave + 0.1 * draw.random() + (0.5 if merges else 0))
    written = int(310_000 * wave + (6_500_000 if merges else 0))
    total = int(28_000_000 + 9_000 * checkpoint_id)
    figures: dict[str, float] = {
        "parallelism": 4 if checkpoint_id < of * 0.7 else 6,
        "rows": rows,
        "rows_late": int(rows * 0.004 * draw.random()),
        "keys": int(rows * 0.31),
        "open_seconds": 0.08 * slow,
        "process_seconds": 0.8 * wave,
        "state_seconds": 0.5,
        "write_seconds": 0.35 * wave,
        "merge_seconds": 1.6 if merges else 0.0,
        "output_seconds": 0.3 * wave,
        "upload_seconds": 0.2 * slow,
        "subtasks_seconds": job,
        "pack_seconds": 0.004,
        "record_seconds": 0.018 * slow,
        "publish_seconds": 0.06 * wave,
        "retain_seconds": 0.001,
        "state_bytes_written": written,
        "state_bytes": total,
        "state_rows": total // 75,
        "runs": 24 + checkpoint_id % 8,
        "runs_merged": 16 if merges else 0,
        "bytes_fetched": int(90_000 * wave),
        "requests": 9 + (12 if merges else 0),
        "files_finished": int(checkpoint_id % 6 == 0),
        "files_opened": int(checkpoint_id % 6 == 1),
        "files_open": 3,
        "rows_pending": 15_000 + rows * (checkpoint_id % 6),
        "bytes_pending": 1_900_000 + 20 * rows * (checkpoint_id % 6),
        "rows_finished": rows * 6 if checkpoint_id % 6 == 0 else 0,
        "bytes_finished": rows * 90 if checkpoint_id % 6 == 0 else 0,
        "watermark_us flights": int((STARTED + checkpoint_id * 10 - 30 * wave * slow) * 1e6),
        "state_bytes flights": total // 3,
        f"state_bytes {LONG_NAME}": total - total // 3,
        "state_rows flights": total // 200,
        f"state_rows {LONG_NAME}": total // 120,
        "runs flights": 10,
        f"runs {LONG_NAME}": 14 + checkpoint_id % 8,
    }
    if checkpoint_id % 1700 == 900:
        figures["batches_replayed"] = 1
    return CheckpointSummary(
        checkpoint_id=checkpoint_id,
        batch_id=checkpoint_id,
        created_at=STARTED + checkpoint_id * 10.0,
        run=1 + checkpoint_id // 1700,
        figures=figures,
    )


def long_root(store: BlobStore, checkpoints: int = 10_000) -> CheckpointStore:
    """A root as so many checkpoints leave it: the three newest records, the history, one driver overtaken."""
    root = CheckpointStore(store)
    summaries = [summary(number, of=checkpoints) for number in range(checkpoints)]
    newest_block = (checkpoints - 1) // HISTORY_BLOCK
    blocks = by_block(summaries)
    for block, some in blocks.items():
        if block < newest_block:
            create_block(store, block, some)
    for number in range(max(checkpoints - 3, 0), checkpoints):
        carried = [each for each in blocks[newest_block] if each.checkpoint_id <= number]
        root.publish(with_summaries(record(number), carried))
        root._newest_id = None
    if checkpoints > 50:
        create_fenced_mark(store, checkpoints - 40, "5d1f4c0e", STARTED, f"{1:032x}")
    return root


@dataclass
class StateRoot:
    """A root with real rows, to look keys up in."""

    store: BlobStore
    url: str


def state_root() -> StateRoot:
    """Three checkpoints: N1 changes, N2 goes, N3 stays."""
    url = f"memory://{system_environment().ids.new_id()}"
    store = open_store(url)
    with KeyedStateBackend.open(url, retained_checkpoints=9) as backend:
        flights = backend.state("flights", SCHEMA)
        flights.put(rows(N1=1, N2=1, N3=1))
        backend.checkpoint()
        flights.put(rows(N1=2))
        backend.checkpoint()
        flights.delete(rows(N2=0))
        backend.checkpoint()
    return StateRoot(store, url)


def rows(**flights: int) -> pa.Table:
    columns = {"tailnum": list(flights), "flights": list(flights.values()), "mean_delay": [1.5] * len(flights)}
    return pa.table(columns, schema=SCHEMA.row)


def damaged(store: BlobStore, name: str) -> None:
    data = store.get(name)
    store.put(name, data[: len(data) // 2] + b"\x00" + data[len(data) // 2 + 1 :])


def without_figures(each: CheckpointSummary) -> CheckpointSummary:
    return replace(each, figures={})
