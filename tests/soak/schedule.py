"""Which slice a soak takes next: suites by their shares of the time, the slices of a suite in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.soak.slices import Slice


class Schedule:
    """Not the clock but the seconds that slices took decide, so that a slice that takes long is made up for.

    Args:
        slices: What there is, of the suites that were chosen.
        shares: How much of the time each suite gets, in any unit.
    """

    def __init__(self, slices: Sequence[Slice], shares: Mapping[str, float]) -> None:
        self._slices = slices
        self._shares = shares
        self._seconds: Counter[str] = Counter()
        self._numbers: Counter[tuple[str, str]] = Counter()

    def resume(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Goes on with the numbers after those of an earlier soak. Its seconds do not count."""
        for line in lines:
            key = line["suite"], line["scenario"]
            self._numbers[key] = max(self._numbers[key], line["number"] + 1)

    def next(self) -> tuple[int, Slice]:
        """The number and the slice that come next: of the suite that has had least of its share, its rarest slice."""
        suite = min(
            {each.suite for each in self._slices}, key=lambda name: (self._spent(name), -self._shares[name], name)
        )
        mine = [each for each in self._slices if each.suite == suite]
        chosen = min(mine, key=lambda each: self._numbers[each.suite, each.scenario])
        return self._numbers[chosen.suite, chosen.scenario], chosen

    def took(self, chosen: Slice, seconds: float) -> None:
        """Notes that a slice has run."""
        self._seconds[chosen.suite] += seconds
        self._numbers[chosen.suite, chosen.scenario] += 1

    def _spent(self, suite: str) -> float:
        return self._seconds[suite] / self._shares[suite]
