"""Keys and columns of every type come out of a join as they came, from the batch and from the state."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest

from stateline.testing import KeyedStreamHarness

TIME = pa.timestamp("us", tz="UTC")
START = 1_700_000_000_000_000
MOMENT = pa.scalar(dt.datetime(2024, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")).as_py()
"""With the zone as pyarrow makes it, which is another class in older versions."""
KEYS = {
    "long": (pa.int64(), [0, -1, 2**62, None]),
    "byte": (pa.int8(), [0, -1, 127, None]),
    "text": (pa.string(), ["", "a", "é" * 40, None]),
    "large": (pa.large_string(), ["a", "b", None]),
    "words": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
    "binary": (pa.binary(), [b"", b"\x00", None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "double": (pa.float64(), [0.5, math.nan, math.inf, None]),
    "date": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1960, 1, 1), None]),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, None]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-2.00"), None]),
}
NESTED = {
    "list": (pa.list_(pa.string()), [["a", None], [], None]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int8()))]), [{"x": 1, "y": [2]}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
    "nothing": (pa.null(), [None, None]),
}


@pytest.mark.parametrize("within", [None, ("0 seconds", "5 seconds")], ids=["unbounded", "within"])
@pytest.mark.parametrize("kind", [*KEYS, *NESTED])
def test_columns_of_every_type_come_out_as_they_came(kind, within):
    type_, values = (KEYS | NESTED)[kind]
    key = pa.field("key", type_ if kind in KEYS else pa.string())
    left = KeyedStreamHarness(pa.schema([key, ("at", TIME), ("mine", type_)]), "key", watermark=("at", 0), name="join")
    right = KeyedStreamHarness(pa.schema([key, ("then", TIME), ("theirs", type_)]), "key", watermark=("then", 0))
    joined = left.join(right, "inner" if within is None else "left", within=within)
    keys = values if kind in KEYS else [str(place) for place in range(len(values))]
    ours = [{"key": each, "at": START, "mine": value} for each, value in zip(keys, values, strict=True)]
    others = [{"key": each, "then": START, "theirs": value} for each, value in zip(keys, values, strict=True)]
    found = joined.run_batch(ours, [])
    joined.restart(parallelism=3)
    found += joined.run_batch([], others)
    pairs = sorted(repr((row["key"], row["mine"], row["theirs"])) for row in found if row["then"] is not None)
    assert pairs == sorted(repr(row) for row in zip(keys, values, values, strict=True) if row[0] is not None)
    alone = [row for row in found if row["then"] is None]
    assert len(alone) == (within is not None) * keys.count(None)
