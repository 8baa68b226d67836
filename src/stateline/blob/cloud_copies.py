"""Copies that a service makes by itself: their bytes do not pass through this process.

A copy is pinned to the version of its source that was looked at first, and is compared with that one's CRC32C, so it
has those bytes or is not made. An object without bytes, or one of somebody else's making that has no CRC32C, is read
and written instead.
"""

from __future__ import annotations

from abc import abstractmethod

from stateline.blob.api import ObjectInfo
from stateline.blob.cloud import C, CloudStore, S
from stateline.blob.names import check_name
from stateline.blob.outcome import Fingerprint, PieceError, already_exists
from stateline.errors import NotFoundError
from stateline.handles import Part

__all__ = ["CopyingStore"]


class CopyingStore(CloudStore[C, S]):
    """A store whose service copies objects within a container."""

    @property
    def copies_cheaply(self) -> bool:
        return True

    def copy(self, source: str, target: str) -> ObjectInfo:
        check_name(target)
        origin = self.head(source)
        if origin.crc32c is None or not origin.size:
            return super().copy(source, target)
        part = Part(
            name=self._key(source),
            length=origin.size,
            crc32c=origin.crc32c,
            container=self._container,
            version=origin.version,
        )
        with self._telling("copy", target):
            try:
                return self._created(
                    Fingerprint(origin.size, origin.crc32c),
                    lambda: self._duplicate(target, part),
                    lambda: self.head(target),
                    lambda _: already_exists(target),
                )
            except PieceError as error:
                raise NotFoundError(
                    "the object was deleted or replaced while it was copied",
                    operation="copy",
                    subject=f"{self.url}/{source}",
                    hint="Objects never change: something else writes below this root",
                ) from error

    @abstractmethod
    def _duplicate(self, target: str, source: Part) -> ObjectInfo:
        """Creates ``target`` from an object of the container, if absent.

        Args:
            target: Name of the copy.
            source: The object: its key, its version and what its bytes must be.

        Raises:
            PieceError: The source is gone, or is another version.
        """
