"""The real adapters of the clouds under the suites, over simulated services and networks."""

import pytest

from stateline.testing.faults import FaultKind
from tests.kit.explore import ZOMBIE_RUNS, Setting, fault_pairs, single_faults, zombie_sweep
from tests.kit.scenarios import SCENARIOS
from tests.kit.scenarios.store_publish import StorePublish
from tests.kit.simulation import run_seed, simulate

CLOUDS = ["s3", "gcs", "azure"]
KINDS = ["create_race", "store_publish", "recoverable"]
RUNS = {1: ZOMBIE_RUNS, 2: (3, 5, None), 3: (3, 5, None)}


def holds(result):
    assert not result.failures, "\n".join(failure.render() for failure in result.failures)
    return result


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_adapter_holds(cloud, kind):
    entry = SCENARIOS[f"{kind}_{cloud}"]
    setting = Setting(backend=entry.backend)
    assert holds(single_faults(entry.small(), setting, kinds=entry.kinds, sample=80)).points > 20
    assert holds(zombie_sweep(entry.small(), setting, sample=40)).points > 20
    assert holds(fault_pairs(entry.small(), setting, sample=15)).points > 5
    assert holds(simulate(entry.large(), range(8), setting, kinds=entry.kinds)).points == 8


@pytest.mark.parametrize("cloud", CLOUDS)
def test_runs_are_determined_by_their_seed(cloud):
    entry = SCENARIOS[f"store_publish_{cloud}"]
    setting = Setting(backend=entry.backend)
    for seed in range(3):
        first, again = (run_seed(entry.large(), seed, setting, kinds=entry.kinds) for _ in range(2))
        assert first.trace.digest() == again.trace.digest()


@pytest.mark.parametrize(
    ("cloud", "pieces"), [("s3", 1), ("s3", 2), ("azure", 1), ("azure", 2), ("gcs", 1), ("gcs", 3)]
)
def test_nobody_who_wakes_up_late_publishes_a_file_that_was_moved_away(cloud, pieces):
    """Every interleaving, of one short piece, a short and a long one, and of more than one compose takes."""
    backend = SCENARIOS[f"publish_once_{cloud}"].backend
    result = holds(zombie_sweep(StorePublish((pieces,), foreign=False), Setting(backend=backend), runs=RUNS[pieces]))
    assert result.points > 1000


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_a_service_has_forgotten_is_made_anew_beside_a_consumer_too(cloud):
    """Left out of the scenario's own kinds, because somebody who is frozen in it is the known limit: here nobody is."""
    entry = SCENARIOS[f"store_publish_{cloud}"]
    expired = {FaultKind.PARTS_EXPIRED}
    assert holds(single_faults(entry.small(), Setting(backend=entry.backend), kinds=expired)).points > 5
