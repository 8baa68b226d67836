"""Seeds, clocks and ids, and what importing the kit loads."""

import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import InvalidInputError
from stateline.testing import CrashableStore, ManualClock, SeededIds
from stateline.testing.seeds import Dice, derive_seed


def test_importing_the_kit_loads_neither_pytest_nor_pyspark():
    absent = ["greenlet", "hypothesis", "pytest", "pyspark"]
    check = f"import stateline.testing; import sys; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_draws_are_pinned():
    """A seed in a bug report must stay good: these values may never change."""
    dice = Dice(7, "faults")
    assert derive_seed(7, "faults") == derive_seed(7, "faults")
    assert [dice.below(100) for _ in range(6)] == [41, 20, 39, 86, 69, 95]
    assert dice.shuffled(range(8)) == [0, 5, 2, 3, 4, 7, 1, 6]
    assert dice.pick("abcdef") == "b"
    assert round(dice.log_uniform(0.001, 1.0), 6) == 0.002951


@given(st.integers(0, 2**32), st.integers(1, 50))
def test_draws_stay_in_their_bounds(seed, bound):
    dice = Dice(seed)
    assert 0 <= dice.below(bound) < bound
    assert sorted(dice.shuffled(range(bound))) == list(range(bound))
    assert 0.1 <= dice.log_uniform(0.1, 2.0) < 2.0
    assert not dice.chance(0.0)
    assert dice.chance(1.0)


def test_other_purposes_draw_other_values():
    assert Dice(1, "a").fraction() != Dice(1, "b").fraction()
    assert derive_seed("1", "23") != derive_seed("12", "3")


def test_seeded_ids_are_uuids_and_differ_by_seed_and_label():
    made = [SeededIds(seed, label).new_id() for seed in range(50) for label in ("a", "b")]
    assert len(set(made)) == 100
    assert all(uuid.UUID(hex=text).version == 4 and uuid.UUID(hex=text).variant == uuid.RFC_4122 for text in made)
    ids, again = SeededIds(3, "x"), SeededIds(3, "x")
    assert [ids.new_id() for _ in range(5)] == [str(again.new_uuid()).replace("-", "") for _ in range(5)]


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    clock.sleep(2.5)
    clock.sleep(-1)
    clock.advance(1.5)
    assert (clock.now(), clock.monotonic()) == (104.0, 4.0)
    clock.jump(-50.0)
    assert (clock.now(), clock.monotonic()) == (54.0, 4.0)


def test_a_wall_clock_may_run_backwards():
    clock = ManualClock(100.0, step_per_read=-1.0)
    assert [clock.now(), clock.now()] == [99.0, 98.0]
    assert clock.monotonic() == 0.0


def test_time_passes_in_one_direction():
    clock = ManualClock()
    with pytest.raises(InvalidInputError):
        clock.advance(-1)
    assert clock.monotonic() == 0


def test_a_crashable_store_says_how_to_use_it():
    with pytest.raises(InvalidInputError, match="with CrashableStore"):
        CrashableStore().put("a", b"x")
