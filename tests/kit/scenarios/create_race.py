"""Several processes create the same names: each name has one winner, for ever, and nobody is told a lie.

On the side each process makes and removes other objects in the same folders, because folders that come and go are where
local backends race.
"""

from __future__ import annotations

from typing import ClassVar

from stateline.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, StatelineError
from tests.kit.invariants import require
from tests.kit.scenario import Scenario
from tests.kit.scenarios.retry import certain
from tests.kit.world import Process, World

__all__ = ["CreateRace"]


class CreateRace(Scenario):
    """See the module docstring.

    Args:
        slots: How many names are raced for.
        scratch: Whether processes also make and remove other objects beside them.
    """

    name: ClassVar[str] = "create_race"

    def __init__(self, slots: int = 3, *, scratch: bool = True) -> None:
        self.slots = slots
        self.scratch = scratch

    def start(self, world: World, incarnation: int) -> Process:
        """See :meth:`Scenario.start`."""
        process = world.process(f"racer-{incarnation}")
        process.spawn(lambda: self._race(process))
        return process

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`."""
        store = world.objects()
        present = {info.name for info in store.list("slots/")}
        for slot in range(self.slots):
            found = store.get(_name(slot))
            told = [(fact.key, fact.value) for fact in world.facts if fact.key[1] == slot]
            for key, mine in told:
                if key[0] == "won":
                    require(mine == found, "A1", f"{key} won, but {_name(slot)} holds {found!r}")
                elif key[0] == "lost":
                    require(mine != found, "A2", f"{key} was told that it had not happened, but it had")
            kept = [name for key, name in told if key[0] == "kept" and name not in present]
            require(not kept, "A2", f"deleting {kept} had not happened, one was told, but they are gone")
            proposals = [mine for key, mine in told if key[0] == "proposed"]
            require(found in proposals, "A3", f"{_name(slot)} holds {found!r}, which nobody wrote")

    def _race(self, process: Process) -> None:
        for slot in range(self.slots):
            if self.scratch:
                self._make_and_remove(process, slot)
            self._create(process, slot)

    def _create(self, process: Process, slot: int) -> None:
        store, world = process.store(), process.world
        mine = f"{slot} {process.environment.ids.new_id()}".encode()
        world.acknowledge(("proposed", slot, process.name), mine)
        try:
            certain(lambda: store.put_if_absent(_name(slot), mine))
        except OutcomeUnknownError:
            raise
        except StatelineError as error:
            world.acknowledge(("lost", slot, process.name), mine)
            if not isinstance(error, AlreadyExistsError):
                raise
        else:
            world.acknowledge(("won", slot, process.name), mine)

    def _make_and_remove(self, process: Process, slot: int) -> None:
        store = process.store()
        scratch = f"slots/{slot}/{process.environment.ids.new_id()}"
        part = store.stage(scratch, b"piece")
        certain(lambda: store.publish(scratch, [part], process.name))
        certain(lambda: store.discard([part]))
        try:
            certain(lambda: store.delete([scratch]))
        except OutcomeUnknownError:
            raise
        except StatelineError:
            process.world.acknowledge(("kept", slot, process.name), scratch)
            raise
        try:
            store.head(scratch)
        except NotFoundError:
            return
        require(False, "A2", f"{scratch} was deleted and is there")


def _name(slot: int) -> str:
    return f"slots/{slot}/winner"
