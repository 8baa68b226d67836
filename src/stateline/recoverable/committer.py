"""Publishing a finished file: once, whole, verified, from any process.

The two ways to commit differ in one thing: what an *earlier* publication of the same file means.

| the target holds | ``commit`` | ``commit_after_recovery`` |
|---|---|---|
| nothing, and the pieces are there | publishes | publishes |
| nothing, and a piece is gone | ``DataLossError`` | ``DataLossError`` |
| our file, published before this committer began | ``AlreadyExistsError`` | succeeds |
| our file, published by this committer (a lost answer, a repetition) | succeeds | succeeds |
| anything else | ``ConflictError`` | ``ConflictError`` |

A program that never failed commits each file once, so for it a published file means that something is wrong. A program
that recovers cannot know whether it committed before it died.
"""

from __future__ import annotations

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c_of_parts
from stateline.errors import AlreadyExistsError, ConflictError, CorruptDataError, NotFoundError
from stateline.handles import CommitPoint, Part, ResumePoint

__all__ = ["Committer", "already_published", "is_published"]


class Committer:
    """Publishes one file: of a :class:`ResumePoint`, exactly the bytes up to it. Safe from any thread.

    Made by :meth:`RecoverableStream.close_for_commit` and :meth:`RecoverableWriter.recover_for_commit`.
    """

    def __init__(self, store: BlobStore, point: CommitPoint) -> None:
        self._store = store
        self._point = CommitPoint(
            target=point.target, parts=point.parts, length=point.length, crc32c=point.crc32c, nonce=point.nonce
        )
        self._leftovers: tuple[Part, ...] = point.superseded if isinstance(point, ResumePoint) else ()
        self._began = False

    def __repr__(self) -> str:
        return f"<Committer {self._point.target!r}, {self._point.length} bytes>"

    @property
    def commit_point(self) -> CommitPoint:
        """What is committed, as a value that any process can commit later."""
        return self._point

    def commit(self) -> None:
        """Publishes the file and deletes its pieces: for a program that never failed.

        May be repeated on this committer, also after an error.

        Raises:
            AlreadyExistsError: The file had been published before this committer began; nothing was changed.
            OSError: As :meth:`commit_after_recovery`.
        """
        taken = not self._began and is_published(self._store, self._point.target)
        self._began = not taken
        self._publish()
        if taken:
            raise AlreadyExistsError(
                "the file has been published already",
                operation="commit",
                subject=self._point.target,
                hint="After a failure use commit_after_recovery(), which accepts that",
            )
        self._discard()

    def commit_after_recovery(self) -> None:
        """Publishes the file unless exactly it is published already, and deletes its pieces.

        Idempotent, from any process, concurrently. It deletes the pieces also if an earlier try published the file and
        died.

        Raises:
            ConflictError: The target holds something else: other bytes, or another writer's. It was not touched.
            DataLossError: Neither the file nor all of its pieces exist.
            CorruptDataError: A piece or the point is not what it was. Nothing was published.
            OutcomeUnknownError: The answer was lost and reading back failed.
        """
        self._publish()
        self._discard()

    def _publish(self) -> None:
        if crc32c_of_parts(self._point.parts) != self._point.crc32c:
            raise CorruptDataError(
                "the checksums of the pieces do not make that of the file",
                operation="commit",
                subject=self._point.target,
                hint="The point was damaged or put together by hand. Nothing was published",
            )
        self._store.publish(self._point.target, self._point.parts, self._point.nonce)

    def _discard(self) -> None:
        self._store.discard((*self._point.parts, *self._leftovers))


def is_published(store: BlobStore, target: str) -> bool:
    """Whether there is anything under the name of a file."""
    try:
        store.head(target)
    except NotFoundError:
        return False
    return True


def already_published(target: str) -> ConflictError:
    """The error of going on with a file that has been committed since."""
    return ConflictError(
        "the file was published after this resume point was made",
        operation="recover",
        subject=target,
        hint="Its rows are in the published file. Restore the newest checkpoint, or move the file away on purpose",
    )
