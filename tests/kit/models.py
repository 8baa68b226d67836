"""What the durable parts mean, without durability: a dictionary here, a byte string there.

A test does the same to a model and to the real thing and compares; no model does I/O, fails, or knows how the real one
works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stateline.errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    NotFoundError,
)

__all__ = ["KeyedStateModel", "OutputModel", "RecoverableFileModel", "StoreModel"]


@dataclass(slots=True)
class StoreModel:
    """A :class:`~stateline.blob.BlobStore` as a dictionary. Pieces are numbered in the order of their staging.

    Attributes:
        objects: Bytes by name.
        pieces: Bytes by number.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    pieces: dict[int, bytes] = field(default_factory=dict)
    _staged: dict[int, bytes] = field(default_factory=dict)

    def put(self, name: str, data: bytes) -> None:
        """See :meth:`BlobStore.put`."""
        self.objects[name] = data

    def put_if_absent(self, name: str, data: bytes) -> None:
        """See :meth:`BlobStore.put_if_absent`."""
        if self.objects.setdefault(name, data) != data:
            raise AlreadyExistsError("the name holds other bytes", operation="put_if_absent", subject=name)

    def get(self, name: str) -> bytes:
        """See :meth:`BlobStore.get`."""
        if name not in self.objects:
            raise NotFoundError("there is no such object", operation="get", subject=name)
        return self.objects[name]

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """See :meth:`BlobStore.get_range`."""
        data = self.get(name)
        if end > len(data):
            raise CorruptDataError("the object is shorter", operation="get_range", subject=name)
        return data[start:end]

    def list(self, prefix: str) -> Mapping[str, int]:
        """Sizes by name. See :meth:`BlobStore.list`."""
        return {name: len(data) for name, data in self.objects.items() if name.startswith(prefix)}

    def delete(self, names: Iterable[str]) -> None:
        """See :meth:`BlobStore.delete`."""
        for name in names:
            self.objects.pop(name, None)

    def stage(self, data: bytes) -> int:
        """The number of a new piece. See :meth:`BlobStore.stage`."""
        number = len(self._staged)
        self._staged[number] = self.pieces[number] = data
        return number

    def publish(self, target: str, pieces: Sequence[int]) -> None:
        """See :meth:`BlobStore.publish`."""
        wanted = b"".join(self._staged[number] for number in pieces)
        if target in self.objects:
            if self.objects[target] != wanted:
                raise ConflictError("the target holds something else", operation="publish", subject=target)
            return
        if any(number not in self.pieces for number in pieces):
            raise DataLossError("a piece is gone", operation="publish", subject=target)
        self.objects[target] = wanted

    def discard(self, pieces: Iterable[int]) -> None:
        """See :meth:`BlobStore.discard`."""
        for number in pieces:
            self.pieces.pop(number, None)


@dataclass(slots=True)
class RecoverableFileModel:
    """One file of a recoverable writer: bytes that grow, points to which they can go back, one publication.

    Attributes:
        written: All bytes accepted.
        points: Length of the file at each persist, by its number.
        published: What readers see; ``None`` before the commit.
        closed: Whether the stream was closed.
    """

    written: bytes = b""
    points: list[int] = field(default_factory=list)
    published: bytes | None = None
    closed: bool = False

    def write(self, data: bytes) -> None:
        """Appends."""
        self._check_open()
        self.written += data

    def persist(self) -> int:
        """A number from which :meth:`recover` goes on."""
        self._check_open()
        self.points.append(len(self.written))
        return len(self.points) - 1

    def recover(self, point: int) -> None:
        """Forgets everything after a point; later points are not to be used any more.

        Raises:
            ConflictError: The file was committed with more.
        """
        length = self.points[point]
        if self.published is not None:
            raise ConflictError("the file was committed", operation="recover")
        self.written = self.written[:length]
        del self.points[point + 1 :]
        self.closed = False

    def commit(self) -> None:
        """Publishes; may be repeated."""
        self.closed = True
        if self.published is None:
            self.published = self.written

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the stream is closed")


@dataclass(slots=True)
class KeyedStateModel:
    """Keyed state with its checkpoints, as dictionaries.

    Attributes:
        values: The present value of each key.
        checkpoints: The values at each checkpoint, by id.
    """

    values: dict[Hashable, Any] = field(default_factory=dict)
    checkpoints: dict[int, dict[Hashable, Any]] = field(default_factory=dict)

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key."""
        return self.values.get(key, default)

    def put(self, key: Hashable, value: Any) -> None:
        """Sets the value of a key."""
        self.values[key] = value

    def delete(self, key: Hashable) -> None:
        """Forgets a key."""
        self.values.pop(key, None)

    def checkpoint(self, checkpoint_id: int) -> None:
        """Remembers the present values."""
        self.checkpoints[checkpoint_id] = dict(self.values)

    def restore(self, checkpoint_id: int) -> None:
        """Goes back; forgets younger checkpoints."""
        self.values = dict(self.checkpoints[checkpoint_id])
        self.checkpoints = {number: kept for number, kept in self.checkpoints.items() if number <= checkpoint_id}


@dataclass(slots=True)
class OutputModel:
    """Exactly-once output: the multiset of the rows of the committed batches.

    Attributes:
        rows: How often each row must be visible.
        committed: The batches that count.
    """

    rows: Counter[Hashable] = field(default_factory=Counter)
    committed: set[int] = field(default_factory=set)

    def commit(self, batch: int, rows: Iterable[Hashable]) -> None:
        """Counts a batch; a batch that comes again counts once."""
        if batch not in self.committed:
            self.committed.add(batch)
            self.rows.update(rows)

    def difference(self, visible: Iterable[Hashable]) -> tuple[Counter[Hashable], Counter[Hashable]]:
        """What is missing from ``visible`` and what is there too often; two empty counters where all is well."""
        seen = Counter(visible)
        return self.rows - seen, seen - self.rows
