"""Planted bugs: the proof that the suites see. A suite with no failing variant proves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stateline.errors import InvalidInputError
from tests.kit.explore import Setting, fault_pairs, single_faults, zombie_sweep
from tests.kit.planted.planting import replaced
from tests.kit.power_failure import power_losses
from tests.kit.results import Exploration
from tests.kit.scenarios import ScenarioEntry, scenario
from tests.kit.simulation import simulate

__all__ = ["BUGS", "SUITES", "Catch", "PlantedBug", "catch", "matrix", "planted", "register_bug", "replaced"]

Plant = Callable[[], contextlib.AbstractContextManager[None]]

SEEDS: Final = 200
"""A bug that simulation can see must be seen within so many seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    """One bug that can be switched on, in tests only.

    Attributes:
        name: Its name.
        description: What the wrong code does.
        site: The real place where it is planted.
        plant: Makes the context in which the bug is there.
        scenarios: In which scenarios to look for it.
        suites: By which suites it must be caught, the quickest first.
    """

    name: str
    description: str
    site: str
    plant: Plant
    scenarios: tuple[str, ...]
    suites: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """Whether one suite caught one bug in one scenario.

    Attributes:
        bug: The bug.
        suite: The suite.
        scenario: The scenario.
        points: After how many runs, seeds or states it was caught, or how many were tried in vain.
        invariant: Which invariant broke; empty if none did.
        seed: With which seed.
        recipe: How to see it again.
    """

    bug: str
    suite: str
    scenario: str
    points: int
    invariant: str = ""
    seed: int = 0
    recipe: str = ""


BUGS: Final[dict[str, PlantedBug]] = {}
"""Every planted bug that is known, by name."""


def register_bug(bug: PlantedBug) -> PlantedBug:
    """Adds a bug.

    Raises:
        InvalidInputError: The name is taken.
    """
    if bug.name in BUGS:
        raise InvalidInputError(
            "the name is taken", operation="register_bug", subject=f"bug {bug.name}", hint="Take another name"
        )
    BUGS[bug.name] = bug
    return bug


@contextlib.contextmanager
def planted(name: str) -> Iterator[PlantedBug]:
    """The time in which a bug is there.

    Raises:
        InvalidInputError: There is no such bug.
    """
    if name not in BUGS:
        raise InvalidInputError("unknown bug", subject=repr(name), hint=f"Known: {', '.join(sorted(BUGS))}")
    bug = BUGS[name]
    with bug.plant():
        yield bug


def catch(bug_name: str, suite: str, scenario_name: str) -> Catch:
    """Looks for a bug with one suite in one scenario, within the suite's usual budget."""
    entry = scenario(scenario_name)
    with planted(bug_name):
        result = SUITES[suite](entry)
    if not result.failures:
        return Catch(bug=bug_name, suite=suite, scenario=scenario_name, points=result.points)
    failure = result.failures[0]
    return Catch(
        bug=bug_name,
        suite=suite,
        scenario=scenario_name,
        points=result.points,
        invariant=failure.invariant,
        seed=failure.seed,
        recipe=failure.recipe,
    )


def matrix(names: Iterable[str] | None = None, suites: Sequence[str] | None = None) -> Iterator[Catch]:
    """Every bug, by every suite, in every scenario that could show it."""
    for name in sorted(BUGS) if names is None else names:
        for suite in suites or sorted(SUITES):
            for scenario_name in BUGS[name].scenarios:
                if suite != "powerloss" or scenario(scenario_name).loses_power:
                    yield catch(name, suite, scenario_name)


def _setting(entry: ScenarioEntry) -> Setting:
    return Setting(backend=entry.backend)


def _single(entry: ScenarioEntry) -> Exploration:
    return single_faults(entry.small(), _setting(entry), kinds=entry.kinds, sample=1500)


def _pairs(entry: ScenarioEntry) -> Exploration:
    return fault_pairs(entry.small(), _setting(entry), sample=1000)


def _zombies(entry: ScenarioEntry) -> Exploration:
    return zombie_sweep(entry.small(), _setting(entry), sample=3000)


def _sim(entry: ScenarioEntry) -> Exploration:
    return simulate(entry.large(), range(SEEDS), _setting(entry), kinds=entry.kinds, shorten=False)


def _power_loss(entry: ScenarioEntry) -> Exploration:
    return power_losses(entry.small(), limit=4)


SUITES: Final[dict[str, Callable[[ScenarioEntry], Exploration]]] = {
    "single": _single,
    "pairs": _pairs,
    "zombies": _zombies,
    "sim": _sim,
    "powerloss": _power_loss,
}
"""The suites, each with the budget in which it must catch what it can catch."""
