"""What each checkpoint did and cost, for more of them than are retained. It decides nothing.

A record carries the summaries of the checkpoints of its block, its own among them, as the state :data:`HISTORY`. When a
block of ``Sizes.history_block`` ids is complete, its summaries become one object beside the records,
``history/<block>``, create-if-absent. So the history costs no request of its own but one in so many checkpoints, and it
can be read from any machine, also after the death of its driver.

Format: the summaries in columns, as JSON, because values of one column are alike. In an object they are the members of
a document ``stateline.history`` in the envelope of all documents below a root; in a record they are compressed by zlib.

| member | what it is |
|---|---|
| ``checkpoint_ids``, ``batch_ids``, ``created_at``, ``runs`` | of each summary, ascending; gaps are possible |
| ``figures`` | by name: a number of each summary, or null where it has none |

Rules:
- **Nothing that decides looks at it.** A history that is missing, damaged or of a newer version is a gap in a picture.
- An object is a function of the record that completes its block, which is unique. So whoever repeats its creation,
  after a crash or as a driver believed dead, makes the same bytes.
- The newest :data:`HISTORY_BLOCKS` objects stay. Whoever makes one deletes the one that falls out, by exact name; what
  a crash leaves of them is found by the sweep.
- A savepoint and what starts from it have none: checkpoints count anew in their root.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

import msgspec
from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.checkpoint.api import HISTORY, MAX_FILE_STATE_THRESHOLD, Checkpoint, InlineState
from stateline.checkpoint.envelope import corrupt, decode_value, seal, unseal
from stateline.checkpoint.layout import (
    HISTORY_BLOCKS,
    block_of_history,
    fenced_name,
    history_name,
    id_of_fenced,
)
from stateline.errors import AlreadyExistsError
from stateline.sizes import sizes

__all__ = [
    "CheckpointSummary",
    "by_block",
    "create_block",
    "create_fenced_mark",
    "decode_block",
    "encode_block",
    "figure_of",
    "fitting",
    "is_outdated",
    "read_block",
    "rounded",
    "summaries_in",
    "with_summaries",
]

_HISTORY: Final = b"stateline.history"
_FENCED: Final = b"stateline.fenced"
_MAX_BYTES: Final = 8 * 1024 * 1024
"""Of the summaries in a record, decompressed. Some thousand times of what they take."""

_BYTES_MAX: Final = MAX_FILE_STATE_THRESHOLD // 2
"""Of the compressed summaries in a record."""

_DECIMALS: Final = 6
"""Of fractions: microseconds, where they are seconds."""


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one checkpoint did and cost.

    Attributes:
        checkpoint_id: Its id.
        batch_id: The micro-batch that it decides.
        created_at: Its time, seconds since the epoch.
        run: Which run of the query made it: 1 and up.
        figures: Numbers by name, those of ``docs/reference/metrics.md``, as :func:`rounded` gives them. A figure of one
            operator or input has its name behind a space. A figure that is absent is unknown.
    """

    checkpoint_id: int
    batch_id: int
    created_at: float
    run: int
    figures: Mapping[str, float]


class _Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Summaries in columns. Members that a newer version added are passed over."""

    checkpoint_ids: list[int]
    batch_ids: list[int]
    created_at: list[float]
    runs: list[int]
    figures: dict[str, list[int | float | None]]


class _Fenced(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_id: int
    query_id: str
    at: float


def figure_of(name: str, part: str) -> str:
    """The name of a figure of one operator or input."""
    return f"{name} {part}"


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures as they are stored: whole numbers without a fraction, others to the microsecond."""
    return {
        name: value if not isinstance(value, float) else int(value) if value.is_integer() else round(value, _DECIMALS)
        for name, value in figures.items()
    }


def summaries_in(record: Checkpoint | None) -> tuple[CheckpointSummary, ...]:
    """The summaries that a record carries, oldest first; none where it has none.

    Raises:
        CorruptDataError: They cannot be read.
    """
    state = None if record is None else record.states.get(HISTORY)
    if record is None or not isinstance(state, InlineState):
        return ()
    subject = f"history of checkpoint {record.checkpoint_id}"
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(state.data, _MAX_BYTES)
    except zlib.error as error:
        raise corrupt(f"cannot be decompressed: {error}", subject) from error
    if not inflater.eof:
        raise corrupt(f"must have at most {_MAX_BYTES} bytes and an end", subject)
    return _rows(data, subject)


def with_summaries(record: Checkpoint, summaries: Sequence[CheckpointSummary]) -> Checkpoint:
    """The same record with these summaries in it."""
    data = zlib.compress(b"{%s}" % _members(summaries), 1)
    return replace(record, states={**record.states, HISTORY: InlineState(data=data)})


def fitting(summaries: Sequence[CheckpointSummary]) -> tuple[CheckpointSummary, ...]:
    """The summaries that fit into a record, oldest first: a history never makes a record too large.

    Where there are too many figures, the older summaries lose those of single operators and inputs, then all of their
    figures; last, the older summaries themselves are left out.
    """
    kept = list(summaries)
    for is_dropped in (_is_of_part, lambda _: True):
        whole = len(kept)
        while whole and not _fits(kept):
            whole //= 2
            older = len(kept) - whole
            kept[:older] = [_without(each, is_dropped) for each in kept[:older]]
    while not _fits(kept):
        del kept[: (len(kept) + 1) // 2]
    return tuple(kept)


def _fits(summaries: Sequence[CheckpointSummary]) -> bool:
    members = _members(summaries)
    return len(members) <= _MAX_BYTES // 2 and (
        len(members) <= _BYTES_MAX or len(zlib.compress(members, 1)) <= _BYTES_MAX
    )


def _is_of_part(figure: str) -> bool:
    return " " in figure


def _without(summary: CheckpointSummary, is_dropped: Callable[[str], bool]) -> CheckpointSummary:
    if not any(map(is_dropped, summary.figures)):
        return summary
    return replace(summary, figures={name: value for name, value in summary.figures.items() if not is_dropped(name)})


def by_block(summaries: Iterable[CheckpointSummary]) -> dict[int, list[CheckpointSummary]]:
    """Summaries by the block that their ids belong to."""
    blocks: dict[int, list[CheckpointSummary]] = {}
    for summary in summaries:
        blocks.setdefault(summary.checkpoint_id // sizes().history_block, []).append(summary)
    return blocks


def encode_block(summaries: Sequence[CheckpointSummary]) -> bytes:
    """The bytes of an object of the history."""
    return seal(_HISTORY, _members(summaries))


def decode_block(data: bytes, subject: str) -> tuple[CheckpointSummary, ...]:
    """The summaries in an object of the history, oldest first.

    Raises:
        CorruptDataError: They are not what was written.
        UnsupportedVersionError: A newer version wrote them.
    """
    _, members = unseal(data, (_HISTORY,), subject)
    return _rows(b"{%s}" % members, subject)


def create_block(store: BlobStore, block: int, summaries: Sequence[CheckpointSummary]) -> None:
    """Makes the object of a complete block, and deletes the one that falls out. May be repeated.

    Raises:
        StatelineError: What the store raises.
    """
    with suppress(AlreadyExistsError):  # Another version of this program made it, with other bytes: as good a picture.
        store.put_if_absent(history_name(block), encode_block(summaries))
    if block >= HISTORY_BLOCKS:
        store.delete([history_name(block - HISTORY_BLOCKS)])


def read_block(store: BlobStore, block: int) -> tuple[CheckpointSummary, ...]:
    """The summaries of a block whose object is there, oldest first. One GET.

    Raises:
        NotFoundError: It is not there, or not any more.
        CorruptDataError: It is not what was written.
    """
    name = history_name(block)
    subject = f"{store.url}/{name}"
    found = decode_block(store.get(name), subject)
    if any(summary.checkpoint_id // sizes().history_block != block for summary in found):
        raise corrupt("holds checkpoints of another block: objects were swapped or copied by hand", subject)
    return found


def create_fenced_mark(store: BlobStore, checkpoint_id: int, query_id: str, now: float, nonce: str) -> None:
    """Remembers that a driver lost a checkpoint to another one. For whoever looks at the root; nothing depends on it.

    Args:
        store: The root.
        checkpoint_id: Which one it lost.
        query_id: Its query.
        now: The time.
        nonce: Unique to the mark, 32 hexadecimal digits.

    Raises:
        StatelineError: What the store raises.
    """
    mark = msgspec.json.encode(_Fenced(checkpoint_id=checkpoint_id, query_id=query_id, at=now))
    store.put_if_absent(fenced_name(checkpoint_id, nonce), seal(_FENCED, mark[1:-1]))


def is_outdated(name: str, newest_id: int) -> bool:
    """Whether an object below ``history/`` lies behind what is kept, given the newest checkpoint."""
    block = block_of_history(name)
    fenced = id_of_fenced(name)
    if block is None and fenced is not None:
        block = fenced // sizes().history_block
    return block is not None and block < newest_id // sizes().history_block - HISTORY_BLOCKS


def _members(summaries: Sequence[CheckpointSummary]) -> bytes:
    figures = [summary.figures for summary in summaries]
    columns = _Columns(
        checkpoint_ids=[summary.checkpoint_id for summary in summaries],
        batch_ids=[summary.batch_id for summary in summaries],
        created_at=[summary.created_at for summary in summaries],
        runs=[summary.run for summary in summaries],
        figures={name: [each.get(name) for each in figures] for name in sorted(set().union(*figures))},
    )
    return msgspec.json.encode(columns)[1:-1]


def _rows(data: bytes, subject: str) -> tuple[CheckpointSummary, ...]:
    columns = decode_value(data, _Columns, "its history", subject)
    ids, lengths = columns.checkpoint_ids, [len(columns.batch_ids), len(columns.created_at), len(columns.runs)]
    lengths += map(len, columns.figures.values())
    if any(length != len(ids) for length in lengths) or any(a >= b for a, b in pairwise(ids)):
        raise corrupt("its columns have different lengths, or its checkpoints are not in order", subject)
    figures: list[dict[str, float]] = [{} for _ in ids]
    for name, column in columns.figures.items():
        for place, value in zip(figures, column, strict=True):
            if value is not None:
                place[name] = value
    rows = zip(ids, columns.batch_ids, columns.created_at, columns.runs, figures, strict=True)
    return tuple(
        CheckpointSummary(checkpoint_id=checkpoint_id, batch_id=batch_id, created_at=at, run=run, figures=found)
        for checkpoint_id, batch_id, at, run, found in rows
    )
