"""What a test of the whole is: work that can be started, killed, restarted, and checked at the end.

A third party writes one :class:`Scenario` and gets every suite of ``explore``, ``simulation`` and ``power_failure`` for
it.

Life of a run::

    scenario.prepare(world)               # what is there before; no faults
    process = scenario.start(world, 0)    # the first incarnation does the work; it may fail, die, or become a zombie
    process = scenario.start(world, 1)    # its successor does what is left; maybe at the same time
    ...
    scenario.start(world, n)              # the last one, without faults: must succeed
    scenario.check(world)                 # the oracle
"""

from __future__ import annotations

import contextlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final

from stateline.blob.api import Buffer
from stateline.errors import CorruptDataError, DataLossError, StatelineError
from stateline.testing.faults import FaultKind, FaultPlan
from tests.kit.backends import Backend
from tests.kit.effects import Effect
from tests.kit.invariants import InvariantViolation, require
from tests.kit.world import Process, World

__all__ = [
    "REQUEST_FAULTS",
    "SYSTEM_CALL_FAULTS",
    "Scenario",
    "check",
    "opened",
    "require_typed_end",
    "restart",
    "watch",
]

SYSTEM_CALL_FAULTS: Final = frozenset(
    {
        FaultKind.IO_ERROR,
        FaultKind.IO_ERROR_AFTER,
        FaultKind.NO_SPACE,
        FaultKind.NO_ACCESS,
        FaultKind.SHORT_WRITE,
    }
)
"""Kinds that only a backend whose system calls are intercepted can have."""

REQUEST_FAULTS: Final = frozenset({FaultKind.ERROR_IN_BODY, FaultKind.IN_PROGRESS})
"""Kinds that only a cloud store over a simulated network can have."""


class Scenario(ABC):
    """One system under test, the work it has to do, and the oracle.

    A scenario object holds parameters only: everything about a run is in its world, so that one object serves any
    number of runs.

    Attributes:
        name: How the command line and reports call it.
        kinds: The fault kinds that it must survive.
        stores: The names of the stores it uses.
        speculation: Probability, in seeded simulation, that a task runs twice at once.
    """

    name: ClassVar[str]
    kinds: frozenset[FaultKind] = frozenset(FaultKind)
    stores: tuple[str, ...] = ("root",)
    speculation: float = 0.0

    def prepare(self, world: World) -> None:  # noqa: B027 - most need nothing
        """Makes what exists before the first process starts. No fault strikes here."""

    @abstractmethod
    def start(self, world: World, incarnation: int) -> Process:
        """Spawns a process that does all the work that is left, and returns it at once.

        Incarnation 0 is the first; a successor must not assume that its predecessors are dead.
        """

    def consume(self, world: World) -> Process | None:
        """Spawns one pass of an outside consumer that may move finished output away; ``None`` where there is none."""
        return None

    def watch(self, world: World, effect: Effect) -> None:  # noqa: B027 - most look at the end only
        """Looks at each effect on a store as it happens; raises where an invariant of every instant is broken."""

    def may_replace(self, name: str, data: Buffer) -> bool:
        """Whether the system under test documents this overwrite as safe; nothing is by default."""
        return False

    @abstractmethod
    def check(self, world: World) -> None:
        """Compares what is there with the model, after the last incarnation has succeeded.

        Raises:
            InvariantViolation: What is wrong.
        """


@contextlib.contextmanager
def opened(
    scenario: Scenario,
    *,
    seed: int = 0,
    faults: FaultPlan | None = None,
    backend: Backend | None = None,
    resolving: bool = False,
    speculation: float = 0.0,
) -> Iterator[World]:
    """A world in which ``scenario`` is prepared and watched, and nothing runs yet."""
    world = World(seed, faults=faults, backend=backend, resolving=resolving, speculation=speculation)
    with world:
        with world.without_faults():
            scenario.prepare(world)
        watch(scenario, world)
        yield world


def watch(scenario: Scenario, world: World) -> None:
    """Lets a scenario look at each effect. What it cannot read then counts as broken, too."""

    def look(effect: Effect) -> None:
        try:
            scenario.watch(world, effect)
        except StatelineError as error:
            raise InvariantViolation("F1", f"after {effect} the oracle cannot read: {error!r}") from error

    world.watchers.append(look)
    world.may_replace = scenario.may_replace


def check(scenario: Scenario, world: World) -> None:
    """Asks the oracle.

    Raises:
        InvariantViolation: What it saw; F1 where it could not read what must be readable.
    """
    try:
        scenario.check(world)
    except StatelineError as error:
        raise InvariantViolation("F1", f"the oracle cannot read: {error!r}") from error


def require_typed_end(world: World) -> None:
    """Requires of every process that has ended: it succeeded, died, or raised an error of Stateline's tree.

    Raises:
        InvariantViolation: H4, or what a watcher saw before.
    """
    if world.violation is not None:
        raise world.violation
    for process in world.processes.values():
        error = process.error
        if error is not None and not isinstance(error, StatelineError):
            text = "".join(traceback.format_exception(error)[-8:])
            raise InvariantViolation("H4", f"{process.name} raised {type(error).__name__}, which is not typed\n{text}")


def restart(scenario: Scenario, world: World, incarnation: int) -> bool:
    """Runs a last incarnation without faults; everything that still lives runs along.

    It may lose to a request that was under way, or to a zombie, and then starts again; when neither is left, it must
    succeed.

    Returns:
        ``False`` where a fault had destroyed data for good and the incarnation said so, as it must.

    Raises:
        InvariantViolation: H1, where it does not succeed.
    """
    world.faults.heal()
    while True:
        rivals = world.faults.under_way + len(world.scheduler.actors)
        process = scenario.start(world, incarnation)
        world.scheduler.run()
        require_typed_end(world)
        if process.succeeded or world.faults.under_way + len(world.scheduler.actors) >= rivals:
            break
    destroyed = any(fault.kind.lasts for fault in world.faults.struck)
    if destroyed and isinstance(process.error, DataLossError | CorruptDataError):
        return False
    why = f"it raised {process.error!r}" if process.error else f"it waits for ever\n{world.scheduler.report()}"
    require(process.succeeded, "H1", f"{process.name} did not succeed without faults: {why}")
    return True
