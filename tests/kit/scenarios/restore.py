"""A restore beside retention: who has chosen an old checkpoint gets all of it or an error, never anything else.

Before each batch and after the last, each driver also restores the oldest retained checkpoint, which is the next to go,
as a reader or a restore that was slow would. Other drivers go on, and their retention frees what it reads.
"""

from __future__ import annotations

from typing import ClassVar, Final

from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.errors import DataLossError, NotFoundError
from stateline.files import RollingPolicy
from tests.kit.invariants import require
from tests.kit.scenarios.beside import BesideQuery, holdings
from tests.kit.scenarios.pipeline import FIRST_QUERY, PipelineAdapter
from tests.kit.world import Process, World

__all__ = ["RestoreBesideRetention"]

_ROOT: Final = FIRST_QUERY.root


class RestoreBesideRetention(BesideQuery):
    """See the module docstring; arguments as :class:`Pipeline`."""

    name: ClassVar[str] = "restore"

    def _adapter(self, rolling: RollingPolicy) -> PipelineAdapter:
        # By records: with few batches, the rule that counts states would retire nothing while they are read.
        return PipelineAdapter(rolling=rolling, counts_states=False)

    def beside(self, process: Process) -> None:
        """Restores the oldest retained checkpoint."""
        store, world = process.store(_ROOT), process.world
        retained = CheckpointStore(store).list()
        if not retained:
            return
        chosen = retained[0]
        try:
            found = holdings(store, chosen)
        except (NotFoundError, DataLossError) as error:
            require(
                bool(world.faults.struck) or not _is_retained(world, chosen),
                "F2",
                f"checkpoint {chosen.checkpoint_id} is retained, and reading it found {error!r}",
            )
            return
        wanted = world.acknowledged(("holds", chosen.checkpoint_id))
        require(found == wanted, "E1", f"checkpoint {chosen.checkpoint_id} gave {found}, decided was {wanted}")


def _is_retained(world: World, checkpoint: Checkpoint) -> bool:
    with world.looking():
        try:
            return CheckpointStore(world.objects(_ROOT)).get(checkpoint.checkpoint_id).nonce == checkpoint.nonce
        except NotFoundError:
            return False
