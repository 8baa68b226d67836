"""Seeds, clocks, ids, traces, and that names of the kit load one by one."""

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline import testing
from stateline.errors import InvalidInputError
from stateline.testing import INVARIANTS, CrashableStore, InvariantViolation, ManualClock, SeededIds, require
from stateline.testing.seeds import Dice, derive_seed
from stateline.testing.trace import Trace


def test_every_public_name_loads():
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    assert set(testing.__all__) <= set(dir(testing))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = testing.nothing


def test_the_table_of_homes_is_the_list_of_names():
    assert sorted(testing._HOME_OF) == sorted(testing.__all__)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import stateline.testing", ["greenlet", "hypothesis", "pytest", "pyarrow"]),
        ("from stateline.testing import ManualClock, SeededIds", ["greenlet", "hypothesis", "pytest", "pyarrow"]),
        ("from stateline.testing import FaultyStore, CrashableStore", ["hypothesis", "pytest", "pyspark"]),
        (
            "from tests.kit.simulation import simulate; from tests.kit.power_failure import power_loss",
            ["hypothesis", "pytest", "pyspark"],
        ),
    ],
)
def test_importing_one_name_does_not_load_the_rest(code, absent):
    check = f"{code}; import sys; print([name for name in {absent!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "[]\n"


def test_without_greenlet_the_simulator_names_the_extra():
    code = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from stateline.testing import Scheduler\n"
        "try: Scheduler()\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "NotInstalledError" in output
    assert "stateline[testing]" in output


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


def test_the_example_of_the_guide_runs():
    guide = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    section = guide.partition("## In a unit test")[2].partition("\n## ")[0]
    names: dict[str, Any] = {}
    exec(section.partition("```python\n")[2].partition("```")[0], names)
    assert names["clock"].monotonic() == 3600


def test_time_passes_in_one_direction():
    clock = ManualClock()
    with pytest.raises(InvalidInputError):
        clock.advance(-1)
    assert clock.monotonic() == 0


def test_a_crashable_store_says_how_to_use_it():
    with pytest.raises(InvalidInputError, match="with CrashableStore"):
        CrashableStore().put("a", b"x")
