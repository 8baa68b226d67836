"""What the path of ``format("stateline")`` names: a root, one checkpoint of it, or a savepoint."""

from __future__ import annotations

from stateline.blob import BlobStore
from stateline.checkpoint import Checkpoint, CheckpointStore, Located, locate
from stateline.errors import InvalidInputError, NotFoundError
from stateline.spark.sources.state_options import StateSourceOptions
from stateline.state.stored import StoredState

__all__ = ["StateRoot"]


class StateRoot:
    """What ``path`` names."""

    def __init__(self, options: StateSourceOptions) -> None:
        self._options = options
        self._found: Located = locate(options.path, options=options.root_options)
        self.store: BlobStore = self._found.store
        self._checkpoints = CheckpointStore(self.store)

    def newest_of_interest(self) -> StoredState:
        """The state that a snapshot reads, or that a feed ends with."""
        end = self._options.end_checkpoint if self._options.is_feed else self._options.checkpoint
        named = self._found.checkpoint_id
        if self._found.savepoint is not None:
            if end is not None or self._options.is_feed:
                raise self._no_root()
            return self.stored(self._found.savepoint.checkpoint)
        if end is not None and named not in (None, end):
            raise InvalidInputError(
                f"names checkpoint {named}, but the option names {end}",
                operation="load",
                subject=self._options.path,
                hint="Give the root as the path, or leave the option out",
            )
        wanted = named if end is None else end
        record = self.newest() if wanted is None else self.get(wanted)
        if record is None:
            raise NotFoundError(
                "there is no checkpoint yet",
                operation="load",
                subject=self._options.path,
                hint="Start the query that writes it first, or give the reader a schema",
            )
        return self.stored(record)

    def newest(self) -> Checkpoint | None:
        """The newest record, or the one that the path names."""
        if self._found.savepoint is not None:
            raise self._no_root()
        named = self._found.checkpoint_id
        return self._checkpoints.latest() if named is None else self.get(named)

    def get(self, checkpoint_id: int) -> Checkpoint:
        """A record that must be there.

        Raises:
            NotFoundError: It was retired, or never created; says what is there.
        """
        try:
            return self._checkpoints.get(checkpoint_id)
        except NotFoundError as error:
            newest = self._checkpoints.latest()
            if newest is not None and checkpoint_id <= newest.checkpoint_id:
                hint = (
                    "Raise retained_checkpoints of the query that writes it, so that readers keep up. A stream cannot "
                )
                hint += "skip what is gone: start it anew, with a new Spark checkpoint"
            elif newest is not None:
                hint = f"The newest is {newest.checkpoint_id}; `stateline checkpoint ls` names those that are there"
            else:
                hint = "The root has no checkpoint yet: start the query that writes it first"
            raise NotFoundError(
                error.message, operation="read", subject=f"{self.store.url}, checkpoint {checkpoint_id}", hint=hint
            ) from error

    def stored(self, record: Checkpoint) -> StoredState:
        """The state of the operator that the user named."""
        return StoredState.of(self.store, record, self._options.operator)

    def _no_root(self) -> InvalidInputError:
        return InvalidInputError(
            "a savepoint is one state and has no history",
            operation="load",
            subject=self._options.path,
            hint="Give a checkpoint root, or read the savepoint as a snapshot",
        )
