"""Another parallelism: each new subtask reads exactly the rows that counted before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.errors import CorruptDataError, InvalidInputError
from stateline.handles import RunHandle
from stateline.key_groups import range_for_subtask
from stateline.state.rescale import rescale

GROUPS = 16


def handle(name: str, first: int, last: int) -> RunHandle:
    return RunHandle(
        name=name, offset=0, length=1, crc32c=0, rows=1, first_key_group=first, last_key_group=last, checkpoint_id=0
    )


def subtask(first: int, last: int, *runs: RunHandle) -> SubtaskState:
    return SubtaskState(first_key_group=first, last_key_group=last, runs=runs)


def operator(*subtasks: SubtaskState) -> OperatorState:
    return OperatorState(name="op", schema="", definition="", subtasks=subtasks)


def stack(state: SubtaskState) -> list[tuple[str, int, int]]:
    return [(run.name, run.first_key_group, run.last_key_group) for run in state.runs]


def test_the_same_parallelism_changes_nothing() -> None:
    stored = operator(subtask(0, 7, handle("a", 0, 7), handle("b", 0, 7)), subtask(8, 15, handle("c", 8, 15)))
    assert rescale(stored, 2, GROUPS) == stored.subtasks


def test_scaling_up_slices_and_scaling_down_joins_again() -> None:
    stored = operator(subtask(0, 15, handle("a", 0, 15), handle("b", 0, 15)))
    halves = rescale(stored, 2, GROUPS)
    assert [stack(half) for half in halves] == [[("a", 0, 7), ("b", 0, 7)], [("a", 8, 15), ("b", 8, 15)]]
    assert rescale(operator(*halves), 1, GROUPS) == stored.subtasks


def test_a_run_does_not_shine_through_where_its_lineage_has_replaced_it() -> None:
    """Subtask 0 has merged the old run away, with deletions; subtask 1 still reads its half of it."""
    stored = operator(subtask(0, 7, handle("merged", 0, 7)), subtask(8, 15, handle("old", 8, 15), handle("new", 8, 15)))
    (whole,) = rescale(stored, 1, GROUPS)
    assert stack(whole) == [("old", 8, 15), ("new", 8, 15), ("merged", 0, 7)]
    unnarrowed = operator(
        subtask(0, 7, handle("merged", 0, 7)), subtask(8, 15, handle("old", 0, 15), handle("new", 8, 15))
    )
    (whole,) = rescale(unnarrowed, 1, GROUPS)
    assert stack(whole) == [("old", 8, 15), ("new", 8, 15), ("merged", 0, 7)]


@pytest.mark.parametrize(
    "broken",
    [
        operator(),
        operator(subtask(0, 7)),
        operator(subtask(0, 8), subtask(8, 15)),
        operator(subtask(8, 15), subtask(0, 7)),
        operator(subtask(0, 6), subtask(8, 15)),
        operator(subtask(0, 7), subtask(8, 16)),
    ],
)
def test_subtasks_that_do_not_cover_the_key_groups_are_refused(broken: OperatorState) -> None:
    with pytest.raises(CorruptDataError, match="cover"):
        rescale(broken, 1, GROUPS)


def test_a_parallelism_out_of_bounds_is_refused() -> None:
    for wrong in (0, 17):
        with pytest.raises(InvalidInputError):
            rescale(operator(subtask(0, 15)), wrong, GROUPS)


def versions(subtasks: tuple[SubtaskState, ...]) -> list[list[str]]:
    """For each key group, the runs in which its rows count, oldest first."""
    found: list[list[str]] = []
    for group in range(GROUPS):
        (owner,) = [state for state in subtasks if group in state.key_groups]
        found.append([run.name for run in owner.runs if group in run.key_groups])
    return found


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("rescale"), st.integers(1, GROUPS)),
            st.tuples(st.just("write"), st.integers(0, GROUPS - 1)),
            st.tuples(st.just("merge"), st.integers(0, GROUPS - 1), st.integers(0, 5), st.integers(2, 4)),
        ),
        max_size=25,
    )
)
@settings(max_examples=150, deadline=None)
def test_every_key_group_keeps_its_own_lineage_through_any_history(steps: list[tuple]) -> None:
    state: tuple[SubtaskState, ...] = rescale(operator(subtask(0, GROUPS - 1)), 3, GROUPS)
    model: list[list[str]] = [[] for _ in range(GROUPS)]
    fresh = iter(range(10_000))
    for step in steps:
        if step[0] == "rescale":
            state = rescale(operator(*state), step[1], GROUPS)
            expected = [range_for_subtask(index, step[1], GROUPS) for index in range(step[1])]
            assert [one.key_groups for one in state] == expected
        else:
            index = step[1] % len(state)
            owner = state[index]
            runs = list(owner.runs)
            name = f"run{next(fresh)}"
            if step[0] == "write":
                made = handle(name, owner.first_key_group, owner.last_key_group)
                runs.append(made)
                for group in owner.key_groups:
                    model[group].append(name)
            else:
                chosen = runs[step[2] : step[2] + step[3]]
                if len(chosen) < 2:
                    continue
                made = handle(name, min(r.first_key_group for r in chosen), max(r.last_key_group for r in chosen))
                runs[step[2] : step[2] + step[3]] = [made]
                for group in made.key_groups:
                    gone = {run.name for run in chosen if group in run.key_groups}
                    place = next((n for n, one in enumerate(model[group]) if one in gone), None)
                    if place is None:  # The merged run has no row there: wherever it stands, it changes nothing.
                        before = [run.name for run in owner.runs[: step[2]] if group in run.key_groups]
                        place = len(before)
                    model[group] = [one for one in model[group] if one not in gone]
                    model[group].insert(place, name)
            owner = SubtaskState(
                first_key_group=owner.first_key_group, last_key_group=owner.last_key_group, runs=tuple(runs)
            )
            state = (*state[:index], owner, *state[index + 1 :])
        assert versions(state) == model
