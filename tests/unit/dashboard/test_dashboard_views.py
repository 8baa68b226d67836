"""What each page shows, from roots that were made for it."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from stateline.dashboard.pages import report_page
from stateline.dashboard.roots import RootFollower, RootView
from stateline.dashboard.views import (
    checkpoints_view,
    figure_differences,
    outputs_view,
    overview_card,
    state_view,
    time_view,
)
from tests.unit.dashboard.dashboard_kit import KEY_GROUPS, LONG_NAME, long_root, new_store, record, state_root, summary

EMPTY = RootView(url="memory://empty", looked_at=0.0)
VIEWS = (checkpoints_view, state_view, time_view, outputs_view)


@pytest.fixture(scope="module")
def view() -> RootView:
    store = new_store()
    long_root(store, 300)
    return RootFollower(store).look()


def tile(page, label: str) -> str:
    (found,) = [each.value for each in page.tiles if each.label == label]
    return found


def test_the_page_of_checkpoints(view):
    page = checkpoints_view(view, None)
    assert (page.total, page.shown, len(page.rows)) == (300, 300, 30)
    assert page.rows[0].checkpoint_id == 299
    assert [row.is_retained for row in page.rows[:4]] == [True, True, True, False]
    assert tile(page, "newest") == "#299"
    assert tile(page, "fencings") == "1"
    titles = [plot.title for plot in page.plots]
    assert titles[0] == "Duration"
    assert {"Rows", "Changed keys", "Output files", "Requests of subtasks"} <= set(titles)
    assert "fenced" in page.plots[0].svg
    assert [event.kind for event in page.events] == ["fenced", "rescale"]
    recent = checkpoints_view(replace_fenced(view), None)
    assert recent.rows[1].kinds == ("fenced",)


def replace_fenced(view: RootView) -> RootView:
    return dataclasses.replace(view, fenced=(298,))


def test_inherited_is_what_a_checkpoint_did_not_write(view):
    row = checkpoints_view(view, None).rows[0]
    figures = view.summaries[-1].figures
    assert row.inherited != row.written
    assert figures["state_bytes"] > figures["state_bytes_written"]


def test_a_part_of_the_history_can_be_chosen(view):
    page = checkpoints_view(view, 20)
    assert (page.total, page.shown, len(page.rows)) == (300, 20, 20)


def test_the_page_of_state(view):
    page = state_view(view, None)
    assert page.checkpoint_id == 299
    flights, long = page.rows
    assert (flights.name, long.name) == ("flights", LONG_NAME)
    assert not flights.is_skewed
    assert long.is_skewed
    assert flights.deepest == 3
    assert [each.title for each in flights.maps] == ["rows", "bytes"]
    assert flights.maps[0].key_groups == KEY_GROUPS
    assert flights.maps[0].strip.count("<rect") == KEY_GROUPS
    assert len(page.plots) == 3


def test_the_page_of_event_time(view):
    page = time_view(view, None)
    with_watermark, without = page.inputs
    assert with_watermark.lag == "35 s"
    assert without.watermark == "none yet"
    assert next(plot.title for plot in page.plots).startswith("Lag")


def test_the_page_of_outputs(view):
    page = outputs_view(view, None)
    (output,) = page.outputs
    assert (output.open_files, output.pending_rows) == ("3", "15k")
    assert not output.is_visible
    (table,) = page.tables
    assert (table.version, table.committed, table.mode) == ("418", "#298", "upsert by tailnum")
    assert page.delivered_rows == "7"


def test_a_table_that_cannot_be_read_is_told(view):
    broken = replace(record(0), properties={"table of flights": "no json"})
    page = outputs_view(RootView(url="x", looked_at=0.0, records=(broken,)), None)
    assert "cannot be read" in page.failure


@pytest.mark.parametrize("make", VIEWS)
def test_an_empty_root_has_every_page(make):
    page = make(EMPTY, None)
    assert page.plots == ()


@pytest.mark.parametrize("make", VIEWS)
def test_a_root_without_a_history_has_every_page(make):
    view = RootFollower(state_root().url).look()
    assert view.records
    assert [plot for plot in make(view, None).plots if "NaN" in plot.svg] == []


def test_a_card_says_the_most_of_a_root(view):
    card = overview_card(view)
    assert [each.label for each in card.tiles] == ["checkpoint", "duration", "rows/s", "state"]
    assert overview_card(EMPTY).tiles == ()


def test_differences_are_those_figures_that_are_not_the_same():
    found = {each.name: each for each in figure_differences(summary(1), summary(2))}
    assert "pack_seconds" not in found
    assert found["watermark_us flights"].change.lstrip("+-")
    assert figure_differences(summary(1), summary(1)) == []
    lost = figure_differences(summary(1), replace(summary(1), figures={}))
    assert all(each.change == "" for each in lost)


def test_a_report_is_one_file_that_asks_for_nothing(view):
    text = report_page(view)
    assert "http-equiv" not in text
    for reference in ("src=", "@import", "url(", "<link"):
        assert reference not in text
    assert text.count("<svg") > 20
    assert LONG_NAME in text
    assert "Figures" in text


def test_a_report_of_an_empty_root_and_of_one_that_cannot_be_read():
    assert "No checkpoint yet" in report_page(EMPTY)
    failed = report_page(RootView(url="<b>", looked_at=0.0, failure="<script>alert(1)</script>"))
    assert "<script>alert" not in failed
    assert "cannot be read" in failed
