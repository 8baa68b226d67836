"""Many small data frames out of a big one, and many small ones made columns, at the price of their blocks.

The only use of what pandas keeps to itself: its block managers.

Facts (measured with pandas 2.3, per frame):
- ``iloc`` and an index of its own: 9 us, and the first look at a column is slower; a slice of the blocks: 3.5 us.
- Asking a fresh frame of three columns for each of them: 50 us; its blocks: 2 us.
- What is private may change. So it is tried once for each process, on a small frame, against the public way. Where the
  answers differ, or there is none, the public way is taken for all frames.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pandas as pd

__all__ = ["FrameColumns", "blocks_are_known", "frame_parts"]

_LOGGER: Final = logging.getLogger(__name__)

Parts = Callable[[int, int], pd.DataFrame]


def frame_parts(frame: pd.DataFrame) -> Parts:
    """Half-open slices of a frame, each with an index from 0, that may be written to without a warning."""
    return _block_parts(frame) if blocks_are_known() else _public_parts(frame)


class FrameColumns:
    """Yielded frames, taken apart at once: what happens to a frame afterwards changes nothing.

    Attributes:
        add: ``add(frame, names)`` takes one frame with at least one row; ``names`` are those of its columns, in order.

    Args:
        by_block: Whether the blocks of pandas are known.
    """

    def __init__(self, *, by_block: bool) -> None:
        self.add = self._add_blocks if by_block else self._add_columns
        self._names: list[Any] = []
        self._layout: list[Any] = []
        self._blocks: list[list[Any]] = []
        self._parts: list[tuple[list[Any], list[Any]]] = []

    def columns(self, places: Callable[[list[Any]], Sequence[int]]) -> list[list[Any]]:
        """For each column of the result its parts, in the order of the frames.

        Args:
            places: From the names of a frame's columns to the numbers of those wanted.
        """
        self._end_layout()
        wanted = [[arrays[place] for place in places(names)] for names, arrays in self._parts]
        return [list(parts) for parts in zip(*wanted, strict=True)]

    def _add_blocks(self, frame: pd.DataFrame, names: list[Any]) -> None:
        layout: list[Any] = [names]
        taken = []
        for block in frame._mgr.blocks:  # noqa: SLF001 - tried by blocks_are_known()
            values = block.values
            if type(values) is not np.ndarray:
                if not isinstance(values.dtype, np.dtype):
                    self._add_columns(frame, names)
                    return
                values = np.asarray(values)
            layout.append(values.dtype)
            layout.append(tuple(block.mgr_locs))
            taken.append(values.copy())
        if layout != self._layout:
            self._end_layout()
            self._layout, self._names = layout, names
            self._blocks = [[] for _ in taken]
        for blocks, values in zip(self._blocks, taken, strict=True):
            blocks.append(values)

    def _add_columns(self, frame: pd.DataFrame, names: list[Any]) -> None:
        self._end_layout()
        self._parts.append((names, [frame.iloc[:, place].array.copy() for place in range(len(names))]))

    def _end_layout(self) -> None:
        """Joins the blocks of frames of one layout, each block once for all of them."""
        if not self._blocks:
            return
        arrays: list[Any] = [None] * len(self._names)
        for places, blocks in zip(self._layout[2::2], self._blocks, strict=True):
            for place, values in zip(places, np.concatenate(blocks, axis=1), strict=True):
                arrays[place] = values
        self._parts.append((self._names, arrays))
        self._layout, self._blocks = [], []


@cache
def blocks_are_known() -> bool:
    """Whether this pandas keeps its blocks as they are used here: tried on a frame of several types."""
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [4, 5, 6], "d": [0.5, 1.5, 2.5]})
    names = frame.columns.tolist()
    try:
        part, expected = _block_parts(frame)(1, 3), _public_parts(frame)(1, 3)
        pd.testing.assert_frame_equal(part, expected)
        pd.testing.assert_series_equal(part["c"] + part["d"], expected["c"] + expected["d"])
        columns = FrameColumns(by_block=True)
        for one in (part, expected, frame):
            columns.add(one, names)
        made = columns.columns(lambda _: range(len(names)))
        joined = pd.DataFrame({name: np.concatenate(parts) for name, parts in zip(names, made, strict=True)})
        pd.testing.assert_frame_equal(joined, pd.concat([part, expected, frame], ignore_index=True))
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        _LOGGER.warning("the blocks of pandas %s are not known, so frames take longer: %s", pd.__version__, error)
        return False
    return True


def _block_parts(frame: pd.DataFrame) -> Parts:
    manager: Any = frame._mgr  # noqa: SLF001 - tried by blocks_are_known()
    make: Any = frame._constructor_from_mgr  # noqa: SLF001 - the same
    _ = manager.blknos  # Slices inherit it. Without it each would make its own.
    index = _indexes()

    def part(start: int, end: int) -> pd.DataFrame:
        piece = manager.get_slice(slice(start, end), axis=1)
        piece.set_axis(1, index(end - start))
        made: pd.DataFrame = make(piece, piece.axes)
        return made

    return part


def _public_parts(frame: pd.DataFrame) -> Parts:
    index = _indexes()

    def part(start: int, end: int) -> pd.DataFrame:
        made = frame.iloc[start:end]
        made.index = index(end - start)
        made._is_copy = None  # noqa: SLF001 - the key's own rows: a write to them is no mistake
        return made

    return part


def _indexes() -> Callable[[int], pd.RangeIndex]:
    return cache(pd.RangeIndex)
