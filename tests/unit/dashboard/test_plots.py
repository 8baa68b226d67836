"""Pictures are sound SVG, say what they show, and let no text out of its place."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.dashboard.plots import Mark, heat_strip, line_plot, sparkline, stacked_plot
from stateline.quantities import count_text

VALUES = st.one_of(st.just(math.nan), st.floats(-1e12, 1e12), st.just(0.0))


def tree(svg: object) -> ET.Element:
    return ET.fromstring(str(svg))


def heights(path: str) -> list[float]:
    return [-float(found) for found in re.findall(r"v(-[\d.]+)", path)]


def test_bars_are_stacked_and_as_high_as_their_values():
    plot = stacked_plot("t", {"a": [1.0, 2.0], "b": [1.0, math.nan]}, ["x", "y"], count_text)
    a, b = (path.get("d") for path in tree(plot.svg).findall("path")[1:])
    assert (plot.top, plot.middle, plot.bottom) == ("2", "1", "0")
    assert heights(a) == [50.0, 100.0]
    assert heights(b) == [50.0]
    assert re.match(r"M[\d.]+ 50v", b), "it stands on the first series"
    assert [name for _, name in plot.legend] == ["a", "b"]


def test_tips_name_the_bin_and_its_values():
    plot = stacked_plot("t", {"a": [1.0], "b": [2.0], "c": [0.0]}, ["#1"], count_text)
    assert plot.svg.count('class="hit"') == 1
    assert 'data-tip="#1\nb: 2\na: 1"' in plot.svg


@given(st.lists(VALUES, max_size=30), st.lists(VALUES, max_size=30))
def test_any_numbers_make_a_sound_picture(first, second):
    size = min(len(first), len(second))
    labels = [str(at) for at in range(size)]
    series = {"a": first[:size], "b": second[:size]}
    for draw in (stacked_plot, line_plot):
        plot = draw("t", series, labels, count_text, marks=[Mark(bin=0, kind="restart")] if size else [])
        for path in tree(plot.svg).findall("path"):
            assert "nan" not in path.get("d")
            assert "inf" not in path.get("d")
    if any(not math.isnan(value) for value in series["a"]):
        tree(sparkline(series["a"]))
    tree(heat_strip(series["a"], 1.0, labels)) if not any(map(math.isnan, series["a"])) else None


def test_a_line_breaks_where_nothing_is_known():
    plot = line_plot("t", {"a": [1.0, math.nan, 1.0, 1.0]}, list("wxyz"), count_text)
    path = tree(plot.svg).findall("path")[1].get("d")
    assert path.count("M") == 2
    assert path.count("L") == 1


def test_values_below_zero_have_room():
    plot = line_plot("t", {"a": [-3.0, 4.0]}, ["x", "y"], count_text)
    assert (plot.bottom, plot.top) == ("-3", "4")


def test_names_from_outside_are_escaped():
    plot = stacked_plot("t", {'<script>"': [1.0]}, ["<b>"], count_text)
    assert "<script" not in str(plot.svg)
    assert "<b>" not in str(plot.svg)
    tree(plot.svg)


def test_colours_may_be_chosen_and_come_round():
    plot = stacked_plot("t", {"a": [1.0]}, ["x"], count_text, colours={"a": 13})
    assert plot.legend == ((2, "a"),)


@pytest.mark.parametrize(("value", "shade"), [(0.0, 0.0), (0.01, 0.06), (10.0, 1.0), (5.0, 0.5), (20.0, 1.0)])
def test_shades_grow_with_the_value(value, shade):
    (cell,) = tree(heat_strip([value], 10.0, ["tip"])).findall("rect")
    assert float(cell.get("fill-opacity")) == shade
