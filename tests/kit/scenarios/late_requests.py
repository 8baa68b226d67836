"""Any scenario over stores whose requests stall, and are raced by further ones: a loser may land minutes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from stateline.blob.api import BlobStore, Buffer
from stateline.blob.instrumented import StoreDecorator
from stateline.changelog.racing import RacingStore
from stateline.changelog.upload_table import RetryPolicy
from stateline.environment import Clock
from tests.kit.effects import Effect
from tests.kit.scenario import Scenario
from tests.kit.world import Process, World

__all__ = ["LateRequests", "Stall", "StallingStore"]

Stall = Callable[[str], tuple[float, float]]
"""For an operation: the seconds before its effect, and those between its effect and the answer."""

_POLICY: Final = RetryPolicy.fixed(3, 1.0, 0)
_SECONDS: Final = (0.3, 2.0, 2.0, 7.0, 600.0)
_ONE_IN: Final = 2


def _stalled(operation: str) -> Any:
    def call(self: StallingStore, *arguments: Any) -> Any:
        before, after = self.stall(operation)
        self.clock.sleep(before)
        try:
            return getattr(self.inner, operation)(*arguments)
        finally:
            self.clock.sleep(after)

    return call


class StallingStore(StoreDecorator):
    """A store that is late.

    Args:
        inner: The store that answers.
        clock: Where it waits.
        stall: How late it is.
    """

    def __init__(self, inner: BlobStore, clock: Clock, stall: Stall) -> None:
        super().__init__(inner)
        self.clock = clock
        self.stall = stall

    put = _stalled("put")
    put_if_absent = _stalled("put_if_absent")
    get = _stalled("get")
    get_range = _stalled("get_range")
    head = _stalled("head")
    list = _stalled("list")
    delete = _stalled("delete")
    stage = _stalled("stage")
    prepare = _stalled("prepare")
    publish = _stalled("publish")
    discard = _stalled("discard")


class LateRequests(Scenario):
    """See the module docstring.

    Args:
        inner: The scenario whose processes reach their stores so.
    """

    name: ClassVar[str] = "late_requests"

    def __init__(self, inner: Scenario) -> None:
        self.inner = inner
        self.kinds, self.stores, self.speculation = inner.kinds, inner.stores, inner.speculation

    def prepare(self, world: World) -> None:
        """See :meth:`Scenario.prepare`."""
        self.inner.prepare(world)
        world.reach = _late

    def start(self, world: World, incarnation: int) -> Process:
        """See :meth:`Scenario.start`."""
        return self.inner.start(world, incarnation)

    def consume(self, world: World) -> Process | None:
        """See :meth:`Scenario.consume`."""
        return self.inner.consume(world)

    def watch(self, world: World, effect: Effect) -> None:
        """See :meth:`Scenario.watch`."""
        self.inner.watch(world, effect)

    def may_replace(self, name: str, data: Buffer) -> bool:
        """See :meth:`Scenario.may_replace`."""
        return self.inner.may_replace(name, data)

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`."""
        self.inner.check(world)


def _late(store: BlobStore, process: Process) -> BlobStore:
    if not process.faulty:
        return store
    dice = process.world.dice("stalls", process.name)

    def stall(_: str) -> tuple[float, float]:
        if not dice.chance(1 / _ONE_IN):
            return 0.0, 0.0
        seconds = dice.pick(_SECONDS)
        return (seconds, 0.0) if dice.chance(0.5) else (0.0, seconds)

    environment = process.environment
    return RacingStore(StallingStore(store, environment.clock, stall), _POLICY, environment)
