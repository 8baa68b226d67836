"""XXH64 of many byte strings at once.

In numpy, for slices of one buffer, each with its own seed. Which bytes a value is hashed as is the business of
``stateline.key_groups``.

Facts (the XXH64 specification, github.com/Cyan4973/xxHash):
- 32 bytes and more are first folded in stripes of 32 by four accumulators; what is left is taken in words of 8, then
  one of 4, then single bytes.
- The number of numpy steps grows with the longest string, so strings above :data:`LONG_BYTES` go through the C library
  one by one, where the cost of a call no longer matters.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["LONG_BYTES", "xxh64_of_ints", "xxh64_of_longs", "xxh64_of_slices"]

LONG_BYTES: Final = 256
"""Strings longer than this are hashed one by one."""

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

_BLOCK_ROWS: Final = 16_384
"""Rows per step: the temporaries of one step stay in the processor's cache, which makes it three times as fast."""

_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_P1_PLUS_P2: Final = np.uint64((0x9E3779B185EBCA87 + 0xC2B2AE3D27D4EB4F) & 0xFFFFFFFFFFFFFFFF)
_WORD: Final = 8
_HALF_WORD: Final = 4
_STRIPE: Final = 32


def xxh64_of_longs(words: Words, seeds: Words) -> Words:
    """The XXH64 of each word as 8 little-endian bytes, with a seed of its own."""
    return _finish(_with_long(seeds + (_P5 + np.uint64(_WORD)), words))


def xxh64_of_ints(words: Words, seeds: Words) -> Words:
    """The XXH64 of the lower half of each word as 4 little-endian bytes, with a seed of its own."""
    return _finish(_with_int(seeds + (_P5 + np.uint64(_HALF_WORD)), words))


def xxh64_of_slices(data: Bytes, starts: Positions, lengths: Positions, seeds: Words) -> Words:
    """The XXH64 of each ``data[starts[i] : starts[i] + lengths[i]]`` with seed ``seeds[i]``.

    Args:
        data: The bytes of all strings.
        starts: First byte of each string.
        lengths: Bytes of each string, 0 or more; every slice lies within ``data``.
        seeds: One seed per string.

    Returns:
        One unsigned hash per string.
    """
    hashes = np.empty(len(lengths), dtype=np.uint64)
    for first in range(0, len(lengths), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        hashes[block] = _of_block(data, starts[block], lengths[block], seeds[block])
    return hashes


def _of_block(data: Bytes, starts: Positions, lengths: Positions, seeds: Words) -> Words:
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest > LONG_BYTES:
        return _with_long_ones(data, starts, lengths, seeds)
    low, high = int(starts.min()), int((starts + lengths).max())
    if high + _WORD > len(data):
        # Unaligned reads of whole words must stay inside the buffer, whatever follows the last string.
        data = np.concatenate((data[low:high], np.zeros(_WORD, dtype=np.uint8)))
        starts = starts - low
    if shortest == longest:
        return _of_one_length(data, starts, longest, seeds)
    hashes = np.empty(len(lengths), dtype=np.uint64)
    by_length = np.argsort(lengths.astype(np.uint16), kind="stable")
    sorted_lengths = lengths[by_length]
    bounds = [0, *(np.flatnonzero(np.diff(sorted_lengths)) + 1).tolist(), len(lengths)]
    for first, end in itertools.pairwise(bounds):
        rows = by_length[first:end]
        hashes[rows] = _of_one_length(data, starts[rows], int(sorted_lengths[first]), seeds[rows])
    return hashes


def _with_long_ones(data: Bytes, starts: Positions, lengths: Positions, seeds: Words) -> Words:
    hashes = np.empty(len(lengths), dtype=np.uint64)
    is_long = lengths > LONG_BYTES
    short = np.flatnonzero(~is_long)
    if len(short):
        hashes[short] = _of_block(data, starts[short], lengths[short], seeds[short])
    view = np.ascontiguousarray(data).data
    digest = xxhash.xxh64_intdigest
    for row in np.flatnonzero(is_long).tolist():
        start = int(starts[row])
        hashes[row] = digest(view[start : start + int(lengths[row])], int(seeds[row]))
    return hashes


def _of_one_length(data: Bytes, starts: Positions, length: int, seeds: Words) -> Words:
    position = 0
    if length >= _STRIPE:
        mixed = _stripes(data, starts, length, seeds)
        position = length - length % _STRIPE
    else:
        mixed = seeds + _P5
    mixed += np.uint64(length)
    while position + _WORD <= length:
        mixed = _with_long(mixed, _read(data, starts, position, np.uint64))
        position += _WORD
    if position + _HALF_WORD <= length:
        mixed = _with_int(mixed, _read(data, starts, position, np.uint32).astype(np.uint64))
        position += _HALF_WORD
    while position < length:
        mixed ^= data[starts + position].astype(np.uint64) * _P5
        mixed = _rotate_left(mixed, 11)
        mixed *= _P1
        position += 1
    return _finish(mixed)


def _with_long(mixed: Words, words: Words) -> Words:
    """``mixed``, which it overwrites, after the next 8 bytes."""
    lane = _rotate_left(words * _P2, 31)
    lane *= _P1
    mixed ^= lane
    mixed = _rotate_left(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _with_int(mixed: Words, words: Words) -> Words:
    """``mixed``, which it overwrites, after the next 4 bytes."""
    mixed ^= words * _P1
    mixed = _rotate_left(mixed, 23)
    mixed *= _P2
    mixed += _P3
    return mixed


def _stripes(data: Bytes, starts: Positions, length: int, seeds: Words) -> Words:
    lanes = [seeds + _P1_PLUS_P2, seeds + _P2, seeds.copy(), seeds - _P1]
    for position in range(0, length - length % _STRIPE, _STRIPE):
        for number in range(4):
            lanes[number] = _round(lanes[number], _read(data, starts, position + number * _WORD, np.uint64))
    mixed = (
        _rotate_left(lanes[0], 1) + _rotate_left(lanes[1], 7) + _rotate_left(lanes[2], 12) + _rotate_left(lanes[3], 18)
    )
    for lane in lanes:
        mixed ^= _round(np.uint64(0), lane)
        mixed *= _P1
        mixed += _P4
    return mixed


def _read(data: Bytes, starts: Positions, position: int, word: Any) -> npt.NDArray[Any]:
    """The little-endian word at ``position`` of every string, aligned or not."""
    width = np.dtype(word).itemsize
    words: npt.NDArray[Any] = np.ndarray((len(data) - width + 1,), dtype=word, buffer=data, strides=(1,))
    return words[starts + position]


def _round(accumulator: Words | np.uint64, words: Words) -> Words:
    mixed = words * _P2
    mixed += accumulator
    mixed = _rotate_left(mixed, 31)
    mixed *= _P1
    return mixed


def _rotate_left(words: Words, bits: int) -> Words:
    rotated = words << np.uint64(bits)
    rotated |= words >> np.uint64(64 - bits)
    return rotated


def _finish(mixed: Words) -> Words:
    mixed ^= mixed >> np.uint64(33)
    mixed *= _P2
    mixed ^= mixed >> np.uint64(29)
    mixed *= _P3
    mixed ^= mixed >> np.uint64(32)
    return mixed
