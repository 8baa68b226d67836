"""Violations and traces: what a failed run shows."""

from __future__ import annotations

import pytest

from tests.kit.invariants import INVARIANTS, InvariantViolation, require
from tests.kit.trace import Trace


def test_a_violation_carries_its_id():
    with pytest.raises(InvariantViolation, match="A1") as caught:
        require(False, "A1", "seen")
    assert caught.value.invariant == "A1"
    assert INVARIANTS["A1"] in str(caught.value)
    require(True, "A1", "unseen")


def test_traces_are_equal_exactly_if_their_digests_are():
    left, right = Trace(), Trace()
    for trace in (left, right):
        trace.note(1, "a", "put", "x", "ok")
    assert left.digest() == right.digest()
    right.note(2, "a", "get", "x", "ok")
    assert left.digest() != right.digest()
    assert right.render(1).split() == ["2", "a", "get", "ok", "x"]
    assert right.render(0) == ""
