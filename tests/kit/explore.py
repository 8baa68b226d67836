"""Exhaustive exploration: every single fault, pairs of crashes, and the sweep of zombies.

Why zombies: crash points alone are blind to the bugs that matter most. A process that is believed dead and goes on, and
a successor whose replay spreads the rows differently, find what no crash does; see ``tests/kit/README.md``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stateline.testing.faults import APPLIES_TO, Fault, FaultKind, FaultPlan, NoFaults, ScriptedFaults
from stateline.testing.seeds import Dice
from tests.kit.backends import Backend
from tests.kit.invariants import InvariantViolation
from tests.kit.results import Exploration
from tests.kit.scenario import Scenario, check, opened, require_typed_end, restart
from tests.kit.world import Process, World

__all__ = ["ZOMBIE_RUNS", "Setting", "fault_pairs", "single_faults", "zombie_sweep"]

ZOMBIE_RUNS: Final[tuple[int | None, ...]] = (1, 2, 3, 5, 8, None)
"""How many operations a zombie runs before its successor goes on; ``None`` for all."""

_PAIR_KINDS: Final = (FaultKind.CRASH_AFTER, FaultKind.CRASH_IN_FLIGHT, FaultKind.LOST_ANSWER)
_LATE_KINDS: Final = (FaultKind.LANDS_LATER, FaultKind.DELIVERED_TWICE, FaultKind.CRASH_IN_FLIGHT)
_DELAYS: Final[tuple[int | None, ...]] = (1, 5, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the worlds of an exploration are made.

    Attributes:
        seed: Seed of ids and draws.
        backend: Makes the backend of each world; memory by default.
        resolving: See :class:`~tests.kit.world.World`.
        max_failures: After how many failures to stop.
    """

    seed: int = 0
    backend: Callable[[], Backend] | None = None
    resolving: bool = False
    max_failures: int = 1

    def make_backend(self) -> Backend | None:
        """The backend of the next world."""
        return self.backend() if self.backend else None


def single_faults(
    scenario: Scenario,
    setting: Setting | None = None,
    *,
    kinds: Collection[FaultKind] | None = None,
    sample: int | None = None,
) -> Exploration:
    """Injects every kind at every operation it applies to, once and for ever, then restarts cleanly and checks.

    Args:
        scenario: What to run.
        setting: How to run it.
        kinds: The kinds; the scenario's by default.
        sample: At most so many points, drawn with the seed; all by default.
    """
    setting = setting or Setting()
    result = Exploration(suite="single", scenario=scenario.name)
    points = list(_single_points(_dry_run(scenario, setting, result), kinds or scenario.kinds))
    if sample is not None and sample < len(points):
        points = Dice(setting.seed, "sample").shuffled(points)[:sample]
    for fault in points:
        _run_with_faults(scenario, setting, result, [fault])
        if len(result.failures) >= setting.max_failures:
            break
    return result


def fault_pairs(
    scenario: Scenario,
    setting: Setting | None = None,
    *,
    kinds: Sequence[FaultKind] = _PAIR_KINDS,
    sample: int | None = None,
) -> Exploration:
    """Strikes the first incarnation, then its successor's recovery, then restarts cleanly and checks.

    Args:
        scenario: What to run.
        setting: How to run it.
        kinds: Kinds of both faults.
        sample: At most about so many pairs; all by default.
    """
    setting = setting or Setting()
    result = Exploration(suite="pairs", scenario=scenario.name)
    firsts = [
        Fault(kind=kind, at=at)
        for at, operation in enumerate(_dry_run(scenario, setting, result))
        for kind in kinds
        if operation in APPLIES_TO[kind]
    ]
    dice = Dice(setting.seed, "pairs")
    chosen = firsts if sample is None or sample >= len(firsts) else dice.shuffled(firsts)[:sample]
    keep = 1.0 if sample is None else sample / max(len(firsts) * len(chosen), 1)
    for first in chosen:
        for second in _second_points(scenario, setting, first, kinds):
            if keep < 1.0 and not dice.chance(keep):
                continue
            _run_with_faults(scenario, setting, result, [first, second])
            if len(result.failures) >= setting.max_failures:
                return result
    return result


def zombie_sweep(
    scenario: Scenario,
    setting: Setting | None = None,
    *,
    runs: Sequence[int | None] = ZOMBIE_RUNS,
    sample: int | None = None,
) -> Exploration:
    """Lets a process that is believed dead go on beside its successor, at every pair of points.

    Process A stops after ``k`` operations and is believed dead. Its successor B runs ``j`` operations. A wakes and runs
    ``m``. B finishes, a consumer moves finished output away (in one half of the runs), A runs to its end. A third
    process must find everything right.

    Args:
        scenario: What to run.
        setting: How to run it.
        runs: The values of ``m``.
        sample: At most about so many interleavings; all by default.
    """
    setting = setting or Setting()
    result = Exploration(suite="zombies", scenario=scenario.name)
    length_of_a = len(_dry_run(scenario, setting, result))
    if result.failures:
        return result
    keep = 1.0 if sample is None else sample / max(2 * len(runs) * (length_of_a + 1) ** 2, 1)
    dice = Dice(setting.seed, "zombies")
    for k in dice.shuffled(range(length_of_a + 1)):  # So what goes wrong late only is not found last.
        j = 0
        while True:
            reached = True
            for m in runs:
                for consuming in (False, True):
                    if keep < 1.0 and not dice.chance(keep):
                        continue
                    reached = _run_zombie(scenario, setting, result, _Interleaving(k, j, m, consuming)) and reached
                    if len(result.failures) >= setting.max_failures:
                        return result
            if not reached or j > 2 * length_of_a:
                break
            j += 1
    return result


@dataclass(frozen=True, slots=True)
class _Interleaving:
    """One point of the zombie sweep."""

    k: int
    j: int
    m: int | None
    consuming: bool

    def __str__(self) -> str:
        woken = "all its operations" if self.m is None else f"{self.m} operations"
        consumed = ", a consumer moves output away" if self.consuming else ""
        return (
            f"A is believed dead after {self.k} operations; B runs {self.j}; A runs {woken}; "
            f"B ends{consumed}; A ends; C starts"
        )


def _dry_run(scenario: Scenario, setting: Setting, result: Exploration) -> list[str]:
    """The operations of a first incarnation when nothing goes wrong, in order; none where all is not well then."""
    plan = NoFaults()
    with _world(scenario, setting, plan) as world:
        try:
            scenario.start(world, 0)
            world.scheduler.run()
            sequence = list(plan.sequence)
            restart(scenario, world, 1)
            check(scenario, world)
        except InvariantViolation as violation:
            result.fail(violation, seed=setting.seed, recipe="nothing was injected", trace=world.trace)
            return []
    return sequence


def _single_points(sequence: Sequence[str], kinds: Collection[FaultKind]) -> Iterator[Fault]:
    for at, operation in enumerate(sequence):
        for kind in sorted(kinds):
            if operation not in APPLIES_TO[kind]:
                continue
            if kind in _LATE_KINDS:
                yield from (Fault(kind=kind, at=at, delay=delay) for delay in _DELAYS)
                continue
            yield Fault(kind=kind, at=at)
            if not kind.is_crash:
                yield Fault(kind=kind, at=at, times=2)
                yield Fault(kind=kind, at=at, times=None)


def _second_points(scenario: Scenario, setting: Setting, first: Fault, kinds: Sequence[FaultKind]) -> Iterator[Fault]:
    """The points of a recovery after ``first``; their ordinals count from the start of the recovery."""
    plan = ScriptedFaults([first])
    with _world(scenario, setting, plan) as world:
        scenario.start(world, 0)
        world.scheduler.run()
        observed = len(world.trace.entries)
        scenario.start(world, 1)
        world.scheduler.run()
        operations = [entry.operation for entry in world.trace.entries[observed:]]
    for at, operation in enumerate(operations):
        for kind in kinds:
            if operation in APPLIES_TO[kind]:
                yield Fault(kind=kind, at=at)


def _run_with_faults(scenario: Scenario, setting: Setting, result: Exploration, faults: Sequence[Fault]) -> None:
    """One incarnation for each fault, then a clean one; what lands late lands after it, and one more looks at that."""
    plan = ScriptedFaults()
    with _world(scenario, setting, plan) as world:
        try:
            for incarnation, fault in enumerate(faults):
                plan.add(fault)
                scenario.start(world, incarnation)
                world.scheduler.run()
                require_typed_end(world)
            _consume(scenario, world)
            incarnation = len(faults)
            whole = restart(scenario, world, incarnation)
            if plan.under_way:
                plan.land_all()
                _consume(scenario, world)
                whole = restart(scenario, world, incarnation + 1) and whole
            if whole:
                check(scenario, world)
        except InvariantViolation as violation:
            recipe = ", then ".join(map(str, faults))
            result.fail(violation, seed=setting.seed, recipe=recipe, trace=world.trace)
    result.count(plan)


def _run_zombie(scenario: Scenario, setting: Setting, result: Exploration, point: _Interleaving) -> bool:
    """Runs one interleaving; ``False`` where B ended within ``j`` operations, so that a larger ``j`` is no other."""
    plan = NoFaults()
    reached = True
    with _world(scenario, setting, plan) as world:
        try:
            a = scenario.start(world, 0)
            _run_operations(world, a, point.k)
            b = scenario.start(world, 1)
            _run_operations(world, b, point.j)
            reached = b.operations >= point.j and not b.ended
            _run_operations(world, a, point.m)
            _run_operations(world, b, None)
            if point.consuming:
                _consume(scenario, world)
            world.scheduler.run()
            require_typed_end(world)
            restart(scenario, world, 2)
            if point.consuming:
                _consume(scenario, world)
            check(scenario, world)
        except InvariantViolation as violation:
            result.fail(violation, seed=setting.seed, recipe=str(point), trace=world.trace)
    result.count(plan)
    return reached


def _run_operations(world: World, process: Process, count: int | None) -> None:
    """Runs a process and its tasks for ``count`` more operations, or to their end."""
    if count is None:
        world.scheduler.run(only=[process.group])
        return
    goal = process.operations + count
    if count:
        world.scheduler.run(only=[process.group], until=lambda: process.operations >= goal)


def _consume(scenario: Scenario, world: World) -> None:
    consumer = scenario.consume(world)
    if consumer is not None:
        world.scheduler.run(only=[consumer.group])
        require_typed_end(world)


def _world(scenario: Scenario, setting: Setting, plan: FaultPlan) -> contextlib.AbstractContextManager[World]:
    return opened(scenario, seed=setting.seed, faults=plan, backend=setting.make_backend(), resolving=setting.resolving)
