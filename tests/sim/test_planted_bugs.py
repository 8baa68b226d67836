"""Every planted bug is caught by each suite that must catch it: the proof that the suites see."""

import re
from pathlib import Path

import pytest

from stateline.sizes import resized
from tests.kit.planted import beside as planted_beside
from tests.kit.planted import bugs as planted
from tests.kit.planted import cloud as planted_cloud
from tests.kit.planted import components as planted_components
from tests.kit.planted import delivery as planted_delivery
from tests.kit.planted import late as planted_late
from tests.kit.planted import pipeline as planted_pipeline
from tests.kit.planted import protocol as planted_protocol
from tests.kit.planted import sections as planted_sections
from tests.kit.planted import sink as planted_sink
from tests.kit.planted import store as planted_store
from tests.kit.planted import tables as planted_tables
from tests.kit.scenarios import SCENARIOS
from tests.kit.sizes import TINY

assert all(
    (
        planted_store,
        planted_protocol,
        planted_pipeline,
        planted_components,
        planted_beside,
        planted_sink,
        planted_sections,
        planted_cloud,
        planted_late,
        planted_delivery,
        planted_tables,
    )
)


def test_there_are_enough_bugs():
    assert len(planted.BUGS) >= 50
    for bug in planted.BUGS.values():
        assert bug.description
        assert bug.site
        assert bug.suites
        assert set(bug.scenarios) <= set(SCENARIOS)
        assert set(bug.suites) <= set(planted.SUITES)


def test_each_bug_has_its_row_in_the_list():
    rows = (Path(planted.__file__).parent / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)`", rows, re.MULTILINE) == sorted(planted.BUGS)


BUGS_OF_STATE = [name for name in sorted(planted.BUGS) if name.startswith(("state_", "half_merged_"))]


@pytest.mark.parametrize("name", BUGS_OF_STATE)
def test_tiny_sizes_hide_no_bug_of_state(name):
    bug = planted.BUGS[name]
    with resized(TINY):
        assert planted.catch(name, bug.suites[0], bug.scenarios[0]).invariant.startswith("E")


@pytest.mark.parametrize("name", sorted(planted.BUGS))
def test_the_quickest_suite_catches_it(name):
    bug = planted.BUGS[name]
    for scenario in bug.scenarios:
        catch = planted.catch(name, bug.suites[0], scenario)
        if catch.invariant:
            assert catch.recipe
            return
    pytest.fail(f"{bug.suites[0]} does not see {name} in {bug.scenarios}")


def test_a_bug_is_gone_when_its_context_ends():
    from stateline.blob.memory import MemoryStore

    before = MemoryStore.put_if_absent
    with planted.planted("plain_put_instead_of_create"):
        assert MemoryStore.put_if_absent is MemoryStore.put
    assert MemoryStore.put_if_absent is before
