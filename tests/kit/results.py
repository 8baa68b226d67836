"""What an exploration tried and found.

Every suite returns an :class:`Exploration`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stateline.testing.faults import APPLIES_TO, FaultKind, FaultPlan
from tests.kit.invariants import InvariantViolation
from tests.kit.trace import Trace

__all__ = ["DEAD_KNOB_SHARE", "Exploration", "Failure"]

DEAD_KNOB_SHARE: Final = 0.2
"""A fault kind must fire in at least this share of the seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One broken invariant, and how to see it again.

    Attributes:
        suite: Which suite found it.
        scenario: In which scenario.
        seed: With which seed.
        recipe: What was done, in words.
        invariant: The id of the invariant.
        message: What was seen.
        trace: What happened, in order.
    """

    suite: str
    scenario: str
    seed: int
    recipe: str
    invariant: str
    message: str
    trace: str

    def render(self) -> str:
        """Everything that a person needs, over several lines."""
        return (
            f"{self.invariant} broken in {self.scenario} by {self.suite}, seed {self.seed}\n"
            f"{self.recipe}\n{self.message}\n{self.trace}"
        )


@dataclass(slots=True, kw_only=True)
class Exploration:
    """The sum of many runs.

    Attributes:
        suite: ``single``, ``pairs``, ``zombies``, ``sim`` or ``powerloss``.
        scenario: The scenario's name.
        points: Runs: fault points, interleavings, seeds or states.
        operations: Operations tried, by name.
        activations: Faults that fired, by (operation, kind).
        seeds_with: In how many runs each kind fired.
        seeds_open_to: In how many runs an operation that a kind applies to occurred while faults could strike.
        failures: What was found.
    """

    suite: str
    scenario: str
    points: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    activations: Counter[tuple[str, FaultKind]] = field(default_factory=Counter)
    seeds_with: Counter[FaultKind] = field(default_factory=Counter)
    seeds_open_to: Counter[FaultKind] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def count(self, plan: FaultPlan) -> None:
        """Adds one run."""
        self.points += 1
        self.operations.update(plan.operations)
        self.activations.update(plan.activations)
        self.seeds_with.update({kind for _, kind in plan.activations})
        self.seeds_open_to.update(
            kind for kind, operations in APPLIES_TO.items() if not operations.isdisjoint(plan.exposed)
        )

    def add(self, other: Exploration) -> None:
        """Adds the runs of another exploration."""
        self.points += other.points
        self.operations.update(other.operations)
        self.activations.update(other.activations)
        self.seeds_with.update(other.seeds_with)
        self.seeds_open_to.update(other.seeds_open_to)
        self.failures.extend(other.failures)

    def named(self, scenario: str) -> Exploration:
        """The same under the name of a scenario's entry."""
        failures = [replace(failure, scenario=scenario) for failure in self.failures]
        return replace(self, scenario=scenario, failures=failures)

    def fail(self, violation: InvariantViolation, *, seed: int, recipe: str, trace: Trace, newest: int = 200) -> None:
        """Adds a failure."""
        self.failures.append(
            Failure(
                suite=self.suite,
                scenario=self.scenario,
                seed=seed,
                recipe=recipe,
                invariant=violation.invariant,
                message=violation.message,
                trace=trace.render(newest),
            )
        )

    def share(self, kind: FaultKind) -> float:
        """In which share of the runs a kind fired, of those in which an operation occurred that it applies to."""
        return self.seeds_with[kind] / max(self.seeds_open_to[kind], 1)

    def dead_knobs(self, kinds: Iterable[FaultKind], share: float = DEAD_KNOB_SHARE) -> list[FaultKind]:
        """The kinds that fired in fewer than ``share`` of the runs with operations that they apply to."""
        return [kind for kind in sorted(kinds) if self.seeds_open_to[kind] and self.share(kind) < share]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "suite": self.suite,
            "scenario": self.scenario,
            "points": self.points,
            "operations": dict(sorted(self.operations.items())),
            "activations": {
                f"{operation} {kind}": count for (operation, kind), count in sorted(self.activations.items())
            },
            "runs_with_kind": {kind.value: count for kind, count in sorted(self.seeds_with.items())},
            "share_of_runs": {kind.value: round(self.share(kind), 4) for kind in sorted(self.seeds_with)},
            "failures": [{name: getattr(failure, name) for name in Failure.__slots__} for failure in self.failures],
        }

    def table(self) -> str:
        """How often each kind fired at each operation."""
        kinds = sorted({kind for _, kind in self.activations})
        lines = [f"{self.suite} {self.scenario}: {self.points:,} runs, {sum(self.operations.values()):,} operations"]
        width = max((len(kind) for kind in kinds), default=4)
        for operation, total in sorted(self.operations.items()):
            fired = [f"{kind}={count:,}" for kind in kinds if (count := self.activations[operation, kind])]
            lines.append(f"  {operation:<14} {total:>9,}  {' '.join(fired) or '-':<{width}}")
        if self.suite == "sim" and kinds:
            shares = " ".join(f"{kind}={self.share(kind):.0%}" for kind in kinds)
            lines.append(f"  share of the seeds, where it applies, in which each kind fired: {shares}")
        return "\n".join(lines)
