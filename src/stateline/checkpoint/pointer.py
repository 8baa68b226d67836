"""Pointers from outside: a folder, its ``_metadata``, a URL, and the checkpoint or savepoint behind them.

| pointer | what it names |
|---|---|
| ``<root>`` | the newest checkpoint of a root |
| ``<root>/chk-<id>`` | that checkpoint |
| any other folder that holds ``_metadata`` | the savepoint in it, wherever it was copied to |
| one of the two last, with ``/_metadata`` | the same |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateline.blob.api import BlobStore
from stateline.blob.urls import open_store
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.layout import METADATA, id_of_record
from stateline.checkpoint.savepoint import open_savepoint
from stateline.checkpoint.store import CheckpointStore
from stateline.environment import Environment
from stateline.errors import InvalidInputError, NotFoundError

__all__ = ["Snapshot", "resolve_pointer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State that can be read.

    Attributes:
        store: Where the names in ``checkpoint`` resolve.
        checkpoint: The record.
        is_savepoint: Whether it came from a savepoint.
    """

    store: BlobStore
    checkpoint: Checkpoint
    is_savepoint: bool


def resolve_pointer(
    pointer: str, *, options: Mapping[str, str] | None = None, environment: Environment | None = None
) -> Snapshot:
    """Finds what a pointer names; see the module docstring.

    Args:
        pointer: A URL or a path.
        options: Settings of the store, as strings.
        environment: Passed to the store.

    Raises:
        InvalidInputError: It is no URL of a store.
        NotFoundError: Nothing is there, or the checkpoint was retired.
        CorruptDataError: Its record is not what was written.
    """
    trimmed = pointer.rstrip("/").removesuffix(f"/{METADATA}").rstrip("/")
    if not trimmed:
        raise InvalidInputError("it is empty", operation="resolve", subject=f"pointer {pointer!r}")
    parent, _, leaf = trimmed.rpartition("/")
    checkpoint_id = id_of_record(f"{leaf}/{METADATA}")
    if checkpoint_id is not None:
        store = open_store(parent or ".", options, environment)
        return Snapshot(store=store, checkpoint=CheckpointStore(store).get(checkpoint_id), is_savepoint=False)
    store = open_store(trimmed, options, environment)
    try:
        return Snapshot(store=store, checkpoint=open_savepoint(store).checkpoint, is_savepoint=True)
    except NotFoundError:
        newest = CheckpointStore(store).latest()
    if newest is None:
        raise NotFoundError(
            "there is neither a checkpoint nor a savepoint",
            operation="resolve",
            subject=pointer,
            hint="Give a checkpoint root, a folder chk-<id> in it, or the folder of a savepoint",
        )
    return Snapshot(store=store, checkpoint=newest, is_savepoint=False)
