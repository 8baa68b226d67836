"""Savepoints: a checkpoint and all it reaches, copied into one folder that can be moved, kept and started from.

Layout, below any store::

    savepoint-<uuid>/_metadata      written last: without it the folder is incomplete
    savepoint-<uuid>/shared/...     runs, pending rows, state files
    savepoint-<uuid>/_claimed       whose it is: one query, or whoever drops it; created once

Facts:
- All names in ``_metadata`` are relative to the folder, so a copy of the folder, anywhere, is a savepoint.
- It holds no finished files: those are visible in the output and belong to the query that made it. It does hold open
  ones, whose rows nobody has seen yet; a query that starts from it will publish them.
- ``copy`` leaves the savepoint as it is, for any number of queries. ``claim`` uses its objects where they are, so it
  needs the folder below the new root, and makes the query their owner: retention deletes them one by one. A claim is a
  create-if-absent, so there is one owner; copies and other claims are refused from then on.

Starting a query::

    savepoint = open_savepoint("s3://bucket/savepoints/savepoint-1f...")
    root = CheckpointStore("s3://bucket/new-root")
    root.publish(start_from_savepoint(savepoint, root, query_id=..., mode="copy"))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.blob.urls import relative_name, store_of
from stateline.checkpoint.api import EARLIER_CHECKPOINTS, Checkpoint, FileState, InlineState, checkpoint_time
from stateline.checkpoint.claims import DROPPED, claim, hint_of_drop, owned, owner_of
from stateline.checkpoint.layout import CLAIMED, METADATA, SAVEPOINT_PREFIX, SHARED_PREFIX
from stateline.checkpoint.metadata import decode_record, decode_savepoint, encode_savepoint
from stateline.checkpoint.objects import copy_object, extents_of, flat_names, renamed
from stateline.checkpoint.position import POSITION, without_position
from stateline.checkpoint.position_reading import carried_position
from stateline.checkpoint.spark_files import SparkFiles
from stateline.checkpoint.store import CheckpointStore
from stateline.checkpoint.table_records import without_tables
from stateline.environment import Environment, system_environment
from stateline.errors import (
    CorruptDataError,
    DataLossError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
)
from stateline.options import check_kind

__all__ = [
    "Savepoint",
    "create_savepoint",
    "drop_savepoint",
    "folder_of_claim",
    "list_savepoints",
    "open_savepoint",
    "start_from_savepoint",
]

_PATIENCE: Final = 30.0
"""Seconds that a running query has to make the files of its newest checkpoint visible."""

_PAUSE: Final = 0.1

_ATTEMPTS: Final = 3
"""How often the newest checkpoint is tried again when retention takes it away while it is copied."""


_INLINE_BYTES: Final = 2048
"""Files of Spark's checkpoint up to this size are kept in ``_metadata``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A savepoint that was found whole.

    Attributes:
        store: The store that holds it.
        folder: Name of its folder; empty if the store's root is the folder.
        checkpoint: The state; its names are relative to the folder.
    """

    store: BlobStore
    folder: str
    checkpoint: Checkpoint

    @property
    def url(self) -> str:
        """Where it is; :func:`open_savepoint` opens it from there."""
        return f"{self.store.url}/{self.folder}".rstrip("/")

    def name_in_store(self, name: str) -> str:
        """The name from the root of the store of what the savepoint calls ``name``."""
        return f"{self.folder}/{name}" if self.folder else name

    def read_state(self, state: InlineState | FileState) -> bytes:
        """The bytes of a piece of state, checked.

        Raises:
            DataLossError: It is gone.
            CorruptDataError: It is not what was written.
        """
        if isinstance(state, InlineState):
            return state.data
        name = self.name_in_store(state.name)
        try:
            data = self.store.get(name)
        except NotFoundError as error:
            raise _gone(self.url, error) from error
        if len(data) != state.size or crc32c(data) != state.crc32c:
            raise CorruptDataError(
                "is not what was written",
                operation="start_from_savepoint",
                subject=f"{self.store.url}/{name}",
                hint="Restore the object from a copy, or use another savepoint",
            )
        return data

    def owner(self) -> str | None:
        """Who claimed it: a query id, or ``"dropped"``; ``None`` for nobody. One GET."""
        return owner_of(self.store, self.name_in_store(CLAIMED))

    def check_free(self, operation: str) -> None:
        """Refuses a savepoint that somebody has claimed, with :class:`ConflictError`. One GET."""
        owner = self.owner()
        if owner is not None:
            raise owned(self.url, owner, operation)


def create_savepoint(
    source: CheckpointStore,
    target: BlobStore | str,
    *,
    checkpoint_id: int | None = None,
    label: str = "",
    spark_checkpoint: SparkFiles | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    patience: float = _PATIENCE,
    environment: Environment | None = None,
) -> Savepoint:
    """Copies a checkpoint, with all that it reaches, into a fresh folder below ``target``.

    Safe while the query runs: between the decision of a checkpoint and the moment when its files are visible, this
    waits for the query. Interrupted, it leaves a folder without ``_metadata``, which :func:`drop_savepoint`
    removes.

    It carries where the sources stand, from Spark's checkpoint. If that cannot be reached, the property
    ``savepoint.position`` has the reason, and a query that starts from it needs ``source="new"``.

    Args:
        source: The root.
        target: Where the folder goes; may be the root itself.
        checkpoint_id: Which one; the newest if ``None``.
        label: Free text for people.
        spark_checkpoint: Where Spark keeps the checkpoint of the query; by default where the record says.
        progress: ``progress(objects_done, objects_in_all)``, called after each object that was copied.
        patience: Seconds to wait until the files that the checkpoint finishes are visible.
        environment: Clock and ids.

    Raises:
        NotFoundError: There is no such checkpoint, or retention took it away meanwhile.
        InvalidInputError: Files that the checkpoint finishes are still not visible; or ``spark_checkpoint`` is given
            and does not belong to it.
        DataLossError: Something that it reaches is gone.
        CorruptDataError: Something that it reaches is not what was written.
    """
    environment = environment or system_environment()
    check_kind(source, CheckpointStore, "source")
    store = store_of(target, environment)
    attempts_left = 1 if checkpoint_id is not None else _ATTEMPTS
    while True:
        checkpoint = source.newest("create_savepoint") if checkpoint_id is None else source.get(checkpoint_id)
        try:
            _await_publication(source, checkpoint, patience, environment)
            given = checkpoint.without_deliveries()
            return _created(source, given, spark_checkpoint, store, label, progress, environment)
        except NotFoundError as error:
            attempts_left -= 1
            if _is_retained(source, checkpoint.checkpoint_id):
                raise _gone(f"checkpoint {checkpoint.checkpoint_id} of {source.store.url}", error) from error
            if not attempts_left:
                raise NotFoundError(
                    f"checkpoint {checkpoint.checkpoint_id} was retired while it was copied",
                    operation="create_savepoint",
                    subject=source.store.url,
                    hint="Retain more checkpoints while savepoints are made",
                ) from error


def _await_publication(
    source: CheckpointStore, checkpoint: Checkpoint, patience: float, environment: Environment
) -> None:
    """Waits until everything that a checkpoint finishes is visible: a running query is about to make it so.

    Raises:
        NotFoundError: The checkpoint was retired meanwhile.
        InvalidInputError: It was not published in time.
    """
    deadline = environment.clock.monotonic() + patience
    while not source.is_published(checkpoint):
        source.get(checkpoint.checkpoint_id)  # Its mark goes with it.
        if environment.clock.monotonic() >= deadline:
            raise InvalidInputError(
                f"must be published before a savepoint is made of it: after {patience:g} s, files that it finishes are "
                "not visible yet",
                operation="create_savepoint",
                subject=f"checkpoint {checkpoint.checkpoint_id} of {source.store.url}",
                hint="If the query runs, try again when it has finished its batch. If it does not run, start it once: "
                "it publishes them first. Or choose an older checkpoint",
            )
        environment.clock.sleep(_PAUSE)


def _created(
    source: CheckpointStore,
    checkpoint: Checkpoint,
    spark_checkpoint: SparkFiles | str | None,
    target: BlobStore,
    label: str,
    progress: Callable[[int, int], None] | None,
    environment: Environment,
) -> Savepoint:
    """One attempt to make one savepoint."""
    folder = SAVEPOINT_PREFIX + environment.ids.new_id()

    def put(data: bytes) -> InlineState | FileState:
        if len(data) <= _INLINE_BYTES:
            return InlineState(data=data)
        name = SHARED_PREFIX + environment.ids.new_id()
        target.put_if_absent(f"{folder}/{name}", data)
        return FileState(name=name, relative=False, size=len(data), crc32c=crc32c(data))

    position, reason = carried_position(source.store, checkpoint, spark_checkpoint, put, environment)
    checkpoint = without_position(checkpoint)
    extents = extents_of(checkpoint)
    names = flat_names(extents)
    for done, name in enumerate(sorted(extents), start=1):
        copy_object(source.store, name, extents[name], target, f"{folder}/{names[name]}")
        if progress is not None:
            progress(done, len(extents))
    provenance = {"savepoint.source": source.store.url, "savepoint.label": label, POSITION: reason}
    moved = renamed(checkpoint, names.__getitem__)
    record = replace(
        moved,
        nonce=environment.ids.new_id(),
        created_at=checkpoint_time(environment.clock.now(), checkpoint),
        properties=checkpoint.properties | provenance,
        states=moved.states | position,
    )
    target.put_if_absent(f"{folder}/{METADATA}", encode_savepoint(record))
    return Savepoint(store=target, folder=folder, checkpoint=record)


def list_savepoints(store: BlobStore | str) -> list[str]:
    """The folders of complete savepoints directly below a store, sorted by name. Open each to see what is in it."""
    suffix = f"/{METADATA}"
    found = store_of(store).list(SAVEPOINT_PREFIX)
    folders = (info.name.removesuffix(suffix) for info in found if info.name.endswith(suffix))
    return sorted(folder for folder in folders if "/" not in folder)


def open_savepoint(where: BlobStore | str, folder: str = "", *, environment: Environment | None = None) -> Savepoint:
    """Finds a savepoint by the URL of its folder or of its ``_metadata``, or by a store and a folder in it.

    Raises:
        NotFoundError: There is none, or it is incomplete.
        CorruptDataError: Its ``_metadata`` is not what was written.
        InvalidInputError: It is a checkpoint of a root.
    """
    if isinstance(where, str):
        where = where.rstrip("/").removesuffix(f"/{METADATA}")
    check_kind(folder, str, "folder")
    store = store_of(where, environment)
    name = f"{folder}/{METADATA}" if folder else METADATA
    subject = f"{store.url}/{name}"
    try:
        data = store.get(name)
    except NotFoundError as error:
        inside: list[str] = []
        with suppress(OSError):  # Who may not list gets the plain hint.
            inside = [] if folder else list_savepoints(store)
        raise NotFoundError(
            "is not a savepoint, or was never completed",
            operation="open_savepoint",
            subject=subject,
            hint=f"Give one of the savepoints in this folder, such as {store.url.rstrip('/')}/{inside[-1]}"
            if inside
            else "Give the folder of a savepoint: `stateline savepoint create` makes one, and prints it",
        ) from error
    try:
        return Savepoint(store=store, folder=folder, checkpoint=decode_savepoint(data, subject))
    except CorruptDataError as error:
        try:
            decode_record(data, subject)
        except CorruptDataError:
            raise error from None
        raise InvalidInputError(
            "is the record of a root, not a savepoint",
            operation="open_savepoint",
            subject=subject,
            hint="Make a savepoint of it: `stateline savepoint create`",
        ) from error


def drop_savepoint(
    store: BlobStore | str, folder: str, *, dry_run: bool = False, owned_by: str | None = None
) -> list[str]:
    """Deletes a savepoint or what an interrupted :func:`create_savepoint` left; returns the names that it deleted.

    Idempotent. It is claimed first, so that no query starts from it meanwhile; then ``_metadata`` goes, then the rest.

    Args:
        store: The store below which the folder lies.
        folder: Its name.
        dry_run: Refuse what would be refused, and return what would be deleted, but delete nothing.
        owned_by: The query that claimed it, where that is gone for good, or where this is a copy of what it claimed: a
            copy brings the mark along, and nobody but the caller can tell it from the original.

    Raises:
        ConflictError: A query owns it, and it is not ``owned_by``.
        InvalidInputError: ``folder`` is not the name of a savepoint.
    """
    store = store_of(store)
    check_kind(folder, str, "folder")
    if not folder.startswith(SAVEPOINT_PREFIX) or "/" in folder:
        raise InvalidInputError(
            "is not the folder of a savepoint",
            operation="drop_savepoint",
            subject=folder,
            hint=f"Its name begins with {SAVEPOINT_PREFIX!r}; `stateline savepoint ls` names them. Delete a copy that "
            "has another name as you made it, by hand",
        )
    claimed, metadata = f"{folder}/{CLAIMED}", f"{folder}/{METADATA}"
    own = f"{folder}/{SHARED_PREFIX}"  # Nothing else of what is in the folder was made here.
    listed = (info.name for info in store.list(f"{folder}/"))
    names = sorted(name for name in listed if name in (claimed, metadata) or name.startswith(own))
    owner = owner_of(store, claimed)
    if owner is not None and owner not in (DROPPED, owned_by):
        raise owned(f"{store.url}/{claimed}", owner, "drop_savepoint", hint=hint_of_drop(owner))
    if names and not dry_run:
        if owner in (None, DROPPED):
            claim(store, claimed, DROPPED, "drop_savepoint")
        store.delete([metadata])
        store.delete([name for name in names if name not in (claimed, metadata)])
        store.delete([claimed])
    return [name for name in names if name != claimed]


def start_from_savepoint(
    savepoint: Savepoint,
    root: CheckpointStore,
    *,
    query_id: str,
    mode: Literal["copy", "claim"] = "copy",
    outputs: Mapping[str, str] | None = None,
    first_batch_id: int = 0,
    continues: bool = False,
    progress: Callable[[int, int], None] | None = None,
    environment: Environment | None = None,
) -> Checkpoint:
    """The first checkpoint of a new query: the state before its first batch. **The caller publishes it** in ``root``.

    May be repeated after a crash, until the caller has published.

    Args:
        savepoint: Where to start.
        root: A root without any checkpoint.
        query_id: The new query.
        mode: ``copy`` copies every object into the root; ``claim`` uses them where they are.
        outputs: URLs of the new outputs by those of the old ones: where files that are still open go on.
        first_batch_id: The batch that the query runs first, where its source begins anew.
        continues: Whether the sources continue where the savepoint stands, with the batch after its own.
        progress: ``progress(objects_done, objects_in_all)``, called after each object that was copied.
        environment: Clock and ids.

    Raises:
        InvalidInputError: The root has checkpoints; the savepoint to claim does not lie in the root's store.
        ConflictError: Somebody else claimed the savepoint.
        DataLossError: Something in it is gone.
        CorruptDataError: Something in it is not what was written.
    """
    environment = environment or system_environment()
    check_kind(savepoint, Savepoint, "savepoint")
    check_kind(root, CheckpointStore, "root")
    if root.latest() is not None:
        raise InvalidInputError(
            "must be a root without checkpoints",
            operation="start_from_savepoint",
            subject=root.store.url,
            hint="A root belongs to one query: give the new one a root of its own",
            kind=ErrorKind.FOREIGN_ROOT,
        )
    if mode == "claim":
        names = _claimed_names(savepoint, root.store, query_id)
    else:
        # Spark's files are in its own checkpoint by now. Of a claimed savepoint the record names them, so that
        # retention deletes them with it.
        savepoint = dataclasses.replace(savepoint, checkpoint=without_position(savepoint.checkpoint))
        names = _copied_names(savepoint, root.store, progress)
    urls = outputs or {}
    earlier = savepoint.checkpoint.earlier_checkpoints + savepoint.checkpoint.checkpoint_id + 1
    moved = renamed(savepoint.checkpoint, names.__getitem__, run_checkpoint_id=0)
    return replace(
        moved,
        checkpoint_id=0,
        batch_id=moved.batch_id if continues else first_batch_id - 1,
        query_id=query_id,
        offsets_digest=moved.offsets_digest if continues else "",
        nonce=environment.ids.new_id(),
        created_at=checkpoint_time(environment.clock.now(), savepoint.checkpoint),
        outputs=tuple(replace(output, url=urls.get(output.url, output.url)) for output in moved.outputs if output.open),
        properties=without_tables(moved.properties)
        | {"savepoint.url": savepoint.url, EARLIER_CHECKPOINTS: str(earlier)},
    )


def _copied_names(savepoint: Savepoint, root: BlobStore, progress: Callable[[int, int], None] | None) -> dict[str, str]:
    savepoint.check_free("start_from_savepoint")
    extents = extents_of(savepoint.checkpoint)
    names = flat_names(extents)
    for done, name in enumerate(sorted(extents), start=1):
        kept = savepoint.name_in_store(name)
        try:
            copy_object(savepoint.store, kept, extents[name], root, names[name])
        except NotFoundError as error:
            raise _gone(savepoint.url, error) from error
        if progress is not None:
            progress(done, len(extents))
    return names


def folder_of_claim(root: BlobStore, url: str) -> str:
    """The name in a root of the folder of a savepoint that is to be claimed there; an error if it lies elsewhere."""
    try:
        return relative_name(root.url, url)
    except InvalidInputError as error:
        raise InvalidInputError(
            "a savepoint can be claimed only where the new root is",
            operation="start_from_savepoint",
            subject=url,
            hint=f"Copy its folder below {root.url} and start from that copy, or let the start copy what it needs: "
            "mode copy, start_mode of a KeyedStream",
        ) from error


def _claimed_names(savepoint: Savepoint, root: BlobStore, query_id: str) -> dict[str, str]:
    folder = folder_of_claim(root, savepoint.url)
    claim(root, f"{folder}/{CLAIMED}", query_id, "start_from_savepoint")
    open_savepoint(root, folder)  # It may have been dropped before it was claimed.
    return {name: f"{folder}/{name}" for name in extents_of(savepoint.checkpoint)}


def _is_retained(source: CheckpointStore, checkpoint_id: int) -> bool:
    try:
        source.get(checkpoint_id)
    except NotFoundError:
        return False
    return True


def _gone(subject: str, error: NotFoundError) -> DataLossError:
    return DataLossError(
        f"needs {error.subject}, which is gone",
        operation="savepoint",
        subject=subject,
        hint="Restore the object from a copy, or use another checkpoint or savepoint",
    )
