"""Where rows lie within runs: the indexes at the end of runs, each read once, as they never change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stateline.blob import BlobStore
from stateline.checkpoint import Checkpoint
from stateline.environment import Environment, side_by_side, system_environment
from stateline.errors import StatelineError
from stateline.handles import RunHandle, SectionIdentity
from stateline.state.run_index import RunIndex
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema

__all__ = ["RunIndexes"]

_READS_MAX: Final = 256
"""Runs whose index is read for one look; further ones are read by later looks."""

_READS_AT_ONCE: Final = 16


class RunIndexes:
    """The indexes of the runs of one root. Not thread-safe.

    Args:
        store: The root.
        environment: Threads.
    """

    def __init__(self, store: BlobStore, environment: Environment | None = None) -> None:
        self._store = store
        self._environment = environment or system_environment()
        self._indexes: dict[SectionIdentity, RunIndex | None] = {}

    def of(self, record: Checkpoint) -> Mapping[SectionIdentity, RunIndex]:
        """The indexes of the runs of a record, as far as they are known: one request for each run that is new.

        A run whose index cannot be read has none; whatever else reads it will say why.
        """
        there: dict[SectionIdentity, tuple[RunHandle, str]] = {}
        for operator in record.operators:
            for subtask in operator.subtasks:
                there |= {run.identity: (run, operator.schema) for run in subtask.runs}
        self._indexes = {name: index for name, index in self._indexes.items() if name in there}
        missing = [found for name, found in there.items() if name not in self._indexes]
        missing.sort(key=lambda found: found[0].rows, reverse=True)
        read = side_by_side(self._environment, "indexes", self._read, missing[:_READS_MAX], _READS_AT_ONCE)
        for (run, _), index in zip(missing, read, strict=False):
            self._indexes[run.identity] = index
        return {name: index for name, index in self._indexes.items() if index is not None}

    def _read(self, found: tuple[RunHandle, str]) -> RunIndex | None:
        run, schema = found
        try:
            return RunReader(self._store, StateSchema.decode(schema), environment=self._environment).index(run)
        except StatelineError:
            return None
