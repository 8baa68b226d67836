"""What is in the slots of a root, read by exact name, and which of them is the newest.

A slot is the name ``chk-<id>/_metadata``. Seen from outside it goes through these states, never back::

    ABSENT ──create-if-absent──> Checkpoint ──overwrite──> Retired ──marker, then delete──> CLOSED

Facts:
- A slot of a closed block is CLOSED whatever it holds: a request that was delayed past the deletion may have put an old
  record or an old tombstone there, and nobody may take it for a checkpoint.
- The record is read **before** the floor. Freeing happens only after the marker is durable, so a slot that is found
  empty while its block is found open afterwards had not been freed: it was never taken.
- Ids have no gaps and the newest checkpoint is never retired. So the newest is found by walking up from any taken slot
  to the last one before an empty one. The listing only says where to start: its order means nothing, and a stale one
  costs a few more reads.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from stateline.blob.api import BlobStore
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.layout import (
    RECORD_PREFIX,
    block_of,
    first_id_of_block,
    floor_name,
    id_of_record,
    record_name,
)
from stateline.checkpoint.metadata import Retired, decode_record
from stateline.errors import CorruptDataError, DataLossError, NotFoundError, UnsupportedVersionError

__all__ = ["Empty", "Slot", "Slots"]


class Empty(Enum):
    """A slot without a checkpoint."""

    ABSENT = "absent"
    """Never taken: the next checkpoint may be created here."""

    CLOSED = "closed"
    """Retired, and fenced by the floor for ever."""


Slot: TypeAlias = Checkpoint | Retired | Empty


class Slots:
    """Reads the slots of one root.

    Args:
        store: The root.
        allow_older: Whether an older checkpoint may stand in for a corrupt newest one.
    """

    def __init__(self, store: BlobStore, *, allow_older: bool) -> None:
        self._store = store
        self._allow_older = allow_older
        self._closed: set[int] = set()

    def is_closed(self, checkpoint_id: int) -> bool:
        """Whether the block of an id is closed: one GET by exact name; only a yes is remembered, for it is for ever."""
        block = block_of(checkpoint_id)
        if block not in self._closed:
            try:
                self._store.get(floor_name(block))
            except NotFoundError:
                return False
            self._closed.add(block)
        return True

    def read(self, checkpoint_id: int) -> Slot:
        """What is in a slot. One or two GETs, no LIST, no HEAD.

        Raises:
            CorruptDataError: It is taken, in an open block, by something that cannot be read.
        """
        try:
            data = self._store.get(record_name(checkpoint_id))
        except NotFoundError:
            return Empty.CLOSED if self.is_closed(checkpoint_id) else Empty.ABSENT
        try:
            found = self._decode(checkpoint_id, data)
        except CorruptDataError:
            if self.is_closed(checkpoint_id):
                return Empty.CLOSED
            raise
        if isinstance(found, Checkpoint) and self.is_closed(checkpoint_id):
            return Empty.CLOSED
        return found

    def listed_ids(self) -> list[int]:
        """The ids whose slots the store lists, ascending. One LIST. Closed blocks may be among them."""
        found = (id_of_record(info.name) for info in self._store.list(RECORD_PREFIX))
        return sorted({checkpoint_id for checkpoint_id in found if checkpoint_id is not None})

    def newest(self, listed_ids: list[int]) -> Checkpoint | None:
        """The newest checkpoint, searched from ``listed_ids``; ``None`` for a root that never had one.

        Raises:
            CorruptDataError: The newest cannot be read. With ``allow_older``: none of the live ones can. One that a
                newer version of the format wrote is never passed over.
            DataLossError: There are retired checkpoints but no live one: somebody removed it.
        """
        last: Slot | CorruptDataError = Empty.ABSENT
        checkpoint_id = listed_ids[-1] if listed_ids else 0
        while True:
            slot = self._try_read(checkpoint_id)
            if slot is Empty.ABSENT:
                break
            last = slot
            checkpoint_id = (
                first_id_of_block(block_of(checkpoint_id) + 1) if slot is Empty.CLOSED else checkpoint_id + 1
            )
        if isinstance(last, Checkpoint):
            return last
        if isinstance(last, CorruptDataError):
            return self._older(checkpoint_id, last)
        if last is Empty.ABSENT and not listed_ids:
            return None
        raise DataLossError(
            f"there is no checkpoint {checkpoint_id}, though others were retired in its favour or it is listed",
            operation="latest",
            subject=f"{self._store.url}/{record_name(checkpoint_id)}",
            hint="Somebody deleted it. Restore it from a backup, or start a new query from a savepoint",
        )

    def is_live_below(self, checkpoint_id: int, listed_ids: list[int]) -> bool:
        """Whether a checkpoint below an id is live, or may be, for all that can be read of it.

        The oldest are retired first, so the first slot below that is not absent tells.
        """
        for older in reversed(listed_ids):
            if older < checkpoint_id:
                slot = self._try_read(older)
                if slot is not Empty.ABSENT:
                    return isinstance(slot, Checkpoint | CorruptDataError)
        return False

    def _older(self, end: int, error: CorruptDataError) -> Checkpoint:
        """The newest checkpoint below ``end`` that can be read, found by exact name: a listing may be older."""
        if self._allow_older and not isinstance(error, UnsupportedVersionError):
            for checkpoint_id in range(end - 1, -1, -1):
                slot = self._try_read(checkpoint_id)
                if isinstance(slot, Checkpoint):
                    return slot
                if not isinstance(slot, CorruptDataError) or isinstance(slot, UnsupportedVersionError):
                    break
        raise error

    def _try_read(self, checkpoint_id: int) -> Slot | CorruptDataError:
        try:
            return self.read(checkpoint_id)
        except CorruptDataError as error:
            return error

    def _decode(self, checkpoint_id: int, data: bytes) -> Checkpoint | Retired:
        subject = f"{self._store.url}/{record_name(checkpoint_id)}"
        found = decode_record(data, subject)
        if found.checkpoint_id != checkpoint_id:
            raise CorruptDataError(
                f"expected the record of checkpoint {checkpoint_id}, got that of checkpoint {found.checkpoint_id}",
                operation="decode",
                subject=subject,
                hint="Objects were swapped or copied by hand: put each back under its own name",
            )
        return found
