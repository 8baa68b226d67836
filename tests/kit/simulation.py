"""Seeded simulation: drivers that die, freeze and come back, faults of every kind, clocks that jump, all from one seed.

A run has two phases. In the first, anything may happen; the engine starts a successor whenever the newest incarnation
fails, and sometimes although it lives. In the second, faults stop, the frozen thaw, requests under way arrive, zombies
run to their end, a last incarnation must succeed, and the oracle looks.

Every decision of the first phase is noted as a :class:`Decision`, every fault as a fault that fires once: the script.
Replaying the script gives the same trace; leaving parts of it out, as :func:`shrink` does, gives a shorter story.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from stateline.testing.faults import Fault, FaultKind, FaultPlan, NoFaults, RandomFaults, ScriptedFaults
from stateline.testing.seeds import Dice
from tests.kit.explore import Setting
from tests.kit.invariants import InvariantViolation
from tests.kit.results import Exploration
from tests.kit.scenario import (
    REQUEST_FAULTS,
    SYSTEM_CALL_FAULTS,
    Scenario,
    check,
    opened,
    require_typed_end,
    restart,
)
from tests.kit.scheduler import Actor
from tests.kit.trace import Trace
from tests.kit.world import Process, World

__all__ = ["Decision", "Script", "SeedResult", "replay", "run_seed", "shrink", "simulate"]

T = TypeVar("T")

MAX_INCARNATIONS: Final = 10
MAX_STEPS: Final = 3000
"""Steps of the first phase."""

_EXPECTED: Final[WeakKeyDictionary[Scenario, Counter[str]]] = WeakKeyDictionary()

_EVENTS: Final = ("suspect", "suspect", "kill", "freeze", "thaw", "consume", "advance", "jump", "skew")


class Decision(NamedTuple):
    """One thing that the director did, before a step of the scheduler.

    Attributes:
        step: Before which step.
        action: ``run`` an actor out of turn, ``suspect`` the newest incarnation and start another, ``kill``,
            ``freeze`` or ``thaw`` a process, ``consume``, ``advance`` the clock, ``jump`` the wall clock, ``skew`` a
            process's wall clock.
        target: Whom.
        amount: Seconds.
    """

    step: int
    action: str
    target: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:+.1f} s" if self.amount else ""
        return f"step {self.step}: {self.action} {self.target}{amount}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """All that happened to one run: replaying it gives the same trace.

    Attributes:
        seed: Seed of ids and draws.
        decisions: In order.
        faults: In order.
    """

    seed: int
    decisions: tuple[Decision, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {len(self.decisions)} decisions, {len(self.faults)} faults"]
        lines.extend(f"  {decision}" for decision in self.decisions)
        lines.extend(f"  {fault}" for fault in self.faults)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """One run.

    Attributes:
        script: What happened to it.
        violation: What the oracle saw, if anything.
        trace: What it did.
        plan: Its faults, with their counts.
    """

    script: Script
    violation: InvariantViolation | None
    trace: Trace
    plan: FaultPlan


def simulate(
    scenario: Scenario,
    seeds: Iterable[int],
    setting: Setting | None = None,
    *,
    kinds: Collection[FaultKind] | None = None,
    shorten: bool = True,
    progress: Callable[[SeedResult], None] | None = None,
) -> Exploration:
    """Runs one simulation per seed.

    Args:
        scenario: What to run.
        seeds: The seeds.
        setting: How to run it; its ``resolving`` is drawn per seed, its ``seed`` does not count.
        kinds: The fault kinds to draw from; the scenario's by default.
        shorten: Whether a failing script is shrunk before it is reported.
        progress: Called after each seed.
    """
    setting = setting or Setting()
    result = Exploration(suite="sim", scenario=scenario.name)
    for seed in seeds:
        outcome = run_seed(scenario, seed, setting, kinds=kinds)
        result.count(outcome.plan)
        if progress:
            progress(outcome)
        if outcome.violation is not None:
            shortest = shrink(scenario, outcome, setting) if shorten else outcome
            violation = shortest.violation or outcome.violation
            result.fail(violation, seed=seed, recipe=str(shortest.script), trace=shortest.trace)
            if len(result.failures) >= setting.max_failures:
                break
    return result


def run_seed(
    scenario: Scenario, seed: int, setting: Setting | None = None, *, kinds: Collection[FaultKind] | None = None
) -> SeedResult:
    """One run whose every choice comes from ``seed``."""
    chosen = scenario.kinds if kinds is None else kinds
    if setting is None or setting.backend is None:
        chosen = set(chosen) - SYSTEM_CALL_FAULTS - REQUEST_FAULTS
    setting = setting or Setting()
    plan = RandomFaults(seed, chosen, expected=_expected(scenario, setting))
    return _run(scenario, seed, plan, _RandomDirector(seed), setting)


def _expected(scenario: Scenario, setting: Setting) -> Counter[str]:
    """How often each operation occurs in one incarnation without faults; found out once for each scenario."""
    if scenario not in _EXPECTED:
        plan = NoFaults()
        with opened(scenario, faults=plan, backend=setting.make_backend()) as world:
            scenario.start(world, 0)
            with contextlib.suppress(InvariantViolation):  # Every seed will show it, too.
                world.scheduler.run()
        _EXPECTED[scenario] = plan.operations
    return _EXPECTED[scenario]


def replay(scenario: Scenario, script: Script, setting: Setting | None = None) -> SeedResult:
    """Runs a script again."""
    return _run(
        scenario,
        script.seed,
        ScriptedFaults(script.faults),
        _ScriptedDirector(script.seed, script.decisions),
        setting or Setting(),
    )


def shrink(scenario: Scenario, failed: SeedResult, setting: Setting | None = None, *, budget: int = 400) -> SeedResult:
    """Looks for a shorter script that breaks the same invariant, by leaving parts out while it still does.

    Args:
        scenario: What failed.
        failed: How.
        setting: As in the failing run.
        budget: How many runs it may take.
    """
    if failed.violation is None:
        return failed
    wanted = failed.violation.invariant
    best = failed
    left = budget

    def still_fails(script: Script) -> bool:
        nonlocal best, left
        left -= 1
        outcome = replay(scenario, script, setting)
        if outcome.violation is None or outcome.violation.invariant != wanted:
            return False
        best = SeedResult(script=script, violation=outcome.violation, trace=outcome.trace, plan=outcome.plan)
        return True

    before = None
    while left > 0 and best.script != before:
        before = best.script
        _drop_parts(best.script.decisions, lambda kept: still_fails(replace(best.script, decisions=kept)), lambda: left)
        _drop_parts(best.script.faults, lambda kept: still_fails(replace(best.script, faults=kept)), lambda: left)
    return best


def _drop_parts(items: tuple[T, ...], still_fails: Callable[[tuple[T, ...]], bool], left: Callable[[], int]) -> None:
    """Drops ever smaller stretches of ``items`` while what remains still fails."""
    size = len(items)
    while size and left() > 0:
        start = 0
        while start < len(items) and left() > 0:
            kept = items[:start] + items[start + size :]
            if still_fails(kept):
                items = kept
            else:
                start += size
        size //= 2


@dataclass(frozen=True, slots=True)
class _Style:
    """What is decided once per seed.

    Attributes:
        late_zombies: Zombies go on after the last incarnation, not before it.
        resolving: Stores resolve lost answers by reading back.
        rivals: Incarnations start in twos.
    """

    late_zombies: bool
    resolving: bool
    rivals: bool

    @classmethod
    def of_seed(cls, seed: int) -> _Style:
        """The style of a seed."""
        dice = Dice(seed, "style")
        return cls(dice.chance(0.5), dice.chance(0.5), dice.chance(0.4))


class _Director(Protocol):
    """Who decides in the first phase."""

    style: _Style

    def events(self, step: int, run: _Run) -> Sequence[Decision]:
        """What to do to the world before this step."""
        ...

    def choose(self, step: int, ready: Sequence[Actor], default: Actor) -> Actor:
        """Who runs in this step."""
        ...


class _RandomDirector:
    """Draws everything; each seed has its own rates, and its own set of events that can happen at all."""

    def __init__(self, seed: int) -> None:
        self._dice = Dice(seed, "director")
        self._switching = self._dice.log_uniform(0.02, 1.0)
        self._rate = self._dice.log_uniform(0.005, 0.15)
        self._events = [event for event in _EVENTS if self._dice.chance(0.6)]
        self.style = _Style.of_seed(seed)

    def events(self, step: int, run: _Run) -> Sequence[Decision]:
        """See :meth:`_Director.events`."""
        dice = self._dice
        if not self._events or not dice.chance(self._rate):
            return ()
        action = dice.pick(self._events)
        if action in ("suspect", "consume"):
            return (Decision(step, action),)
        if action in ("advance", "jump"):
            amount = dice.log_uniform(0.01, 1e7) if action == "advance" else dice.pick((-86400.0, -1.0, 3600.0, 3e7))
            return (Decision(step, action, "", min(amount, 1e4) if action == "advance" else amount),)
        living = [process.name for process in run.world.processes.values() if process.faulty and not process.ended]
        if not living:
            return ()
        target = dice.pick(living)
        return (Decision(step, action, target, dice.pick((-3600.0, 3600.0)) if action == "skew" else 0.0),)

    def choose(self, step: int, ready: Sequence[Actor], default: Actor) -> Actor:
        """See :meth:`_Director.choose`."""
        if len(ready) == 1 or not self._dice.chance(self._switching):
            return default
        return self._dice.pick(ready)


class _ScriptedDirector:
    """Does what a script says; where it says nothing, whoever ran goes on."""

    def __init__(self, seed: int, decisions: Iterable[Decision]) -> None:
        self.style = _Style.of_seed(seed)
        self._events: dict[int, list[Decision]] = {}
        self._turns: dict[int, str] = {}
        for decision in decisions:
            if decision.action == "run":
                self._turns[decision.step] = decision.target
            else:
                self._events.setdefault(decision.step, []).append(decision)

    def events(self, step: int, run: _Run) -> Sequence[Decision]:
        """See :meth:`_Director.events`."""
        return self._events.get(step, ())

    def choose(self, step: int, ready: Sequence[Actor], default: Actor) -> Actor:
        """See :meth:`_Director.choose`."""
        wanted = self._turns.get(step)
        return next((actor for actor in ready if actor.name == wanted), default)


@dataclass(slots=True)
class _Run:
    """The state of one run."""

    scenario: Scenario
    world: World
    director: _Director
    drivers: list[Process] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    consumer: Process | None = None

    def execute(self) -> None:
        """Both phases; raises what the oracle sees."""
        self._start()
        self._first_phase()
        self._second_phase()

    def _first_phase(self) -> None:
        scheduler = self.world.scheduler
        last: Actor | None = None
        for step in range(MAX_STEPS):
            for decision in self.director.events(step, self):
                self._apply(decision)
            if any(driver.succeeded for driver in self.drivers):
                return
            newest = self.drivers[-2:] if self.director.style.rivals else self.drivers[-1:]
            if all(driver.ended for driver in newest) and not self._start():
                return
            ready = scheduler.ready()
            if not ready:
                if not scheduler.advance_to_next_due() and not self._start():
                    return
                continue
            default = last if last in ready and last is not None else ready[0]
            chosen = self.director.choose(step, ready, default)
            if chosen is not default:
                self.decisions.append(Decision(step, "run", chosen.name))
            last = chosen
            scheduler.resume(chosen)

    def _second_phase(self) -> None:
        world, scenario = self.world, self.scenario
        world.faults.heal()
        frozen = [process for process in world.processes.values() if process.group.family.frozen]
        if not self.director.style.late_zombies:
            self._thaw(frozen)
            world.faults.land_all()
            world.scheduler.run()
        whole = restart(scenario, world, len(self.drivers))
        self._consume()
        world.scheduler.run()
        self._thaw(frozen)
        world.faults.land_all()
        world.scheduler.run()
        whole = restart(scenario, world, len(self.drivers) + 1) and whole
        require_typed_end(world)
        if whole:
            check(scenario, world)

    def _apply(self, decision: Decision) -> None:
        self.decisions.append(decision)
        target = self.world.processes.get(decision.target)
        match decision.action:
            case "suspect":
                self._start()
            case "consume":
                self._consume()
            case "advance":
                self.world.clock.advance(decision.amount)
            case "jump":
                self.world.clock.jump(decision.amount)
            case "kill" | "freeze" | "thaw" if target is not None:
                getattr(target, decision.action)()
            case "skew" if target is not None:
                target.clock.skew_seconds += decision.amount

    def _start(self) -> bool:
        """One more incarnation, unless there were enough."""
        if len(self.drivers) >= MAX_INCARNATIONS:
            return False
        for _ in range(2 if self.director.style.rivals else 1):
            self.drivers.append(self.scenario.start(self.world, len(self.drivers)))
        return True

    def _consume(self) -> None:
        """One pass of the consumer, unless it is still busy with the one before."""
        if self.consumer is None or self.consumer.ended:
            self.consumer = self.scenario.consume(self.world)

    def _thaw(self, processes: Iterable[Process]) -> None:
        for process in processes:
            if process.group.family.frozen:
                process.thaw()


def _run(scenario: Scenario, seed: int, plan: FaultPlan, director: _Director, setting: Setting) -> SeedResult:
    violation = None
    with opened(
        scenario,
        seed=seed,
        faults=plan,
        backend=setting.make_backend(),
        resolving=director.style.resolving,
        speculation=scenario.speculation,
    ) as world:
        run = _Run(scenario, world, director)
        try:
            run.execute()
        except InvariantViolation as seen:
            violation = seen
    script = Script(seed=seed, decisions=tuple(run.decisions), faults=tuple(plan.struck))
    return SeedResult(script=script, violation=violation, trace=world.trace, plan=plan)
