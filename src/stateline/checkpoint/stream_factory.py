"""Streams for state: small state stays inline in the record, large state becomes one object.

Facts:
- **Size alone decides**: up to ``file_state_size_threshold`` bytes inline, one byte more is a file, however the bytes
  were written, flushed or synced. No bytes at all are ``None``.
- No folder is created or checked, nothing is listed and nothing is headed: thousands of tasks do this at once, and an
  object store throttles whoever asks what is there.
- A file appears when it is complete, under a fresh UUID in its folder. Before that its bytes wait in memory, and beyond
  :data:`PIECE_BYTES` in staged pieces that no reader sees; a stream closed without its handle deletes those.
- Creation never overwrites. It is tried :data:`CREATION_ATTEMPTS` times, each time under a new name, because a name
  whose creation failed may exist all the same. Where pieces fit no name but the one that they were staged for (Azure),
  a failed creation of a file that was staged is final.

Life of a stream::

    out = factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
    out.write(...)                                # any number of times, from one thread
    handle = out.close_and_get_handle()           # InlineHandle, FileHandle or None; the file is kept from here on
    out.close()                                   # after the handle: nothing. Instead of it: everything is deleted
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Final

from stateline.blob.api import BlobStore, Buffer
from stateline.blob.arguments import plain_bytes
from stateline.blob.checksum import crc32c
from stateline.blob.names import check_name
from stateline.blob.urls import store_of
from stateline.checkpoint.api import MAX_FILE_STATE_THRESHOLD
from stateline.checkpoint.layout import check_object_name
from stateline.checkpoint.state_handles import FileHandle, InlineHandle
from stateline.environment import Closable, Environment, system_environment
from stateline.errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    DataLossError,
    InvalidInputError,
    OutcomeUnknownError,
    StatelineError,
    UnavailableError,
)
from stateline.handles import Part
from stateline.options import parse_size

__all__ = ["CheckpointStateOutputStream", "CheckpointStreamFactory", "CheckpointedStateScope"]

CREATION_ATTEMPTS: Final = 10
PIECE_BYTES: Final = 8 * 1024 * 1024
"""What a stream holds in memory at least before it stages a piece: large enough that requests do not matter."""

_ANOTHER_NAME_MAY_WORK: Final = (AlreadyExistsError, ConflictError, UnavailableError, OutcomeUnknownError)

_FAILURES: Final = (StatelineError, OSError)
"""What stores raise: ours, or, from a store of somebody else's, any error of I/O."""

_log: Final = logging.getLogger(__name__)


class CheckpointedStateScope(Enum):
    """Who needs a piece of state."""

    EXCLUSIVE = "exclusive"
    """One checkpoint alone; the file lies in the folder of its record."""

    SHARED = "shared"
    """Any number of checkpoints; the file lies in the folder for shared files."""


class CheckpointStreamFactory:
    """Makes streams that write the state of one checkpoint. Safe from any thread; does no I/O itself.

    Args:
        store: A store, or its URL.
        checkpoint_dir: Folder of the checkpoint's record below the store's root, such as ``"chk-7"``.
        shared_dir: Folder for shared files, such as ``"shared"``.
        file_state_size_threshold: Bytes of the largest state that stays inline; at most ``MAX_FILE_STATE_THRESHOLD``.
        write_buffer_size: Bytes that a stream keeps in memory at least.
        environment: Ids for names.

    Raises:
        InvalidInputError: A size out of bounds, or a folder that is none.
    """

    def __init__(
        self,
        store: BlobStore | str,
        checkpoint_dir: str,
        shared_dir: str,
        file_state_size_threshold: int | str = 20 * 1024,
        write_buffer_size: int | str = 4096,
        *,
        environment: Environment | None = None,
    ) -> None:
        self._environment = environment or system_environment()
        self._store = store_of(store, environment)
        self._folders = {
            CheckpointedStateScope.EXCLUSIVE: _folder(checkpoint_dir, "checkpoint_dir"),
            CheckpointedStateScope.SHARED: _folder(shared_dir, "shared_dir"),
        }
        self._threshold = parse_size(file_state_size_threshold, "file_state_size_threshold")
        buffer_bytes = parse_size(write_buffer_size, "write_buffer_size")
        if self._threshold > MAX_FILE_STATE_THRESHOLD:
            raise InvalidInputError(
                f"{self._threshold} bytes are too many",
                subject="file_state_size_threshold",
                hint=f"Give at most {MAX_FILE_STATE_THRESHOLD}: inline state travels in the record of the checkpoint",
            )
        self._piece_bytes = max(buffer_bytes, PIECE_BYTES)  # Above any threshold: inline state is never staged.

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """A new, empty stream. No I/O."""
        return CheckpointStateOutputStream(
            self._store,
            self._folder_of(scope, "create_checkpoint_state_output_stream"),
            relative=scope is CheckpointedStateScope.EXCLUSIVE,
            threshold=self._threshold,
            piece_bytes=self._piece_bytes,
            environment=self._environment,
        )

    def can_fast_duplicate(self, handle: InlineHandle | FileHandle, scope: CheckpointedStateScope) -> bool:
        """Whether :meth:`duplicate` takes ``handle``: a file of this store, where the store copies by itself.

        It lies in another folder than that of ``scope``: there it would be its own copy, and both would go at once.
        """
        folder = self._folder_of(scope, "can_fast_duplicate")
        if not isinstance(handle, FileHandle) or not self._store.copies_cheaply:
            return False
        if handle.name == _in_folder(folder, handle):
            return False
        return handle.store is self._store or handle.store.url == self._store.url

    def duplicate(
        self, handles: Sequence[InlineHandle | FileHandle], scope: CheckpointedStateScope
    ) -> list[FileHandle]:
        """Copies files inside the store, without moving their bytes through this process; originals stay.

        The copies keep the last segment of their names; a handle stays relative if it was and ``scope`` is exclusive.

        Raises:
            InvalidInputError: A handle that :meth:`can_fast_duplicate` refuses. Nothing was copied.
            NotFoundError: A file is gone.
            AlreadyExistsError: The folder holds another file of that name.
        """
        folder = self._folder_of(scope, "duplicate")
        files = [handle for handle in handles if isinstance(handle, FileHandle)]
        if len(files) < len(handles) or not all(self.can_fast_duplicate(handle, scope) for handle in files):
            raise InvalidInputError(
                "only files of a store that copies by itself can be duplicated, and into another folder",
                operation="duplicate",
                subject=self._store.url,
                hint="Ask can_fast_duplicate first; read and write the others through a stream",
            )
        copies = []
        for handle in files:
            name = _in_folder(folder, handle)
            self._store.copy(handle.name, name)
            relative = handle.relative and scope is CheckpointedStateScope.EXCLUSIVE
            copies.append(FileHandle(self._store, name, handle.size, handle.crc32c, relative))
        return copies

    def _folder_of(self, scope: CheckpointedStateScope, operation: str) -> str:
        if not isinstance(scope, CheckpointedStateScope):
            raise InvalidInputError(
                f"{scope!r} is not a scope",
                operation=operation,
                subject="scope",
                hint="Give CheckpointedStateScope.EXCLUSIVE or CheckpointedStateScope.SHARED",
            )
        return self._folders[scope]


def _in_folder(folder: str, handle: FileHandle) -> str:
    """What the copy of a file is called."""
    return f"{folder}/{handle.name.rpartition('/')[2]}"


def _folder(name: str, what: str) -> str:
    if not isinstance(name, str):
        raise InvalidInputError(f"{name!r} is not a name", subject=what, hint="Give a folder such as 'chk-7'")
    folder = name.rstrip("/")
    check_object_name(f"{check_name(folder)}/x")  # No sweep of staged pieces may take its files, and no floor be in it.
    return folder


class CheckpointStateOutputStream(Closable):
    """One piece of state being written. One thread writes; :meth:`close` may come from any other."""

    def __init__(
        self,
        store: BlobStore,
        folder: str,
        *,
        relative: bool,
        threshold: int,
        piece_bytes: int,
        environment: Environment,
    ) -> None:
        self._store = store
        self._folder = folder
        self._relative = relative
        self._threshold = threshold
        self._piece_bytes = piece_bytes
        self._ids = environment.ids
        self._monitor = environment.executors.monitor()
        self._name = self._new_name()
        self._buffer = bytearray()
        self._parts: list[Part] = []
        self._position = 0
        self._checksum = 0
        self._closed = False

    @property
    def position(self) -> int:
        """Bytes written so far; keeps its value after the end."""
        return self._position

    def write(self, b: Buffer) -> int:
        """Takes all of ``b``; returns its length in bytes.

        All or nothing: a call that raises has accepted none of its bytes and may be repeated.

        Raises:
            InvalidInputError: ``b`` is not bytes-like and contiguous.
            ClosedError: The stream was closed.
            UnavailableError: And other errors of the store, from staging a full buffer.
        """
        with self._monitor, memoryview(plain_bytes(b, "write", "state")) as view:
            self._check_open("write")
            before, length = len(self._buffer), len(view)
            try:
                self._buffer += view
                if len(self._buffer) >= self._piece_bytes:
                    self._stage()
            except BaseException:
                self._buffer = self._buffer[:before]
                raise
            self._checksum = crc32c(view, self._checksum)
            self._position += length
        return length

    def flush(self) -> None:
        """Hands what is buffered to the store if this is going to be a file; inline state makes no request.

        Do not call it for each record: every call that finds bytes makes one object.
        """
        with self._monitor:
            self._check_open("flush")
            if self._position > self._threshold:
                self._stage()

    def sync(self) -> None:
        """As :meth:`flush`; what the store has taken is durable. Inline state becomes durable with its record."""
        self.flush()

    def close_and_get_handle(self) -> InlineHandle | FileHandle | None:
        """Ends the stream; ``None`` if nothing was written. What the handle names is durable and is kept.

        Raises:
            ClosedError: The stream was closed, or has given its handle.
            StatelineError: The file could not be created; nothing of it is left. The stream is closed.
        """
        with self._monitor:
            self._check_open("close_and_get_handle")
            self._closed = True
            if self._position == 0:
                return None
            if self._position <= self._threshold:
                return InlineHandle(bytes(self._buffer))
            try:
                name = self._create()
            finally:
                self._discard_parts()
            return FileHandle(self._store, name, self._position, self._checksum, self._relative)

    def close(self) -> None:
        """Gives the stream up: what it wrote is deleted. After :meth:`close_and_get_handle`: nothing. Never raises."""
        with self._monitor:
            self._closed = True
            self._buffer = bytearray()
            self._discard_parts()

    # -- creating -------------------------------------------------------------------------------------------------

    def _create(self) -> str:
        """Gives the bytes a name of their own and returns it."""
        if self._parts:
            self._stage()
        create = self._publish if self._parts else self._put
        attempts_left = CREATION_ATTEMPTS
        failure: Exception | None = None
        while True:
            try:
                create(self._name)
            except (DataLossError, InvalidInputError) as error:
                if failure is None:
                    raise
                raise failure from error  # The pieces do not fit another name, so the failure before it is what counts.
            except _FAILURES as error:
                untyped = not isinstance(error, StatelineError)
                if not untyped and not isinstance(error, _ANOTHER_NAME_MAY_WORK):
                    raise
                if untyped or isinstance(error, OutcomeUnknownError):
                    self._try_to_delete(self._name)
                attempts_left -= 1
                if not attempts_left:
                    error.add_note(f"{CREATION_ATTEMPTS} names were tried below {self._store.url}/{self._folder}")
                    raise
                failure = error
                self._name = self._new_name()
            else:
                return self._name

    def _new_name(self) -> str:
        return f"{self._folder}/{self._ids.new_id()}"

    def _put(self, name: str) -> None:
        self._store.put_if_absent(name, self._buffer)

    def _publish(self, name: str) -> None:
        self._store.publish(name, self._parts, self._ids.new_id())

    def _stage(self) -> None:
        """Hands the buffer over. It is never changed again: whoever keeps a view of it would forbid that."""
        if self._buffer:
            given, self._buffer = self._buffer, bytearray()
            try:
                self._parts.append(self._store.stage(self._name, given))
            except BaseException:
                self._buffer = given[:]
                raise

    def _discard_parts(self) -> None:
        parts, self._parts = self._parts, []
        try:
            if parts:
                self._store.discard(parts)
        except _FAILURES as error:
            _log.warning("staged pieces stay until the next sweep: %s", error)

    def _try_to_delete(self, name: str) -> None:
        try:
            self._store.delete([name])
        except _FAILURES as error:
            _log.warning("a file that nobody names may stay until the next sweep: %s", error)

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise ClosedError(
                "the stream was closed, or has given its handle",
                operation=operation,
                subject=f"{self._store.url}/{self._folder}",
                hint="Create a new stream",
            )
