"""Which rows of the two sides are partners: ranges of the order first, then exact times and whole keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stateline.pipeline.operators.join.interval import Interval
from stateline.pipeline.operators.join.side import SideTable, columns_of
from stateline.state.columns import Mask, Rows
from stateline.state.keys import group_rows
from stateline.state.rows import StateRows
from stateline.state.runs import SearchedBatches
from stateline.state.subkeys import of_keys
from stateline.state.table import Located, StateTable

__all__ = ["Others", "distinct_partners", "have_partners", "partners"]


@dataclass(frozen=True, slots=True)
class Others:
    """The rows of the other side.

    Attributes:
        table: All of them.
        side: Their layout.
        after: Stored rows whose time is at or below this are over; ``None`` for none.
        fresh: What of the table came in this batch: it is never over.
    """

    table: StateTable
    side: SideTable
    after: int | None
    fresh: SearchedBatches | None = None


def partners(rows: StateRows, side: SideTable, others: Others, looking: Mask | None = None) -> Iterator[Located]:
    """The partners of rows among those of the other side, each pair once.

    Args:
        rows: Of one side, in the order of its table; none has a null where partners must be equal.
        side: Their side.
        others: Rows of the other side.
        looking: Which rows look for partners; the caller may take some out between two answers.

    Yields:
        Pairs: the number of a row, and the place of its partner. None is empty. At most a million come at a time, or
        as many as one row has partners in one record batch of the table.
    """
    if len(rows) == 0:
        return
    ranges = side.ranges(rows)
    asked = None if looking is None else looking.take(ranges.numbers)
    times = None if side.interval is None else side.times(rows)
    for found in others.table.between(ranges.lows, ranges.highs, asked):
        pairs = Located(ranges.numbers.take(found.numbers), found.places, found.source)
        pairs = _in_time(pairs, times, side.interval, others)
        if len(pairs.numbers):
            pairs = of_keys(pairs, rows.keys.columns[: len(side.keys.keys)])
        if len(pairs.numbers):
            yield pairs
        if looking is not None and asked is not None:
            looking.take(ranges.numbers, out=asked)


def have_partners(rows: StateRows, side: SideTable, others: Others) -> Mask:
    """Which rows have a partner on the other side; as :func:`partners`."""
    looking = np.ones(len(rows), dtype=np.bool_)
    for pairs in partners(rows, side, others, looking):
        looking[pairs.numbers] = False
    return ~looking


def distinct_partners(rows: StateRows, side: SideTable, others: Others) -> StateRows:
    """The rows of the other side that are partners of any of these rows, each once, ascending by hash."""
    parts = [pairs.source.rows(pairs.places.distinct()[0]) for pairs in partners(rows, side, others)]
    if not parts:
        return others.side.no_rows()
    found = StateRows.concat(parts)
    groups = group_rows(found.keys)
    return found.take(groups.order.take(groups.starts))


def _in_time(pairs: Located, times: Rows | None, interval: Interval | None, others: Others) -> Located:
    """Those pairs whose times match, and whose partner is not over."""
    after = None if pairs.source is others.fresh else others.after
    if after is None and interval is None:
        return pairs
    # A row's time is over by its event time where there is an interval, and else by the time at which it came.
    moments = columns_of(pairs.source)[others.side.lifetime].words(pairs.places)
    kept = np.ones(len(moments), dtype=np.bool_) if after is None else moments > after
    if interval is not None and times is not None:
        apart = moments - times.take(pairs.numbers)
        kept &= (apart >= interval.lower_us) & (apart <= interval.upper_us)
    return pairs if kept.all() else pairs.take(np.flatnonzero(kept))
