"""Rows that are handed to a function: a sink that keeps its keys has each row once, whoever hands over, however often.

It stores the rows of a delivery under its key, in one step that only the first caller wins, as a transaction with a
unique key does. The oracle is that of the micro-batch: whatever the sink holds counts as visible.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from stateline.checkpoint import CheckpointStore
from stateline.errors import AlreadyExistsError, NotFoundError
from stateline.files import RollingPolicy
from stateline.files.pending import load_rows
from stateline.pipeline.delivery import Delivery
from stateline.pipeline.plan import SavepointStart
from tests.kit.effects import Effect
from tests.kit.invariants import require
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.pipeline import FIRST_QUERY, Pipeline, PipelineAdapter, PipelineSystem
from tests.kit.world import Process, World

__all__ = ["DeliveringPipeline"]

_PREFIX = "part-"
_INLINE_BYTES = 1 << 20


class DeliveringPipeline(Pipeline):
    """See the module docstring; arguments as :class:`Pipeline`."""

    name: ClassVar[str] = "delivery"

    def consume(self, world: World) -> Process | None:
        """Nobody takes anything away: a sink that forgot a key would take its rows again."""
        return None

    def watch(self, world: World, effect: Effect) -> None:
        """See :meth:`Scenario.watch`. C2: nothing is handed over that is not decided."""
        name = effect.names[0]
        if effect.store == FIRST_QUERY.out and effect.operation == "put_if_absent":
            checkpoint_id = int(name.rpartition("-")[2])
            newest = CheckpointStore(world.objects(FIRST_QUERY.root)).latest()
            decided = -1 if newest is None else newest.checkpoint_id
            require(checkpoint_id <= decided, "C2", f"{name} was handed over, decided is {decided}")

    def _adapter(self, rolling: RollingPolicy) -> PipelineAdapter:
        return _Adapter(rolling=rolling, inline_bytes=_INLINE_BYTES)


class _Adapter(PipelineAdapter):
    def open(self, process: Process, start: SavepointStart | None = None) -> PipelineSystem:
        """See :meth:`PipelineAdapter.open`."""
        system = super().open(process, start)
        system.deliver(lambda delivery: hand_over(process, delivery))
        return system

    def rows(self, world: World, name: str) -> Sequence[tuple[Row, str]]:
        """See :meth:`PipelineAdapter.rows`."""
        try:
            found = json.loads(world.objects(self.places.out).get(name))
        except NotFoundError:
            return ()
        return [(Row(row["batch"], row["number"], row["key"]), row["attempt"]) for row in found]

    def movable(self, world: World) -> Iterable[int]:
        """None."""
        return ()


def hand_over(process: Process, delivery: Delivery) -> None:
    """What the user's function does: one step, which the first caller under a key wins."""
    root, sink = process.store(FIRST_QUERY.root), process.store(FIRST_QUERY.out)
    rows: list[Any] = [row for table in load_rows(root, delivery.rows) for row in table.to_pylist()]
    name = _PREFIX + str(delivery.key).replace("/", "-")
    data = json.dumps(rows).encode()
    try:
        sink.put_if_absent(name, data)
    except AlreadyExistsError:
        held = sink.get(name)
        require(held == data, "C3", f"{name} was handed over with other rows: {held!r} and {data!r}")
