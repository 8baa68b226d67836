"""What a join does with one batch of one subtask: who is paired with whom, who leaves alone, who is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from stateline.pipeline.operators.join.interval import Border
from stateline.pipeline.operators.join.matching import Others, distinct_partners, have_partners, partners
from stateline.pipeline.operators.join.output import LEFT, RIGHT
from stateline.pipeline.operators.join.side import Arrived, SideTable
from stateline.state.columns import Mask
from stateline.state.rows import StateRows
from stateline.state.subkeys import rows_where
from stateline.state.table import Located, StateTable

__all__ = ["JoinBatch"]


@dataclass(frozen=True, slots=True)
class JoinBatch:
    """One batch of one subtask. Each pair of values is that of the left side, then that of the right side.

    Attributes:
        sides: The layouts of the tables.
        arrived: What came.
        stored: What came before.
        all: Both.
        before: What became of rows in the batch before.
        now: What becomes of them at the end of this batch.
    """

    sides: tuple[SideTable, SideTable]
    arrived: tuple[Arrived, Arrived]
    stored: tuple[Others, Others]
    all: tuple[Others, Others]
    before: tuple[Border, Border]
    now: tuple[Border, Border]

    @classmethod
    def of(
        cls,
        sides: tuple[SideTable, SideTable],
        arrived: tuple[Arrived, Arrived],
        tables: tuple[StateTable, StateTable],
        before: tuple[Border, Border],
        now: tuple[Border, Border],
    ) -> Self:
        """Puts what came beside what is stored."""
        stored, together = [], []
        for side, came, table, border in zip(sides, arrived, tables, before, strict=True):
            stored.append(Others(table, side, border.kept))
            grown = table.with_changes(came.rows)
            together.append(Others(grown, side, border.kept, grown.runs[-1].searched if len(came.rows) else None))
        return cls(sides, arrived, (stored[LEFT], stored[RIGHT]), (together[LEFT], together[RIGHT]), before, now)

    def pairs(self) -> Iterator[tuple[int, Located]]:
        """The pairs of which a row came in this batch, and the side of which they have the numbers of rows."""
        for pairs in partners(self.arrived[LEFT].rows, self.sides[LEFT], self.all[RIGHT]):
            yield LEFT, pairs
        for pairs in partners(self.arrived[RIGHT].rows, self.sides[RIGHT], self.stored[LEFT]):
            yield RIGHT, pairs

    def first_found(self) -> tuple[list[StateRows], StateRows]:
        """The left rows whose first partner is there now, and the new ones that have none yet."""
        left, right = self.sides
        new = self.arrived[LEFT].rows
        matched = have_partners(new, left, self.all[RIGHT])
        found = distinct_partners(self.arrived[RIGHT].rows, right, self.stored[LEFT])
        first = found.take(np.flatnonzero(~have_partners(found, left, self.stored[RIGHT])))
        parts = [rows for rows in (new.take(np.flatnonzero(matched)), first) if len(rows)]
        return parts, new.take(np.flatnonzero(~matched))

    def leaving_alone(self, side: int) -> Iterator[StateRows]:
        """The rows of an outer side that leave in this batch and never had a partner."""
        if len(self.arrived[side].alone):
            yield self.arrived[side].alone
        layout, after, until = self.sides[side], self.before[side].leaves, self.now[side].leaves
        if until is None:
            return
        new = self.arrived[side].rows
        parts = [new.take(np.flatnonzero(layout.times(new) <= until))]
        if after is None or after < until:
            parts.append(rows_where(self.stored[side].table, _within(layout, after, until)))
        leaving = StateRows.concat(parts)
        leaving = leaving.take(np.argsort(leaving.keys.hashes, kind="stable"))
        alone = np.flatnonzero(~have_partners(leaving, layout, self.all[1 - side]))
        if len(alone):
            yield leaving.take(alone)

    def kept(self, side: int, rows: StateRows) -> StateRows:
        """Those of new rows that are to be stored."""
        bound = self.now[side].kept
        return rows if bound is None else rows.take(np.flatnonzero(self.sides[side].lifetimes(rows) > bound))

    def over(self, side: int) -> Callable[[StateRows], Mask] | None:
        """The test of rows that no batch after this one needs; ``None`` if all may be needed."""
        layout, bound = self.sides[side], self.now[side].kept
        if bound is None:
            return None

        def is_over(rows: StateRows) -> Mask:
            mask: Mask = layout.lifetimes(rows) <= bound
            return mask

        return is_over


def _within(layout: SideTable, after: int | None, until: int) -> Callable[[StateRows], Mask]:
    """The test of event times: above ``after``, and at most ``until``."""

    def test(rows: StateRows) -> Mask:
        times = layout.times(rows)
        mask: Mask = times <= until
        return mask if after is None else mask & (times > after)

    return test
