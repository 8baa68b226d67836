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
from stateline.checkpoint.savepoint import Savepoint, open_savepoint
from stateline.checkpoint.store import CheckpointStore
from stateline.environment import Environment
from stateline.errors import InvalidInputError, NotFoundError
from stateline.options import check_kind

__all__ = ["Located", "Snapshot", "locate", "located", "resolve_pointer", "split_pointer"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """What a pointer names, before any checkpoint is read.

    Attributes:
        store: The root, or the folder of the savepoint.
        checkpoint_id: The checkpoint; ``None`` for a root or a savepoint.
        savepoint: The savepoint; ``None`` otherwise.
    """

    store: BlobStore
    checkpoint_id: int | None = None
    savepoint: Savepoint | None = None


def split_pointer(pointer: str) -> tuple[str, int | None]:
    """The URL of the root or folder that a pointer names, and the checkpoint, if it names one.

    Raises:
        InvalidInputError: It is empty, or no text.
    """
    check_kind(pointer, str, "pointer")
    trimmed = pointer.rstrip("/").removesuffix(f"/{METADATA}").rstrip("/")
    if not trimmed:
        raise InvalidInputError(
            "must not be empty", operation="resolve", subject="pointer", hint="Give the URL of a checkpoint root"
        )
    parent, _, leaf = trimmed.rpartition("/")
    checkpoint_id = id_of_record(f"{leaf}/{METADATA}")
    return (trimmed, None) if checkpoint_id is None else (parent or ".", checkpoint_id)


def locate(
    pointer: str, *, options: Mapping[str, str] | None = None, environment: Environment | None = None
) -> Located:
    """What a pointer names; arguments and errors as :func:`resolve_pointer`, but no checkpoint is looked for."""
    url, checkpoint_id = split_pointer(pointer)
    return located(open_store(url, options, environment), checkpoint_id)


def located(store: BlobStore, checkpoint_id: int | None = None) -> Located:
    """As :func:`locate`, of a pointer that was split, and whose store is open."""
    if checkpoint_id is not None:
        return Located(store=store, checkpoint_id=checkpoint_id)
    try:
        return Located(store=store, savepoint=open_savepoint(store))
    except NotFoundError:
        return Located(store=store)


def resolve_pointer(
    pointer: str, *, options: Mapping[str, str] | None = None, environment: Environment | None = None
) -> Snapshot:
    """Finds what a pointer names; the table of the module tells what it may be.

    Args:
        pointer: A URL or a path.
        options: Settings of the store.
        environment: Passed to the store.

    Raises:
        InvalidInputError: It is not the URL of a store.
        NotFoundError: Nothing is there, or the checkpoint was retired.
        CorruptDataError: Its record is not what was written.
    """
    found = locate(pointer, options=options, environment=environment)
    if found.savepoint is not None:
        return Snapshot(store=found.store, checkpoint=found.savepoint.checkpoint, is_savepoint=True)
    root = CheckpointStore(found.store)
    checkpoint = root.latest() if found.checkpoint_id is None else root.get(found.checkpoint_id)
    if checkpoint is None:
        raise NotFoundError(
            "holds neither a checkpoint nor a savepoint",
            operation="resolve",
            subject=pointer,
            hint="Give a checkpoint root, a folder chk-<id> in it, or the folder of a savepoint",
        )
    return Snapshot(store=found.store, checkpoint=checkpoint, is_savepoint=False)
