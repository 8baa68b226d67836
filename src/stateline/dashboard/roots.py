"""A root as its records tell it: the retained checkpoints, the history of many more, and what could not be read.

Facts:
- Nothing that is damaged or missing is an error here but a note beside what could be read. Only a root that cannot be
  reached at all is told as one.
- Objects of the history never change, so each is read once. A look at a root where nothing has happened costs a few
  reads by exact name, and no LIST.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import Checkpoint, CheckpointStore, CheckpointStoreSettings
from stateline.checkpoint.history import CheckpointSummary, read_block, summaries_in
from stateline.checkpoint.layout import HISTORY_PREFIX, block_of_history, id_of_fenced
from stateline.environment import Environment, side_by_side, system_environment
from stateline.errors import CorruptDataError, DataLossError, NotFoundError, StatelineError

__all__ = ["RootFollower", "RootView"]

_READS_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RootView:
    """What was read of a root.

    Attributes:
        url: The root, without credentials.
        looked_at: When, seconds since the epoch.
        records: The retained checkpoints that can be read, oldest first.
        summaries: The history, oldest first; it may have gaps.
        fenced: Checkpoints that a driver lost to another one, ascending, each as often as it happened.
        notes: What could not be read, and why.
        failure: Why nothing could be read; empty otherwise.
        is_published: Whether the files and rows of the newest checkpoint are known to be visible.
    """

    url: str
    looked_at: float
    records: tuple[Checkpoint, ...] = ()
    summaries: tuple[CheckpointSummary, ...] = ()
    fenced: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    failure: str = ""
    is_published: bool = True

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that can be read; ``None`` without one."""
        return self.records[-1] if self.records else None

    @property
    def version(self) -> str:
        """Another one whenever there is something else to show."""
        newest = self.newest
        name = "" if newest is None else f"{newest.checkpoint_id}-{newest.nonce}"
        return f"{name}|{self.failure}|{len(self.notes)}|{len(self.fenced)}|{self.is_published}"


class RootFollower:
    """Reads one root again and again. Not thread-safe.

    Args:
        root: The root, or its URL.
        options: Settings of its store, where a URL is given.
        environment: Clock and threads.
    """

    def __init__(
        self,
        root: str | BlobStore,
        options: Mapping[str, str] | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._environment = environment or system_environment()
        self.store = open_store(root, options, self._environment) if isinstance(root, str) else root
        self._opened = isinstance(root, str)
        self._records = CheckpointStore(self.store, environment=self._environment)
        tolerant = CheckpointStoreSettings(allow_older=True)
        self._tolerant = CheckpointStore(self.store, settings=tolerant, environment=self._environment)
        self._blocks: dict[int, tuple[CheckpointSummary, ...]] = {}
        self._view: RootView | None = None

    def look(self) -> RootView:
        """What the root holds now."""
        now, before = self._environment.clock.now(), self._view
        try:
            if before is None or before.newest is None or before.notes or self._has_changed(before.newest):
                view = self._read(now)
            else:
                view = replace(before, looked_at=now)
            if view.newest is not None:
                view = replace(view, is_published=self._records.is_published(view.newest))
        except (StatelineError, OSError) as error:
            view = RootView(url=self.store.url, looked_at=now, failure=str(error))
        self._view = view
        return view

    def close(self) -> None:
        """Closes the store, if this opened it. Idempotent."""
        if self._opened:
            self.store.close()

    def _has_changed(self, newest: Checkpoint) -> bool:
        try:
            return self._records.latest(newest.checkpoint_id) != newest
        except (CorruptDataError, DataLossError):
            return True  # What can be read of the rest is read, with a note.

    def _read(self, now: float) -> RootView:
        notes: list[str] = []
        records: list[Checkpoint] = []
        try:
            records = self._records.list()
        except (CorruptDataError, DataLossError) as error:
            notes.append(str(error))
            try:
                records = self._tolerant.list()
            except (CorruptDataError, DataLossError) as further:
                notes += [str(further)] if str(further) != str(error) else []
        listed = [info.name for info in self.store.list(HISTORY_PREFIX)]
        blocks = (block for name in listed if (block := block_of_history(name)) is not None)
        summaries = self._history(blocks, records, notes)
        fenced = sorted(lost for name in listed if (lost := id_of_fenced(name)) is not None)
        return RootView(
            url=self.store.url,
            looked_at=now,
            records=tuple(records),
            summaries=summaries,
            fenced=tuple(fenced),
            notes=tuple(notes),
        )

    def _history(
        self, blocks: Iterable[int], records: list[Checkpoint], notes: list[str]
    ) -> tuple[CheckpointSummary, ...]:
        """All summaries. Of several for one checkpoint the one in the youngest place is complete."""
        there = set(blocks)
        self._blocks = {block: found for block, found in self._blocks.items() if block in there}
        wanted = sorted(there - self._blocks.keys())

        def read(block: int) -> tuple[int, tuple[CheckpointSummary, ...], str]:
            try:
                return block, read_block(self.store, block), ""
            except NotFoundError:
                return block, (), ""  # It fell out of the history meanwhile.
            except StatelineError as error:
                return block, (), str(error)

        for block, found, failure in side_by_side(self._environment, "history", read, wanted, _READS_AT_ONCE):
            if failure:
                notes.append(failure)
            elif found:
                self._blocks[block] = found
        summaries = {record.checkpoint_id: _bare(record) for record in records}
        for record in records:
            try:
                summaries |= {summary.checkpoint_id: summary for summary in summaries_in(record)}
            except StatelineError as error:
                notes.append(str(error))
        summaries |= {summary.checkpoint_id: summary for found in self._blocks.values() for summary in found}
        return tuple(summaries[checkpoint_id] for checkpoint_id in sorted(summaries))


def _bare(record: Checkpoint) -> CheckpointSummary:
    """What is known of a checkpoint that an earlier version made, which kept no history."""
    figures = {"parallelism": record.parallelism}
    return CheckpointSummary(
        checkpoint_id=record.checkpoint_id,
        batch_id=record.batch_id,
        created_at=record.created_at,
        run=0,
        figures=figures,
    )
