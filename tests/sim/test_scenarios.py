"""The scenarios hold under every suite, within the budget of a run of the tests."""

import pytest

from stateline.files import FileJoiner, folding
from stateline.sizes import Sizes, resized
from tests.kit.explore import Setting, fault_pairs, single_faults, zombie_sweep
from tests.kit.power_failure import power_loss, power_losses
from tests.kit.scenarios import SCENARIOS
from tests.kit.simulation import replay, run_seed, simulate
from tests.kit.sizes import TINY

MEMORY = ["create_race", "store_publish", "micro_batch_reference", "recoverable"]
LOCAL = ["create_race_local", "store_publish_local", "recoverable_local"]
WHOLE = ["pipeline", "pipeline_spanning", "sections", "changelog"]
BESIDE = ["delivery", "files_sink", "savepoint_claim", "savepoint_copy", "savepoint_inline", "restore", "sweep"]
TABLES = [name for name in SCENARIOS if name.startswith("table_")]
LATE = ["create_race_late", "create_only_late", "store_publish_late", "pipeline_spanning_late"]


def holds(result):
    assert not result.failures, "\n".join(failure.render() for failure in result.failures)
    return result


def setting(entry, **more):
    return Setting(backend=entry.backend, **more)


@pytest.mark.parametrize("resolving", [False, True])
@pytest.mark.parametrize("name", MEMORY)
def test_single_faults_exhaustively(name, resolving):
    entry = SCENARIOS[name]
    result = holds(single_faults(entry.small(), setting(entry, resolving=resolving)))
    assert result.points > 250


@pytest.mark.parametrize("name", LOCAL)
def test_single_faults_at_system_calls(name):
    entry = SCENARIOS[name]
    result = holds(single_faults(entry.small(), setting(entry), kinds=entry.kinds, sample=300))
    assert result.points == 300


@pytest.mark.parametrize("name", MEMORY)
def test_pairs_of_faults(name):
    entry = SCENARIOS[name]
    assert holds(fault_pairs(entry.small(), setting(entry), sample=800)).points > 150


@pytest.mark.parametrize("name", MEMORY)
def test_zombies(name):
    entry = SCENARIOS[name]
    assert holds(zombie_sweep(entry.small(), setting(entry), sample=1500)).points > 500


@pytest.mark.parametrize("name", LOCAL)
def test_zombies_at_system_calls(name):
    entry = SCENARIOS[name]
    assert holds(zombie_sweep(entry.small(), setting(entry), sample=300)).points > 100


@pytest.mark.parametrize("name", MEMORY)
def test_seeds_hold_and_no_knob_is_dead(name):
    entry = SCENARIOS[name]
    scenario = entry.large()
    result = holds(simulate(scenario, range(150), setting(entry)))
    assert result.points == 150
    assert result.dead_knobs(scenario.kinds) == []


@pytest.mark.parametrize("name", LOCAL)
def test_seeds_hold_at_system_calls(name):
    entry = SCENARIOS[name]
    assert holds(simulate(entry.large(), range(30), setting(entry), kinds=entry.kinds)).points == 30


@pytest.mark.parametrize("name", LOCAL)
def test_power_loss(name):
    entry = SCENARIOS[name]
    result = holds(power_losses(entry.small(), races=3, deaths=15, failing=4, limit=8))
    assert result.points > 500


def test_power_loss_of_the_whole_pipeline():
    """What it stores names the folder of its output: each state of the disk is brought back at the same path."""
    assert holds(power_loss(SCENARIOS["pipeline_local"].small(), limit=1)).points > 500


@pytest.mark.parametrize("name", [*MEMORY, *LOCAL, LATE[0]])
def test_runs_are_determined_by_their_seed(name):
    entry = SCENARIOS[name]
    for seed in range(6):
        first = run_seed(entry.large(), seed, setting(entry), kinds=entry.kinds)
        again = run_seed(entry.large(), seed, setting(entry), kinds=entry.kinds)
        replayed = replay(entry.large(), first.script, setting(entry))
        assert first.trace.digest() == again.trace.digest() == replayed.trace.digest()


@pytest.mark.parametrize("name", [*WHOLE, *BESIDE, *TABLES, *LATE])
def test_the_real_components_hold(name):
    """A sample of each suite: ``python -m tests.kit`` runs them whole."""
    entry = SCENARIOS[name]
    assert holds(single_faults(entry.small(), setting(entry), sample=40)).points > 20
    assert holds(zombie_sweep(entry.small(), setting(entry), sample=30)).points > 10
    assert holds(fault_pairs(entry.small(), setting(entry), sample=8)).points > 0
    assert holds(simulate(entry.large(), range(6), setting(entry))).points == 6


@pytest.mark.parametrize("name", [*WHOLE, *BESIDE, "gaps", *TABLES, LATE[-1]])
def test_tiny_sizes_hold(name):
    """Few rows take the ways that only large state takes; ``make soak`` runs all scenarios with them at length."""
    entry = SCENARIOS[name]
    with resized(TINY):
        assert holds(single_faults(entry.small(), setting(entry), sample=3)).points == 3
        assert holds(simulate(entry.large(), range(2), setting(entry))).points == 2


@pytest.mark.parametrize("name", ["pipeline_spanning", "files_sink"])
def test_rows_that_wait_may_be_joined_at_every_checkpoint(name, monkeypatch):
    """Where files stay open for long, sixteen objects are joined now and then; no scenario is as long as that."""
    joins, store_again = [], FileJoiner._store_again

    def counted(joiner, files, names, segment):
        joins.append(names)
        store_again(joiner, files, names, segment)

    monkeypatch.setattr(folding, "sizes", lambda: Sizes(waiting_objects=2))
    monkeypatch.setattr(FileJoiner, "_store_again", counted)
    entry = SCENARIOS[name]
    assert holds(single_faults(entry.small(), setting(entry), sample=40)).points > 20
    assert holds(zombie_sweep(entry.small(), setting(entry), sample=30)).points > 10
    assert holds(simulate(entry.large(), range(40), setting(entry))).points == 40
    assert len(joins) > 50


def test_a_claimed_savepoint_that_is_met_once_more_need_not_be_whole():
    """Its records were told once more, late, after the query that had claimed it had freed what it did not need."""
    entry = SCENARIOS["savepoint_claim"]
    assert holds(simulate(entry.large(), [40122], setting(entry), kinds=entry.kinds)).points == 1
