"""Columns of lists: cutting, joining and deduplicating those of many rows at once, without a loop over rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.state.columns import Mask, Rows

__all__ = ["Lists", "element_codes", "first_of_each"]


@dataclasses.dataclass(frozen=True, slots=True)
class Lists:
    """Lists of many rows, flat: the elements of all rows after each other.

    Attributes:
        elements: All elements, row after row.
        lengths: Elements of each row.
    """

    elements: pa.Array
    lengths: Rows

    @classmethod
    def of(cls, column: pa.Array) -> Self:
        """The rows of a list column; a null row has no elements."""
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(pc.list_flatten(column), lengths)

    @property
    def owners(self) -> Rows:
        """The row of each element, ascending."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def places(self) -> Rows:
        """The place of each element in its row, from 0."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.elements)) - np.repeat(starts, self.lengths)

    def column(self) -> pa.Array:
        """One list column, without nulls."""
        offsets = np.concatenate(([0], np.cumsum(self.lengths))).astype(np.int32)
        kind = pa.list_(pa.field("element", self.elements.type))
        return pa.ListArray.from_arrays(pa.array(offsets), self.elements, type=kind)

    def where(self, mask: Mask) -> Lists:
        """The elements for which ``mask`` holds, in their order."""
        rows = np.flatnonzero(mask)
        lengths = np.bincount(self.owners[mask], minlength=len(self.lengths))
        return Lists(self.elements.take(pa.array(rows)), lengths.astype(np.int64))

    def from_end(self) -> Rows:
        """The place of each element from the end of its row, 0 for the last one."""
        return np.repeat(self.lengths, self.lengths) - 1 - self.places

    @classmethod
    def joined(cls, parts: Sequence[Lists]) -> Self:
        """Row by row the elements of all parts after each other."""
        owners = np.concatenate([part.owners for part in parts])
        order = np.argsort(owners, kind="stable")
        elements = pa.concat_arrays([part.elements for part in parts]).take(pa.array(order))
        lengths = parts[0].lengths.copy()
        for part in parts[1:]:
            lengths += part.lengths
        return cls(elements, lengths)


def first_of_each(owners: Rows, codes: Rows) -> Mask:
    """Which elements are the first of their code within their row."""
    order = np.lexsort((codes, owners))
    owners, codes = owners[order], codes[order]
    mask = np.zeros(len(order), dtype=np.bool_)
    fresh = np.concatenate(([True], (owners[1:] != owners[:-1]) | (codes[1:] != codes[:-1])))[: len(order)]
    mask[order[fresh]] = True
    return mask


def element_codes(elements: pa.Array) -> Rows:
    """A number for each element, equal exactly where elements are, floats in canonical form."""
    codes: Rows = elements.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes
