"""A disk that is full, or closed to us, under the whole pipeline: a typed error, nothing half-visible, and then on."""

import shutil
import subprocess

import pytest

from stateline.errors import AccessDeniedError, StorageFullError
from stateline.testing import Fault, FaultKind, ScriptedFaults
from tests.kit.backends import LocalBackend, ScratchBackend
from tests.kit.explore import Setting, single_faults
from tests.kit.scenario import check, opened, restart
from tests.kit.scenarios import SCENARIOS
from tests.kit.scenarios.pipeline import Pipeline

REFUSALS = [(FaultKind.NO_SPACE, StorageFullError), (FaultKind.NO_ACCESS, AccessDeniedError)]


@pytest.mark.parametrize("kind", [kind for kind, _ in REFUSALS])
def test_the_pipeline_goes_on_exactly_when_there_is_room_again(kind):
    entry = SCENARIOS["pipeline_local"]
    result = single_faults(entry.small(), Setting(backend=ScratchBackend), kinds={kind}, sample=25)
    assert not result.failures, result.failures[0].render()
    assert result.points == 25


@pytest.mark.parametrize(("kind", "expected"), REFUSALS)
def test_a_disk_that_refuses_for_ever_stops_the_driver_with_a_typed_error(kind, expected):
    scenario = Pipeline(spanning=True)
    plan = ScriptedFaults([Fault(kind=kind, at=60, times=None)])
    with opened(scenario, faults=plan, backend=ScratchBackend()) as world:
        driver = scenario.start(world, 0)
        world.scheduler.run()
        assert isinstance(driver.error, expected)
        assert driver.error.operation
        assert driver.error.subject
        assert driver.error.hint
        restart(scenario, world, 1)
        check(scenario, world)


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount; the injected forms above ran")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here ({mounted.stderr.strip()}); the injected forms above ran")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("free_pages", [0, 1, 2, 4])
def test_a_real_disk_that_is_full(small_disk, free_pages):
    scenario = Pipeline(spanning=True)
    ballast = small_disk / "ballast"
    with opened(scenario, backend=LocalBackend(str(small_disk), by_system_call=False)) as world:
        ballast.write_bytes(bytes((64 - free_pages) * 4096))
        driver = scenario.start(world, 0)
        world.scheduler.run()
        assert isinstance(driver.error, StorageFullError), driver.error
        ballast.unlink()
        restart(scenario, world, 1)
        check(scenario, world)
