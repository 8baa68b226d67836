"""The order of rows within keys, best first, in whole columns. Pure.

An order is a list of numpy arrays, the most significant first: of two rows of a key the better one has the smaller
number in the first array in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.state.aggregate.ordering import ordinals
from stateline.state.columns import Mask, Rows, valid_mask

__all__ = ["TIES", "Order", "Ranked", "Ties", "may_be_best", "order_of", "ranked"]

Ties = Literal["first", "last", "all"]
"""Which of equal rows is better: the one that came first, or last; or none, so that all are shown, with one rank."""
TIES: Final = ("first", "last", "all")

Order = list[npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The best rows of keys.

    Attributes:
        rows: Their numbers: key after key, best first.
        ranks: From 1 within each key; equal rows share one where ties are shown.
        places: From 0 within each key.
    """

    rows: Rows
    ranks: npt.NDArray[np.int32]
    places: Rows

    def where(self, mask: Mask) -> Ranked:
        """Those of the rows that a mask says."""
        return Ranked(self.rows[mask], self.ranks[mask], self.places[mask])


def order_of(columns: Sequence[pa.Array], ascending: Sequence[bool]) -> Order:
    """The order by columns of values: null after all others, in either direction."""
    order: Order = []
    for column, upwards in zip(columns, ascending, strict=True):
        numbers = ordinals(column)
        valid = valid_mask(column)
        if valid is not None:
            order.append(~valid)
            numbers = np.where(valid, numbers, 0)
        order.append(numbers if upwards else ~numbers)
    return order


def may_be_best(owners: Rows, order: Order, stored: int, n: int) -> Rows:
    """The stored rows, which come first, and those of the others that may be among the ``n`` best of their key.

    A row that is worse than each of ``n`` stored rows is not; most are, where the best ones have been there for long.

    Args:
        owners: The key of each row.
        order: See the module. Only the first array is looked at, so this is no more than a sieve.
        stored: How many rows are stored.
        n: How many are wanted.
    """
    everything = np.arange(len(owners))
    if stored == 0:
        return everything
    first = order[0].astype(np.int64, copy=False)
    keys = int(owners.max()) + 1
    worst = np.full(keys, np.iinfo(np.int64).min)
    np.maximum.at(worst, owners[:stored], first[:stored])
    worst[np.bincount(owners[:stored], minlength=keys) < n] = np.iinfo(np.int64).max
    may = first <= worst.take(owners)
    may[:stored] = True
    return everything[may]


def ranked(owners: Rows, order: Order, arrivals: Rows, n: int, ties: Ties) -> Ranked:
    """The ``n`` best rows of each key.

    Args:
        owners: The key of each row.
        order: See the module.
        arrivals: A number for each row that ascends in the order of arrival.
        n: How many of each key; more where the last of them has equals and ties are shown.
        ties: See :data:`Ties`.
    """
    if len(owners) == 0:
        nothing = np.empty(0, dtype=np.int64)
        return Ranked(nothing, nothing.astype(np.int32), nothing)
    rows = np.lexsort((~arrivals if ties == "last" else arrivals, *reversed(order), owners))
    begins = _changes(owners.take(rows))
    numbers = np.arange(len(rows))
    places = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    above = places
    if ties == "all":
        differs = np.logical_or.reduce([begins, *(_changes(part.take(rows)) for part in order)])
        above = places.take(np.maximum.accumulate(np.where(differs, numbers, 0)))
    return Ranked(rows, (above + 1).astype(np.int32), places).where(above < n)


def _changes(values: npt.NDArray[Any]) -> Mask:
    """Which values differ from the one before."""
    differs = np.ones(len(values), dtype=np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs
