"""Checkpoints to test with: small ones by number, and one that uses every field of the format."""

from collections.abc import Sequence

from stateline.blob import BlobStore, StoreDecorator
from stateline.blob.api import Buffer, ObjectInfo
from stateline.checkpoint import (
    Checkpoint,
    FileState,
    InlineState,
    InputState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.errors import DataLossError, StatelineError
from stateline.handles import CommitPoint, FinishedFile, OpenFile, Part, RowsHandle, RunHandle
from stateline.key_groups import range_for_subtask


def run(name: str, checkpoint_id: int = 0, key_groups: tuple[int, int] = (0, 0), data: bytes = b"run") -> RunHandle:
    from stateline.blob.checksum import crc32c

    first, last = key_groups
    return RunHandle(
        name=name,
        offset=0,
        length=len(data),
        crc32c=crc32c(data),
        rows=3,
        tombstones=1,
        first_key_group=first,
        last_key_group=last,
        checkpoint_id=checkpoint_id,
    )


def part(name: str, data: bytes = b"part") -> Part:
    from stateline.blob.checksum import crc32c

    return Part(name=name, length=len(data), crc32c=crc32c(data))


def open_file(target: str, *pending: RowsHandle) -> OpenFile:
    return OpenFile(
        target=target, subtask=0, layout="layout", opened_at=1.0, written_at=2.0, rows=1, bytes=4, pending=pending
    )


def finished_file(target: str, parts: tuple[Part, ...]) -> FinishedFile:
    length = sum(piece.length for piece in parts)
    return FinishedFile(
        commit=CommitPoint(target=target, parts=parts, length=length, crc32c=1, nonce=f"n-{target}"), rows=1
    )


def checkpoint(
    checkpoint_id: int,
    runs: tuple[str, ...] = (),
    *,
    nonce: str | None = None,
    query_id: str = "query",
    outputs: tuple[OutputState, ...] = (),
    operators: tuple[OperatorState, ...] | None = None,
) -> Checkpoint:
    """One operator with one subtask that has the named runs."""
    handles = tuple(run(f"shared/{name}") for name in runs)
    state = OperatorState(
        name="flights",
        schema="c2NoZW1h",
        definition="count",
        subtasks=(SubtaskState(first_key_group=0, last_key_group=0, runs=handles),),
    )
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        batch_id=checkpoint_id,
        query_id=query_id,
        offsets_digest=f"digest-{checkpoint_id}",
        max_parallelism=1,
        parallelism=1,
        nonce=nonce or f"nonce-{checkpoint_id}",
        created_at=1_700_000_000.5,
        operators=(state,) if operators is None else operators,
        outputs=outputs,
    )


def full_checkpoint() -> Checkpoint:
    """Every field of the format, none at its default; text that needs escapes, numbers at their limits."""
    subtasks = []
    for index in range(3):
        owned = range_for_subtask(index, 3, 128)
        ends = (owned.start, owned.end)
        runs = tuple(run(f"shared/{index}-{age}.arrow", 5 + age, ends, b"x" * age) for age in range(2))
        subtasks.append(SubtaskState(first_key_group=owned.start, last_key_group=owned.end, runs=runs))
    pieces = (
        Part(name=".inprogress/p1", length=10, crc32c=2**32 - 1, version="17", container="temporary-bucket"),
        Part(name=".inprogress/p2", length=0, crc32c=0),
    )
    growing = OpenFile(
        target='origin=JFK/ü "quoted".json',
        subtask=2,
        layout="layout",
        opened_at=1_700_000_000.25,
        written_at=1_700_000_001.5,
        rows=7,
        bytes=2**53,
        pending=(
            RowsHandle(name="shared/rows", offset=46, length=2**40, crc32c=2**32 - 1, rows=6),
            RowsHandle(name="shared/more rows", offset=0, length=8, crc32c=0, rows=1),
        ),
    )
    waiting = OpenFile(
        target="origin=LGA/rows.parquet",
        subtask=0,
        layout="layout",
        opened_at=0.0,
        written_at=0.0,
        rows=1,
        bytes=1,
        pending=(RowsHandle(name="shared/rows", offset=12, length=34, crc32c=56, rows=1),),
    )
    done = FinishedFile(
        commit=CommitPoint(target="done.parquet", parts=pieces, length=10, crc32c=3, nonce="done"), rows=2**40
    )
    return Checkpoint(
        checkpoint_id=7,
        batch_id=6,
        query_id="5d1f4c0e-query",
        offsets_digest="9f86d081",
        max_parallelism=128,
        parallelism=3,
        nonce="6f9619ff8b86d011b42d00c04fc964ff",
        created_at=1_700_000_002.125,
        operators=(
            OperatorState(name="flights", schema="c2NoZW1h", definition="count(*)\nmean(Δ)", subtasks=tuple(subtasks)),
            OperatorState(
                name="routes",
                schema="c2NoZW1hMg==",
                definition="",
                subtasks=(SubtaskState(first_key_group=0, last_key_group=127),),
            ),
        ),
        outputs=(OutputState(operator="flights", url="s3://bucket/out", finished=(done,), open=(growing, waiting)),),
        inputs=(
            InputState(name="flights", column="ts", watermark_us=-1, late_watermark_us=-60_000_001),
            InputState(name="routes", column="at"),
        ),
        properties={"program": "demo \\ \u2028"},
        states={
            "source": InlineState(data=b"\x00\xff inline"),
            "model": FileState(name="model", relative=True, size=9, crc32c=8),
            "tables": FileState(name="shared/tables", relative=False, size=2**63 - 1, crc32c=2**32 - 1),
        },
    )


class PiecesOfOneTarget(StoreDecorator):
    """As Azure and Cloud Storage: a piece can be published under the name alone that it was staged for."""

    def __init__(self, inner: BlobStore, refusal: type[StatelineError] = DataLossError) -> None:
        super().__init__(inner)
        self.refusal = refusal
        self.target_of: dict[str, str] = {}

    def stage(self, target: str, data: Buffer) -> Part:
        piece = self.inner.stage(target, data)
        self.target_of[piece.name] = target
        return piece

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        if any(self.target_of[piece.name] != target for piece in parts):
            raise self.refusal("a piece of another target")
        return self.inner.publish(target, parts, nonce)
