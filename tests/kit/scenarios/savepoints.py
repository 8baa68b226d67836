"""Savepoints: copied while a query runs and dies, then another query starts from the copy with other subtasks.

Each driver first makes a savepoint, unless one was made, while others may go on with the query and free what is being
copied. After the query's last batch each driver runs the second query: it claims the savepoint, or copies it, goes on
from its state, and publishes the rows that were pending in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

from stateline.checkpoint import (
    CheckpointStore,
    Savepoint,
    create_savepoint,
    open_savepoint,
    start_from_savepoint,
    verify_savepoint,
)
from stateline.errors import ConflictError
from stateline.files import RollingPolicy
from stateline.pipeline.plan import SavepointStart
from tests.kit.effects import Effect
from tests.kit.invariants import require
from tests.kit.scenarios.beside import BesideQuery
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.pipeline import FIRST_QUERY, PipelineAdapter, Places
from tests.kit.world import Process, World

__all__ = ["SavepointAndStart"]

_SECOND: Final = Places("next", "next-out", "second")
_KEPT: Final[dict[str, str]] = {"claim": _SECOND.root, "copy": "kept"}
"""Where the savepoint goes: a query claims what lies below its own root."""

_FIRST_NUMBER: Final = 1000
"""Batches of the second query are told from those of the first by this."""


class SavepointAndStart(BesideQuery):
    """See the module docstring.

    Args:
        mode: How the second query starts.
        second_batches: Its batches.
        inline_bytes: So many bytes of sections come with every other result of both queries, and stay in the record: so
            savepoints have sections inline and in segments.
        more: As :class:`Pipeline`, for the first query.
    """

    name: ClassVar[str] = "savepoint"
    stores = ("root", "out", "kept", "next", "next-out")

    def __init__(
        self, mode: Literal["claim", "copy"] = "claim", second_batches: int = 1, inline_bytes: int = 0, **more: Any
    ) -> None:
        self._inline_bytes = inline_bytes
        super().__init__(**more)
        self.mode: Literal["claim", "copy"] = mode
        self.second_batches = second_batches
        self._second = PipelineAdapter(
            rolling=RollingPolicy(roll_bytes=400), places=_SECOND, inline_bytes=self._inline_bytes
        )

    def _adapter(self, rolling: RollingPolicy) -> PipelineAdapter:
        return PipelineAdapter(rolling=rolling, inline_bytes=self._inline_bytes)

    def watch(self, world: World, effect: Effect) -> None:
        """See :meth:`Scenario.watch`. F1: a savepoint that can be found is whole, until a query claims it."""
        if effect.store in (_SECOND.out, _SECOND.root, "kept"):
            name = next(iter(effect.names), "")  # What discards no piece names none.
            if effect.operation == "put_if_absent" and name.startswith("savepoint-") and name.endswith("/_metadata"):
                folder = name.partition("/")[0]
                savepoint = open_savepoint(world.objects(effect.store), folder)
                if savepoint.owner() is None:  # Else a late repetition found it, whose objects may be freed by now.
                    report = verify_savepoint(savepoint)
                    require(report.is_sound, "F1", f"{folder} is there and is not whole: {report.findings}")
            return
        super().watch(world, effect)

    def beside(self, process: Process) -> None:
        """Makes a savepoint, unless there is one."""
        world = process.world
        source = CheckpointStore(process.store(FIRST_QUERY.root))
        if world.acknowledged(("savepoint",)) is not None or source.latest() is None:
            return
        kept = process.store(_KEPT[self.mode])
        made = create_savepoint(source, kept, environment=process.environment)
        if world.acknowledged(("savepoint",)) is None:
            world.acknowledge(("savepoint",), (made.folder, made.checkpoint.checkpoint_id))

    def end(self, process: Process) -> None:
        """The end of the first stream, and the whole of the second."""
        super().end(process)
        self._start_second(process)
        system = self._second.open(process, self._start_of(process))
        system.start()
        world = process.world
        for batch in range(world.acknowledged(("second", "next")) or 0, self.second_batches):
            system.run_batch(batch, f"second-{batch}", [self._second_rows(batch)])
            world.acknowledge(("second", "next"), max(batch + 1, world.acknowledged(("second", "next")) or 0))
        system.finish()
        if self.mode == "claim":
            self._refuse_others(process)

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`. The second query holds what the savepoint held, and its own rows on top."""
        super().check(world)
        folder, checkpoint_id = world.acknowledged(("savepoint",))
        held = world.acknowledged(("holds", checkpoint_id))
        own = [row for batch in range(self.second_batches) for row in self._second_rows(batch)]
        counts = Counter({key: count for key, (count, _) in held.state.items()})
        counts.update(row.key for row in own)
        state = dict(self._second.state(world))
        require(state == dict(counts), "E1", f"the second query's state is {state}, the model {dict(counts)}")
        visible = Counter(row for name in self._second.finals(world) for row, _ in self._second.rows(world, name))
        wanted = Counter(own) + Counter(row for row, _ in held.pending.elements())
        require(visible == wanted, "C1", f"the second query shows {dict(visible)}, the model {dict(wanted)}")
        kept = open_savepoint(world.objects(_KEPT[self.mode]), folder)
        owner = kept.owner()
        require(owner == (_SECOND.query if self.mode == "claim" else None), "G1", f"the savepoint belongs to {owner}")
        if self.mode == "copy":
            report = verify_savepoint(kept)
            require(report.is_sound, "F2", f"a copied savepoint is not whole any more: {report.findings}")

    def _second_rows(self, batch: int) -> Sequence[Row]:
        return [Row(_FIRST_NUMBER + batch, number, f"k{number % self.keys}") for number in range(self.rows)]

    def _start_of(self, process: Process) -> SavepointStart | None:
        """How the coordinator itself starts: what it claims lies in its own root."""
        if self.mode == "copy":
            return None
        folder, _ = process.world.acknowledged(("savepoint",))
        return SavepointStart(url=f"{process.store(_SECOND.root).url}/{folder}", mode="claim")

    def _start_second(self, process: Process) -> None:
        """A copy comes from a store of its own, which the coordinator would open by its URL, past the simulation."""
        root = CheckpointStore(process.store(_SECOND.root))
        if self.mode == "copy" and root.latest() is None:
            root.publish(self._first(process, root, _SECOND.query))

    def _refuse_others(self, process: Process) -> None:
        empty = CheckpointStore(process.store("kept"))
        try:
            self._first(process, empty, "third")
        except ConflictError:
            return
        require(False, "G1", "a savepoint that one query owns was given to another")

    def _first(self, process: Process, root: CheckpointStore, query_id: str) -> Any:
        """The checkpoint before the first batch of a query."""
        folder, _ = process.world.acknowledged(("savepoint",))
        savepoint: Savepoint = open_savepoint(process.store(_KEPT[self.mode]), folder)
        return start_from_savepoint(
            savepoint,
            root,
            query_id=query_id,
            mode="copy",
            outputs={output.url: process.store(_SECOND.out).url for output in savepoint.checkpoint.outputs},
            environment=process.environment,
        )
