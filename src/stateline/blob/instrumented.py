"""Stores that wrap another store: forwarding, and counting what crosses the wire.

``InstrumentedStore`` is how a test asserts "no LIST and no HEAD on the way" and how metrics count requests and bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, TypeVar, cast

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.handles import Part

__all__ = ["InstrumentedStore", "StoreDecorator"]

F = TypeVar("F", bound=Callable[..., Any])


def _forwarded(method: F) -> F:
    """A method of a decorator that calls the method of that name of the inner store."""
    name = method.__name__

    def forward(self: StoreDecorator, *args: object, **named: object) -> object:
        return getattr(self.inner, name)(*args, **named)

    forward.__name__, forward.__qualname__, forward.__doc__ = name, f"StoreDecorator.{name}", method.__doc__
    return cast("F", forward)


class StoreDecorator(BlobStore):
    """Forwards every call to ``inner``; subclasses override what they change.

    Calls that :class:`BlobStore` makes of others (``get_ranges``, ``put_all_if_absent``) pass through those of the
    decorator.
    """

    def __init__(self, inner: BlobStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def copies_cheaply(self) -> bool:
        return self.inner.copies_cheaply

    put = _forwarded(BlobStore.put)
    put_if_absent = _forwarded(BlobStore.put_if_absent)
    get = _forwarded(BlobStore.get)
    get_range = _forwarded(BlobStore.get_range)
    head = _forwarded(BlobStore.head)
    list = _forwarded(BlobStore.list)
    delete = _forwarded(BlobStore.delete)
    copy = _forwarded(BlobStore.copy)
    stage = _forwarded(BlobStore.stage)
    prepare = _forwarded(BlobStore.prepare)
    publish = _forwarded(BlobStore.publish)
    discard = _forwarded(BlobStore.discard)
    read_staged = _forwarded(BlobStore.read_staged)
    list_staged = _forwarded(BlobStore.list_staged)
    local_path = _forwarded(BlobStore.local_path)
    close = _forwarded(BlobStore.close)


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

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        """See :meth:`BlobStore.put_all_if_absent`; counted as ``put_if_absent``."""
        self._count("put_if_absent", written=sum(map(len, pieces)))
        return self.inner.put_all_if_absent(name, pieces)

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
