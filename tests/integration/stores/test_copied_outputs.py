"""An output is copied into another place of its cloud, with a file that is decided and not visible yet."""

from __future__ import annotations

import uuid

import pytest
import worlds
from test_s3_conformance import BUCKET

from stateline.blob.memory import MemoryStore
from stateline.blob.s3 import S3Store
from stateline.checkpoint import Checkpoint, CheckpointStore, OutputState, relocate_outputs
from stateline.errors import NotFoundError
from stateline.handles import FinishedFile
from stateline.recoverable import RecoverableWriter
from tests.kit.fault_proxy import FaultProxy


@pytest.fixture
def old(ministack_endpoint):
    with FaultProxy(ministack_endpoint) as proxy:
        made = worlds.s3_world(ministack_endpoint, proxy)
        yield made
        made.store.close()


def test_the_file_becomes_visible_in_the_new_place_from_its_pieces(old):
    stream = RecoverableWriter(old.store).open("file")
    stream.write(b"some rows")
    stream.persist()
    stream.write(b", and more")
    commit = stream.close_for_commit().commit_point
    assert any(part.length == 0 for part in commit.parts), "an upload, which nobody can move"
    root = CheckpointStore(MemoryStore(uuid.uuid4().hex))
    output = OutputState(operator="o", url=old.store.url, finished=(FinishedFile(commit=commit, rows=1),))
    root.publish(
        Checkpoint(
            checkpoint_id=0,
            batch_id=0,
            query_id="q",
            offsets_digest="",
            max_parallelism=1,
            parallelism=1,
            nonce="n",
            created_at=0.0,
            outputs=(output,),
        )
    )
    new = S3Store.open(f"s3://{BUCKET}/{uuid.uuid4().hex}", old.options, None)
    with pytest.raises(NotFoundError, match=commit.parts[0].name):
        relocate_outputs(root, {"o": new})
    for info in list(old.store.list("")):
        new.put(info.name, old.store.get(info.name))
    [there] = relocate_outputs(root, {"o": new}).record.outputs
    for _ in range(2):
        RecoverableWriter(new).recover_for_commit(there.finished[0].commit).commit_after_recovery()
    assert new.get("file") == b"some rows, and more"
    old.store.discard(commit.parts)
    new.close()
