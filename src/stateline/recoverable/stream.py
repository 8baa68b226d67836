"""A file being written: a list of staged pieces and a small buffer.

Invariants:

- ``sealed`` pieces, then ``tail`` pieces, then the unstaged end of ``buffer`` are the file. Sealed pieces never change.
- ``buffer`` ends with the unstaged bytes; before them it may hold the bytes of the last tail pieces (``loaded`` of
  them), which are kept to be merged without reading them back. After a recovery none are held, and they are read only
  when they are merged.
- Tail and unstaged bytes together never exceed ``chunk_size``.
- A buffer of which the store was given a view is never changed again: whoever keeps one (a traceback, an SDK, an
  error that a retry has cured) would forbid that. Nor is the caller's, which may want to change it: what is not
  read-only is copied.
- A call that fails changes nothing, so it may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import msgspec

from stateline.blob.api import BlobStore, Buffer
from stateline.blob.arguments import plain_bytes
from stateline.blob.checksum import combine_crc32c, crc32c, crc32c_of_parts
from stateline.errors import ClosedError, ConflictError, CorruptDataError, DataLossError, NotFoundError
from stateline.handles import Part, ResumePoint
from stateline.recoverable.api import RecoverableWriterSettings
from stateline.recoverable.committer import Committer, already_published, is_published
from stateline.recoverable.folding import pieces_to_fold

__all__ = ["RecoverableStream"]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What is staged, as a value, so that a failed call can go back to it."""

    sealed: tuple[Part, ...] = ()
    sealed_length: int = 0
    sealed_crc32c: int = 0
    tail: tuple[Part, ...] = ()
    tail_length: int = 0
    superseded: tuple[Part, ...] = ()

    def with_tail(self, count: int, piece: Part) -> _Pieces:
        """The last ``count`` tail pieces replaced by one that holds their bytes and more."""
        kept, folded = self.tail[: len(self.tail) - count], self.tail[len(self.tail) - count :]
        tail = (*kept, piece)
        return replace(self, tail=tail, tail_length=_length(tail), superseded=(*self.superseded, *folded))

    def with_sealed(self, count: int) -> _Pieces:
        """The first ``count`` tail pieces sealed."""
        moved, tail = self.tail[:count], self.tail[count:]
        checksum = self.sealed_crc32c
        for part in moved:
            checksum = combine_crc32c(checksum, part.crc32c, part.length)
        return replace(
            self,
            sealed=(*self.sealed, *moved),
            sealed_length=self.sealed_length + _length(moved),
            sealed_crc32c=checksum,
            tail=tail,
            tail_length=_length(tail),
        )


@dataclass(slots=True)
class _State:
    """All that a stream remembers of its file."""

    pieces: _Pieces = field(default_factory=_Pieces)
    buffer: bytearray = field(default_factory=bytearray)
    loaded: int = 0

    @property
    def unstaged(self) -> int:
        """Bytes at the end of the buffer that no piece holds."""
        return len(self.buffer) - self.loaded

    @property
    def open_length(self) -> int:
        """Bytes after the sealed pieces."""
        return self.pieces.tail_length + self.unstaged


class RecoverableStream:
    """An open file. Made by :meth:`RecoverableWriter.open` and :meth:`RecoverableWriter.recover`.

    Leaving a ``with`` block closes the stream; if an exception leaves it, nothing more is sent to the store.
    """

    def __init__(
        self,
        store: BlobStore,
        settings: RecoverableWriterSettings,
        target: str,
        nonce: str,
        point: ResumePoint | None = None,
    ) -> None:
        self._store = store
        self._chunk_bytes = settings.chunk_size
        self._fold_bytes = min(settings.fold_size, settings.chunk_size)
        self._target = target
        self._nonce = nonce
        self._closed = point is not None and point.closed
        self._point = point
        self._prepared: ResumePoint | None = None
        self._state = _State() if point is None else _State(pieces=self._recovered(point.parts))

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<RecoverableStream {self._target!r} at {self.position}, {state}>"

    @property
    def target(self) -> str:
        """Relative name of the file to be."""
        return self._target

    @property
    def position(self) -> int:
        """Bytes accepted so far, those before a recovery included."""
        return self._state.pieces.sealed_length + self._state.open_length

    @property
    def closed(self) -> bool:
        """Whether writing has ended."""
        return self._closed

    def write(self, b: Buffer) -> int:
        """Accepts all bytes of ``b``, and returns how many they are. They are buffered; full buffers are staged.

        A call that raises has accepted none of its bytes and may be repeated.

        Raises:
            ClosedError: After :meth:`close` or :meth:`close_for_commit`.
            InvalidInputError: ``b`` is not bytes-like and contiguous.
            DataLossError: A piece that had to be merged is gone.
            UnavailableError: And other errors of the store, from staging a full buffer.
        """
        if self._closed:
            raise ClosedError(
                "the stream is closed", operation="write", subject=self._target, hint="Recover a point that is open"
            )
        before, before_bytes = self._state, len(self._state.buffer)
        with memoryview(plain_bytes(b, "write", self._target)) as view:
            length = len(view)
            self._state = replace(before)
            try:
                self._accept(view)
            except BaseException:
                self._state = replace(before, buffer=before.buffer[:before_bytes])
                raise
        return length

    def flush(self) -> None:
        """Does nothing, so that an encoder which flushes after every record does not make a piece of every record.

        Call :meth:`sync` or :meth:`persist` for durability.
        """

    def sync(self) -> None:
        """Makes every accepted byte durable. Costs nothing if there is nothing new.

        Raises:
            DataLossError: A piece that had to be merged is gone.
            UnavailableError: And other errors of the store. Nothing is lost: repeat the call.
        """
        if self._state.unstaged:
            state = replace(self._state)
            try:
                self._stage(state)
            except BaseException:
                self._state = replace(self._state, buffer=self._state.buffer[:])
                raise
            self._state = state

    def persist(self) -> ResumePoint:
        """Makes every accepted byte durable and returns the point at which writing can go on.

        The stream stays open. If nothing was written since the last point, that point is returned and nothing is done.

        Raises:
            As :meth:`sync`.
        """
        self.sync()
        last, pieces = self._point, self._state.pieces
        if last is None or last.length != self.position:
            last = ResumePoint(
                target=self._target,
                parts=(*pieces.sealed, *pieces.tail),
                length=self.position,
                crc32c=combine_crc32c(pieces.sealed_crc32c, crc32c_of_parts(pieces.tail), pieces.tail_length),
                nonce=self._nonce,
                superseded=pieces.superseded,
                closed=self._closed,
            )
            self._state.pieces = replace(pieces, superseded=())
        elif last.closed != self._closed:
            last = msgspec.structs.replace(last, closed=self._closed)
        self._point = last
        return last

    def close_for_commit(self) -> Committer:
        """Makes every accepted byte durable, ends writing, and returns what publishes the file.

        May be repeated: every committer publishes the same point. Its pieces are prepared (:meth:`BlobStore.prepare`),
        so a commit of it that sleeps and wakes up late cannot create the file a second time.

        Raises:
            DataLossError: A piece is gone.
            ConflictError: The file was published meanwhile by a successor.
            UnavailableError: And other errors of the store. Nothing is lost: repeat the call.
        """
        self.sync()
        self._closed = True
        if self._prepared is None:
            point = self.persist()
            try:
                parts = self._store.prepare(self._target, point.parts, self._nonce)
            except DataLossError as error:
                raise self._piece_gone("a piece") from error
            self._prepared = msgspec.structs.replace(point, parts=parts)
        return Committer(self._store, self._prepared)

    def close(self) -> None:
        """Makes every accepted byte durable and ends writing. Publishes nothing, deletes nothing. Idempotent.

        The last point is still to be had from :meth:`persist`; it can be committed, but not written to.

        Raises:
            As :meth:`sync`. The stream is closed nevertheless.
        """
        if not self._closed:
            self._closed = True
            self.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            self.close()
        self._closed = True

    # -- cutting --------------------------------------------------------------------------------------------------

    def _accept(self, view: memoryview) -> None:
        state, start = self._state, 0
        while start < len(view):
            room = self._chunk_bytes - state.open_length
            end = min(start + room, len(view))
            if end - start == self._chunk_bytes:
                data = view[start:end] if view.readonly else bytes(view[start:end])
                piece = self._store.stage(self._target, data)
                state.pieces = state.pieces.with_tail(0, piece).with_sealed(1)
            else:
                state.buffer += view[start:end]
                if state.open_length == self._chunk_bytes:
                    self._stage(state)
            start = end

    def _stage(self, state: _State) -> None:
        """Stages the unstaged bytes of ``state``, together with the small pieces that are due to be merged."""
        count = self._to_fold(state)
        if count:
            count = self._load(state, count)
        folded = _length(state.pieces.tail[len(state.pieces.tail) - count :])
        piece = self._store.stage(self._target, memoryview(state.buffer)[state.loaded - folded :])
        state.pieces = state.pieces.with_tail(count, piece)
        if piece.length >= self._fold_bytes or state.pieces.tail_length >= self._chunk_bytes:
            state.pieces = state.pieces.with_sealed(len(state.pieces.tail))
            state.buffer = bytearray()
        else:
            state.buffer = state.buffer[:]
        state.loaded = len(state.buffer)

    def _to_fold(self, state: _State) -> int:
        tail = state.pieces.tail
        if state.open_length >= self._chunk_bytes:
            return len(tail)
        return pieces_to_fold([part.length for part in tail], state.unstaged, self._fold_bytes)

    def _load(self, state: _State, count: int) -> int:
        """Brings the last ``count`` tail pieces into the buffer; returns how many of them could be read.

        What a store cannot read back is sealed as it is, with everything before it.
        """
        held, tail = 0, state.pieces.tail
        for index in range(1, count + 1):
            part = tail[len(tail) - index]
            held += part.length
            if held <= state.loaded:
                continue
            data = self._read(part)
            if data is None:
                state.pieces = state.pieces.with_sealed(len(tail) - index + 1)
                return index - 1
            state.buffer = bytearray(data) + state.buffer
            state.loaded += part.length
        return count

    def _read(self, part: Part) -> bytes | None:
        try:
            data = self._store.read_staged(part)
        except NotFoundError as error:
            raise self._piece_gone(f"the piece {part.name}") from error
        if data is not None and (len(data) != part.length or crc32c(data) != part.crc32c):
            raise CorruptDataError(
                f"the piece {part.name} is not what was staged",
                operation="recover",
                subject=self._target,
                hint="Go back to a checkpoint whose pieces are intact",
            )
        return data

    def _piece_gone(self, what: str) -> ConflictError | DataLossError:
        if is_published(self._store, self._target):
            return already_published(self._target)
        return DataLossError(
            f"{what} is gone",
            operation="recover",
            subject=self._target,
            hint="It was deleted or expired (check lifecycle rules). Go back to a checkpoint whose pieces exist",
        )

    def _recovered(self, parts: tuple[Part, ...]) -> _Pieces:
        """The pieces of a point: those at its end that are still small may be merged on."""
        pieces = replace(_Pieces(tail=parts), tail_length=_length(parts))
        small = open_length = 0
        for part in reversed(parts):
            open_length += part.length
            if part.length >= self._fold_bytes or open_length >= self._chunk_bytes:
                break
            small += 1
        return pieces.with_sealed(len(parts) - small)


def _length(parts: Iterable[Part]) -> int:
    return sum(part.length for part in parts)
