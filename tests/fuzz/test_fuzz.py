"""Every decoder over its golden files and some thousand mutations; ``make fuzz`` goes on from there."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.fuzz.mutation import mutations
from tests.fuzz.targets import TARGETS, FindingError, Target, attempt

MUTATIONS = 1500
FOUND = Path(__file__).with_name("found")


@pytest.mark.parametrize("name", TARGETS)
def test_bad_bytes_are_a_typed_error_and_nothing_else(name):
    target = TARGETS[name]
    accepted = [attempt(target, seed) for seed in target.seeds]
    assert any(accepted)
    for data in itertools.islice(mutations(target.seeds, random.Random(name)), MUTATIONS):
        attempt(target, data)


@pytest.mark.parametrize("path", sorted(FOUND.iterdir()), ids=lambda path: path.name)
def test_what_was_found_once_is_not_found_again(path):
    attempt(TARGETS[path.name.partition(".")[0]], path.read_bytes())


def test_a_decoder_that_raises_something_else_is_found():
    with pytest.raises(FindingError, match="KeyError"):
        attempt(Target("wrong", lambda data: {}[data], [b"x"]), b"x")
