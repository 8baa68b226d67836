"""Which key belongs to which key group, and which key group to which subtask.

All of it is pure; nothing here may ever change, because stored state is sorted by this hash.

Facts:
- The hash is XXH64 with seed 42, chained over columns (the hash of one column seeds the next), which is Spark SQL's
  ``xxhash64(c1, c2, ...)``: fixed-width values are hashed as their 4 or 8 bytes, little-endian; a null leaves the
  seed as it is; -0.0 hashes as 0.0, and every NaN as the canonical one. Source: the XXH64 specification
  (github.com/Cyan4973/xxHash) and Spark's documented ``xxhash64``; ``tests/spark`` compares with Spark itself.
- A key group is a **monotone** function of the unsigned hash: ``((hash >> 32) * max_parallelism) >> 32``. So a run
  sorted by hash is sorted by key group, a key-group range is one contiguous slice of it, and rescaling is slicing.
- Subtask ``i`` of ``p`` owns the inclusive range ``[ceil(i * m / p), ceil((i + 1) * m / p) - 1]`` of ``m`` key
  groups, and key group ``g`` belongs to subtask ``g * p // m``. The two formulas are exact inverses for every
  ``1 <= p <= m``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError
from stateline.floats import canonical_words
from stateline.options import check_kind
from stateline.xxh64 import xxh64_of_ints, xxh64_of_longs, xxh64_of_slices

__all__ = [
    "HASH_SEED",
    "MAX_PARALLELISM_LIMIT",
    "KeyGroupRange",
    "check_key_type",
    "check_parallelism",
    "default_max_parallelism",
    "hash_bounds",
    "hash_columns",
    "key_group_of",
    "range_for_subtask",
    "stable_hash",
    "subtask_for_key_group",
]

HASH_SEED: Final = 42
"""Spark's seed of ``xxhash64``."""

MAX_PARALLELISM_LIMIT: Final = 32768
"""The largest number of key groups."""

Hashes = npt.NDArray[np.uint64]

_BLOCK_ROWS: Final = 16_384
"""Rows hashed at a time: their temporaries stay in the processor's cache, which makes it three times as fast."""

_DECIMAL_BYTES: Final = 16
_MASK_64: Final = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """An **inclusive** range of key groups; empty when ``end < start``.

    Every empty range equals :attr:`EMPTY` once normalised by :meth:`intersection`; ``KeyGroupRange(0, -1)`` is it.

    Raises:
        InvalidInputError: A negative start, or an end below ``start - 1``.
    """

    start: int
    end: int
    EMPTY: ClassVar[KeyGroupRange]

    def __post_init__(self) -> None:
        if type(self.start) is int and type(self.end) is int and 0 <= self.start <= self.end:
            return  # Nearly always; the question for other whole numbers is slow.
        whole = isinstance(self.start, Integral) and isinstance(self.end, Integral)
        if not whole or self.start < 0 or self.end < self.start - 1:
            raise InvalidInputError(
                f"[{self.start!r}, {self.end!r}] is not a key-group range",
                subject="KeyGroupRange",
                hint="Give 0 <= start <= end (inclusive), or KeyGroupRange.EMPTY",
            )

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int | np.integer) and bool(self.start <= key_group <= self.end)

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}]"

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """The key groups in both; :attr:`EMPTY` where there is none."""
        if type(other) is not KeyGroupRange:
            check_kind(other, KeyGroupRange, "other", "a KeyGroupRange")
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else KeyGroupRange.EMPTY


KeyGroupRange.EMPTY = KeyGroupRange(0, -1)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Checks ``1 <= parallelism <= max_parallelism <= MAX_PARALLELISM_LIMIT``.

    Raises:
        InvalidInputError: Names the bound that is broken, or what is no whole number.
    """
    _check_number(
        max_parallelism,
        1,
        MAX_PARALLELISM_LIMIT,
        "max_parallelism",
        "State keeps it for its whole life",
    )
    _check_number(parallelism, 1, max_parallelism, "parallelism", "At most max_parallelism subtasks have key groups")


def _check_number(value: object, low: int, high: int, subject: str, hint: str) -> None:
    _check_whole(value, subject)
    if not low <= value <= high:  # type: ignore[operator] # A whole number.
        raise InvalidInputError(f"must be {low} to {high}, got {value}", subject=subject, hint=hint)


def _check_whole(value: object, subject: str) -> None:
    if not isinstance(value, Integral):
        raise InvalidInputError(f"must be a whole number, got {value!r}", subject=subject, hint="Give an int")


def range_for_subtask(index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups of subtask ``index`` (0 to ``parallelism - 1``).

    The ranges of all subtasks partition ``[0, max_parallelism - 1]``: each key group is in exactly one, and their sizes
    differ by at most one.
    """
    check_parallelism(parallelism, max_parallelism)
    _check_number(index, 0, parallelism - 1, "subtask", "Subtasks are counted from 0, up to the parallelism")
    start = -(-index * max_parallelism // parallelism)
    end = -(-(index + 1) * max_parallelism // parallelism) - 1
    return KeyGroupRange(start, end)


def subtask_for_key_group(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask whose :func:`range_for_subtask` holds ``key_group``."""
    check_parallelism(parallelism, max_parallelism)
    _check_number(key_group, 0, max_parallelism - 1, "key group", "Take it from key_group_of")
    return key_group * parallelism // max_parallelism


@overload
def key_group_of(hash64: int, max_parallelism: int) -> int: ...
@overload
def key_group_of(hash64: npt.NDArray[Any], max_parallelism: int) -> npt.NDArray[np.int64]: ...
def key_group_of(hash64: int | npt.NDArray[Any], max_parallelism: int) -> int | npt.NDArray[np.int64]:
    """The key group of a 64-bit hash, signed or unsigned: monotone in the unsigned value.

    Args:
        hash64: One hash, or a numpy array of ``int64`` or ``uint64`` of any shape.
        max_parallelism: The number of key groups, 1 to 32768.

    Returns:
        0 to ``max_parallelism - 1``; for an array, an ``int64`` array of the same shape.
    """
    check_parallelism(1, max_parallelism)
    if isinstance(hash64, np.ndarray):
        if hash64.dtype.kind not in "iu":
            raise InvalidInputError(
                f"expected int64 or uint64, got {hash64.dtype}", subject="hash64", hint="Give hashes of xxhash64"
            )
        high = hash64.astype(np.uint64, copy=False) >> np.uint64(32)
        return ((high * np.uint64(max_parallelism)) >> np.uint64(32)).astype(np.int64)
    _check_whole(hash64, "hash64")
    return (((int(hash64) & _MASK_64) >> 32) * int(max_parallelism)) >> 32


def hash_bounds(key_groups: KeyGroupRange, max_parallelism: int) -> tuple[int, int]:
    """The half-open range ``[low, high)`` of unsigned hashes that fall into ``key_groups`` (``high`` may be 2**64)."""
    low = -(-(key_groups.start << 32) // max_parallelism) << 32
    high = -(-((key_groups.end + 1) << 32) // max_parallelism) << 32
    return low, high


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups for a new state: ``min(max(next_pow2(p + p // 2), 128), 32768)``."""
    check_parallelism(parallelism, MAX_PARALLELISM_LIMIT)
    wanted = int(parallelism) + int(parallelism) // 2
    return min(max(1 << (wanted - 1).bit_length(), 128), MAX_PARALLELISM_LIMIT)


def check_key_type(data_type: pa.DataType, column: str, use: str = "be a key") -> None:
    """Checks that values of ``data_type`` can be keys, which is to say that they have a stable hash.

    Args:
        data_type: The type.
        column: Its column, for the error.
        use: What the column is wanted for, for the error.

    Raises:
        InvalidInputError: Maps, variants, lists, structs, unsigned integers, intervals, 256-bit decimals.
    """
    if not _is_key_type(data_type):
        raise InvalidInputError(
            f"a value of type {data_type} cannot {use}",
            subject=f"column {column!r}",
            hint="Use integers, strings, binary, booleans, dates, timestamps, decimals or floats; "
            "pick the fields of a struct one by one",
        )


def stable_hash(*columns: Any) -> int:
    """The hash of one key of one or more columns, as Spark's ``xxhash64`` shows it.

    Args:
        columns: One value per key column: ``None``, ``bool``, ``int`` (a 64-bit integer), ``float`` (a double),
            ``str``, bytes-like, ``date``, ``datetime`` (microseconds; naive ones as Spark's ``timestamp_ntz``),
            ``Decimal``, or a ``pyarrow`` scalar where the width matters (``pa.scalar(5, pa.int32())``).

    Returns:
        A signed 64-bit integer.

    Raises:
        InvalidInputError: A value of a type that cannot be a key.
    """
    arrays = [_as_array(value) for value in columns]
    if not arrays:
        return HASH_SEED
    return int(hash_columns(arrays).view(np.int64)[0])


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """The stable hashes of many keys.

    Args:
        columns: One Arrow array per key column, all of one length.

    Returns:
        A ``uint64`` array of that length. ``view(np.int64)`` gives what Spark shows.

    Raises:
        InvalidInputError: A column of a type that cannot be a key.
    """
    if not columns:
        raise InvalidInputError(
            "expected at least one key column",
            operation="hash_columns",
            hint="Give one Arrow array for each key column",
        )
    for position, column in enumerate(columns):
        check_key_type(column.type, str(position))
    arrays = [_contiguous(column) for column in columns]
    hashes = np.full(len(arrays[0]), HASH_SEED, dtype=np.uint64)
    for first in range(0, len(hashes), _BLOCK_ROWS):
        block = hashes[first : first + _BLOCK_ROWS]
        seeds = block
        for array in arrays:
            seeds = _hash_column(array.slice(first, len(block)), seeds)
        block[:] = seeds
    return hashes


def _hash_column(column: pa.Array, seeds: Hashes) -> Hashes:
    kind = column.type
    if pa.types.is_null(kind):
        return seeds
    if pa.types.is_large_binary(kind):
        hashes = _hash_bytes(column, seeds)
    elif pa.types.is_decimal128(kind) and kind.precision > 18:
        hashes = _hash_wide_decimals(column, seeds)
    else:
        words, width = _fixed_words(column)
        hashes = xxh64_of_longs(words, seeds) if width == 8 else xxh64_of_ints(words, seeds)
    if column.null_count == 0:
        return hashes
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), hashes, seeds)


def _hash_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    return xxh64_of_slices(data, offsets[:-1], np.diff(offsets), seeds)


def _hash_wide_decimals(column: pa.Array, seeds: Hashes) -> Hashes:
    """Spark hashes a decimal of more than 18 digits as Java's minimal big-endian two's complement."""
    little_endian = np.frombuffer(column.buffers()[1], dtype=np.uint8)
    rows = little_endian.reshape(-1, _DECIMAL_BYTES)[column.offset : column.offset + len(column), ::-1]
    big_endian = np.ascontiguousarray(rows)
    # A leading byte is left out while it only repeats the sign of the byte after it.
    sign = np.where(big_endian[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    same_sign = (big_endian[:, 1:] >= 0x80) == (sign == 0xFF)
    redundant = np.logical_and.accumulate((big_endian[:, :-1] == sign) & same_sign, axis=1).sum(axis=1)
    starts = np.arange(len(column), dtype=np.int64) * _DECIMAL_BYTES + redundant
    return xxh64_of_slices(big_endian.reshape(-1), starts, _DECIMAL_BYTES - redundant, seeds)


def _fixed_words(column: pa.Array) -> tuple[Hashes, int]:
    """The values as unsigned words and the width that Spark hashes them with: 4 or 8 bytes."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        halves = np.frombuffer(column.buffers()[1], dtype=np.uint64)
        return halves[2 * column.offset : 2 * (column.offset + len(column)) : 2], 8
    if pa.types.is_floating(kind):
        words = canonical_words(column.fill_null(0.0).to_numpy(zero_copy_only=False))
        return words.astype(np.uint64, copy=False), words.itemsize
    if pa.types.is_boolean(kind):
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64), 4
    if kind.bit_width == 64:
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64), 8
    ints = column.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    return ints.view(np.uint32).astype(np.uint64), 4


def _is_key_type(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_key_type(kind.value_type)
    return (
        pa.types.is_signed_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or _is_bytes(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests) and not pa.types.is_decimal(kind)


def _contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of a type that :func:`_hash_column` knows."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        array = array.cast(pa.timestamp("us", tz=kind.tz))
    if _is_bytes(kind):
        array = pc.cast(array.cast(pa.large_string()) if pa.types.is_string_view(kind) else array, pa.large_binary())
    return array


def _as_array(value: Any) -> pa.Array:
    try:
        if isinstance(value, pa.Scalar):
            return pa.array([value.as_py()], type=value.type)
        if isinstance(value, bool | int | float | str) and not isinstance(value, np.generic):
            kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.large_string()}
            return pa.array([value], type=kinds.get(type(value)))
        if isinstance(value, bytearray | memoryview):
            return pa.array([bytes(value)])
        return pa.array([value])
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise InvalidInputError(
            f"{value!r} cannot be a key", operation="stable_hash", hint="Give a value of a supported key type"
        ) from error
