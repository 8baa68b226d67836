"""Values of every type that a stream may have, drawn: NaN of several bit patterns, zeros of both signs, extremes."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NULLS = 0.15

NANS = tuple(
    struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 7)
)
"""The one that Java makes, a negative one, and one that carries something."""
TEXTS = ("", " ", "a", "A", "a\0", "ab", "ä", "a\u0308", "ﬀ", "\U0001f600", "z" * 40)


@dataclass(frozen=True)
class Kind:
    """A type, its values and what may be asked of it.

    Attributes:
        ddl: The type as Spark names it.
        arrow: The type as Arrow names it.
        draw: Draws a value that is not null.
        scale: The largest magnitude that a sum meets; ``None`` where there is no sum to compare.
        has_sum: Whether no sum of some thousand values overflows.
        is_comparable: Whether values have an order and equality.
    """

    ddl: str
    arrow: pa.DataType
    draw: Callable[[random.Random], Any]
    scale: float | None = None
    has_sum: bool = True
    is_comparable: bool = True


def whole(bits: int) -> Callable[[random.Random], int]:
    """Integers of so many bits: the least, the greatest, small ones and any."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda dice: dice.choice((low, high, 0, dice.randint(-3, 3), dice.randint(low, high)))


def floats(dice: random.Random) -> float:
    """Eighths, whose sums are the same in every order, and now and then what is no number."""
    special = (*NANS, float("inf"), float("-inf"), -0.0, 0.0)
    return dice.choice(special) if dice.random() < 0.08 else dice.randint(-(2**20), 2**20) / 8


def decimals(digits: int, scale: int) -> Callable[[random.Random], Decimal]:
    """Decimals of at most so many digits, that many of them behind the point."""
    bound = 10**digits - 1
    return lambda dice: Decimal(
        f"{dice.choice((bound, -bound, 0, dice.randint(-9, 9), dice.randint(-bound, bound)))}E-{scale}"
    )


def moments(dice: random.Random) -> dt.datetime:
    """Times of every century, and some that are near each other."""
    if dice.random() < 0.5:
        return EPOCH + dt.timedelta(microseconds=dice.randint(-5, 5))
    return EPOCH + dt.timedelta(days=dice.randint(-130_000, 2_000_000), microseconds=dice.randint(0, 86_399_999_999))


def maybe(draw: Callable[[random.Random], Any], dice: random.Random) -> Any:
    """A value or null."""
    return None if dice.random() < NULLS else draw(dice)


def some(draw: Callable[[random.Random], Any], dice: random.Random) -> list[Any]:
    """Up to three values or nulls."""
    return [maybe(draw, dice) for _ in range(dice.randint(0, 3))]


EXTREMES = (*NANS, float("inf"), float("-inf"), -0.0, 0.0, 1.7e308, -1.7e308, 5e-324, -5e-324, 0.1, 1.0)
SINGLES = (*NANS, float("inf"), -0.0, 0.0, 3.4028234663852886e38, -1.401298464324817e-45, 0.10000000149011612)

VALUES: dict[str, Kind] = {
    "truth": Kind("boolean", pa.bool_(), lambda dice: dice.random() < 0.5),
    "tiny": Kind("tinyint", pa.int8(), whole(8), scale=2**8),
    "small": Kind("smallint", pa.int16(), whole(16), scale=2**16),
    "whole": Kind("int", pa.int32(), whole(32), scale=2**32),
    "large": Kind("bigint", pa.int64(), whole(50), scale=2**50),
    "wide": Kind("bigint", pa.int64(), whole(64), scale=2**64, has_sum=False),
    "single": Kind(
        "float", pa.float32(), lambda dice: struct.unpack("f", struct.pack("f", floats(dice)))[0], scale=2**17
    ),
    "double": Kind("double", pa.float64(), floats, scale=2**17),
    "extreme": Kind("double", pa.float64(), lambda dice: dice.choice(EXTREMES)),
    "edge": Kind("float", pa.float32(), lambda dice: dice.choice(SINGLES)),
    "cents": Kind("decimal(5,2)", pa.decimal128(5, 2), decimals(5, 2), scale=1e3),
    "money": Kind("decimal(20,6)", pa.decimal128(20, 6), decimals(20, 6), scale=1e14),
    "vast": Kind("decimal(38,10)", pa.decimal128(38, 10), decimals(31, 10), scale=1e22),
    "share": Kind("decimal(38,38)", pa.decimal128(38, 38), decimals(33, 38), scale=1.0),
    "text": Kind("string", pa.string(), lambda dice: dice.choice(TEXTS)),
    "bytes": Kind("binary", pa.binary(), lambda dice: dice.choice(TEXTS).encode("utf-16")[: dice.randint(0, 5)]),
    "day": Kind("date", pa.date32(), lambda dice: moments(dice).date()),
    "moment": Kind("timestamp", pa.timestamp("us", "UTC"), moments),
    "wall": Kind("timestamp_ntz", pa.timestamp("us"), lambda dice: moments(dice).replace(tzinfo=None)),
    "list": Kind("array<int>", pa.list_(pa.int32()), lambda dice: some(whole(32), dice), is_comparable=False),
    "point": Kind(
        "struct<x: double, tags: array<string>>",
        pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))]),
        lambda dice: {"x": maybe(floats, dice), "tags": maybe(lambda d: some(lambda e: e.choice(TEXTS), d), dice)},
        is_comparable=False,
    ),
    "names": Kind(
        "map<string, decimal(5,2)>",
        pa.map_(pa.string(), pa.decimal128(5, 2)),
        lambda dice: [(name, maybe(decimals(5, 2), dice)) for name in dice.sample(TEXTS, dice.randint(0, 2))],
        is_comparable=False,
    ),
}

KEYS = tuple(name for name, kind in VALUES.items() if kind.is_comparable)
