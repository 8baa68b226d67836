"""The approximate number of distinct values: HyperLogLog registers in a column.

Facts:
- A value's hash is ``xxhash64`` as everywhere here, of integers as ``long`` and of floats as ``double``, whatever their
  width: a column may become wider, and counts on. Its upper ``p`` bits pick a register, and the register keeps the
  largest number of leading zeros, plus one, seen in the rest (Flajolet et al., 2007). ``2**p`` registers give a
  relative standard deviation of about ``1.04 / sqrt(2**p)``.
- Registers are kept sparse, as a sorted list of ``register << 6 | rank``: a key with few values costs few bytes.
- The estimate is Ertl's improved raw estimator (arXiv:1702.01284): no tables of measured bias, and no jump between
  ranges. So results are not digit for digit those of Spark's ``approx_count_distinct``; both keep the deviation asked
  for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.key_groups import check_key_type, hash_columns
from stateline.state.aggregate.api import BoundAggregation, Function, GroupedRows, Inputs
from stateline.state.aggregate.lists import Lists
from stateline.state.columns import Rows

__all__ = ["approx_count_distinct"]

_RANK_BITS: Final = 6
_RANK_MASK: Final = (1 << _RANK_BITS) - 1
_PRECISION_MIN: Final = 4
_PRECISION_MAX: Final = 16
_BLOCK_ROWS: Final = 8192
_CONVERGED: Final = 64
"""Terms after which Ertl's series have converged to a double's last digit, whatever the argument."""


def approx_count_distinct(column: str, rsd: float = 0.05) -> Function:
    """About how many distinct values there are, with relative standard deviation ``rsd``, 0.005 to 0.39."""
    # Spark's rule, so that one rsd means one number of registers in both.
    is_share = isinstance(rsd, int | float) and 0 < rsd < 1
    precision = math.ceil(2 * math.log2(1.106 / rsd)) if is_share else 0
    if not _PRECISION_MIN <= precision <= _PRECISION_MAX:
        raise InvalidInputError(
            f"must be 0.005 to 0.39, got {rsd!r}", subject="rsd", hint="Give a relative standard deviation"
        )
    definition = f"approx_count_distinct({column}, registers={1 << precision})"
    return Function(definition, (column,), partial(_Sketch, column, precision), compared=(column,))


class _Sketch(BoundAggregation):
    output = pa.int64()

    def __init__(self, column: str, precision: int, inputs: Inputs) -> None:
        kind = inputs.kind(column)
        check_key_type(kind, column, "be counted by approx_count_distinct")
        self._column = column
        self._hashed = _hashed_type(kind)
        self._precision = precision
        self.input_type = f"of {self._hashed}"
        self._codes = pa.uint32() if precision + _RANK_BITS > 16 else pa.uint16()
        self.state = ((".registers", pa.list_(pa.field("element", self._codes))),)

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        column = rows.column(self._column)
        hashed = column if column.type == self._hashed else column.cast(self._hashed)
        codes = _codes(hash_columns([hashed]), self._precision)
        owners = rows.index
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            codes, owners = codes[valid], owners[valid]
        return [self._registers(codes, owners, len(rows))]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        lists = [Lists.of(older[0]), Lists.of(newer[0])]
        codes = np.concatenate([part.elements.to_numpy().astype(np.int64) for part in lists])
        owners = np.concatenate([part.owners for part in lists])
        return [self._registers(codes, owners, len(newer[0]))]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        column = state[0]
        blocks = [
            _estimates(Lists.of(column.slice(first, _BLOCK_ROWS)), self._precision)
            for first in range(0, len(column), _BLOCK_ROWS)
        ]
        return pa.array(np.concatenate(blocks) if blocks else np.empty(0, np.int64))

    def _registers(self, codes: Rows, owners: Rows, rows: int) -> pa.Array:
        """The largest code of each register of each row, ascending."""
        order = np.lexsort((codes, owners))
        codes, owners = codes[order], owners[order]
        register = codes >> _RANK_BITS
        last = np.ones(len(codes), dtype=np.bool_)
        last[:-1] = (owners[1:] != owners[:-1]) | (register[1:] != register[:-1])
        lengths = np.bincount(owners[last], minlength=rows).astype(np.int64)
        return Lists(pa.array(codes[last], self._codes), lengths).column()


def _hashed_type(kind: pa.DataType) -> pa.DataType:
    """The type that values are hashed as: numbers as their widest, so that a column that becomes wider goes on.

    Registers hold nothing else of the values, so another type would count them anew beside the old ones.
    """
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _codes(hashes: npt.NDArray[np.uint64], precision: int) -> Rows:
    register = (hashes >> np.uint64(64 - precision)).astype(np.int64)
    rest = hashes << np.uint64(precision)
    zeros = np.full(len(hashes), 64 - precision, dtype=np.int64)
    some = rest != 0
    # The exponent of a double is the place of the highest bit; clearing the bits that rounding would carry keeps it so.
    high = rest[some] & ~(rest[some] >> np.uint64(1))
    zeros[some] = 64 - np.frexp(high.astype(np.float64))[1]
    return (register << _RANK_BITS) | (zeros + 1)


def _estimates(lists: Lists, precision: int) -> Rows:
    """Ertl's estimate of each row, from the histogram of its registers."""
    registers, longest = 1 << precision, 64 - precision
    width = longest + 2
    ranks = lists.elements.to_numpy().astype(np.int64) & _RANK_MASK
    rows = len(lists.lengths)
    histogram = np.bincount(lists.owners * width + ranks, minlength=rows * width).reshape(rows, width).astype(float)
    histogram[:, 0] = registers - lists.lengths
    total = registers * _tau(1 - histogram[:, longest + 1] / registers)
    for rank in range(longest, 0, -1):
        total = 0.5 * (total + histogram[:, rank])
    with np.errstate(divide="ignore"):
        total = total + registers * _sigma(histogram[:, 0] / registers)
        estimate = (0.5 / math.log(2)) * registers * registers / total
    counts: Rows = np.rint(np.where(lists.lengths == 0, 0.0, estimate)).astype(np.int64)
    return counts


def _sigma(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Ertl's sum over x**(2**k) * 2**(k - 1); infinite at 1, where no register is set."""
    one = x >= 1
    power, weight = np.where(one, 0.0, x), 1.0
    total = power.copy()
    for _ in range(_CONVERGED):
        power = power * power
        total += power * weight
        weight += weight
    return np.where(one, np.inf, total)


def _tau(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Ertl's sum over (1 - x**(2**-k))**2 * 2**-k, a third of what is left of 1."""
    root, weight = x.copy(), 1.0
    total = 1 - x
    for _ in range(_CONVERGED):
        root = np.sqrt(root)
        weight *= 0.5
        total -= (1 - root) ** 2 * weight
    return np.where((x == 0) | (x == 1), 0.0, total / 3)
