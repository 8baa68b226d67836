"""Each role sends only the requests that its row in the pages of docs/reference/stores has the rights for."""

import re

from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.testing.blob_conformance import bytes_of

SETTINGS = RecoverableWriterSettings(chunk_size=4000, fold_size=2000)
PIECE = {
    "s3": r"^(PUT|GET) /stateline-tests/[0-9a-f]+/\.inprogress/|^POST /stateline-tests/[0-9a-f]+/out/file\?uploads$",
    "gcs": r"^POST /upload/storage/v1/b/[^/]+/o\?uploadType=multipart&ifGenerationMatch=0|"
    r"^GET /download/storage/v1/b/[^/]+/o/\.inprogress%2F",
    "azure": r"^(PUT|GET) /\w+/stateline-tests/[0-9a-f]+/\.inprogress/|^PUT .*[?&]comp=block(&|$)",
}
TARGET = {
    "s3": r"^(PUT|HEAD|POST|GET) /stateline-tests/[0-9a-f]+/out/file|"
    r"^(GET|PUT) .*/\.inprogress/|^POST /stateline-tests\?delete$|^DELETE .*/out/file\?uploadId=",
    "gcs": r"^POST /storage/v1/b/[^/]+/o/(root%2Fout%2Ffile|\.inprogress%2F.*)/compose\?ifGenerationMatch=0|"
    r"^GET .*/o/root%2Fout%2Ffile|^(GET|DELETE) .*/o/\.inprogress%2F",
    "azure": r"^(PUT|HEAD|GET) .*/out/file|^(GET|DELETE) .*/\.inprogress/",
}


def outside(world, allowed):
    found = [seen for seen in world.faults.seen if re.search(allowed, seen) is None]
    world.faults.seen.clear()
    return found


def test_tasks_only_make_and_read_pieces_and_prepare_files_and_the_driver_only_publishes(world):
    writer = RecoverableWriter(world.store, SETTINGS)
    world.faults.seen.clear()
    stream = writer.open("out/file")
    for index in range(9):
        stream.write(bytes_of(700, index))
        stream = writer.recover(stream.persist(), verify=False)
    end = stream.close_for_commit().commit_point
    assert outside(world, PIECE[world.name]) == []
    writer.recover_for_commit(end).commit()
    writer.recover_for_commit(end).commit_after_recovery()
    assert outside(world, TARGET[world.name]) == []
    assert world.store.get("out/file") == b"".join(bytes_of(700, index) for index in range(9))


def test_a_persist_is_one_request_and_a_resume_is_none(world):
    writer = RecoverableWriter(world.store, SETTINGS)
    stream = writer.open("out/file")
    stream.write(b"x" * 700)
    point = stream.persist()
    world.faults.seen.clear()
    stream = writer.recover(point, verify=False)
    assert world.faults.seen == []
    stream.write(b"y" * 700)
    stream.persist()
    stream.persist()
    assert len(world.faults.seen) == 1
    writer.recover(point)
    assert len(world.faults.seen) == 2
