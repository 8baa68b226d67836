"""Records, tombstones and markers that somebody deleted: what `verify` tells, and how a root gets over it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from stateline.blob import open_store
from stateline.blob.checksum import crc32c
from stateline.checkpoint import Checkpoint, CheckpointStore, OperatorState, SubtaskState, verify_root
from stateline.checkpoint.layout import FLOOR_BLOCK, floor_name, published_name, record_name
from stateline.cli.commands import stateline
from stateline.errors import FencedError
from stateline.handles import RunHandle

RETAINED = 3


def run(*arguments):
    answer = CliRunner().invoke(stateline, list(arguments))
    assert "Traceback" not in answer.output
    return answer


class Root:
    """A root whose checkpoints have one run each, and share the last one with their successor."""

    def __init__(self, folder):
        self.url = f"{folder}/root"
        self.store = open_store(self.url, {"fsync": "false"})
        self.root = CheckpointStore(self.store)

    def record(self, number, nonce="n"):
        runs = []
        for name in (f"shared/{max(number - 1, 0)}", f"shared/{number}"):
            data = name.encode()
            self.store.put_if_absent(name, data)
            runs.append(
                RunHandle(
                    name=name,
                    offset=0,
                    length=len(data),
                    crc32c=crc32c(data),
                    rows=1,
                    first_key_group=0,
                    last_key_group=0,
                    checkpoint_id=number,
                )
            )
        subtask = SubtaskState(first_key_group=0, last_key_group=0, runs=tuple(runs))
        return Checkpoint(
            checkpoint_id=number,
            batch_id=number,
            query_id="q",
            offsets_digest="",
            max_parallelism=1,
            parallelism=1,
            nonce=nonce,
            created_at=1.0,
            operators=(OperatorState(name="o", schema="", definition="", subtasks=(subtask,)),),
        )

    def grow(self, start, end, retained=RETAINED):
        for number in range(start, end):
            self.root.publish(self.record(number))
            self.root.retain(retained)

    def findings(self):
        return {finding.name: finding.detail for finding in verify_root(CheckpointStore(self.store)).findings}

    def names(self):
        return sorted(info.name for info in self.store.list(""))


@pytest.fixture
def root(tmp_path):
    made = Root(tmp_path)
    made.grow(0, 8)
    assert made.findings() == {}
    return made


@pytest.fixture(scope="module")
def long_root(tmp_path_factory):
    made = Root(tmp_path_factory.mktemp("long"))
    made.grow(0, 2 * FLOOR_BLOCK + 10)
    assert made.findings() == {}
    return made


def test_the_record_of_the_oldest_checkpoint_that_was_deleted_is_told(root):
    root.store.delete([record_name(5)])
    assert root.findings() == {record_name(5): "neither the record nor a tombstone is there"}


def test_so_it_is_where_none_was_ever_retired(tmp_path):
    young = Root(tmp_path)
    young.grow(0, 3)
    young.store.delete([record_name(0)])
    assert list(young.findings()) == [record_name(0)]


def test_a_tombstone_that_was_deleted_is_told(root):
    root.store.delete([record_name(2)])
    assert root.findings() == {record_name(2): "neither the record nor a tombstone is there"}


def test_a_newest_record_that_was_deleted_is_told_by_its_mark(root):
    root.root.mark_published(7)
    root.store.delete([record_name(7)])
    assert root.findings() == {record_name(7): "its mark is there"}
    root.store.delete([published_name(7)])
    assert root.findings() == {}, "nothing names it any more: Spark's checkpoint does"


def test_a_marker_that_was_deleted_is_told_and_written_anew(long_root):
    for block in (0, 1):
        long_root.store.delete([floor_name(block)])
        ids = f"{block * FLOOR_BLOCK} to {(block + 1) * FLOOR_BLOCK - 1}"
        assert list(long_root.findings()) == [floor_name(block)]
        assert ids in long_root.findings()[floor_name(block)]
        assert run("checkpoint", "verify", long_root.url).exit_code == 1
        before = {name for name in long_root.names() if not name.startswith("floor/")}
        assert run("checkpoint", "retire", long_root.url, "--keep", "3", "--delete").exit_code == 0
        assert long_root.findings() == {}
        assert {name for name in long_root.names() if not name.startswith("floor/")} == before
        with pytest.raises(FencedError):
            CheckpointStore(long_root.store).publish(long_root.record(block * FLOOR_BLOCK + 3, "late"))
        assert run("sweep", long_root.url, "--min-age", "0s", "--delete").exit_code == 0
        long_root.store.delete([record_name(block * FLOOR_BLOCK + 3)])


def test_a_root_that_lost_a_record_says_how_it_is_swept_again(root):
    root.store.delete([record_name(6)])
    refused = run("sweep", root.url)
    assert refused.exit_code == 1
    command = f"`stateline checkpoint retire {root.store.url} --keep 1 --delete`"
    assert command in refused.output
    looked = run("checkpoint", "retire", root.url, "--keep", "1")
    assert looked.output.splitlines()[:2] == ["would retire  checkpoint 5", "would retire  checkpoint 6"]
    assert looked.output.endswith("Nothing was deleted: add --delete\n")
    assert run("sweep", root.url).exit_code == 1, "so far nothing has happened"
    said = json.loads(run(*command.strip("`").split()[1:], "--json").output)
    assert (said["checkpoints"], said["deleted"]) == ([5, 6], True)
    assert run("sweep", root.url).exit_code == 0
    assert root.findings() == {}
    assert [record.checkpoint_id for record in CheckpointStore(root.store).list()] == [7]
    with pytest.raises(FencedError):
        CheckpointStore(root.store).publish(root.record(6, "late"))
    root.grow(8, 12)
    assert root.findings() == {}


def test_a_tombstone_that_was_deleted_is_written_anew(root):
    root.store.delete([record_name(2)])
    assert run("checkpoint", "retire", root.url, "--keep", "3", "--delete").exit_code == 0
    assert root.findings() == {}
    assert [record.checkpoint_id for record in CheckpointStore(root.store).list()] == [5, 6, 7]


def test_a_query_at_work_goes_on_beside_it(root):
    assert run("checkpoint", "retire", root.url, "--keep", "1", "--delete").exit_code == 0
    root.grow(8, 2 * FLOOR_BLOCK)
    assert root.findings() == {}
    assert [record.checkpoint_id for record in CheckpointStore(root.store).list()] == [509, 510, 511]
