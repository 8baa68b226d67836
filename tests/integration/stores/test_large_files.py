"""Files of very many pieces: the service joins them, and going on with one costs the same whatever its size.

The pieces are small here; what is counted is what crosses the wire. A file of 10 GB has 160 pieces of 64 MiB.
"""

from collections.abc import Callable
from typing import Any

from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.testing.blob_conformance import bytes_of

MIB = 1024 * 1024
PIECES = {"s3": (24, 5 * MIB), "gcs": (160, 20_000), "azure": (160, 20_000)}
"""How many, and how long: S3 joins no pieces that are shorter."""


def moved(world, action: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes on the wire, and the result."""
    before = world.faults.body_bytes
    result = action()
    return world.faults.body_bytes - before, result


def test_the_service_joins_the_pieces_and_going_on_does_not_depend_on_their_number(world):
    count, length = PIECES[world.name]
    writer = RecoverableWriter(world.store, RecoverableWriterSettings(chunk_size=length, fold_size=length))
    piece = bytes_of(length, 1)

    def persisted(pieces: int) -> Any:
        stream = writer.open(f"file-{pieces}")
        for _ in range(pieces):
            stream.write(piece)
        return stream.persist()

    costs, points = [], []
    for pieces in (2, count):
        point = persisted(pieces)

        def go_on(point: Any = point) -> Any:
            stream = writer.recover(point)
            stream.write(b"more")
            return stream.persist()

        cost, point = moved(world, go_on)
        costs.append(cost)
        points.append(point)
    assert costs[1] <= costs[0] + 200, "going on with a large file moved more than with a small one"

    point = points[1]
    cost, _ = moved(
        world, lambda: writer.recover_for_commit(writer.recover(point).close_for_commit().commit_point).commit()
    )
    assert point.length == count * length + 4
    assert cost < point.length / 20, "the commit moved the data"
    assert world.store.head(point.target).size == point.length
    assert world.store.get_range(point.target, point.length - 14, point.length) == piece[-10:] + b"more"
