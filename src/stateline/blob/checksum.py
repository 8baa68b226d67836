"""CRC32C of bytes and of concatenations.

Facts:
- CRC32C (Castagnoli, RFC 3720) is what GCS and S3 compute on their side, so a checksum made here can be compared there.
- The package ``crc32c`` lets other threads run while it reads a long buffer.
- The CRC of ``a + b`` follows from the CRCs of ``a`` and ``b`` and the length of ``b`` alone: appending one zero byte
  is a linear map over GF(2), whose powers are applied bit by bit of the length (as in zlib's ``crc32_combine``).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from functools import cache
from typing import Final

import crc32c as hardware

from stateline.blob.api import Buffer
from stateline.handles import Part

__all__ = ["combine_crc32c", "crc32c", "crc32c_of_parts", "encoded_checksum"]

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's polynomial, bit-reversed."""


def crc32c(data: Buffer, initial: int = 0) -> int:
    """CRC32C of ``data``, unsigned; ``initial`` is the CRC of what comes before it."""
    return int(hardware.crc32c(data, initial))


def combine_crc32c(first: int, second: int, second_length: int) -> int:
    """CRC32C of a concatenation, from the CRCs of its two pieces and the length of the second."""
    power = 0
    while second_length:
        if second_length & 1:
            first = _apply(_zero_bytes(power), first)
        second_length >>= 1
        power += 1
    return first ^ second


def crc32c_of_parts(parts: Iterable[Part]) -> int:
    """CRC32C of the concatenation of ``parts``; 0 for none."""
    total = 0
    for part in parts:
        total = combine_crc32c(total, part.crc32c, part.length)
    return total


def encoded_checksum(checksum: int) -> str:
    """A CRC32C as S3 and Cloud Storage write it."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode("ascii")


@cache
def _zero_bytes(power: int) -> tuple[int, ...]:
    """The GF(2) matrix that appends ``2**power`` zero bytes to a CRC, as 32 columns."""
    if power == 0:
        one_bit = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
        matrix = one_bit
        for _ in range(3):
            matrix = tuple(_apply(matrix, column) for column in matrix)
        return matrix
    half = _zero_bytes(power - 1)
    return tuple(_apply(half, column) for column in half)


def _apply(matrix: tuple[int, ...], vector: int) -> int:
    result = 0
    bit = 0
    while vector:
        if vector & 1:
            result ^= matrix[bit]
        vector >>= 1
        bit += 1
    return result
