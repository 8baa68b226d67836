"""Pictures as SVG, made from numbers. Pure.

A plot stretches with its place: what is drawn is in SVG without an aspect ratio, and what is written stands beside it
as text, so that it can be read at any width. Colours are classes, of which the style sheet has a light and a dark side;
nothing is styled in place. What stands under the pointer is in ``data-tip`` of a column of its bin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

__all__ = ["Mark", "Plot", "heat_strip", "line_plot", "sparkline", "stacked_plot"]

_WIDTH: Final = 1000.0
_HEIGHT: Final = 100.0
_STEPS: Final = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
_PALEST: Final = 0.06
"""The shade of the least that there can be, so that it is told from nothing."""

_GAP: Final = 0.16
"""Of the width of a bar, while there are few."""

_FEW: Final = 120
_SERIES: Final = 12
"""Colours of the style sheet."""

_ORDER: Final = (3, 5, 4, 7, 6, 8, 9, 2, 10, 11, 12, 1)
"""The order in which series take them, so that neighbours differ."""

Number = Callable[[float | None], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened, as a line across a plot.

    Attributes:
        bin: In which bin.
        kind: Its class.
    """

    bin: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture, and what is written around it.

    Attributes:
        title: What it shows.
        svg: The picture.
        top: The value at its upper edge.
        middle: The value half way up.
        bottom: The value at its lower edge.
        left: What its left edge stands for.
        right: What its right edge stands for.
        legend: The number of the colour, and the name, of each series that has any value.
        summary: In one sentence, for who cannot see it.
        note: What one place of it stands for, where that needs a word.
    """

    title: str
    svg: Markup
    top: str
    middle: str
    bottom: str
    left: str
    right: str
    legend: tuple[tuple[int, str], ...]
    summary: str
    note: str = ""


def stacked_plot(
    title: str,
    series: Mapping[str, Sequence[float]],
    labels: Sequence[str],
    number: Number,
    *,
    marks: Sequence[Mark] = (),
    colours: Mapping[str, int] | None = None,
) -> Plot:
    """Bars, one for each bin, stacked from the series in their order, from below.

    Args:
        title: What it shows.
        series: Of each name one value for each bin; NaN for none.
        labels: Of the bins.
        number: How values are written.
        marks: What happened.
        colours: Which colour each series has; by default by its place.
    """
    shown = {name: values for name, values in series.items() if any(value > 0 for value in values)}
    totals = [_total([values[at] for values in shown.values()]) for at in range(len(labels))]
    top = _nice(max((total for total in totals if not math.isnan(total)), default=0.0))
    width = _WIDTH / max(len(labels), 1)
    gap = width * _GAP if len(labels) <= _FEW else 0.0
    heights = [0.0] * len(labels)
    drawn: list[Markup] = []
    numbers = _numbers(series, colours)
    for name, values in shown.items():
        path = []
        for at, value in enumerate(values):
            if value > 0:
                height = _HEIGHT * value / top
                path.append(
                    f"M{_at(at * width + gap / 2)} {_at(_HEIGHT - heights[at])}"
                    f"v{_at(-height)}h{_at(width - gap)}v{_at(height)}z"
                )
                heights[at] += height
        drawn.append(Markup('<path class="s{}" d="{}"/>').format(numbers[name], "".join(path)))
    tips = [
        _tip(label, {name: values[at] for name, values in shown.items()}, number) for at, label in enumerate(labels)
    ]
    return _plot(title, drawn, tips, marks, (0.0, top), labels, number, {name: numbers[name] for name in shown})


def line_plot(
    title: str,
    series: Mapping[str, Sequence[float]],
    labels: Sequence[str],
    number: Number,
    *,
    marks: Sequence[Mark] = (),
) -> Plot:
    """A line of steps for each series.

    Args:
        title: What it shows.
        series: Of each name one value for each bin; NaN for none.
        labels: Of the bins.
        number: How values are written.
        marks: What happened.
    """
    known = [value for values in series.values() for value in values if not math.isnan(value)]
    top = _nice(max([*known, 0.0]))
    bottom = -_nice(-min([*known, 0.0])) if known and min(known) < 0 else 0.0
    width = _WIDTH / max(len(labels), 1)
    numbers = _numbers(series, None)
    drawn = []
    for name, values in series.items():
        path, is_down = [], False
        for at, value in enumerate(values):
            if math.isnan(value):
                is_down = False
                continue
            height = _HEIGHT * (top - value) / ((top - bottom) or 1.0)
            path.append(f"{'L' if is_down else 'M'}{_at(at * width)} {_at(height)}h{_at(width)}")
            is_down = True
        drawn.append(Markup('<path class="l{}" d="{}"/>').format(numbers[name], "".join(path)))
    tips = [
        _tip(label, {name: values[at] for name, values in series.items()}, number) for at, label in enumerate(labels)
    ]
    return _plot(title, drawn, tips, marks, (bottom, top), labels, number, numbers)


def sparkline(values: Sequence[float]) -> Markup:
    """A small line without anything written on it; nothing where no value is known."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Markup()
    top = max(known) or 1.0
    width = _WIDTH / max(len(values), 1)
    path, is_down = [], False
    for at, value in enumerate(values):
        if math.isnan(value):
            is_down = False
            continue
        path.append(f"{'L' if is_down else 'M'}{_at(at * width)} {_at(95 - 90 * value / top)}h{_at(width)}")
        is_down = True
    return _svg("spark", [Markup('<path class="l3" d="{}"/>').format("".join(path))])


def heat_strip(values: Sequence[float], top: float, tips: Sequence[str]) -> Markup:
    """A row of cells whose shade says how much there is: none where there is nothing.

    Args:
        values: Of each cell.
        top: The value of the darkest shade.
        tips: What stands under the pointer.
    """
    width = _WIDTH / max(len(values), 1)
    cells = [
        Markup('<rect class="cell" x="{}" width="{}" height="100" fill-opacity="{}" data-tip="{}"/>').format(
            _at(at * width), _at(width), _at(max(min(value / (top or 1.0), 1.0), _PALEST)) if value > 0 else 0, tip
        )
        for at, (value, tip) in enumerate(zip(values, tips, strict=True))
    ]
    return _svg("heat", cells)


def _plot(
    title: str,
    drawn: Sequence[Markup],
    tips: Sequence[str],
    marks: Sequence[Mark],
    ends: tuple[float, float],
    labels: Sequence[str],
    number: Number,
    numbers: Mapping[str, int],
) -> Plot:
    bottom, top = ends
    width = _WIDTH / max(len(labels), 1)
    grid = [Markup('<path class="grid" d="M0 .5h1000M0 50h1000M0 99.5h1000"/>')]
    lines = [
        Markup('<path class="mark {}" d="M{} 0v100"/>').format(mark.kind, _at((mark.bin + 0.5) * width))
        for mark in marks
    ]
    columns = [
        Markup('<rect class="hit" x="{}" width="{}" height="100" data-tip="{}"/>').format(
            _at(at * width), _at(width), tip
        )
        for at, tip in enumerate(tips)
    ]
    return Plot(
        title=title,
        svg=_svg("graph", [*grid, *drawn, *lines, *columns]),
        top=number(top),
        middle=number((top + bottom) / 2),
        bottom=number(bottom),
        left=labels[0] if labels else "",
        right=labels[-1] if labels else "",
        legend=tuple((numbers[name], name) for name in numbers),
        summary=f"{title}: up to {number(top)}" + (f", {labels[0]} to {labels[-1]}" if labels else ", no data"),
    )


def _svg(kind: str, drawn: Sequence[Markup]) -> Markup:
    shape = Markup('<svg class="{}" viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{}</svg>')
    return shape.format(kind, Markup("").join(drawn))


def _numbers(series: Mapping[str, object], colours: Mapping[str, int] | None) -> dict[str, int]:
    """The number of the colour of each series."""
    if colours is not None:
        return {name: colours.get(name, at) % _SERIES + 1 for at, name in enumerate(series)}
    return {name: _ORDER[at % _SERIES] for at, name in enumerate(series)}


def _tip(label: str, values: Mapping[str, float], number: Number) -> str:
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    lines = [f"{name}: {number(value)}" for name, value in reversed(known.items()) if value or len(known) == 1]
    return "\n".join([label, *(lines or ["no data" if not known else "nothing"])])


def _total(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def _nice(value: float) -> float:
    """The next number above that is easy to read, at least a little of 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * 0.999)


def _at(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
