"""The checkpoints of one root: create the next one, find the newest, end the old ones.

Invariants:
- ``publish`` returns only if the record in the slot is the caller's (same nonce) **and** the floor was read open after
  that. Whoever gets :class:`FencedError` has a successor and must stop.
- Neither clocks nor the order or freshness of a listing decide anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from stateline.blob.api import BlobStore
from stateline.blob.conditions import check_create_if_absent
from stateline.blob.urls import store_of
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.layout import published_name, record_name
from stateline.checkpoint.metadata import Retired, encode_checkpoint, encode_published
from stateline.checkpoint.retention import Retention, RetentionRule
from stateline.checkpoint.slots import Empty, Slots
from stateline.environment import Environment
from stateline.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DataLossError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    UnsupportedVersionError,
)
from stateline.options import normalise_settings, parse_bool, parse_int, setting, settings_from_options

__all__ = ["CheckpointStore", "CheckpointStoreSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStoreSettings:
    """Options of a checkpoint store. Both are for repair by hand; leave them off in a running query.

    Attributes:
        allow_older: Whether an older checkpoint may stand in for a newest one that is corrupt. For reading state and
            making savepoints: a query cannot go on from it in the same root, because the newer slot stays taken.
        retire_unreadable: Whether retention may retire a record that it cannot read, or that is gone. What only that
            record reached stays as garbage.
    """

    allow_older: bool = setting(False, parse_bool, help="fall back to an older checkpoint if the newest is corrupt")
    retire_unreadable: bool = setting(False, parse_bool, help="let retention retire records that cannot be read")

    def __post_init__(self) -> None:
        normalise_settings(self)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Settings from string options; unknown ones are refused."""
        return settings_from_options(cls, options)


class CheckpointStore:
    """The checkpoints below one root. Not thread-safe; any number of stores may work on one root.

    Args:
        root_url: A URL or a path, or the store whose root is the checkpoint root.
        settings: Options for repair.
        environment: Passed on when ``root_url`` is a URL.
    """

    def __init__(
        self,
        root_url: str | os.PathLike[str] | BlobStore,
        *,
        settings: CheckpointStoreSettings | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.store = store_of(root_url, environment)
        self._opened = self.store is not root_url
        self.settings = settings or CheckpointStoreSettings()
        self._slots = Slots(self.store, allow_older=self.settings.allow_older)
        strict = Slots(self.store, allow_older=False)
        self._retention = Retention(self.store, strict, retire_unreadable=self.settings.retire_unreadable)
        self._newest_id: int | None = None

    def __repr__(self) -> str:
        return f"CheckpointStore({self.store.url!r})"

    def latest(self, at_least: int | None = None) -> Checkpoint | None:
        """The newest checkpoint, checked; ``None`` for a root without any. One LIST and a few GETs.

        Args:
            at_least: An id that is known to have been decided: the search begins there, and no LIST is needed.

        Raises:
            CorruptDataError: The newest record cannot be read; an older one is returned only with ``allow_older``.
            UnsupportedVersionError: A newer version of Stateline wrote it.
            DataLossError: Checkpoints were retired in favour of one that is gone.
        """
        newest = self._slots.newest(self._slots.listed_ids() if at_least is None else [at_least])
        self._newest_id = None if newest is None else newest.checkpoint_id
        return newest

    def newest(self, operation: str) -> Checkpoint:
        """As :meth:`latest`, but a root without a checkpoint is a :class:`NotFoundError` of the operation."""
        newest = self.latest()
        if newest is None:
            raise NotFoundError(
                "the root has no checkpoint",
                operation=operation,
                subject=self.store.url,
                hint="Give the URL of a checkpoint root",
            )
        return newest

    def get(self, checkpoint_id: int) -> Checkpoint:
        """One checkpoint, by exact name. Two GETs.

        Raises:
            NotFoundError: It was retired, or never created; the message says which.
            CorruptDataError: Its record cannot be read.
            InvalidInputError: ``checkpoint_id`` is not a number.
        """
        checkpoint_id = parse_int(checkpoint_id, "checkpoint_id")
        slot = self._slots.read(checkpoint_id) if checkpoint_id >= 0 else Empty.ABSENT
        if isinstance(slot, Checkpoint):
            return slot
        was_retired = slot is not Empty.ABSENT
        raise NotFoundError(
            f"checkpoint {checkpoint_id} was retired" if was_retired else f"there is no checkpoint {checkpoint_id}",
            operation="get",
            subject=self.store.url,
            hint="Retain more checkpoints, or make a savepoint of those to keep"
            if was_retired
            else "`stateline checkpoint ls` names those that are there",
        )

    def list(self) -> list[Checkpoint]:
        """The retained checkpoints, oldest first; retired ones and garbage below the floor are left out.

        Raises:
            CorruptDataError: One cannot be read; with ``allow_older`` it is left out.
            DataLossError: The record of one is gone, and there are older ones; with ``allow_older`` it is left out.
        """
        listed_ids = self._slots.listed_ids()
        newest = self._slots.newest(listed_ids)
        if newest is None:
            return []
        found = [newest]
        # By exact name: a query at work may have decided checkpoints since the listing, also ones before the newest.
        for checkpoint_id in range(newest.checkpoint_id - 1, -1, -1):
            try:
                slot = self._slots.read(checkpoint_id)
            except CorruptDataError as error:
                if not self.settings.allow_older or isinstance(error, UnsupportedVersionError):
                    raise
                continue
            if isinstance(slot, Checkpoint):
                found.append(slot)
            elif slot is Empty.ABSENT and self._slots.is_live_below(checkpoint_id, listed_ids):
                if not self.settings.allow_older:
                    raise self._gone(checkpoint_id, newest)
            else:
                break
        return found[::-1]

    def publish(self, checkpoint: Checkpoint) -> Checkpoint:
        """Decides a checkpoint: **this is the commit**. One create-if-absent and one GET; no LIST, no HEAD.

        The first checkpoint of a root also tries the service: see :mod:`stateline.blob.conditions`.

        Everything that the checkpoint reaches must be durable before. Repeat the call with the same checkpoint after
        :class:`OutcomeUnknownError`, :class:`UnavailableError` or a crash: it returns if it had happened.

        Returns:
            The record that stands, which is the caller's.

        Raises:
            FencedError: Another driver decided this checkpoint, or retired it already. Stop.
            InvalidInputError: The checkpoint breaks a rule of the format, or would leave a gap after the newest one;
                or the service of a new root does not create if absent.
            CorruptDataError: The slot holds something that cannot be read.
            OutcomeUnknownError: The record may exist, or the floor could not be read after it was created.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInputError(
                f"expected a Checkpoint, got {type(checkpoint).__name__}",
                operation="publish",
                subject=self.store.url,
                hint="Give a stateline.checkpoint.Checkpoint",
            )
        data = encode_checkpoint(checkpoint)
        self._check_no_gap(checkpoint)
        if checkpoint.checkpoint_id == 0 and self._newest_id is None:
            check_create_if_absent(self.store, checkpoint.nonce)
        try:
            self.store.put_if_absent(record_name(checkpoint.checkpoint_id), data)
        except OSError as error:
            if isinstance(error, StatelineError) and not isinstance(error, AlreadyExistsError | OutcomeUnknownError):
                raise
            checkpoint = self._judge_winner(checkpoint, error)  # A plain error of a foreign store tells nothing, too.
        else:
            self._check_floor(checkpoint)
        self._newest_id = max(checkpoint.checkpoint_id, self._newest_id or 0)
        self._retention.record(checkpoint)
        return checkpoint

    def check_undecided(self, checkpoint_id: int) -> None:
        """Checks that nobody has decided a checkpoint. Two GETs, by exact name.

        Raises:
            FencedError: Somebody has, whatever has become of it since.
            CorruptDataError: Its slot holds something that cannot be read.
        """
        slot = self._slots.read(checkpoint_id)
        if slot is not Empty.ABSENT:
            raise self._fenced(checkpoint_id, "this one found data gone that it needs", slot)

    def mark_published(self, checkpoint_id: int) -> None:
        """Remembers that the files which a checkpoint finishes are visible. Idempotent; one create-if-absent.

        Only for the driver whose ``publish`` of that checkpoint returned, after it has published every file and
        delivered all rows.
        """
        self.store.put_if_absent(published_name(checkpoint_id), encode_published(checkpoint_id))

    def is_published(self, checkpoint: Checkpoint) -> bool:
        """Whether every file that a checkpoint finishes has been visible, and its rows were delivered.

        A consumer may move files away after they became visible, so their absence alone proves nothing.
        """
        if not checkpoint.publishes:
            return True
        try:
            self.store.get(published_name(checkpoint.checkpoint_id))
        except NotFoundError:
            return False
        return True

    def retain(self, n: int | RetentionRule) -> None:
        """Retires all but the newest ``n`` checkpoints, and deletes what only they reach.

        Call it after each ``publish``. A failure leaves every retained checkpoint whole, and the next call goes on
        where this one stopped, in this process or in another.

        Args:
            n: At least 1; or a rule, under which one call retires at most eight checkpoints.

        Raises:
            InvalidInputError: ``n`` is below 1, or no number.
            CorruptDataError: A record that is to be read back at start is corrupt; see ``retire_unreadable``.
            OSError: What the stores raise; nothing is lost, repeat the call later.
        """
        # At least 1, because the newest checkpoint is what a restart needs.
        self._retention.retain(_retained(n))

    def retirable(self, n: int | RetentionRule) -> Sequence[int]:
        """The ids that ``retain(n)`` would retire, sooner or later, ascending; errors as there."""
        return self._retention.retirable(_retained(n))

    def close(self) -> None:
        """Closes the store, if this opened it from a URL. Idempotent."""
        if self._opened:
            self.store.close()

    # -- deciding -------------------------------------------------------------------------------------------------

    def _gone(self, checkpoint_id: int, newest: Checkpoint) -> DataLossError:
        keep = newest.checkpoint_id - checkpoint_id
        return DataLossError(
            f"the record of checkpoint {checkpoint_id} is gone, though older checkpoints are retained",
            operation="list",
            subject=f"{self.store.url}/{record_name(checkpoint_id)}",
            hint="Somebody deleted it. Restore it from a backup, or let go of it and of those before it: "
            f"`stateline checkpoint retire {self.store.url} --keep {keep} --delete`",
        )

    def _check_no_gap(self, checkpoint: Checkpoint) -> None:
        if self._newest_id is not None and checkpoint.checkpoint_id > self._newest_id + 1:
            raise InvalidInputError(
                f"the newest checkpoint is {self._newest_id}, so the next one is {self._newest_id + 1}",
                operation="publish",
                subject=f"checkpoint {checkpoint.checkpoint_id}",
                hint="Ids have no gaps: a skipped batch would be lost",
            )

    def _judge_winner(self, checkpoint: Checkpoint, error: OSError) -> Checkpoint:
        """Reads who is in the slot: the record if it is the caller's own, an error otherwise."""
        try:
            slot = self._slots.read(checkpoint.checkpoint_id)
        except CorruptDataError:
            raise
        except (StatelineError, OSError) as unread:  # OSError: from a store of somebody else's.
            raise self._unknown(checkpoint, "what is in its slot could not be read") from unread
        if isinstance(slot, Checkpoint) and slot.nonce == checkpoint.nonce:
            return slot
        if slot is Empty.ABSENT:
            raise error
        raise self._fenced(checkpoint.checkpoint_id, _described(checkpoint), slot) from error

    def _check_floor(self, checkpoint: Checkpoint) -> None:
        try:
            closed = self._slots.is_closed(checkpoint.checkpoint_id)
        except (StatelineError, OSError) as error:
            raise self._unknown(checkpoint, "its record is there, but the floor could not be read") from error
        if closed:
            raise self._fenced(checkpoint.checkpoint_id, _described(checkpoint), Empty.CLOSED)

    def _unknown(self, checkpoint: Checkpoint, what: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            what,
            operation="publish",
            subject=f"{self.store.url}/{record_name(checkpoint.checkpoint_id)}",
            hint="Publish the same checkpoint again, or restart: do not act on it before that succeeds",
        )

    def _fenced(self, checkpoint_id: int, loser: str, winner: Checkpoint | Retired | Empty) -> FencedError:
        if isinstance(winner, Empty):
            what = "it was decided and retired long ago"
        else:
            when = datetime.fromtimestamp(winner.created_at, UTC).isoformat(timespec="seconds")
            what = f"query {winner.query_id} decided it at {when} (nonce {winner.nonce})"
            what += ", and retired it since" if isinstance(winner, Retired) else ""
        return FencedError(
            f"another driver was first: {what}; {loser}",
            operation="publish",
            subject=f"{self.store.url}/{record_name(checkpoint_id)}",
            hint="Stop this driver. Exactly one may run on a root; what it wrote is garbage and will be swept",
        )


def _described(checkpoint: Checkpoint) -> str:
    return f"this one is query {checkpoint.query_id} (nonce {checkpoint.nonce})"


def _retained(n: int | RetentionRule) -> int | RetentionRule:
    return n if isinstance(n, RetentionRule) else parse_int(n, "num_retained", minimum=1)
