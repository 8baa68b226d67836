"""Stores that wrap another store: forwarding, and counting what crosses the wire.

``InstrumentedStore`` is how a test asserts "no LIST and no HEAD on the way" and how metrics count requests and bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

from stateline.blob.api import BlobStore, Buffer, ObjectInfo

__all__ = ["InstrumentedStore", "StoreDecorator"]

F = TypeVar("F", bound=Callable[..., Any])


def _forwarded(method: F) -> F:
    """A method of a decorator that calls the one of the same name of the inner store."""
    name = method.__name__

    def forward(self: StoreDecorator, *args: Any, **named: Any) -> Any:
        return self._forward(name, args, named)

    forward.__name__, forward.__qualname__, forward.__doc__ = name, f"StoreDecorator.{name}", method.__doc__
    return cast("F", forward)


class StoreDecorator(BlobStore):
    """Forwards every call to ``inner``; subclasses override what they change.

    ``get_ranges`` and ``put_all_if_absent`` are not forwarded: they call ``get_range`` and ``put_if_absent`` of the
    decorator, which may have been overridden.
    """

    def __init__(self, inner: BlobStore) -> None:
        self.inner = inner

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

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def copies_cheaply(self) -> bool:
        return self.inner.copies_cheaply

    @property
    def rests_on_conditions(self) -> bool:
        return self.inner.rests_on_conditions

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    def close(self) -> None:
        self.inner.close()

    def _forward(self, operation: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Makes one request of the inner store. To override for what concerns all of them."""
        return getattr(self.inner, operation)(*args, **named)


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

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:
        """Forwards the pieces as they are, and counts them as ``put_if_absent``."""
        self._count("put_if_absent", pieces)
        return self.inner.put_all_if_absent(name, pieces, read_soon=read_soon)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Forwards the ranges together, and counts each as ``get_range``."""
        with self._lock:
            self.calls["get_range"] += len(ranges)
        found = self.inner.get_ranges(name, ranges)
        with self._lock:
            self.bytes_read += sum(map(len, found))
        return found

    def _forward(self, operation: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._count(operation, (*args, *named.values()))
        result = super()._forward(operation, args, named)
        if isinstance(result, bytes):
            with self._lock:
                self.bytes_read += len(result)
        return result

    def _count(self, operation: str, given: Sequence[Any]) -> None:
        with self._lock:
            self.calls[operation] += 1
            self.bytes_written += sum(len(data) for data in given if isinstance(data, Buffer))
