"""State over key groups and subtasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateline.checkpoint import OperatorState, SubtaskState
from stateline.dashboard.state_shape import folded, state_shapes
from tests.unit.dashboard.dashboard_kit import SCHEMA, record, run, state


def shape_of(*subtasks: SubtaskState):
    operator = OperatorState(name="op", schema=SCHEMA.encode(), definition="", subtasks=subtasks)
    (found,) = state_shapes(replace(record(0), operators=(operator,)))
    return found


def subtask(first: int, last: int, *runs):
    return SubtaskState(first_key_group=first, last_key_group=last, runs=runs)


def test_rows_and_bytes_are_spread_over_the_key_groups_of_their_run():
    found = shape_of(subtask(0, 63, run(0, 63, 640, 6400, 0, "a")), subtask(64, 127))
    assert found.rows[:64].tolist() == [10.0] * 64
    assert found.rows[64:].sum() == 0
    assert found.bytes.sum() == 6400
    assert [each.rows for each in found.subtasks] == [640, 0]


def test_a_run_that_two_subtasks_share_counts_once_and_in_parts():
    shared = run(0, 127, 1280, 12_800, 0, "a")
    found = shape_of(subtask(0, 31, shared), subtask(32, 127, shared))
    assert (found.runs, found.stored_rows, found.stored_bytes) == (1, 1280, 12_800)
    assert [each.rows for each in found.subtasks] == [320, 960]
    assert found.skew == pytest.approx(1.5)


def test_what_lies_above_the_largest_run_is_still_to_be_merged():
    runs = [run(0, 127, 100, 1000, 0, "a"), run(0, 127, 10, 100, 1, "b"), run(0, 127, 1, 10, 2, "c")]
    found = shape_of(subtask(0, 127, *runs))
    assert found.debt_bytes == pytest.approx(110)
    assert found.deepest == 3


def test_an_operator_without_rows_has_no_skew():
    found = shape_of(subtask(0, 127))
    assert (found.skew, found.deepest, found.debt_bytes, found.stored_rows) == (None, 0, 0, 0)


def test_a_schema_that_cannot_be_read_is_told():
    broken = replace(state("op", 0), schema="bm90aGluZw==")
    (found,) = state_shapes(replace(record(0), operators=(broken,)))
    assert "cannot be read" in found.schema


@given(st.lists(st.floats(0, 1e9), max_size=700), st.integers(1, 256))
def test_folding_keeps_the_sum(values, most):
    cells = folded(values, most)
    assert len(cells) <= most
    assert sum(cells) == pytest.approx(sum(values))
