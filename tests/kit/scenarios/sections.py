"""The pipeline with everything at once that a checkpoint may be made of: sections, merges half way, copies on hosts.

- An operator has two tables and rows that wait, so a segment has several sections, which become garbage one by one.
- Two of three results carry their sections inline. The record keeps few of them, or none, or all, one incarnation after
  the other: so the driver packs some, and what one record carried the next one packs.
- What does not travel inline is more than a segment takes, so a subtask makes several.
- Merges have hardly any budget, so stacks are merged in some slices of their key groups and not in others.
- Tasks run on hosts that are picked anew in each batch. A host has copies of what was read and written there: none
  where it is new, those of earlier batches where it is not, and some of them damaged.
- Runs have record batches of a few rows, and are never fetched whole where a slice will do: so after a restart with
  other subtasks, hosts keep slices of runs.
- Each record is read, as a whole and past every copy, the moment it is decided: its table of arrivals, which is only
  appended to, must have as many rows of a key as its table of counts says. Now and then the changes since the record
  before must lead to its state, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint.layout import id_of_record
from stateline.files import RollingPolicy
from stateline.pipeline.messages import SubtaskInput
from stateline.pipeline.plan import SavepointStart
from stateline.pipeline.subtask import TaskResources
from stateline.state import run_store as run_store_module
from stateline.state.merge import MergeSettings
from stateline.state.run_store import RunReaderSettings
from stateline.testing.crashable import scratch_folder
from tests.kit.effects import Effect
from tests.kit.invariants import require
from tests.kit.planted.planting import replaced
from tests.kit.scenarios.pipeline import (
    ARRIVALS,
    FIRST_QUERY,
    Pipeline,
    PipelineAdapter,
    PipelineSystem,
    incarnation_of,
    rows_of,
)
from tests.kit.sizes import smaller
from tests.kit.state_invariants import check_appended, check_feeds
from tests.kit.world import Process, World

__all__ = ["SectionedPipeline"]

_TABLES: Final = ("counts", ARRIVALS)
_INLINE_BYTES: Final = 1 << 20
_RECORD_BYTES: Final = {2: 6000, 1: 0, 3: _INLINE_BYTES}
"""What a record may carry, by the number of subtasks, which each incarnation has of its own: some sections of a few
rows, none, all."""

_SEGMENT_BYTES: Final = 2500
_BATCH_ROWS: Final = 2
_READING: Final = RunReaderSettings(whole_bytes=0)
_MERGING: Final = MergeSettings(runs_max=3, tier_runs=2, small_rows=0, rows_per_change=1.01, piece_bytes=2048)
_HOSTS: Final = ("host-0", "host-0", "host-0", "host-0", "host-1", "")
"""One of these runs a task; the last one is a host that was never there before."""

_COPIES_BYTES: Final = 1 << 20
_FLIP_BYTES: Final = 1500
"""One bit of each so many bytes is another one: about one in each section."""

_SHORTEST_COPY: Final = 256
"""Shorter files keep the books of the folder."""


class SectionedPipeline(Pipeline):
    """See the module docstring; arguments as :class:`Pipeline`."""

    name: ClassVar[str] = "sections"
    speculation = 0.2

    def __init__(self, **more: Any) -> None:
        super().__init__(spanning=True, **{"batches": 6, "roll_bytes": 4000, "rows": 6, "keys": 9, **more})

    def prepare(self, world: World) -> None:
        """See :meth:`Scenario.prepare`. No rows are merged beyond the budget, and none fetched beyond a slice."""
        world.during(smaller(slice_rows=4, merge_free_rows=0, merge_window_rows=8, run_batch_rows=_BATCH_ROWS))
        world.during(replaced(run_store_module, "RunReaderSettings", lambda: _READING))
        world.acknowledge(("hosts",), world.during(scratch_folder()))

    def watch(self, world: World, effect: Effect) -> None:
        """See :meth:`Scenario.watch`. F1: a record that can be read can be read whole."""
        super().watch(world, effect)
        checkpoint_id = id_of_record(effect.names[0]) if effect.operation == "put_if_absent" else None
        if effect.store != FIRST_QUERY.root or checkpoint_id is None:
            return
        root = world.objects(FIRST_QUERY.root)
        record = CheckpointStore(root).get(checkpoint_id)
        counts, arrivals = (list(rows_of(root, operator)) for operator in record.operators)
        found, wanted = Counter(row["key"] for row in arrivals), {row["key"]: row["count"] for row in counts}
        require(set(found) == set(wanted), "E1", f"checkpoint {checkpoint_id} has {wanted} and rows of {found}")
        check_appended(found.elements(), Counter(wanted).elements(), f"checkpoint {checkpoint_id}")
        if checkpoint_id % 3 == 0:
            check_feeds(root, CheckpointStore(root).list()[-2:])
        carried = sum(map(len, {section.data for section in record.sections()}))
        bound = _RECORD_BYTES[record.parallelism]
        require(carried <= bound, "H3", f"checkpoint {checkpoint_id} carries {carried} bytes, allowed are {bound}")
        self.note(world, record)

    def note(self, world: World, record: Checkpoint) -> None:
        """Told each record that was decided."""

    def _adapter(self, rolling: RollingPolicy) -> PipelineAdapter:
        return _Adapter(rolling=rolling)


class _Adapter(PipelineAdapter):
    def open(self, process: Process, start: SavepointStart | None = None) -> PipelineSystem:
        """See :meth:`PipelineAdapter.open`."""
        parallelism = tuple(_RECORD_BYTES)[incarnation_of(process) % len(_RECORD_BYTES)]
        return _System(
            process,
            parallelism=parallelism,
            retained=self._retained,
            rolling=self._rolling,
            merging=_MERGING,
            start=start,
            tables=_TABLES,
            record_bytes=_RECORD_BYTES[parallelism],
        )


class _System(PipelineSystem):
    def context(self, process: Process, task: SubtaskInput) -> TaskResources:
        """Two of three results carry their sections; each subtask runs where the dice say."""
        host = _moved_to(process)
        cache = HostCache(host, _COPIES_BYTES, environment=process.environment)
        context = replace(super().context(process, task), cache=cache)
        if (self._plan.parallelism + task.context.checkpoint_id + task.subtask) % 3:
            return replace(context, inline_bytes=_INLINE_BYTES)
        return _SmallSegments(**{field.name: getattr(context, field.name) for field in fields(context)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _SmallSegments(TaskResources):
    """A context whose segments are soon full."""

    @property
    def segments(self) -> Segments:
        """See :attr:`TaskResources.segments`."""
        return Segments(self.root, self.environment, self.cache, segment_bytes=_SEGMENT_BYTES)


def _moved_to(process: Process) -> Path:
    """The folder of the host on which a process runs: a new one, or one with copies, some of which are damaged."""
    world = process.world
    dice = world.dice("host", process.name)
    host = Path(world.acknowledged(("hosts",))) / (dice.pick(_HOSTS) or process.name)
    copies = sorted(path for path in host.rglob("*") if path.is_file() and path.stat().st_size >= _SHORTEST_COPY)
    for path in copies:
        if dice.chance(0.5):
            _damage(path, dice.below(4), dice.below(_FLIP_BYTES))
    return host


def _damage(path: Path, how: int, offset: int) -> None:
    """A file with other bytes in its place: what somebody has mapped stays as it was."""
    data = bytearray(path.read_bytes())
    for place in range(min(offset, len(data) - 1), len(data), _FLIP_BYTES):
        data[place] ^= 0x40
    other = path.with_suffix(".damaged")
    other.write_bytes((bytes(data), bytes(data), bytes(data[: len(data) // 2]), bytes(data) + b"\0" * 64)[how])
    other.replace(path)
