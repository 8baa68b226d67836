"""Columns, bins, parts and events of a history."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateline.checkpoint.history import CheckpointSummary
from stateline.dashboard.roots import RootView
from stateline.dashboard.timeline import PARTS, Timeline, binned


def summary(number: int, *, run: int = 1, at: float | None = None, **figures: float) -> CheckpointSummary:
    return CheckpointSummary(
        checkpoint_id=number, batch_id=number, created_at=10.0 * number if at is None else at, run=run, figures=figures
    )


def test_parts_add_up_to_what_the_driver_waited_for():
    one = summary(
        0,
        parallelism=4,
        subtasks_seconds=2.0,
        process_seconds=4.0,
        write_seconds=2.0,
        record_seconds=0.5,
        publish_seconds=0.25,
    )
    timeline = Timeline((one,))
    parts = {name: float(values[0]) for name, values in timeline.parts.items()}
    assert parts == {"spark": 0.5, "process": 1.0, "write state": 0.5, "record": 0.5, "publish": 0.25}
    assert timeline.seconds.tolist() == [2.75]
    assert [name for name in PARTS if name in parts] == list(parts)


def test_subtasks_that_took_longer_than_their_job_are_scaled_to_it():
    timeline = Timeline((summary(0, parallelism=1, subtasks_seconds=1.0, process_seconds=3.0, write_seconds=1.0),))
    assert timeline.seconds.tolist() == pytest.approx([1.0])
    assert timeline.parts["process"].tolist() == pytest.approx([0.75])


def test_a_checkpoint_of_which_nothing_is_known_took_an_unknown_time():
    timeline = Timeline((summary(0), summary(1, subtasks_seconds=1.0)))
    assert math.isnan(timeline.seconds[0])
    assert timeline.median(timeline.seconds) == 1.0
    assert Timeline((summary(0),)).median(np.array([math.nan])) is None


def test_events_are_what_happened_between_checkpoints():
    timeline = Timeline(
        (
            summary(0, parallelism=2),
            summary(1, parallelism=2, run=2, batches_replayed=1),
            summary(2, parallelism=4, run=2),
            summary(9, parallelism=4, run=2),
        ),
        fenced=(2,),
    )
    found = [(event.checkpoint_id, event.kind) for event in timeline.events]
    assert found == [(1, "restart"), (1, "replay"), (2, "rescale"), (2, "fenced"), (9, "gap")]
    assert "6 checkpoints" in timeline.events[-1].text
    assert timeline.count("restart") == 1


def test_records_without_a_history_are_no_restart():
    assert Timeline((summary(0, run=0), summary(1, run=1))).events == []


def test_the_lag_is_that_of_the_watermark_at_the_checkpoint():
    timeline = Timeline((summary(3, **{"watermark_us a b": 20_000_000}),))
    assert {name: values.tolist() for name, values in timeline.lag_seconds().items()} == {"a b": [10.0]}


def test_a_rate_is_over_the_time_between_the_checkpoints():
    assert Timeline((summary(0, rows=999), summary(1, rows=50), summary(2, rows=150))).rate("rows") == 10.0
    assert Timeline((summary(0, rows=1),)).rate("rows") is None
    assert Timeline((summary(0, at=1.0), summary(1, at=1.0, rows=1))).rate("rows") is None


@given(st.sets(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 40))
def test_bins_cover_every_checkpoint_once(ids, most):
    timeline = Timeline(tuple(summary(number, rows=1) for number in sorted(ids)))
    bins = timeline.bins(most)
    assert len(bins) <= most
    assert [each.first_id for each in bins[1:]] == [each.last_id + 1 for each in bins[:-1]]
    assert bins[0].first_id == min(ids)
    assert bins[-1].last_id == max(ids)
    counts = binned(timeline.column("rows"), bins, len)
    assert sum(count for count in counts if not math.isnan(count)) == len(ids)
    for each in bins:
        assert {int(found) for found in timeline.ids[each.rows]} == {
            number for number in ids if each.first_id <= number <= each.last_id
        }


def test_the_newest_checkpoints_can_be_chosen_and_marks_go_with_them():
    view = RootView(url="x", looked_at=0.0, summaries=tuple(map(summary, range(10))), fenced=(2, 8))
    timeline = Timeline.of(view, 3)
    assert timeline.ids.tolist() == [7, 8, 9]
    assert timeline.fenced == (8,)
    assert Timeline.of(replace_view(view), None).bins(5) == []


def replace_view(view: RootView) -> RootView:
    return RootView(url=view.url, looked_at=0.0)


def test_a_figure_that_is_nowhere_is_nan():
    timeline = Timeline((replace(summary(0), figures={"a": 1}),))
    assert np.isnan(timeline.column("b")).all()
    assert timeline.columns_of("a") == {}
