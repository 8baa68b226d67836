"""Tables behind the real coordinator: two drivers, others that write, and each row is there once.

Owns the wiring of a model of each table's compare-and-set (``table_models``) into the pipeline scenario. The consumer
is another writer: it appends a row of its own, rewrites the whole table, and deletes the files that are not in it any
more. The oracle is that of the micro-batch: what the table holds counts as visible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from stateline.blob import BlobStore
from stateline.environment import Environment
from stateline.errors import InternalError
from stateline.files import RollingPolicy
from stateline.pipeline import table_commits
from stateline.pipeline.plan import SavepointStart
from stateline.tables import Table, TableTarget
from tests.kit.effects import Effect
from tests.kit.invariants import require
from tests.kit.planted.planting import replaced
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.pipeline import FIRST_QUERY, ROWS, Pipeline, PipelineAdapter, PipelineSystem
from tests.kit.table_models import DatabaseModel, DeltaModel, IcebergModel, TableModel, Versions
from tests.kit.world import Process, World

__all__ = ["TABLE_KINDS", "TablePipeline", "table_in", "table_of", "table_seen"]

_STORE: Final = "table"
_TABLE: Final = "table"
_ROLL_BYTES: Final = 200
"""Some files are finished by batches, and some by the end of the stream."""
_FOREIGN: Final = -1
"""The batch of rows that somebody else wrote."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A table, and how its rows go in.

    Attributes:
        target: As a user names it.
        spanning: Whether its files span checkpoints.
        token_first: Of a database: whether the token moves before the rows.
    """

    target: TableTarget
    spanning: bool = False
    token_first: bool = True


_DATABASE: Final = {"uri": "simulated.db"}
TABLE_KINDS: Final = {
    "delta": _Kind(TableTarget(format="delta", target="memory://out"), spanning=True),
    "iceberg": _Kind(TableTarget(format="iceberg", target="air.flights")),
    "database": _Kind(TableTarget(format="sqlite", target="flights", options=_DATABASE), token_first=False),
    "database_upsert": _Kind(
        TableTarget(format="sqlite", target="flights", mode="upsert", key=("key",), options=_DATABASE)
    ),
}
"""By name: what each table decides by."""


class TablePipeline(Pipeline):
    """See the module docstring.

    Args:
        kind: One of :data:`TABLE_KINDS`.
        more: As :class:`Pipeline`.
    """

    name: ClassVar[str] = "tables"
    stores: tuple[str, ...] = (*FIRST_QUERY[:2], _STORE)

    def __init__(self, kind: str, **more: Any) -> None:
        self.kind = TABLE_KINDS[kind]
        super().__init__(spanning=self.kind.spanning, **{"roll_bytes": _ROLL_BYTES, **more})

    def prepare(self, world: World) -> None:
        """See :meth:`Scenario.prepare`. Whoever opens a table gets the model, in the process that asks."""

        def opened(
            target: TableTarget,
            *,
            schema: pa.Schema | None,
            store: BlobStore | None = None,
            environment: Environment | None = None,
        ) -> Table:
            process = world.current_process()
            if process is None:
                raise InternalError("a table is opened, and no process runs")
            return table_in(self.kind, process, schema)

        world.during(replaced(table_commits, "_open_table", opened))

    def consume(self, world: World) -> Process | None:
        """See :meth:`Scenario.consume`: another writer."""
        process = world.process("other-writer", faulty=False)
        process.spawn(lambda: self._write_beside(process))
        return process

    def watch(self, world: World, effect: Effect) -> None:
        """See :meth:`Scenario.watch`. C2: nothing is in the table that is not decided."""
        super().watch(world, effect)
        if effect.store == _STORE and effect.operation == "put_if_absent":
            decided = self.adapter.decided(world)
            early = sorted({row.batch for row, _ in self._pipeline.rows(world, _TABLE) if row.batch > decided})
            require(not early, "C2", f"the table has rows of batches {early}, decided is {decided}")

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`. An upsert keeps the newest row of each key; others keep all their own rows."""
        foreign = Counter(row.number for row, _ in self.rows_of_others(world))
        wanted = Counter(fact.key[1] for fact in world.facts if fact.key[0] == "foreign")
        require(foreign == wanted, "C1", f"of other writers there are the rows {foreign}, they wrote {wanted}")
        super().check(world)

    def visible(self, world: World) -> Iterator[tuple[Row, str]]:
        """See :meth:`MicroBatch.visible`. What an upsert has replaced was visible, and was taken back."""
        found = [(row, by) for row, by in self._pipeline.rows(world, _TABLE) if row.batch != _FOREIGN]
        if self.kind.target.mode == "upsert":
            newest = {row.key: row for batch in range(self.batches) for row in self._rows(batch)}
            stale = sorted(row for row, _ in found if newest.get(row.key) != row)
            require(not stale, "C1", f"rows of keys are not the newest ones: {stale}")
            # The rows before the newest ones: nobody can see whether they were there.
            kept = set(newest.values())
            attempts = {row.batch: by for row, by in found}
            found += [
                (row, attempts.get(row.batch, ""))
                for batch in range(self.batches)
                for row in self._rows(batch)
                if row not in kept
            ]
        return iter(found)

    def rows_of_others(self, world: World) -> Iterator[tuple[Row, str]]:
        """The rows that others wrote."""
        return (each for each in self._pipeline.rows(world, _TABLE) if each[0].batch == _FOREIGN)

    def _adapter(self, rolling: RollingPolicy) -> PipelineAdapter:
        return _Adapter(self.kind, rolling=rolling)

    def _write_beside(self, process: Process) -> None:
        world = process.world
        table = table_in(self.kind, process)
        if not self._exists(world):
            return
        number = len([fact for fact in world.facts if fact.key[0] == "foreign"])
        world.acknowledge(("foreign", number))
        table.append_foreign((_FOREIGN, number, f"foreign-{number}", "foreign"))
        gone = set(table.compact())
        if old := sorted(gone & {info.name for info in world.objects(FIRST_QUERY.out).list("part-")}):
            process.store(FIRST_QUERY.out).delete(old)

    def _exists(self, world: World) -> bool:
        return table_seen(self.kind, world).look("").identity is not None


class _Adapter(PipelineAdapter):
    def __init__(self, kind: _Kind, **more: Any) -> None:
        super().__init__(inline_bytes=1 << 20, **more)
        self._kind = kind

    def open(self, process: Process, start: SavepointStart | None = None) -> PipelineSystem:
        """See :meth:`PipelineAdapter.open`."""
        system = super().open(process, start)
        system.into(self._kind.target)
        return system

    def finals(self, world: World) -> Iterable[str]:
        """The table, as one."""
        return (_TABLE,)

    def rows(self, world: World, name: str) -> Sequence[tuple[Row, str]]:
        """See :meth:`PipelineAdapter.rows`."""
        if name != _TABLE:
            return super().rows(world, name)
        table = table_seen(self._kind, world)
        return [(Row(batch, number, key), attempt) for batch, number, key, attempt in table.rows()]

    def movable(self, world: World) -> Iterable[int]:
        """None: only another writer of the table takes files away."""
        return ()


def table_of(
    kind: _Kind,
    versions: BlobStore,
    files: BlobStore,
    truth: BlobStore,
    environment: Environment | None,
    schema: pa.Schema | None = ROWS,
) -> TableModel:
    """The table of a kind, as one process opens it; without an environment for who only looks."""
    world = environment or Environment()
    made = Versions(versions, world.ids)
    if kind.target.format == "sqlite":
        return DatabaseModel(kind.target, schema, made, token_first=kind.token_first)
    model = DeltaModel if kind.target.format == "delta" else IcebergModel
    return model(kind.target, made, files, truth, world)


def table_in(kind: _Kind, process: Process, schema: pa.Schema | None = ROWS) -> TableModel:
    """The table of a kind in a process."""
    files = process.store(FIRST_QUERY.out)
    truth = process.world.objects(FIRST_QUERY.out)
    return table_of(kind, process.store(_STORE), files, truth, process.environment, schema)


def table_seen(kind: _Kind, world: World) -> TableModel:
    """The table of a kind as an oracle sees it."""
    files = world.objects(FIRST_QUERY.out)
    return table_of(kind, world.objects(_STORE), files, files, None)
