"""A store in this process's memory: the reference implementation, and what tests and simulations run on.

``memory://name`` opens the store of that name; every open of one name in one process sees the same objects, and
``memory://name/folder`` those below a folder of it, as on every other store. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stateline.blob.api import BlobStore, Buffer, ObjectInfo, closed_store
from stateline.blob.arguments import check_range, checked_names, own_bytes, staged_parts
from stateline.blob.checksum import crc32c
from stateline.blob.names import STAGING_PREFIX, check_name, check_prefix
from stateline.blob.outcome import Fingerprint, already_exists, damaged_part, parts_missing, too_short
from stateline.environment import Environment, system_environment
from stateline.errors import NotFoundError
from stateline.handles import Part
from stateline.threads import Lock, new_lock

__all__ = ["MemoryStore"]


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    info: ObjectInfo


class MemoryStore(BlobStore):
    """Objects in a dictionary under one lock.

    Args:
        name: What stands after ``memory://``: a name, or a name and a folder. Stores of one name share their objects
            within the process.
        environment: Clock for ``modified_at`` and ids for staged names.
    """

    _shared: dict[str, tuple[dict[str, _Object], Lock]] = {}  # noqa: RUF012 - shared on purpose
    _shared_lock = new_lock()

    def __init__(self, name: str, environment: Environment | None = None) -> None:
        self._name = name
        self._environment = environment or system_environment()
        shared, _, folder = name.partition("/")
        self._folder = f"{folder}/" if folder else ""
        with self._shared_lock:
            self._held: dict[str, _Object] | None
            self._held, self._lock = self._shared.setdefault(shared, ({}, new_lock()))

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryStore, (self._name,)

    @classmethod
    def forget(cls, name: str) -> None:
        """Drops a named store and its objects, in all folders. Open stores of that name keep what they have."""
        with cls._shared_lock:
            cls._shared.pop(name.partition("/")[0], None)

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    @property
    def _objects(self) -> dict[str, _Object]:
        if self._held is None:
            raise closed_store(self.url)
        return self._held

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        made = self._make(check_name(name), own_bytes(data, "put", name))
        with self._lock:
            self._objects[self._folder + name] = made
        return made.info

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        made = self._make(check_name(name), own_bytes(data, "put_if_absent", name))
        with self._lock:
            found = self._objects.setdefault(self._folder + name, made)
        if found.data != made.data:
            raise already_exists(name)
        return self._told(found, name)

    def get(self, name: str) -> bytes:
        return self._find(name, "get").data

    def get_range(self, name: str, start: int, end: int) -> bytes:
        check_range(name, start, end)
        data = self._find(name, "get_range").data
        if end > len(data):
            raise too_short(name, end, len(data))
        return data[start:end]

    def head(self, name: str) -> ObjectInfo:
        return self._told(self._find(name, "head"), name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            found = [item for item in self._objects.items() if item[0].startswith(self._folder + prefix)]
        return (self._told(made, name.removeprefix(self._folder)) for name, made in found)

    def delete(self, names: Iterable[str]) -> None:
        wanted = [check_name(name) for name in checked_names(names)]
        with self._lock:
            for name in wanted:
                self._objects.pop(self._folder + name, None)

    @property
    def copies_cheaply(self) -> bool:
        return True

    def stage(self, target: str, data: Buffer) -> Part:
        data = own_bytes(data, "stage", check_name(target))
        info = self.put_if_absent(STAGING_PREFIX + self._environment.ids.new_id(), data)
        return Part(name=info.name, length=info.size, crc32c=info.crc32c or 0)

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        check_name(target)
        parts = staged_parts(parts, "publish")
        ours = Fingerprint.of_parts(parts, nonce)
        with self._lock:
            found = self._objects.get(self._folder + target)
            if found is None:
                data = b"".join(self._piece(target, part) for part in parts)
                found = self._objects[self._folder + target] = self._make(target, data, nonce)
        if not ours.matches(found.info):
            raise ours.conflict(target, found.info)
        return self._told(found, target)

    def discard(self, parts: Iterable[Part]) -> None:
        self.delete([part.name for part in staged_parts(parts, "discard")])

    def close(self) -> None:
        """Closes this store. The objects stay, for other stores of that name."""
        self._held = None

    def _piece(self, target: str, part: Part) -> bytes:
        found = self._objects.get(self._folder + part.name)
        if found is None:
            raise parts_missing(target, part.name)
        if not Fingerprint.of_parts([part]).matches(found.info):
            raise damaged_part(target, part)
        return found.data

    def _find(self, name: str, operation: str) -> _Object:
        check_name(name)
        with self._lock:
            found = self._objects.get(self._folder + name)
        if found is None:
            raise NotFoundError("there is no such object", operation=operation, subject=f"{self.url}/{name}")
        return found

    def _told(self, found: _Object, name: str) -> ObjectInfo:
        """What is known of an object, under the name that it has here: another folder may have made it."""
        return found.info if found.info.name == name else replace(found.info, name=name)

    def _make(self, name: str, data: bytes, nonce: str = "") -> _Object:
        now = self._environment.clock.now()
        return _Object(data, ObjectInfo(name=name, size=len(data), modified_at=now, crc32c=crc32c(data), nonce=nonce))
