"""Roots and outputs that were moved with their records: pipelines and sinks go on in the new place, each row once."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from stateline.blob import open_store
from stateline.cli.commands import stateline
from stateline.environment import system_environment
from stateline.errors import FencedError, InvalidInputError
from stateline.files import FileOutput, RollingPolicy, encode_file
from stateline.files.pending import load_rows
from stateline.handles import FinishedFile
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.plan import PLAIN
from stateline.state.aggregate import count
from tests.unit.pipeline.engine import Engine

SCHEMA = pa.schema([("key", pa.string())])
PROGRAM = AggregateProgram.bind(SCHEMA, ["key"], {"n": count()})
PX = pa.schema([("p", pa.int64()), ("x", pa.int64())])
OTHER_PX = pa.schema([("p", pa.int64()), ("x", pa.string())])


def run(*arguments):
    answer = CliRunner().invoke(stateline, list(arguments))
    assert "Traceback" not in answer.output
    return answer


def shown(folder):
    return sorted(tuple(row.values()) for row in ds.dataset(f"{folder}", format="parquet").to_table().to_pylist())


class Keyed:
    """A keyed pipeline whose output and root are folders."""

    def __init__(self, root, out, **rolling):
        output = FileOutput(url=f"{out}", rolling=RollingPolicy(**rolling))
        self.engine = Engine(PROGRAM, SCHEMA, root=open_store(f"{root}"), files=output)

    def run(self, *keys):
        return self.engine.run([{"key": key} for key in keys])

    def finish(self):
        return self.engine.coordinator.finish(self._encoded)

    def _encoded(self, operator, files):
        return [
            FinishedFile(
                commit=encode_file(
                    self.engine.operator.output,
                    self.engine.out,
                    file.target,
                    load_rows(self.engine.root, file.pending),
                    system_environment(),
                ),
                rows=file.rows,
            )
            for file in files
        ]


class Sink:
    """The file sink, with its records below the output."""

    def __init__(self, out, schema=PX):
        root = open_store(f"{out}/.stateline/stream")
        output = FileOutput(url=f"{out}", partition_by=("p",), rolling=RollingPolicy(roll_seconds=3600))
        plan = files_plan(root.url, output, PLAIN, schema=schema)
        self.decision = FilesDecision(plan, root, open_store(f"{out}"), schema, system_environment())
        self.schema = schema

    def run(self, batch_id, x):
        made = [self.decision.stage(pa.table({"p": [1], "x": [x]}, schema=self.schema).to_batches())]
        return self.decision.commit(made, batch_id=batch_id, offsets_digest=f"{batch_id}", query_id="q").checkpoint


def test_a_root_that_was_moved_goes_on_without_a_word(tmp_path):
    Keyed(tmp_path / "old", tmp_path / "out").run("a", "b")
    shutil.move(tmp_path / "old", tmp_path / "new")
    moved = Keyed(tmp_path / "new", tmp_path / "out")
    moved.run("a")
    moved.finish()
    assert [(row[0], row[1]) for row in shown(tmp_path / "out")] == [("a", 1), ("a", 2), ("b", 1)]
    assert not (tmp_path / "old").exists()


def test_a_pipeline_goes_on_in_the_place_where_its_output_is_recorded_to_be(tmp_path):
    old, new, root = tmp_path / "old", tmp_path / "new place", tmp_path / "root"
    Keyed(root, old).run("a", "b")
    old.mkdir(exist_ok=True)
    shutil.move(old, new)
    with pytest.raises(InvalidInputError, match=r"relocate \S+ --output op=file://\S+/new%20place`"):
        Keyed(root, new).run("a")
    place = ("checkpoint", "relocate", f"{root}", "--output", f"op={new}")
    looked = run(*place)
    assert looked.exit_code == 0
    assert looked.output.endswith("Nothing was recorded: add --record\n")
    with pytest.raises(InvalidInputError, match="relocate"):
        Keyed(root, new).run("a")
    assert run(*place, "--record").output.endswith("Recorded as checkpoint 1\n")
    assert run(*place, "--record").output == "Nothing to record: checkpoint 1 says so already\n"
    moved = Keyed(root, new)
    assert moved.engine.run([{"key": "a"}], batch_id=0).checkpoint_id == 1, "a replay finds its batch decided"
    assert moved.run("a").batch_id == 1
    moved.finish()
    assert [(row[0], row[1]) for row in shown(new)] == [("a", 1), ("a", 2), ("b", 1)]
    assert not old.exists()
    assert run("checkpoint", "verify", f"{root}").exit_code == 0
    assert run("sweep", f"{root}", "--outputs").exit_code == 0


def test_files_that_were_decided_and_are_not_visible_yet_become_visible_in_the_new_place(tmp_path, monkeypatch):
    old, new, root = tmp_path / "old", tmp_path / "new", tmp_path / "root"
    killed = Keyed(root, old, every_checkpoint=True)
    monkeypatch.setattr(killed.engine.coordinator, "_publish", lambda record: None)
    killed.run("a", "b")
    staged = len(list((old / ".inprogress").iterdir()))
    assert staged >= 1
    shutil.move(old, new)
    [hidden] = [folder for folder in new.iterdir() if folder.name == ".inprogress"]
    shutil.move(hidden, tmp_path / "forgotten")
    place = ("checkpoint", "relocate", f"{root}", "--output", f"op={new}", "--record")
    refused = run(*place)
    assert refused.exit_code == 1
    assert refused.output.count("is missing") == staged
    assert refused.output.count(f"{new}/.inprogress/") == staged
    shutil.move(tmp_path / "forgotten", hidden)
    assert run(*place).exit_code == 0
    assert run("checkpoint", "verify", f"{root}").exit_code == 0
    Keyed(root, new, every_checkpoint=True).run("a")
    assert [(row[0], row[1]) for row in shown(new)] == [("a", 1), ("a", 2), ("b", 1)]
    assert not hidden.exists(), "no piece is left"
    assert run("checkpoint", "verify", f"{root}").exit_code == 0


def test_a_driver_that_is_still_at_work_stops(tmp_path):
    old, new, root = tmp_path / "old", tmp_path / "new", tmp_path / "root"
    driver = Keyed(root, old)
    driver.run("a")
    assert run("checkpoint", "relocate", f"{root}", "--output", f"op={new}", "--record").exit_code == 0
    with pytest.raises(FencedError):
        driver.run("b")
    moved = Keyed(root, new)
    moved.run("b")
    moved.finish()
    assert [(row[0], row[1]) for row in shown(new)] == [("a", 1), ("b", 1)]


def test_an_output_may_move_again_and_come_back(tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    root = tmp_path / "root"
    Keyed(root, places[0]).run("x")
    for now in (places[1], places[0], places[1]):
        assert run("checkpoint", "relocate", f"{root}", "--output", f"op={now}", "--record").exit_code == 0
        Keyed(root, now).run("x")
    Keyed(root, places[1]).finish()
    assert [row[1] for row in shown(places[1])] == [1, 2, 3, 4]


def test_a_sink_goes_on_where_its_folder_was_moved_to_records_and_all(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    Sink(old).run(0, 10)
    shutil.move(old, new)
    (tmp_path / "old").symlink_to(new)
    with pytest.raises(InvalidInputError, match=r"relocate \S+/new/.stateline/stream --output files=file://\S+/new`"):
        Sink(old).run(1, 11)
    place = ("checkpoint", "relocate", f"{new}/.stateline/stream", "--output", f"files={new}", "--record")
    assert run(*place).exit_code == 0
    with pytest.raises(InvalidInputError, match="has the type int64 there, and string now"):
        Sink(new, OTHER_PX).run(1, "text")
    Sink(new).run(1, 11)
    coordinator = Sink(new).decision.coordinator()
    [output] = coordinator.start().outputs
    assert [file.rows for file in output.open] == [2]


def test_what_cannot_be_relocated_says_why(tmp_path):
    root = tmp_path / "root"
    missing = run("checkpoint", "relocate", f"{root}", "--output", f"op={tmp_path}/new")
    assert missing.exit_code == 1
    assert "the root has no checkpoint" in missing.output
    Keyed(root, tmp_path / "old").run("a")
    unknown = run("checkpoint", "relocate", f"{root}", "--output", f"other={tmp_path}/new")
    assert unknown.exit_code == 2
    assert "expected operators with an output, ['op'], got 'other'" in unknown.output
    wrong = run("checkpoint", "relocate", f"{root}", "--output", f"{tmp_path}/new")
    assert wrong.exit_code == 2
    assert "--output" in wrong.output


def test_a_place_whose_other_columns_are_remembered_is_refused(tmp_path):
    sink = Sink(tmp_path / "out")
    sink.run(0, 10)
    root = f"{tmp_path}/out/.stateline/stream"
    there = f"{tmp_path}/there"
    output = FileOutput(url=there, partition_by=("x",), rolling=RollingPolicy(every_checkpoint=True))
    finished = sink.decision.coordinator().finish(lambda operator, files: ())
    assert finished.checkpoint_id == 1
    plan = files_plan(open_store(root).url, output, PLAIN, schema=PX)
    FilesDecision(plan, open_store(root), open_store(there), PX, system_environment()).commit(
        [], batch_id=1, offsets_digest="1", query_id="q"
    )
    refused = run("checkpoint", "relocate", root, "--output", f"files={tmp_path}/out", "--record")
    assert refused.exit_code == 1
    assert "move the output to a folder of its own" in refused.output


def test_rows_that_may_not_have_been_handed_over_are_handed_over_first(tmp_path, monkeypatch):
    from msgspec.structs import replace

    from stateline.checkpoint import CheckpointStore, OutputState, relocate_outputs

    engine = Engine(PROGRAM, SCHEMA, root=open_store(f"{tmp_path}/root"))
    monkeypatch.setattr(engine.coordinator, "_publish", lambda record: None)
    record = engine.run([{"key": "a"}])
    assert record.deliveries
    both = replace(record, checkpoint_id=1, nonce="1", outputs=(OutputState(operator="op", url="file:///old"),))
    store = CheckpointStore(engine.root)
    store.publish(both)
    with pytest.raises(InvalidInputError, match="may not have been handed over yet"):
        relocate_outputs(store, {"op": open_store(f"{tmp_path}/new")})
    store.mark_published(1)
    assert relocate_outputs(store, {"op": open_store(f"{tmp_path}/new")}).record.publishes is False
