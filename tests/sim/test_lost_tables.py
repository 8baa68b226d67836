"""A table that loses commits between two drivers is refused, or has each row once; it is never filled in silence."""

from collections.abc import Callable

import pytest

from stateline.errors import InvalidInputError
from stateline.pipeline import table_commits
from stateline.tables import commit as rule_module
from tests.kit.explore import _run_operations
from tests.kit.invariants import InvariantViolation
from tests.kit.planted.bugs import replaced
from tests.kit.scenario import check, opened
from tests.kit.scenarios.tables import TABLE_KINDS, TablePipeline, table_in
from tests.kit.world import Process, World

STORE = "table"


def versions(world: World) -> list[str]:
    return sorted(info.name for info in world.objects(STORE).list("version-"))


def dropped(scenario: TablePipeline, process: Process) -> None:
    process.store(STORE).delete(versions(process.world))


def made_anew(scenario: TablePipeline, process: Process) -> None:
    dropped(scenario, process)
    table_in(scenario.kind, process).create()


def rolled_back(by: int) -> Callable[[TablePipeline, Process], None]:
    def lose(scenario: TablePipeline, process: Process) -> None:
        process.store(STORE).delete(versions(process.world)[1:][-by:])

    return lose


LOSSES = {"dropped": dropped, "made anew": made_anew, "rolled back": rolled_back(1), "rolled far back": rolled_back(9)}


def survive(kind: str, loss: str, after: int) -> bool:
    """Whether a driver after the loss refuses to go on; that it changes nothing then, or all is right in the end."""
    scenario = TablePipeline(kind, batches=5)
    with opened(scenario) as world:
        first = scenario.start(world, 0)
        _run_operations(world, first, after)
        first.kill()
        if not versions(world):
            return False
        owner = world.process("owner", faulty=False)
        owner.spawn(lambda: LOSSES[loss](scenario, owner))
        world.scheduler.run(only=[owner.group])
        left = scenario._pipeline.rows(world, "table")
        second = scenario.start(world, 1)
        world.scheduler.run()
        if second.succeeded:
            check(scenario, world)
            return False
        assert isinstance(second.error, InvalidInputError), f"after {after} operations: {second.error!r}"
        found = scenario._pipeline.rows(world, "table")
        assert found == left, f"after {after} operations rows were added: {found}"
        return True


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("kind", sorted(TABLE_KINDS))
def test_what_was_lost_is_not_filled_in_silence(kind, loss):
    refused = [survive(kind, loss, after) for after in range(1, 120, 6)]
    assert any(refused)
    assert not all(refused)


def _survive_all(kind: str) -> None:
    for after in range(1, 120, 6):
        survive(kind, "rolled far back", after)


@pytest.mark.parametrize("kind", sorted(TABLE_KINDS))
def test_a_commit_that_believes_any_table_is_found(kind):
    def believed(state, expected, identity, name):
        return None

    with (
        replaced(rule_module, "check_token", believed),
        replaced(table_commits, "check_token", believed),
        pytest.raises((AssertionError, InvariantViolation)),
    ):
        _survive_all(kind)
