"""Opens, recovers and commits files: the entry point of this package.

A writer has no state: everything that a file needs is in its points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from stateline.blob.api import BlobStore
from stateline.blob.names import STAGING_PREFIX
from stateline.blob.urls import open_store, relative_name
from stateline.environment import Environment, system_environment
from stateline.errors import InvalidInputError
from stateline.handles import CommitPoint, ResumePoint
from stateline.options import plain_options
from stateline.recoverable.api import RecoverableWriterSettings, check_point
from stateline.recoverable.committer import Committer, already_published, is_published
from stateline.recoverable.serializers import CommitPointSerializer, ResumePointSerializer
from stateline.recoverable.stream import RecoverableStream

__all__ = ["RecoverableWriter"]


class RecoverableWriter:
    """Writes files that appear exactly once. See :mod:`stateline.recoverable.api` for the promises.

    Safe from any thread, and picklable.

    Args:
        store: Where files and their pieces are kept.
        settings: How files are cut into pieces.
        environment: Ids; the real ones by default.
    """

    supports_resume: bool = True
    """:meth:`recover` works."""

    requires_cleanup: bool = True
    """Points may name superseded pieces that :meth:`cleanup` frees. Without it, the sweep does."""

    def __init__(
        self,
        store: BlobStore,
        settings: RecoverableWriterSettings | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._store = store
        self._settings = settings or RecoverableWriterSettings()
        self._environment = environment or system_environment()

    @classmethod
    def for_url(
        cls, url: str, options: Mapping[str, str] | None = None, environment: Environment | None = None
    ) -> Self:
        """A writer for files below ``url``, which :func:`stateline.blob.open_store` opens. No I/O.

        Args:
            url: Root of the output.
            options: Settings of the writer (:class:`RecoverableWriterSettings`) and of the store, as strings.
            environment: Clock, ids and threads; the real ones by default.
        """
        ours = RecoverableWriterSettings.option_names()
        given = plain_options(options)
        settings = RecoverableWriterSettings.from_options({key: given.pop(key) for key in ours & given.keys()})
        return cls(open_store(url, given, environment), settings, environment)

    def __repr__(self) -> str:
        return f"<RecoverableWriter {self._store.url}>"

    @property
    def store(self) -> BlobStore:
        """Where files and their pieces are kept."""
        return self._store

    @property
    def commit_serializer(self) -> CommitPointSerializer:
        """Bytes of commit points, for checkpoints that are not Stateline's own."""
        return CommitPointSerializer()

    @property
    def resume_serializer(self) -> ResumePointSerializer:
        """Bytes of resume points."""
        return ResumePointSerializer()

    def open(self, url: str) -> RecoverableStream:
        """A new file. No I/O: whether the target exists already is found out, and refused, when it is committed.

        Args:
            url: A URL (or local path) below the store's root, or a name relative to it.

        Raises:
            InvalidInputError: It lies outside the root, is not a name, or lies among the pieces, where sweeps delete.
        """
        target = relative_name(self._store.url, url)
        if target.startswith(STAGING_PREFIX):
            raise InvalidInputError(
                "cannot be a file: pieces are kept there, and sweeps delete there",
                operation="open",
                subject=target,
                hint=f"Choose a name that does not begin with {STAGING_PREFIX}",
            )
        return RecoverableStream(self._store, self._settings, target, self._environment.ids.new_id())

    def recover(self, point: ResumePoint, *, verify: bool = True) -> RecoverableStream:
        """The file of a point, at exactly its length. Whatever was written after the point is not part of it.

        Args:
            point: From :meth:`RecoverableStream.persist`, in this process or another.
            verify: Whether to ask the store (one ``head``) if the file has been committed since. Without it, nothing
                is asked now, and the commit of such a file fails instead; for callers that resume files often and know
                from their own records that they are open.

        Raises:
            ConflictError: The file was committed after the point was made.
            InvalidInputError: Not a resume point.
        """
        check_point(point, ResumePoint, "recover")
        target = relative_name(self._store.url, point.target)
        if verify and is_published(self._store, target):
            raise already_published(target)
        return RecoverableStream(self._store, self._settings, target, point.nonce, point)

    def recover_for_commit(self, point: CommitPoint) -> Committer:
        """The committer of a point, which may be a :class:`ResumePoint` too. No I/O.

        Raises:
            InvalidInputError: Not a point.
        """
        check_point(point, CommitPoint, "recover_for_commit")
        relative_name(self._store.url, point.target)
        return Committer(self._store, point)

    def cleanup(self, point: ResumePoint, *, keep: CommitPoint | None = None) -> bool:
        """Deletes pieces that a file no longer needs. Idempotent; missing pieces are no error.

        Without ``keep``: the pieces that ``point`` has superseded. Call it once no older point of the file will be
        restored; ``point`` itself stays good.

        With ``keep``: every piece that ``point`` names and ``keep`` does not. Call it once the checkpoint of ``point``
        is given up, with the point of the same file in the oldest checkpoint that is retained, or its commit point.

        Returns:
            Whether there was anything to delete.

        Raises:
            InvalidInputError: Not a resume point, or ``keep`` belongs to another file.
            OutcomeUnknownError: Some may still be there. Repeat.
        """
        check_point(point, ResumePoint, "cleanup")
        if keep is not None and (keep.target, keep.nonce) != (point.target, point.nonce):
            raise InvalidInputError(
                f"is not a point of {point.target}",
                operation="cleanup",
                subject=keep.target,
                hint="Nothing was done",
            )
        unneeded = point.superseded
        if keep is not None:
            kept = {(part.container, part.name) for part in keep.parts}
            every = (*point.parts, *point.superseded)
            unneeded = tuple(part for part in every if (part.container, part.name) not in kept)
        if unneeded:
            self._store.discard(unneeded)
        return bool(unneeded)
