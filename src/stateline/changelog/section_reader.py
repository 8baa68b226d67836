"""The way from a handle to the bytes of a section, whatever is in it: changes, a run, rows.

Whoever reads gives a function that checks and decodes the bytes, and raises :class:`CorruptDataError` where they are
not what the handle says.

Places, in order:

1. The handle itself, where the section is inline.
2. The store, where it is this host's disk: the object is memory-mapped where it lies.
3. The caches on this host: mapped from there. A damaged copy is deleted, and the next place is asked.
4. The store, by ranged reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from stateline.blob.api import BlobStore
from stateline.blob.mapping import map_object
from stateline.changelog.handle import SegmentHandle
from stateline.changelog.host_cache import Extent, Found, HostCache
from stateline.errors import CorruptDataError, NotFoundError, UnsupportedVersionError
from stateline.handles import SectionHandle

__all__ = ["SectionPart", "SectionReader"]

T = TypeVar("T")

KeyGroups = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SectionPart(Generic[T]):
    """The part of a section that somebody needs, where a copy of no more is good enough.

    Attributes:
        key_groups: First and last one, inclusive.
        read: Gets the bytes of such a copy, in their places; the others are zeros.
    """

    key_groups: KeyGroups
    read: Callable[[pa.Buffer], T]


class SectionReader:
    """Reads sections of one store. Safe from any thread.

    Args:
        store: The objects.
        cache: Where copies are on this host, and where those go that are fetched; for a store that is elsewhere.
        downloaded: Where whole objects are downloaded to, so that readers of this host share them.
    """

    def __init__(self, store: BlobStore, cache: HostCache | None = None, downloaded: HostCache | None = None) -> None:
        self.store = store
        self._cache = cache
        self._downloaded = downloaded

    def near(
        self,
        section: SectionHandle | SegmentHandle,
        read: Callable[[pa.Buffer], T],
        part: SectionPart[T] | None = None,
    ) -> T | None:
        """What ``read`` makes of a section that is on this host; ``None`` where it must be fetched.

        Args:
            section: Which one.
            read: Gets all its bytes.
            part: What of it is needed, if not all.

        Raises:
            NotFoundError: The store is this host's disk, and the object is gone.
            CorruptDataError: What ``read`` raises, where there is no copy to be replaced.
        """
        if isinstance(section, SectionHandle) and section.is_inline:
            return read(pa.py_buffer(section.data))
        mapped = map_object(self.store, section.name)
        if mapped is not None:
            start = min(section.offset, mapped.size)  # What was cut short fails its proof.
            return read(mapped.slice(start, min(section.length, mapped.size - start)))
        return self.copied(section, read, part)

    def copied(
        self,
        section: SectionHandle | SegmentHandle,
        read: Callable[[pa.Buffer], T],
        part: SectionPart[T] | None = None,
    ) -> T | None:
        """As :meth:`near`, of the caches alone: for who reads all of a section once, where reading beats mapping."""
        for cache in (self._cache, self._downloaded):
            if cache is None:
                continue
            with closing(self._copies(cache, section, None if part is None else part.key_groups)) as copies:
                for found in copies:
                    try:
                        result = (read if found.part is None or part is None else part.read)(found.buffer)
                    except (CorruptDataError, UnsupportedVersionError):
                        cache.drop(found)
                    else:
                        cache.metrics.counter("local_reads").increment()
                        return result
        return None

    def fetch(self, section: SectionHandle | SegmentHandle, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Half-open ranges of a section, counted from its first byte, from the store."""
        first = section.offset
        return self.store.get_ranges(section.name, [(first + start, first + end) for start, end in ranges])

    def keep(self, section: SectionHandle, extents: Sequence[Extent], part: KeyGroups | None = None) -> None:
        """Keeps proved bytes that were fetched for the next reader on this host; see :meth:`HostCache.save`."""
        if self._cache is not None:
            self._cache.save(self.store.url, section.name, section.offset, section.length, extents, part)

    def _copies(
        self, cache: HostCache, section: SectionHandle | SegmentHandle, part: KeyGroups | None
    ) -> Generator[Found]:
        if cache is self._downloaded:
            try:
                cache.download(self.store, section.name)
            except NotFoundError:
                return
            except (OSError, ValueError):
                cache.metrics.counter("local_read_fallbacks").increment()
        yield from cache.find(self.store.url, section.name, section.offset, section.length, part)
        if isinstance(section, SectionHandle) and section.made_as:
            name, _, offset = section.made_as.rpartition("@")
            if offset.isdecimal():
                yield from cache.find(self.store.url, name, int(offset), section.length)
