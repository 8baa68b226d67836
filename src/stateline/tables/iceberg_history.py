"""What others did to an Iceberg table: whether a rollback removed rows of an application while its tag stayed.

The branch ``main`` has the rows of a snapshot if it leads back to that snapshot, from parent to parent. The tag keeps
the snapshot of the newest commit, so it never expires.

Facts:
- Snapshots between the head and the tag may have expired. Then the numbers of snapshots, which rise by one with each
  commit, and the log of the branch tell whether it went back. What neither tells counts as no rollback: clean-ups are
  harmless. So a rollback is not noticed if another writer committed after it, and then the snapshot expired that the
  branch went back to, together with one that is newer than the tag.
- Replacing a table (``CREATE OR REPLACE``) keeps its identity and its tags. Its next snapshot has no parent.
- pyiceberg takes the parent away from a snapshot when that expires. Other writers leave it, and cut the log instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from stateline.tables.api import TableLoss

__all__ = ["APP", "CHECKPOINT", "find_loss"]

CHECKPOINT: Final = "stateline.checkpoint"
"""In the summary of a snapshot: the checkpoint that it committed."""

APP: Final = "stateline.app"
"""In the same place: the application. Commits of earlier versions do not name it."""


def find_loss(metadata: TableMetadata, newest: int, app: str, checked: str) -> TableLoss | None:
    """Find out whether a table has lost rows of an application.

    Args:
        metadata: The table.
        newest: The snapshot that the tag of the application names.
        app: The application.
        checked: A head at which an earlier call found no loss; empty if unknown.
    """
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    head, ours = by_id.get(metadata.current_snapshot_id or 0), by_id.get(newest)
    if ours is None or _keeps(metadata, head, ours, checked):
        return None
    at = "has no snapshot" if head is None else f"is at snapshot {head.snapshot_id}"
    number = "?" if ours.summary is None else ours.summary.additional_properties.get(CHECKPOINT, "?")
    reason = f"the branch main {at}, which does not follow snapshot {newest} of checkpoint {number}"
    is_whole = True
    for each in _ancestors(by_id, head):
        known = {} if each.summary is None else each.summary.additional_properties
        if CHECKPOINT in known and known.get(APP, app) == app:
            return TableLoss(reason=reason, kept=int(known[CHECKPOINT]), is_certain=APP in known)
        is_whole = each.parent_snapshot_id is None
    return TableLoss(reason=reason, is_certain=is_whole)


def _ancestors(by_id: Mapping[int, Snapshot], head: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and those before it, as far as they have not expired."""
    while head is not None:
        yield head
        head = None if head.parent_snapshot_id is None else by_id.get(head.parent_snapshot_id)


def _keeps(metadata: TableMetadata, head: Snapshot | None, ours: Snapshot, checked: str) -> bool:
    """Whether a head has the rows of a snapshot, or whether nothing says that it has not: snapshots expire.

    Args:
        metadata: The table.
        head: The newest snapshot of the branch.
        ours: The snapshot of the newest commit. Its tag keeps it.
        checked: A head that is known to have had its rows; empty if unknown.
    """
    if head is None:
        return False
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    number = ours.sequence_number or 0
    oldest = head
    for oldest in _ancestors(by_id, head):
        if oldest.snapshot_id == ours.snapshot_id:
            return True
        if number and (oldest.sequence_number or 0) < number:
            return False  # An older snapshot than ours is in the place where ours should be.
        if number and str(oldest.snapshot_id) == checked:
            return True  # It is newer than ours, so it was checked for the rows of ours.
    log = [entry.snapshot_id for entry in metadata.snapshot_log]
    after = log[len(log) - log[::-1].index(ours.snapshot_id) :] if ours.snapshot_id in log else []
    known = [by_id[each] for each in after if each in by_id]
    if not number:  # Format version 1.
        return all(each.timestamp_ms >= ours.timestamp_ms for each in (oldest, *known))
    between = set(range(number + 1, oldest.sequence_number or 0))
    if between <= {each.sequence_number for each in metadata.snapshots}:
        return False  # No snapshot since ours expired, so the missing one is older than ours, or never was.
    if ours.snapshot_id not in log:
        return not _is_first(oldest)
    return all((each.sequence_number or 0) > number for each in known)


def _is_first(snapshot: Snapshot) -> bool:
    """Whether a snapshot is the first of a table: it has no parent, and all files are its own.

    Some writers also take its parent away from a snapshot when that expires.
    """
    known = {} if snapshot.summary is None else snapshot.summary.additional_properties
    totals, added = known.get("total-data-files"), known.get("added-data-files", "0")
    return snapshot.parent_snapshot_id is None and totals == added and "deleted-data-files" not in known
