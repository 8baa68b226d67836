"""Files that stay open for long: what waits for them stays a few pieces, and every row stays once, in order."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files_kit import DurableWriter

from stateline.blob import InstrumentedStore, open_store
from stateline.checkpoint import CheckpointStore, verify_root
from stateline.environment import system_environment
from stateline.errors import DataLossError
from stateline.files import FileOutput, RollingPolicy
from stateline.files.folding import objects_to_fold
from stateline.handles import RowsHandle
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PLAIN
from stateline.recoverable import RecoverableWriter

PX = pa.schema([("p", pa.int64()), ("x", pa.int64())])


def piece(name, length):
    return RowsHandle(name=name, offset=0, length=length, crc32c=0, rows=1)


def test_a_tier_is_folded_when_it_is_full():
    short = [piece(f"short-{number}", 1000) for number in range(16)]
    longer = [piece(f"longer-{number}", 20_000) for number in range(16)]
    long = [piece(f"long-{number}", 256 * 1024) for number in range(50)]
    assert objects_to_fold([*long, *longer[:15], *short[:15]]) == []
    assert objects_to_fold([*long, *longer, *short[:15]]) == [frozenset(each.name for each in longer)]
    assert objects_to_fold([*long, *longer, *short]) == [frozenset(each.name for each in short)]


def test_a_fold_is_bounded_however_many_tasks_a_batch_has():
    folds = objects_to_fold([piece(f"short-{number}", 1000) for number in range(600)])
    assert [len(names) for names in folds] == [256, 256, 88]


def grown(stores, batches, **more):
    """The open files after so many checkpoints with a row for each of three folders, and how many pieces they had."""
    open_files, most = (), 0
    for batch in range(batches):
        writer = make_writer(stores, open_files=open_files, **more)
        writer.write(pa.table({"p": [0, 1, 2], "x": [batch * 3, batch * 3 + 1, batch * 3 + 2]}))
        open_files = writer.finish().open
        most = max(most, *(len(file.pending) for file in open_files))
    return open_files, most


def make_writer(stores, rolling=None, **more):
    output = FileOutput(url="unused", partition_by=("p",), rolling=rolling or RollingPolicy())
    return DurableWriter(output, *stores, PX, subtask=0, now=0.0, **more)


@pytest.fixture
def stores(tmp_path):
    root = InstrumentedStore(open_store(f"file://{tmp_path}/root", {"fsync": "false"}))
    return root, open_store(f"file://{tmp_path}/out")


@pytest.mark.parametrize("buffer_bytes", [64 * 1024 * 1024, 1])
def test_a_file_of_many_checkpoints_has_few_pieces_and_all_rows_in_order(tmp_path, stores, buffer_bytes):
    open_files, most = grown(stores, 500, buffer_bytes=buffer_bytes)
    assert most <= 50, "not one for each checkpoint"
    assert [file.rows for file in open_files] == [500] * 3
    for file in make_writer(stores, RollingPolicy(every_checkpoint=True), open_files=open_files).finish().finished:
        RecoverableWriter(stores[1]).recover_for_commit(file.commit).commit_after_recovery()
    for folder in range(3):
        (path,) = (tmp_path / "out" / f"p={folder}").glob("part-*")
        assert pq.ParquetFile(path).read()["x"].to_pylist() == list(range(folder, 1500, 3))


def test_a_lost_object_is_named_when_it_is_folded(tmp_path, stores):
    open_files, _ = grown(stores, 16)
    lost = open_files[0].pending[3].name
    (tmp_path / "root" / lost).unlink()
    with pytest.raises(DataLossError, match=lost):
        make_writer(stores, open_files=open_files).finish()


def test_the_sink_keeps_record_and_objects_small_however_many_batches_it_has_seen(tmp_path):
    environment, options = system_environment(), {"fsync": "false"}
    root, out = (open_store(str(tmp_path / name), options, environment) for name in ("root", "out"))
    plan = files_plan(
        str(tmp_path / "root"), FileOutput(url=out.url, partition_by=("p",)), PLAIN, PX, root_options=options
    )
    records = CheckpointStore(root, environment=environment)
    for batch in range(200):
        decision = FilesDecision(plan, root, out, PX, environment, records)
        made = [decision.stage(pa.table({"p": [0, 1], "x": [batch, task]}).to_batches()) for task in range(2)]
        report = decision.commit(
            made, batch_id=batch, offsets_digest="", query_id="q", at_least=max(batch - 1, 0) or None
        )
    pending = [file.pending for file in report.checkpoint.outputs[0].open]
    assert [sum(handle.rows for handle in handles) for handles in pending] == [400, 400]
    assert max(map(len, pending)) <= 50
    assert len(list((tmp_path / "root" / "shared").iterdir())) <= 60, "what was folded is removed with its record"


def test_a_file_that_is_finished_leaves_no_rows_that_its_batch_staged(tmp_path):
    """No record ever names them, so retention does not find them."""
    environment, options = system_environment(), {"fsync": "false"}
    root, out = (open_store(str(tmp_path / name), options, environment) for name in ("root", "out"))
    output = FileOutput(url=out.url, partition_by=("p",), rolling=RollingPolicy(roll_bytes=60))
    plan = files_plan(root.url, output, replace(PLAIN, retained_checkpoints=2), PX, root_options=options)
    decision = FilesDecision(plan, root, out, PX, environment)
    finished = 0
    for batch in range(40):
        made = [decision.stage(pa.table({"p": [batch % 2], "x": [batch * 2 + task]}).to_batches()) for task in range(2)]
        for _ in range(2):  # It comes again: what an older record names stays.
            report = decision.commit(made, batch_id=batch, offsets_digest="", query_id="q")
        finished += sum(len(files.finished) for files in report.checkpoint.outputs)
    assert 4 < finished < 30
    report = verify_root(CheckpointStore(root))
    assert (report.findings, report.orphaned) == ([], [])
