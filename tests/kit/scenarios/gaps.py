"""The pipeline with state whose slices change apart from each other, with tiny sizes.

- The first batch has rows of every key group. Each later one has rows of few, with others between them: so merges take
  slices that are no neighbours, and what lies between stays where it is.
- A table of arrivals is only appended to: a merge that copies a row keeps it twice.
- A table of parities has one bit for each key, and no mark of its attempt. The bit returns with every second row, so
  runs of different checkpoints have equal bytes. Half of the results carry their runs inline.
- After the last batch each row is there once (E6), and the changes between any two retained checkpoints lead from one
  state to the other (E7).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from stateline.checkpoint.api import Checkpoint
from stateline.files import RollingPolicy
from stateline.pipeline.plan import SavepointStart
from stateline.sizes import resized
from stateline.state.merge import MergeSettings
from tests.kit.invariants import require
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.pipeline import (
    ARRIVALS,
    FIRST_QUERY,
    PARITIES,
    Pipeline,
    PipelineAdapter,
    PipelineSystem,
    group_of,
    incarnation_of,
    rows_of,
)
from tests.kit.sizes import TINY
from tests.kit.state_invariants import check_appended
from tests.kit.world import Process, World

__all__ = ["GappedPipeline"]

_TABLES: Final = ("counts", ARRIVALS, PARITIES)
_GROUPS_IN_ALL: Final = 8
_GROUPS: Final = (0, 3, 4, 7)
"""The key groups that change in each batch: the first and the last of each subtask, with one to three of them."""

_INLINE_BYTES: Final = 1 << 20
_PARALLELISMS: Final = (1, 2, 3)
_MERGING: Final = MergeSettings(tier_runs=5, space_factor=10, small_rows=0, rows_per_change=8, piece_bytes=1 << 20)
"""Three batches of one row each gather, with equal bytes in the first and the third, before the fourth merges them."""


class GappedPipeline(Pipeline):
    """See the module docstring; arguments as :class:`Pipeline`."""

    name: ClassVar[str] = "gaps"

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"batches": 5, **more})

    def prepare(self, world: World) -> None:
        """See :meth:`Scenario.prepare`."""
        world.during(resized(replace(TINY, segment_bytes=_INLINE_BYTES)))  # What fills a segment is not inline.

    def check_state(self, world: World, counts: Counter[str]) -> None:
        """See :meth:`MicroBatch.check_state`. Each row is there once, and parities are those of the counts."""
        super().check_state(world, counts)
        newest = self._pipeline.newest(world)
        if newest is not None:
            arrivals, parities = (list(_rows(world, newest, table)) for table in _TABLES[1:])
            check_appended((row["key"] for row in arrivals), counts.elements(), "the table of arrivals")
            found = {row["key"]: row["odd"] for row in parities}
            wanted = {key: count % 2 for key, count in counts.items()}
            require(found == wanted, "E1", f"the parities are {found}, the model has {wanted}")

    def _rows(self, batch: int) -> list[Row]:
        if batch == 0:
            return [Row(0, number, key) for number, key in enumerate(_keys())]
        return [Row(batch, number, _keys()[2 * group]) for number, group in enumerate(_GROUPS)]

    def _adapter(self, rolling: RollingPolicy) -> PipelineAdapter:
        return _Adapter(retained=4, rolling=rolling)


class _Adapter(PipelineAdapter):
    def open(self, process: Process, start: SavepointStart | None = None) -> PipelineSystem:
        """See :meth:`PipelineAdapter.open`."""
        return PipelineSystem(
            process,
            parallelism=_PARALLELISMS[incarnation_of(process) % len(_PARALLELISMS)],
            retained=self._retained,
            rolling=self._rolling,
            merging=_MERGING,
            start=start,
            tables=_TABLES,
            inline_bytes=_INLINE_BYTES,
            record_bytes=_INLINE_BYTES,
        )


def _rows(world: World, record: Checkpoint, table: str) -> Iterable[Mapping[str, Any]]:
    return rows_of(world.objects(FIRST_QUERY.root), record.operators[_TABLES.index(table)])


@functools.cache
def _keys() -> tuple[str, ...]:
    """Two keys of each key group, by number of the group."""
    names = [f"k{number}" for number in range(200)]
    return tuple(
        key for group in range(_GROUPS_IN_ALL) for key in [each for each in names if group_of(each) == group][:2]
    )
