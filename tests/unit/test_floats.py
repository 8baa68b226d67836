"""The canonical form of floats."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from stateline.floats import canonical_float, canonical_floats, canonical_words

ODD_NANS = {"f4": (0x7FC00001, 0xFFC00000, 0x7F800001), "f8": (0x7FF8 << 48 | 1, 0xFFF8 << 48, 0x7FF0 << 48 | 1)}


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_equal_numbers_have_equal_bits(kind: str) -> None:
    numbers = np.array([-0.0, 0.0, np.nan, -np.nan, 1.5, -np.inf, np.inf], kind)
    plain = np.array([0.0, 0.0, np.nan, np.nan, 1.5, -np.inf, np.inf], kind)
    assert canonical_words(numbers).tolist() == plain.view(f"u{plain.itemsize}").tolist()


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_nans_with_a_sign_or_a_payload_become_the_one(kind: str) -> None:
    odd = np.array(ODD_NANS[kind], f"u{kind[1]}").view(kind)
    assert set(canonical_words(odd).tolist()) == set(np.array([np.nan], kind).view(f"u{kind[1]}").tolist())


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nulls_of_a_column_stay(kind: pa.DataType) -> None:
    column = pa.array([9.0, None, -0.0, math.nan], kind, from_pandas=False)[1:]
    made = canonical_floats(column)
    assert made.is_null().to_pylist() == [True, False, False]
    assert math.copysign(1, made[1].as_py()) == 1
    assert math.isnan(made[2].as_py())


def test_other_columns_stay_as_they_are() -> None:
    column = pa.array(["a"])
    assert canonical_floats(column) is column


def test_one_number() -> None:
    assert math.isnan(canonical_float(float("-nan")))
    assert {canonical_float(math.nan): 1}[canonical_float(-math.nan)] == 1
    assert math.copysign(1, canonical_float(-0.0)) == 1
