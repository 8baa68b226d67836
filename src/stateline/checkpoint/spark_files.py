"""The files of Spark's own checkpoint, wherever they are kept."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from stateline.blob.api import BlobStore
from stateline.errors import AlreadyExistsError, NotFoundError

__all__ = ["SparkFiles", "StoreFiles", "is_hidden"]


class SparkFiles(Protocol):
    """What a savepoint does with Spark's checkpoint. Names are relative to its folder."""

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        ...

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; ``None`` if it does not exist."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of all files below a folder, sorted, without hidden ones; empty if there is no such folder."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Create a file, whole and durable; an existing one is left as it is."""
        ...


class StoreFiles:
    """Spark's checkpoint in a store.

    Args:
        store: The store.
        folder: The name of the checkpoint's folder in it; empty for its root.
    """

    def __init__(self, store: BlobStore, folder: str = "") -> None:
        self._store = store
        self._prefix = f"{folder}/" if folder else ""

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return f"{self._store.url.rstrip('/')}/{self._prefix}".rstrip("/")

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; ``None`` if it does not exist."""
        try:
            return self._store.get(self._prefix + name)
        except NotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """The names of all files below a folder, sorted, without hidden ones."""
        found = (info.name.removeprefix(self._prefix) for info in self._store.list(f"{self._prefix}{folder}/"))
        return sorted(name for name in found if not is_hidden(name))

    def create(self, name: str, data: bytes) -> None:
        """Create a file, whole and durable; an existing one is left as it is."""
        with suppress(AlreadyExistsError):
            self._store.put_if_absent(self._prefix + name, data)


def is_hidden(name: str) -> bool:
    """Whether Spark ignores a file: checksums of Hadoop's local file system, and files that were never completed."""
    return any(part.startswith(".") for part in name.split("/"))
