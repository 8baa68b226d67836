"""Large objects made of pieces by one process and published by whoever comes: once, whole, verified.

A minimal commit protocol over the staging capability, and the oracle of B2 to B5, C1, C2, C4 and C5:

1. stage the pieces of a file and prepare its publication;
2. create the record that names them (create-if-absent, the winner counts), or make the one that is there durable;
3. publish from the record; 4. discard its pieces; 5. mark it done, and only then tell the outside.

An outside consumer moves away the files of records that are marked.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c, crc32c_of_parts
from stateline.errors import AlreadyExistsError, ConflictError, CorruptDataError, NotFoundError
from stateline.handles import CommitPoint
from tests.kit.effects import Effect
from tests.kit.invariants import InvariantViolation, require
from tests.kit.scenario import Scenario
from tests.kit.scenarios.retry import certain
from tests.kit.world import Process, World

__all__ = ["StorePublish"]

_FOREIGN = "out/foreign"


class StorePublish(Scenario):
    """See the module docstring.

    Args:
        pieces: How many pieces each file has; one file per entry.
        foreign: Whether each process also tries to publish over somebody else's object.
        consumer: Whether a consumer moves files away.
    """

    name: ClassVar[str] = "store_publish"

    def __init__(self, pieces: tuple[int, ...] = (1, 3, 0), *, foreign: bool = True, consumer: bool = True) -> None:
        self.pieces = pieces
        self.foreign = foreign
        self.consumer = consumer

    def prepare(self, world: World) -> None:
        """See :meth:`Scenario.prepare`."""
        world.objects().put(_FOREIGN, b"somebody else's")

    def start(self, world: World, incarnation: int) -> Process:
        """See :meth:`Scenario.start`."""
        process = world.process(f"writer-{incarnation}")
        process.spawn(lambda: self._work(process))
        return process

    def consume(self, world: World) -> Process | None:
        """See :meth:`Scenario.consume`."""
        if not self.consumer:
            return None
        process = world.process("consumer", faulty=False)
        process.spawn(lambda: self._move_away(process))
        return process

    def watch(self, world: World, effect: Effect) -> None:
        """C2: what becomes visible is named by a record. C5: a mark comes after the pieces are gone."""
        if effect.operation == "publish":
            targets = [point.target for slot in range(len(self.pieces)) if (point := _record(world.objects(), slot))]
            require(effect.names[0] in targets, "C2", f"{effect.names[0]} is visible, but no record names it")
        if effect.operation == "put_if_absent" and effect.names[0].startswith("done/"):
            self._require_pieces_gone(world, int(effect.names[0].removeprefix("done/")))

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`."""
        store = world.objects()
        require(store.get(_FOREIGN) == b"somebody else's", "A5", "a foreign object was overwritten")
        finals = {info.name for info in store.list("out/")} - {_FOREIGN}
        for slot, pieces in enumerate(self.pieces):
            point = _record(store, slot)
            if point is None:
                raise InvariantViolation("C1", f"file {slot} has no record")
            copies = [fact.value for fact in world.facts if fact.key == ("consumed", slot)]
            if point.target in finals:
                finals.discard(point.target)
                copies.append(store.get(point.target))
            # A file without pieces has nothing whose loss could stop a zombie from creating it again; it has no rows.
            require(
                len(copies) == 1 or (len(copies) > 1 and not pieces), "C1", f"file {slot} is there {len(copies)} times"
            )
            rows = copies[0].decode().splitlines()
            writers = {row.rpartition(" ")[2] for row in rows}
            wanted = [_row(slot, piece) for piece in range(pieces)]
            require([row.rpartition(" ")[0] for row in rows] == wanted, "C1", f"file {slot} holds {rows}")
            require(writers <= {point.nonce}, "C3", f"file {slot} was decided for {point.nonce} and holds {writers}")
            self._require_pieces_gone(world, slot)
        require(not finals, "C2", f"finals that no record names: {sorted(finals)}")

    def _work(self, process: Process) -> None:
        if self.foreign:
            self._refuse_foreign(process)
        for slot in range(len(self.pieces)):
            if process.world.acknowledged(("done", slot)) is None:
                self._commit(process, slot)
                process.world.acknowledge(("done", slot))

    def _commit(self, process: Process, slot: int) -> None:
        store = process.store()
        point = _record(store, slot)
        if point is None:
            point = self._decide(process, slot)
        else:  # What is visible may not be durable yet: whoever made it may have died in between. Make sure of it.
            certain(lambda: store.put_if_absent(f"records/{slot}", _encoded(point)))
        if _exists(store, f"done/{slot}"):
            return
        for _ in range(2 if slot == 0 else 1):  # A commit may be repeated.
            certain(lambda: store.publish(point.target, point.parts, point.nonce))
        certain(lambda: store.discard(point.parts))
        certain(lambda: store.put_if_absent(f"done/{slot}", b"done"))

    def _decide(self, process: Process, slot: int) -> CommitPoint:
        store, nonce = process.store(), process.environment.ids.new_id()
        target = f"out/{slot}-{nonce}"
        parts = tuple(
            certain(lambda piece=piece: store.stage(target, f"{_row(slot, piece)} {nonce}\n".encode()))  # type: ignore[misc]
            for piece in range(self.pieces[slot])
        )
        parts = certain(lambda: store.prepare(target, parts, nonce))
        length, checksum = sum(part.length for part in parts), crc32c_of_parts(parts)
        point = CommitPoint(target=target, parts=parts, length=length, crc32c=checksum, nonce=nonce)
        try:
            certain(lambda: store.put_if_absent(f"records/{slot}", _encoded(point)))
        except AlreadyExistsError:
            adopted = _record(store, slot)
            if adopted is None:
                raise NotFoundError("the record that won is gone", subject=f"records/{slot}") from None
            return adopted
        return point

    def _refuse_foreign(self, process: Process) -> None:
        """B4: an object of equal length is not ours."""
        store = process.store()
        part = certain(lambda: store.stage(_FOREIGN, b"not his, but us"))
        try:
            certain(lambda: store.publish(_FOREIGN, [part], process.name))
        except ConflictError:
            certain(lambda: store.discard([part]))
            return
        require(False, "B4", "a foreign object of equal length passed for ours")

    def _move_away(self, process: Process) -> None:
        store, world = process.store(), process.world
        for slot in range(len(self.pieces)):
            point = _record(store, slot) if _exists(store, f"done/{slot}") else None
            if point is not None and _exists(store, point.target):
                content = store.get(point.target)
                store.delete([point.target])
                world.acknowledge(("consumed", slot), content)

    def _require_pieces_gone(self, world: World, slot: int) -> None:
        store = world.objects()
        point = _record(store, slot)
        if point is not None:
            left = [part.name for part in point.parts if _exists(store, part.name)]
            require(not left, "C5", f"file {slot} is done and its pieces {left} are still there")


def _row(slot: int, piece: int) -> str:
    """What a piece says, besides who wrote it. Every other piece is one that clouds call long."""
    return f"row {slot} {piece}" + "." * (30 * ((slot + piece) % 2))


def _encoded(point: CommitPoint) -> bytes:
    body = msgspec.json.encode(point)
    return b"%08x" % crc32c(body) + body


def _record(store: BlobStore, slot: int) -> CommitPoint | None:
    try:
        data = store.get(f"records/{slot}")
    except NotFoundError:
        return None
    if data[:8] != b"%08x" % crc32c(data[8:]):
        raise CorruptDataError("the checksum does not match", operation="get", subject=f"records/{slot}")
    return msgspec.json.decode(data[8:], type=CommitPoint)


def _exists(store: BlobStore, name: str) -> bool:
    try:
        store.head(name)
    except NotFoundError:
        return False
    return True
