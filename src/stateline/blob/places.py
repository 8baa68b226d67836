"""Whether two stores overlap: a folder whose files a cache deletes must not contain, or lie in, anybody's data."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from stateline.blob.api import BlobStore
from stateline.blob.urls import split_local_url
from stateline.errors import InvalidInputError

__all__ = ["check_apart"]

_FILE: Final = "file:"


def check_apart(option: str, cache: BlobStore, stores: Iterable[BlobStore]) -> None:
    """Refuses a cache that is, contains or lies in the root of a store. Links and mounts are looked through.

    Args:
        option: What the user calls the cache.
        cache: Where it is.
        stores: What it must keep away from.
    """
    for store in stores:
        if _overlap(cache, store):
            raise InvalidInputError(
                f"{cache.url} must be apart from {store.url}: neither may be or lie in the other",
                operation="open",
                subject=option,
                hint="Give it a folder of its own: what is in it may be deleted to keep its size",
            )


def _overlap(one: BlobStore, other: BlobStore) -> bool:
    folders = _folder_of(one), _folder_of(other)
    if folders[0] is None or folders[1] is None:
        urls = one.url.rstrip("/") + "/", other.url.rstrip("/") + "/"
        return urls[0].startswith(urls[1]) or urls[1].startswith(urls[0])
    return _holds(folders[0], folders[1]) or _holds(folders[1], folders[0])


def _folder_of(store: BlobStore) -> str | None:
    path = store.local_path("x")
    if path is not None:
        return os.path.realpath(path.parent)
    return os.path.realpath(split_local_url(store.url)) if store.url.startswith(_FILE) else None


def _holds(outer: str, inner: str) -> bool:
    """Whether ``inner`` is ``outer`` or lies in it, also where a mount gives one folder several paths."""
    if os.path.commonpath([outer, inner]) == outer:
        return True
    identity = _identity(outer)
    while identity is not None and inner != os.path.dirname(inner):
        if _identity(inner) == identity:
            return True
        inner = os.path.dirname(inner)
    return False


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:  # Not there yet, so it has no other path.
        return None
    return status.st_dev, status.st_ino
