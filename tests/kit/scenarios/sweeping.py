"""Sweeps beside writers: a leftover goes, and nothing that anybody needs or is about to name.

Long before the run one driver died in the middle of a batch, and another right after the record of that batch. So there
are old objects that records reach (runs, pending rows, pieces of files not yet visible) and old objects that none does.
Each driver sweeps root and output when it starts, before each batch and after the last, with a grace period that no
batch outlives. Half of the drivers have a wall clock that is years ahead: ages are the store's business (G3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final

from stateline.blob import sweep as staged
from stateline.checkpoint import Checkpoint, CheckpointStore, sweep_root
from stateline.handles import CommitPoint
from tests.kit.invariants import require
from tests.kit.scenarios.beside import BesideQuery, holdings
from tests.kit.scenarios.pipeline import FIRST_QUERY
from tests.kit.world import Process, World

__all__ = ["SweepBesideWriters"]

_GRACE_SECONDS: Final = 1e8
"""Longer than a simulated run, frozen processes and all: what the operator promises."""

_AHEAD_SECONDS: Final = 1e10
_DIES_AFTER: Final = 5
_KEPT_PREFIXES: Final = ("chk-", "floor/", "part-")
"""Records, marks and visible files: no sweep looks at them."""


class SweepBesideWriters(BesideQuery):
    """See the module docstring; arguments as :class:`Pipeline`."""

    name: ClassVar[str] = "sweep"

    def __init__(self, **more: Any) -> None:
        super().__init__(roll_bytes=60, **more)

    def prepare(self, world: World) -> None:
        """See :meth:`Scenario.prepare`."""
        root = CheckpointStore(world.objects(FIRST_QUERY.root))
        self._early_death(world, 0, lambda early: early.operations >= _DIES_AFTER)
        self._early_death(world, 1, lambda _: root.latest() is not None)
        world.acknowledge(("early",), frozenset(_names(world)))
        world.clock.advance(2 * _GRACE_SECONDS)

    def start(self, world: World, incarnation: int) -> Process:
        """See :meth:`Scenario.start`."""
        process = super().start(world, incarnation)
        process.clock.skew_seconds += _AHEAD_SECONDS * (incarnation % 2)
        return process

    def beside(self, process: Process) -> None:
        """Sweeps the root, then the output, as ``stateline sweep --outputs --delete`` does."""
        if not process.faulty:
            return  # One of those that died early.
        root, out = process.store(FIRST_QUERY.root), process.store(FIRST_QUERY.out)
        swept = sweep_root(CheckpointStore(root), min_age=_GRACE_SECONDS, delete=True, environment=process.environment)
        needed = staged.reachable_names(_finished(swept.checkpoints))
        staged.sweep(out, needed, min_age=_GRACE_SECONDS, delete=True, environment=process.environment)

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`."""
        super().check(world)
        root = world.objects(FIRST_QUERY.root)
        reached: set[str] = set()
        for record in CheckpointStore(root).list():
            found, wanted = holdings(root, record), world.acknowledged(("holds", record.checkpoint_id))
            require(
                found == (wanted or found),
                "F2",
                f"checkpoint {record.checkpoint_id} holds {found}, decided was {wanted}",
            )
            reached |= {*record.object_names(), *staged.reachable_names(_finished([record]))}
        early = world.acknowledged(("early",)) & set(_names(world))
        left = sorted(name for name in early - reached if not name.startswith(_KEPT_PREFIXES))
        require(not left, "H2", f"old leftovers were not swept: {left}")

    def _drive(self, process: Process, incarnation: int) -> None:
        self.beside(process)
        super()._drive(process, incarnation)
        self.beside(process)

    def _early_death(self, world: World, incarnation: int, dies: Callable[[Process], bool]) -> None:
        early = world.process(f"early-{incarnation}", faulty=False)
        early.spawn(lambda: super(SweepBesideWriters, self)._drive(early, incarnation))
        world.scheduler.run(until=lambda: dies(early))
        for process in list(world.processes.values()):
            if process.group.family is early.group:
                process.kill()


def _names(world: World) -> Iterator[str]:
    for store in FIRST_QUERY.root, FIRST_QUERY.out:
        yield from (info.name for info in world.objects(store).list(""))


def _finished(checkpoints: Iterable[Checkpoint]) -> Iterator[CommitPoint]:
    """The files whose pieces some checkpoint needs: those that it finishes."""
    for checkpoint in checkpoints:
        for output in checkpoint.outputs:
            yield from (file.commit for file in output.finished)
