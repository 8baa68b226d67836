"""Whether one place lies in another, however the two are spelled."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from stateline.blob.api import BlobStore
from stateline.blob.urls import is_local, places_of, same_service, split_local_url
from stateline.errors import InvalidInputError

__all__ = ["check_apart", "check_named", "is_within"]

_SINK_ROOT: Final = "/.stateline/stream"


def check_apart(option: str, cache: BlobStore, stores: Iterable[BlobStore]) -> None:
    """Refuses a cache that is, contains or lies in the root of a store: files of a cache are deleted.

    Args:
        option: What the user calls the cache.
        cache: Where it is.
        stores: What it must keep away from.
    """
    for store in stores:
        if is_within(cache.url, store.url) or is_within(store.url, cache.url):
            raise InvalidInputError(
                f"{cache.url} must be apart from {store.url}: neither may be or lie in the other",
                operation="open",
                subject=option,
                hint="Give it a folder of its own: what is in it may be deleted to keep its size",
            )


def check_named(url: str, root_url: str, named: Iterable[str], *, operation: str, hint: str) -> None:
    """Refuses a place that a record names, unless its caller named it, too: whoever writes a root could name any other.

    Named are the folder in which the root lies, what ``named`` holds, and all below them.

    Args:
        url: From a record.
        root_url: The root, as the caller named it.
        named: Further places that the caller named.
        operation: Of the caller.
        hint: How the caller names a place.
    """
    if any(is_within(url, each) for each in (_surroundings(root_url), *named)):
        return
    raise InvalidInputError(
        f"a record of {root_url} names this output, which lies elsewhere and was not named by the caller",
        operation=operation,
        subject=url,
        hint=hint,
    )


def _surroundings(root_url: str) -> str:
    """The folder in which a root lies; of the root that a sink keeps in its output, the output."""
    url = root_url.rstrip("/")
    if url.endswith(_SINK_ROOT):
        return url.removesuffix(_SINK_ROOT)
    folder = url.rpartition("/")[0]
    # Of a root that is a whole bucket, or a folder at the top of a disk, nothing lies beside it.
    is_top = folder.endswith("/") or not folder or folder == "file:"
    return url if is_top else folder


def is_within(url: str, folder: str) -> bool:
    """Whether a place is a folder or lies below it. Links and mounts are looked through."""
    if not same_service(url, folder):
        return False
    if not is_local(folder):
        outer, inner = places_of(folder, url)
        return f"{inner}/".startswith(f"{outer}/")
    outer, inner = (os.path.realpath(split_local_url(each)) for each in (folder, url))
    if os.path.commonpath([outer, inner]) == outer:
        return True
    identity = _identity(outer)
    while identity is not None and inner != os.path.dirname(inner):
        if _identity(inner) == identity:
            return True
        inner = os.path.dirname(inner)
    return False


def _identity(folder: str) -> tuple[int, int] | None:
    """The same for all paths that mounts give to one folder."""
    try:
        status = os.stat(folder)
    except OSError:  # Not there yet, so it has no other path.
        return None
    return status.st_dev, status.st_ino
