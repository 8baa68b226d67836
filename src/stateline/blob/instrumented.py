"""Stores that wrap another store: forwarding, and counting what crosses the wire.

``InstrumentedStore`` is how a test asserts "no LIST and no HEAD on the way" and how metrics count requests and bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.handles import Part

__all__ = ["InstrumentedStore", "StoreDecorator"]


class StoreDecorator(BlobStore):
    """Forwards every call to ``inner``; subclasses override what they change."""

    def __init__(self, inner: BlobStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        return self.inner.put(name, data)

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        return self.inner.put_if_absent(name, data)

    def get(self, name: str) -> bytes:
        return self.inner.get(name)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        return self.inner.get_range(name, start, end)

    def head(self, name: str) -> ObjectInfo:
        return self.inner.head(name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        self.inner.delete(names)

    @property
    def copies_cheaply(self) -> bool:
        return self.inner.copies_cheaply

    def copy(self, source: str, target: str) -> ObjectInfo:
        return self.inner.copy(source, target)

    def stage(self, target: str, data: Buffer) -> Part:
        return self.inner.stage(target, data)

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:
        return self.inner.prepare(target, parts, nonce)

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        return self.inner.publish(target, parts, nonce)

    def discard(self, parts: Iterable[Part]) -> None:
        self.inner.discard(parts)

    def read_staged(self, part: Part) -> bytes | None:
        return self.inner.read_staged(part)

    def list_staged(self) -> Iterator[ObjectInfo]:
        return self.inner.list_staged()

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    def close(self) -> None:
        self.inner.close()


class InstrumentedStore(StoreDecorator):
    """Counts calls and bytes by operation.

    Attributes:
        calls: Calls by method name, also those that fail; ``delete`` counts calls, not names.
        bytes_written: Bytes given to ``put``, ``put_if_absent`` and ``stage``.
        bytes_read: Bytes returned by ``get``, ``get_range`` and ``read_staged``. A file reached through
            ``local_path`` counts nothing.
    """

    def __init__(self, inner: BlobStore) -> None:
        super().__init__(inner)
        self._lock = Lock()
        self.calls: Counter[str] = Counter()
        self.bytes_written = 0
        self.bytes_read = 0

    def reset(self) -> None:
        """Starts counting from zero."""
        with self._lock:
            self.calls.clear()
            self.bytes_written = self.bytes_read = 0

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        self._count("put", written=len(data))
        return self.inner.put(name, data)

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        self._count("put_if_absent", written=len(data))
        return self.inner.put_if_absent(name, data)

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:
        """See :meth:`BlobStore.put_all_if_absent`; counted as ``put_if_absent``."""
        self._count("put_if_absent", written=sum(map(len, pieces)))
        return self.inner.put_all_if_absent(name, pieces, read_soon=read_soon)

    def get(self, name: str) -> bytes:
        self._count("get")
        data = self.inner.get(name)
        self._count_read(len(data))
        return data

    def get_range(self, name: str, start: int, end: int) -> bytes:
        self._count("get_range")
        data = self.inner.get_range(name, start, end)
        self._count_read(len(data))
        return data

    def head(self, name: str) -> ObjectInfo:
        self._count("head")
        return self.inner.head(name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._count("list")
        return self.inner.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        self._count("delete")
        self.inner.delete(names)

    def copy(self, source: str, target: str) -> ObjectInfo:
        self._count("copy")
        return self.inner.copy(source, target)

    def stage(self, target: str, data: Buffer) -> Part:
        self._count("stage", written=len(data))
        return self.inner.stage(target, data)

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:
        self._count("prepare")
        return self.inner.prepare(target, parts, nonce)

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        self._count("publish")
        return self.inner.publish(target, parts, nonce)

    def discard(self, parts: Iterable[Part]) -> None:
        self._count("discard")
        self.inner.discard(parts)

    def read_staged(self, part: Part) -> bytes | None:
        self._count("read_staged")
        data = self.inner.read_staged(part)
        self._count_read(len(data or b""))
        return data

    def list_staged(self) -> Iterator[ObjectInfo]:
        self._count("list_staged")
        return self.inner.list_staged()

    def _count(self, operation: str, *, written: int = 0) -> None:
        with self._lock:
            self.calls[operation] += 1
            self.bytes_written += written

    def _count_read(self, read: int) -> None:
        with self._lock:
            self.bytes_read += read
