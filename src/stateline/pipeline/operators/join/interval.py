"""The interval of event time in which rows of two streams match, and what follows from it. Pure.

``left time + lower <= right time <= left time + upper``, both ends inclusive. With the watermark at ``W``, rows come no
more whose time is at or below it. So a left row has met all its partners when ``W`` has passed ``left time + upper``,
and a right row when ``W`` has passed ``right time - lower``. Spark counts in whole milliseconds and lets a row *leave*
one of them later; so do we, that both give the same rows in the same batch.

Nothing is written down when a row finds a partner. Whether a row that leaves has ever had one is looked up in the other
table once more. For that, rows there are *kept* until all the rows have left whose partners they may have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from stateline.errors import InvalidInputError
from stateline.options import duration_microseconds
from stateline.state.columns import Rows
from stateline.state.keys import Hashes
from stateline.state.subkeys import LOWER_HALF, in_lower_half, ordered_hashes

__all__ = ["EQUAL_TIMES", "Border", "Interval", "Ranges", "all_of_keys"]

_SLACK_US: Final = 1_000
_WIDTH_BITS: Final = 27
"""An interval takes less than one part in 32 of what the order of times within a key can tell apart."""
_ORDERS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Border:
    """What becomes of the rows of one side, microseconds since the epoch; ``None`` before there is a watermark.

    Attributes:
        leaves: Rows at or below it have met all their partners.
        kept: Rows at or below it are no longer needed, for nothing.
    """

    leaves: int | None = None
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where the partners of some rows lie in the other table.

    Attributes:
        numbers: For each range the number of its row; a row has one or two, which share nothing.
        lows: Where each begins in the order of hashes, inclusive; ascending.
        highs: Where it ends, inclusive; ascending.
    """

    numbers: Rows
    lows: Hashes
    highs: Hashes


@dataclass(frozen=True, slots=True)
class Interval:
    """Which times of the other side match a time of this side, seen from the left side or, mirrored, from the right.

    Attributes:
        lower_us: From a row's time to the least time of its partners, microseconds; may be negative.
        upper_us: To the greatest.
        slack_us: How much longer than needed rows stay.
    """

    lower_us: int
    upper_us: int
    slack_us: int = _SLACK_US

    @classmethod
    def of(cls, within: Any) -> Self:
        """Checks what the user said.

        Raises:
            InvalidInputError: Not two durations, or the lower one is the greater.
        """
        if not isinstance(within, Sequence) or isinstance(within, str) or len(within) != 2:
            raise InvalidInputError(
                f"expected two durations, (lower, upper), got {within!r}",
                operation="join",
                subject="within",
                hint='Such as within=("0 seconds", "10 minutes"): right rows from the time of the left row on',
            )
        lower, upper = (duration_microseconds(bound, "within") for bound in within)
        if lower > upper:
            raise InvalidInputError(
                f"must be (lower, upper) with lower <= upper, got {within!r}",
                operation="join",
                subject="within",
                hint="left time + lower <= right time <= left time + upper: swap the two, or mind their signs",
            )
        return cls(lower, upper)

    def mirrored(self) -> Interval:
        """The same interval seen from the other side."""
        return Interval(-self.upper_us, -self.lower_us, self.slack_us)

    @property
    def lag_us(self) -> int:
        """How far behind the watermark the times of rows may be that come out."""
        return max(self.upper_us + self.slack_us, self.slack_us - self.lower_us, 0)

    def border(self, watermark_us: int | None, *, partners_are_asked: bool) -> Border:
        """What becomes of the rows of this side.

        Args:
            watermark_us: The watermark.
            partners_are_asked: Whether rows of the other side need to know what partners they had.
        """
        if watermark_us is None:
            return Border()
        leaves = watermark_us - self.upper_us - self.slack_us
        others_leave = watermark_us + self.lower_us - self.slack_us
        return Border(leaves, min(leaves, others_leave - self.upper_us) if partners_are_asked else leaves)

    def order(self, times_us: Rows) -> Hashes:
        """The order of rows by time within their key: their time in steps, modulo 2**32."""
        return in_lower_half(times_us >> self._step_bits)

    def ranges(self, hashes: Hashes, times_us: Rows) -> Ranges:
        """Where the partners of rows of this side may lie in the other table, whose order is that of :meth:`order`.

        Args:
            hashes: Of their grouping keys; only the upper halves count. Ascending.
            times_us: Their times.
        """
        width = (self.upper_us - self.lower_us >> self._step_bits) + 1
        first = in_lower_half(times_us + self.lower_us >> self._step_bits)
        last = first + np.uint64(width)
        numbers = np.arange(len(hashes))
        lows, highs = ordered_hashes(hashes, first), ordered_hashes(hashes, np.minimum(last, LOWER_HALF))
        over = np.flatnonzero(last >= _ORDERS)
        if len(over):  # The order has begun anew within the range. All that did end alike, so the ends ascend.
            anew = hashes.take(over)
            numbers = np.concatenate([over, numbers])
            lows = np.concatenate([ordered_hashes(anew, np.uint64(0)), lows])
            highs = np.concatenate([ordered_hashes(anew, np.uint64(width - 1)), highs])
        if (lows[1:] < lows[:-1]).any():
            order = lows.argsort(kind="stable")
            numbers, lows, highs = numbers.take(order), lows.take(order), highs.take(order)
        return Ranges(numbers, lows, highs)

    @property
    def _step_bits(self) -> int:
        """Times are ordered in steps of ``2**bits`` microseconds."""
        return max((self.upper_us - self.lower_us).bit_length() - _WIDTH_BITS, 0)


EQUAL_TIMES: Final = Interval(0, 0, slack_us=0)
"""Where the event times are part of the key: rows have met all their partners when the watermark reaches them."""


def all_of_keys(hashes: Hashes) -> Ranges:
    """The ranges of all rows of some grouping keys, whose hashes ascend."""
    return Ranges(np.arange(len(hashes)), ordered_hashes(hashes, np.uint64(0)), ordered_hashes(hashes, LOWER_HALF))
