"""Files of very many pieces: the service joins them, and going on with one costs the same whatever its size.

The pieces are small here; what is counted is what crosses the wire. A file of 10 GB has 160 pieces of 64 MiB.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import worlds
from test_azure_conformance import make_container

from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.testing.blob_conformance import bytes_of
from stateline.testing.fault_proxy import FaultProxy
from stateline.testing.gcs_server import GcsServer

MIB = 1024 * 1024
PIECES = {"s3": (24, 5 * MIB), "gcs": (160, 20_000), "azure": (160, 20_000)}
"""How many, and how long: S3 joins no pieces that are shorter."""


@pytest.fixture(params=["s3", "gcs", "azure"])
def world(request, monkeypatch):
    with contextlib.ExitStack() as stack:
        if request.param == "gcs":
            made = worlds.gcs_world(stack.enter_context(GcsServer()))
        elif request.param == "s3":
            endpoint = request.getfixturevalue("ministack_endpoint")
            made = worlds.s3_world(endpoint, stack.enter_context(FaultProxy(endpoint)))
        else:
            endpoint = request.getfixturevalue("azurite_endpoint")
            make_container(endpoint)
            made = worlds.azure_world(endpoint, stack.enter_context(FaultProxy(endpoint)), monkeypatch)
        yield made
        made.store.close()


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
