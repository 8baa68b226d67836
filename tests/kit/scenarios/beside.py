"""What a record holds, noted when it is decided: the ground of scenarios in which others work beside a query."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, NamedTuple

from stateline.blob.api import BlobStore
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint.layout import METADATA, RECORD_PREFIX
from stateline.files.pending import load_rows
from stateline.key_groups import KeyGroupRange
from stateline.state.open_runs import OpenRuns
from stateline.state.rescale import state_of_range
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.stored import find_operator
from stateline.state.table import StateTable
from tests.kit.effects import Effect
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.pipeline import FIRST_QUERY, Pipeline
from tests.kit.world import World

__all__ = ["BesideQuery", "Holdings", "holdings"]


class Holdings(NamedTuple):
    """All that one record stands for.

    Attributes:
        batch: Its micro-batch.
        state: Count and attempt of each key.
        pending: Rows of files that are still open, each with the attempt that wrote it.
    """

    batch: int
    state: dict[str, tuple[int, str]]
    pending: Counter[tuple[Row, str]]


class BesideQuery(Pipeline):
    """The pipeline with files that span checkpoints; what each record holds is noted the moment it is decided."""

    name: ClassVar[str] = "beside_query"

    def __init__(self, **more: Any) -> None:
        super().__init__(spanning=True, **more)

    def watch(self, world: World, effect: Effect) -> None:
        """See :meth:`Scenario.watch`. F1: a record that can be read can be read whole."""
        super().watch(world, effect)
        name = effect.names[0]
        if (
            effect.store != FIRST_QUERY.root
            or effect.operation != "put_if_absent"
            or not name.startswith(RECORD_PREFIX)
        ):
            return
        if not name.endswith(METADATA):
            return
        store = world.objects(FIRST_QUERY.root)
        record = CheckpointStore(store).get(int(name.removeprefix(RECORD_PREFIX).partition("/")[0]))
        world.acknowledge(("holds", record.checkpoint_id), holdings(store, record))


def holdings(store: BlobStore, checkpoint: Checkpoint) -> Holdings:
    """Reads all that a record names, through ``store``, past every cache.

    Raises:
        StatelineError: What the readers raise.
    """
    operator = find_operator(checkpoint, "counts")
    whole = state_of_range(operator, KeyGroupRange(0, checkpoint.max_parallelism - 1), checkpoint.max_parallelism)
    schema = StateSchema.decode(operator.schema)
    reader = RunReader(store, schema, open_runs=OpenRuns())
    runs = [reader.open(run) for run in whole.runs]
    table = StateTable(schema, whole.key_groups, checkpoint.max_parallelism, runs)
    state = {row["key"]: (row["count"], row["attempt"]) for batch in table.scan() for row in batch.to_pylist()}
    pending = Counter(
        (Row(row["batch"], row["number"], row["key"]), row["attempt"])
        for output in checkpoint.outputs
        for file in output.open
        for rows in load_rows(store, file.pending)
        for row in rows.to_pylist()
    )
    return Holdings(checkpoint.batch_id, state, pending)
