"""The commit protocol as a model: it holds, and each broken form of it is caught."""

import pytest

from stateline.errors import InvalidInputError
from tests.kit.commit_model import Variant, commit_model
from tests.kit.model_checker import Model, check_model


def test_the_protocol_holds():
    verdict = check_model(commit_model(batches=2))
    assert verdict.invariant == ""
    assert verdict.states > 5_000


@pytest.mark.parametrize("variant", Variant)
def test_each_broken_form_fails(variant):
    verdict = check_model(commit_model(variant))
    assert verdict.invariant in {"C1", "C2", "C3", "F2"}
    assert verdict.steps


def counter(limit, bad):
    return Model(
        initial=0,
        successors=lambda state: [(f"to {after}", after) for after in (state + 1, state + 2) if after <= limit],
        broken=lambda state: ("X1", f"{state} is bad") if state == bad else None,
        is_goal=lambda state: state == limit,
    )


def test_the_story_is_the_shortest():
    verdict = check_model(counter(10, 5))
    assert (verdict.invariant, len(verdict.steps)) == ("X1", 3)


def test_work_that_is_never_done_is_a_failure():
    stuck = Model(initial=0, successors=lambda _: [], broken=lambda _: None, is_goal=lambda state: state == 1)
    assert check_model(stuck).invariant == "H1"


def test_a_model_that_is_too_large_proves_nothing():
    with pytest.raises(InvalidInputError, match="more than 5"):
        check_model(counter(100, -1), max_states=5)
