"""Power loss at every moment of a scenario on local disk, in every state that the disk may be left in.

A first run records every system call. For every prefix of that record and every disk state allowed there, a fresh
folder is made, the scenario is restarted on it, and its oracle looks, knowing what had been acknowledged by then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stateline.testing.crashable import scratch_folder
from stateline.testing.disk_model import DiskModel, DiskState
from stateline.testing.faults import Fault, FaultKind, NoFaults, ScriptedFaults
from stateline.testing.journal import Change
from stateline.testing.seeds import Dice
from tests.kit.backends import LocalBackend
from tests.kit.invariants import InvariantViolation
from tests.kit.results import Exploration
from tests.kit.scenario import Scenario, check, opened, require_typed_end, restart, watch
from tests.kit.trace import Trace
from tests.kit.world import Fact, World

__all__ = ["DEFAULT_LIMIT", "failing_fsync", "power_loss", "power_losses"]

DEFAULT_LIMIT: Final = 512
"""States drawn at a moment that allows more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """What a run asked of the disk, and what it promised meanwhile."""

    changes: Sequence[Change]
    facts: Sequence[Fact]
    prepared: int
    incarnations: int
    trace: Trace
    plan: ScriptedFaults


def power_loss(
    scenario: Scenario,
    seed: int = 0,
    *,
    processes: int = 1,
    dies_after: int | None = None,
    faults: Collection[Fault] = (),
    limit: int = DEFAULT_LIMIT,
    max_states: int | None = None,
    max_failures: int = 1,
) -> Exploration:
    """Loses power at every moment of a run.

    Args:
        scenario: What to run.
        seed: Seed of ids, of the interleaving, and of the draws where there are too many states.
        processes: How many incarnations run, interleaved at every system call.
        dies_after: Kills the first incarnation after so many system and store calls; only then the others start.
        faults: System calls that fail on the way, such as an ``fsync``.
        limit: See :meth:`DiskModel.states`.
        max_states: Stops after so many states.
        max_failures: Stops after so many failures.
    """
    result = Exploration(suite="powerloss", scenario=scenario.name)
    with scratch_folder() as place:
        disk = f"{place}/disk"  # Always the same path: what is stored may name it.
        recording = _record(scenario, seed, processes, dies_after, faults, disk)
        _lose_power(scenario, seed, recording, disk, result, limit, max_states, max_failures)
    return result


def _lose_power(
    scenario: Scenario,
    seed: int,
    recording: _Recording,
    disk: str,
    result: Exploration,
    limit: int,
    max_states: int | None,
    max_failures: int,
) -> None:
    """At every moment of the recording, in every state that the disk may be left in."""
    result.operations.update(recording.plan.operations)
    result.activations.update(recording.plan.activations)
    model = DiskModel()
    dice = Dice(seed, "power")
    done: set[tuple[DiskState, int]] = set()
    for moment in range(len(recording.changes) + 1):
        if moment:
            model.apply(recording.changes[moment - 1])
        if moment < recording.prepared:
            continue
        promised = [fact for fact in recording.facts if fact.position <= moment]
        for state in model.states(limit, dice):
            if (state, len(promised)) in done:
                continue
            done.add((state, len(promised)))
            result.points += 1
            _recover(scenario, seed, recording, moment, state, promised, disk, result)
            if len(result.failures) >= max_failures or result.points == max_states:
                return


def power_losses(
    scenario: Scenario,
    seed: int = 0,
    *,
    races: int = 10,
    deaths: int = 60,
    failing: int = 12,
    limit: int = 64,
    max_states: int | None = None,
    max_failures: int = 1,
) -> Exploration:
    """Loses power in many different runs: alone, in races, after deaths, and after an ``fsync`` that failed.

    Args:
        scenario: What to run.
        seed: Seed of the first run.
        races: Runs of two processes interleaved at every system call.
        deaths: Runs in which the first process dies after some calls and a second one follows.
        failing: Runs in which one ``fsync`` fails.
        limit: See :meth:`DiskModel.states`.
        max_states: States per run.
        max_failures: Stops after so many failures.
    """
    total = Exploration(suite="powerloss", scenario=scenario.name)
    runs: list[dict[str, Any]] = [{}]
    runs.extend({"processes": 2, "seed": seed + race} for race in range(races))
    runs.extend({"faults": [failing_fsync(at)]} for at in range(failing))
    runs.extend({"processes": 2, "dies_after": 5 + 2 * death} for death in range(deaths))
    for run in runs:
        left = max_failures - len(total.failures)
        total.add(power_loss(scenario, **{"seed": seed, **run}, limit=limit, max_states=max_states, max_failures=left))
        if len(total.failures) >= max_failures:
            break
    return total


def failing_fsync(at: int) -> Fault:
    """The ``at``-th ``fsync`` of a run fails, once."""
    return Fault(kind=FaultKind.IO_ERROR, at=at, operation="os.fsync")


@contextlib.contextmanager
def _made(folder: str) -> Iterator[str]:
    os.mkdir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _record(
    scenario: Scenario, seed: int, processes: int, dies_after: int | None, faults: Collection[Fault], disk: str
) -> _Recording:
    plan = ScriptedFaults(faults)
    with _made(disk) as folder:
        backend = LocalBackend(folder)
        with opened(scenario, seed=seed, faults=plan, backend=backend) as world:
            prepared = backend.position
            first = scenario.start(world, 0)
            if dies_after is not None:
                world.scheduler.run(until=lambda: first.operations >= dies_after)
                first.kill()
            for incarnation in range(1, processes):
                scenario.start(world, incarnation)
            _interleave(world, Dice(seed, "interleaving"))
            require_typed_end(world)
            changes = list(backend.journal.changes) if backend.journal else []
            return _Recording(
                changes=changes,
                facts=list(world.facts),
                prepared=prepared,
                incarnations=processes,
                trace=world.trace,
                plan=plan,
            )


def _interleave(world: World, dice: Dice) -> None:
    """Runs everybody to the end, in a random order."""
    scheduler = world.scheduler
    while True:
        ready = scheduler.ready()
        if ready:
            scheduler.resume(dice.pick(ready))
        elif not scheduler.advance_to_next_due():
            return


def _recover(
    scenario: Scenario,
    seed: int,
    recording: _Recording,
    moment: int,
    state: DiskState,
    promised: Sequence[Fact],
    disk: str,
    result: Exploration,
) -> None:
    with _made(disk) as folder:
        state.restore(folder)
        backend = LocalBackend(folder, by_system_call=False, fsync=False)
        with World(seed, faults=NoFaults(), backend=backend) as world:
            world.facts.extend(promised)
            watch(scenario, world)
            try:
                restart(scenario, world, recording.incarnations)
                check(scenario, world)
            except InvariantViolation as violation:
                last = recording.changes[moment - 1] if moment else None
                recipe = f"power lost after change {moment} of {len(recording.changes)} ({last}), leaving: {state}"
                result.fail(violation, seed=seed, recipe=recipe, trace=recording.trace)
