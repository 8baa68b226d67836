"""Keys in columns: normalising, hashing, comparing whole keys, and grouping rows by key.

Facts:
- Keys are equal as Spark groups them: null equals null, NaN equals NaN, -0.0 equals 0.0 (and becomes it).
- The hash orders rows; **only the whole key decides**. Two different keys with one hash are two keys everywhere:
  in a batch, in a run, in a search and in a merge. Among rows of one hash the order means nothing.
- Hashes are uniform, so rows sorted by 16 bits of them, which numpy does by counting, are few places from where they
  belong, and an adaptive sort of those is one pass: three times as fast as one sort
  (``docs/decisions/0017-grouping.md``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.floats import canonical_floats
from stateline.key_groups import hash_columns
from stateline.state.columns import Column, Mask, Rows, contiguous, fixed_words, take
from stateline.state.schema import StateSchema, stored_key_type
from stateline.state.widths import concat, retyped

__all__ = [
    "Groups",
    "Hashes",
    "KeyRows",
    "equal_at",
    "equal_keys",
    "group_rows",
    "group_sorted",
    "group_starts",
    "key_rows",
    "sorted_by_hash",
]

Hashes = npt.NDArray[np.uint64]


@dataclasses.dataclass(frozen=True, slots=True)
class KeyRows:
    """Keys of many rows, normalised, beside their hashes.

    Attributes:
        hashes: One unsigned 64-bit hash per row.
        columns: One Arrow array per key column, of the type of the schema, or as narrow as it is stored (``widths``).
    """

    hashes: Hashes
    columns: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, rows: Rows) -> KeyRows:
        """The rows numbered, in that order."""
        return KeyRows(self.hashes.take(rows), tuple(take(column, rows) for column in self.columns))

    def slice(self, start: int, end: int) -> KeyRows:
        """The rows of the half-open range, without a copy."""
        return KeyRows(self.hashes[start:end], tuple(column.slice(start, end - start) for column in self.columns))

    def declared(self, schema: StateSchema) -> KeyRows:
        """The same keys with the types of the schema."""
        return KeyRows(self.hashes, retyped(self.columns, schema.keys.types))

    @classmethod
    def concat(cls, parts: Sequence[KeyRows]) -> Self:
        """All rows of one or more parts, in order."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(
            np.concatenate([part.hashes for part in parts]),
            tuple(concat(column) for column in columns),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """Rows grouped by key.

    Attributes:
        keys: The distinct keys, ascending by unsigned hash.
        order: The rows of the input, group after group, in input order within a group.
        starts: For each group its first place in ``order``; ascending, the first is 0.
    """

    keys: KeyRows
    order: Rows
    starts: Rows

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> Rows:
        """Rows of each group."""
        return np.diff(self.starts, append=len(self.order))

    def index(self) -> Rows:
        """For each place in ``order``, the number of its group."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)


def key_rows(schema: StateSchema, columns: Sequence[Column], hashes: npt.NDArray[Any] | None = None) -> KeyRows:
    """Normalises the key columns of a batch and hashes them.

    Args:
        schema: Names and types of the keys.
        columns: One per key column, in the order of the schema, all of one length.
        hashes: ``xxhash64`` of the same columns, signed or unsigned, where the caller has it already.

    Raises:
        InvalidInputError: Another number, type or length of columns, or hashes that are not those of the keys.
    """
    if len(columns) != len(schema.keys):
        raise InvalidInputError(
            f"expected {len(schema.keys)} key columns, got {len(columns)}",
            operation="put",
            hint=f"The key is ({', '.join(schema.keys.names)})",
        )
    normal = tuple(_normalised(column, field) for column, field in zip(columns, schema.keys, strict=True))
    if hashes is None:
        return KeyRows(hash_columns(normal), normal)
    given = hashes.view(np.uint64) if hashes.dtype == np.int64 else hashes.astype(np.uint64, copy=False)
    if len(given) != len(normal[0]) or (
        len(given) and int(hash_columns([column.slice(0, 1) for column in normal])[0]) != int(given[0])
    ):
        raise InvalidInputError(
            "the given hashes are not those of the keys",
            operation="put",
            subject=f"key ({', '.join(schema.keys.names)})",
            hint="Give xxhash64 of the key columns in the order of the schema, or none",
        )
    return KeyRows(given, normal)


def group_rows(rows: KeyRows) -> Groups:
    """Groups rows by whole key."""
    if len(rows) == 0:
        nothing = np.empty(0, dtype=np.int64)
        return Groups(rows, nothing, nothing)
    order, hashes = sorted_by_hash(rows.hashes)
    return group_sorted(rows, order, hashes)


def group_sorted(rows: KeyRows, order: Rows, hashes: Hashes) -> Groups:
    """Groups rows by whole key when an order by hash is known.

    Args:
        rows: One row or more.
        order: All row numbers, ascending by hash, input order within one hash.
        hashes: ``rows.hashes`` in that order.
    """
    order, starts = group_starts(rows, order, hashes)
    return Groups(rows.take(order.take(starts)), order, starts)


def group_starts(rows: KeyRows, order: Rows, hashes: Hashes) -> tuple[Rows, Rows]:
    """As :func:`group_sorted`, without the keys: an order that keeps keys of one hash apart, and where each starts."""
    joined = hashes[1:] == hashes[:-1]
    pairs = np.flatnonzero(joined)
    equal = equal_at(rows, order.take(pairs), rows, order.take(pairs + 1))
    if not equal.all():
        spans = np.isin(hashes, np.unique(hashes.take(pairs[~equal])))
        order, joined = _separate(rows, order, joined, spans)
    first = np.empty(len(order), dtype=np.bool_)
    first[0] = True
    np.logical_not(joined, out=first[1:])
    return order, np.flatnonzero(first)


def equal_at(left: KeyRows, left_rows: Rows, right: KeyRows, right_rows: Rows) -> Mask:
    """Whether the keys at ``left_rows`` equal those at ``right_rows``, one by one. Hashes are not looked at."""
    return equal_keys(
        [take(column, left_rows) for column in left.columns], [take(column, right_rows) for column in right.columns]
    )


def equal_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Whether keys, of one column or more, are equal row by row."""
    equal: Mask = np.logical_and.reduce([_equal(one, other) for one, other in zip(left, right, strict=True)])
    return equal


_RADIX_BITS: Final = 16


def sorted_by_hash(hashes: Hashes) -> tuple[Rows, Hashes]:
    """A stable order by hash of one row or more, and the hashes in that order."""
    low = hashes.min()
    shift = max(int(hashes.max() - low).bit_length() - _RADIX_BITS, 0)
    near = ((hashes - low) >> np.uint64(shift)).astype(np.uint16).argsort(kind="stable")
    order = near.take(hashes.take(near).argsort(kind="stable"))
    return order, hashes.take(order)


def _separate(rows: KeyRows, order: Rows, joined: Mask, spans: Mask) -> tuple[Rows, Mask]:
    """Sorts the rows of colliding hashes by hash and key. Rare, and as slow as it is plain."""
    places = np.flatnonzero(spans)
    colliding = rows.take(order[places])
    identity = _identities(colliding.columns)
    by_key = np.lexsort((identity, colliding.hashes))
    order, joined = order.copy(), joined.copy()
    order[places] = order[places][by_key]
    hashes, identity = colliding.hashes[by_key], identity[by_key]
    same = (hashes[1:] == hashes[:-1]) & (identity[1:] == identity[:-1])
    # A span of one hash is contiguous, so neighbours in ``places`` that are joined are neighbours in ``order``.
    adjacent = np.diff(places) == 1
    joined[places[:-1][adjacent]] = same[adjacent]
    return order, joined


def _identities(columns: Sequence[pa.Array]) -> Rows:
    """A number for each row, equal exactly where the keys are equal."""
    identity = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        plain = column.view(_WORD_TYPES[column.type.bit_width]) if pa.types.is_floating(column.type) else column
        codes = pc.dictionary_encode(plain, null_encoding="encode").indices.to_numpy().astype(np.int64)
        _, identity = np.unique(identity * (len(column) + 1) + codes, return_inverse=True)
    return identity


_WORD_TYPES: Final = {16: pa.uint16(), 32: pa.int32(), 64: pa.int64()}


def _equal(left: pa.Array, right: pa.Array) -> Mask:
    if pa.types.is_null(left.type):
        return np.ones(len(left), dtype=np.bool_)
    if left.null_count == 0 and right.null_count == 0:
        words, others = fixed_words(left), fixed_words(right)
        if words is not None and others is not None:
            same: Mask = words == others
            return same
    if pa.types.is_floating(left.type):
        left, right = (side.view(_WORD_TYPES[side.type.bit_width]) for side in (left, right))
    equal = pc.equal(left, right)
    if equal.null_count:
        equal = pc.or_(equal.fill_null(False), pc.and_(left.is_null(), right.is_null()))
    mask: Mask = equal.to_numpy(zero_copy_only=False)
    return mask


def _normalised(column: Column, field: pa.Field) -> pa.Array:
    """One contiguous array of exactly the type of ``field``."""
    if stored_key_type(column.type, field.name) != field.type:
        raise InvalidInputError(
            f"expected type {field.type}, got {column.type}",
            operation="put",
            subject=f"column {field.name!r}",
            hint="Cast it before it is keyed: the hash of a key depends on its type",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )
    try:
        array = contiguous(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.type != field.type:
            array = array.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"the key column cannot be stored as {field.type}: {error}",
            operation="put",
            subject=f"column {field.name!r}",
            hint="A batch holds at most 2 GiB of text per column: raise the parallelism or lower the trigger's size",
        ) from error
    return canonical_floats(array)
