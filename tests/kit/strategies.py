"""Hypothesis strategies for what goes through Stateline: names, bytes, key groups, key columns, handles."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from stateline.blob.names import MAX_NAME_BYTES, MAX_SEGMENT_BYTES
from stateline.handles import CommitPoint, FinishedFile, Part, ResumePoint, RunHandle
from stateline.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange

__all__ = [
    "blob_bytes",
    "blob_names",
    "commit_points",
    "finished_files",
    "key_columns",
    "key_group_ranges",
    "key_types",
    "name_segments",
    "parallelisms",
    "parts",
    "resume_points",
    "run_handles",
]

_CRC: Final = st.integers(0, 2**32 - 1)
_UUID: Final = st.uuids(version=4).map(lambda value: value.hex)
_SEGMENT_TEXT: Final = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\\"), min_size=1, max_size=40
)
_LONG: Final = st.integers(1, MAX_SEGMENT_BYTES).map("x".__mul__)


def name_segments() -> st.SearchStrategy[str]:
    """One segment of a blob name: what stands between two slashes."""
    plain = st.from_regex(r"[A-Za-z0-9._=-]{1,20}", fullmatch=True)
    return st.one_of(plain, _SEGMENT_TEXT, _LONG).filter(_is_segment)


def blob_names(max_segments: int = 4) -> st.SearchStrategy[str]:
    """A name that every store can hold."""
    joined = st.lists(name_segments(), min_size=1, max_size=max_segments).map("/".join)
    return joined.filter(lambda name: len(name.encode()) <= MAX_NAME_BYTES)


def blob_bytes(max_size: int = 4096) -> st.SearchStrategy[bytes]:
    """The content of an object; often empty, one byte, or one byte around a power of two."""
    edges = sorted({0, 1, *(size + step for size in (512, 1024, 4096) for step in (-1, 0, 1))})
    fixed = st.sampled_from([size for size in edges if size <= max_size]).map(lambda size: bytes([size % 251]) * size)
    return st.one_of(st.binary(max_size=max_size), fixed)


def parallelisms(limit: int = MAX_PARALLELISM_LIMIT) -> st.SearchStrategy[tuple[int, int]]:
    """A parallelism and a number of key groups that is no smaller."""
    return st.integers(1, limit).flatmap(lambda groups: st.tuples(st.integers(1, groups), st.just(groups)))


def key_group_ranges(limit: int = MAX_PARALLELISM_LIMIT) -> st.SearchStrategy[KeyGroupRange]:
    """An inclusive range of key groups, the empty one included."""
    bounds = st.tuples(st.integers(0, limit - 1), st.integers(0, limit - 1))
    ranges = bounds.map(lambda pair: KeyGroupRange(min(pair), max(pair)))
    return st.one_of(st.just(KeyGroupRange.EMPTY), ranges)


_DAY: Final = dt.date
_VALUES: Final[Mapping[pa.DataType, st.SearchStrategy[Any]]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=40),
    pa.binary(): st.binary(max_size=40),
    pa.date32(): st.dates(_DAY(1, 1, 1), _DAY(9999, 12, 31)),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.decimal128(10, 2): st.decimals(-99999999, 99999999, places=2),
    pa.decimal128(38, 4): st.decimals(-(10**30), 10**30, places=4),
}


def key_types() -> st.SearchStrategy[pa.DataType]:
    """A type whose values can be keys."""
    return st.sampled_from(list(_VALUES))


@st.composite
def key_columns(draw: st.DrawFn, rows: int | None = None, max_rows: int = 50) -> list[pa.Array]:
    """One to three key columns of equal length, with nulls, sometimes sliced or dictionary-encoded.

    Args:
        draw: Given by Hypothesis.
        rows: Length; drawn where not given.
        max_rows: Bound of the drawn length.
    """
    length = draw(st.integers(0, max_rows)) if rows is None else rows
    columns = []
    for kind in draw(st.lists(key_types(), min_size=1, max_size=3)):
        values = draw(st.lists(st.none() | _VALUES[kind], min_size=length + 1, max_size=length + 1))
        column = pa.array(values, type=kind)
        if draw(st.booleans()) and pa.types.is_string(kind):
            column = column.dictionary_encode()
        columns.append(column.slice(1) if draw(st.booleans()) else column.slice(0, length))
    return columns


def parts() -> st.SearchStrategy[Part]:
    """A staged piece."""
    return st.builds(
        Part,
        name=_UUID.map(".inprogress/".__add__),
        length=st.integers(0, 2**40),
        crc32c=_CRC,
        version=st.sampled_from(["", "1", "1700000000000001"]),
        container=st.sampled_from(["", "other-bucket"]),
    )


def commit_points() -> st.SearchStrategy[CommitPoint]:
    """What is needed to publish one file; its length is that of its pieces."""
    return st.builds(_commit_point, blob_names(), st.lists(parts(), max_size=5), _CRC, _UUID)


def resume_points() -> st.SearchStrategy[ResumePoint]:
    """A point from which writing can go on."""
    return st.builds(_resume_point, commit_points(), st.lists(parts(), max_size=3), st.booleans())


def finished_files() -> st.SearchStrategy[FinishedFile]:
    """A file that waits for its checkpoint."""
    return st.builds(FinishedFile, commit=commit_points(), rows=st.integers(0, 2**40))


def run_handles() -> st.SearchStrategy[RunHandle]:
    """A run of keyed state."""
    return st.builds(
        _run_handle, _UUID, key_group_ranges().filter(len), st.integers(0, 2**40), _CRC, st.integers(0, 2**31)
    )


def _is_segment(segment: str) -> bool:
    return segment not in (".", "..") and len(segment.encode()) <= MAX_SEGMENT_BYTES


def _commit_point(target: str, pieces: list[Part], checksum: int, nonce: str) -> CommitPoint:
    length = sum(piece.length for piece in pieces)
    return CommitPoint(target=target, parts=tuple(pieces), length=length, crc32c=checksum, nonce=nonce)


def _resume_point(point: CommitPoint, superseded: list[Part], closed: bool) -> ResumePoint:
    return ResumePoint(
        target=point.target,
        parts=point.parts,
        length=point.length,
        crc32c=point.crc32c,
        nonce=point.nonce,
        superseded=tuple(superseded),
        closed=closed,
    )


def _run_handle(uuid: str, owned: KeyGroupRange, size: int, checksum: int, checkpoint_id: int) -> RunHandle:
    return RunHandle(
        name=f"shared/{uuid}",
        offset=0,
        length=size,
        crc32c=checksum,
        rows=size // 16,
        tombstones=size // 64,
        first_key_group=owned.start,
        last_key_group=owned.end,
        checkpoint_id=checkpoint_id,
    )
