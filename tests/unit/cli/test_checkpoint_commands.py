"""``stateline checkpoint``, ``savepoint`` and ``sweep`` on a root with everything in it, intact and damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from stateline.blob import BlobStore, open_store
from stateline.blob.checksum import crc32c
from stateline.blob.sweep import SweepResult
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import (
    Checkpoint,
    CheckpointStore,
    CheckpointStoreSettings,
    OperatorState,
    OutputState,
    VerifyReport,
    open_savepoint,
    start_from_savepoint,
    sweep_root,
    verify_root,
)
from stateline.checkpoint.layout import record_name
from stateline.cli import checkpoint as checkpoint_commands
from stateline.cli.commands import stateline
from stateline.environment import Environment, system_environment
from stateline.errors import CorruptDataError
from stateline.files.pending import add_rows
from stateline.handles import CommitPoint, FinishedFile, OpenFile, Part, RunHandle
from stateline.state import KeyedStateBackend, StateSchema
from stateline.testing import ManualClock

SCHEMA = StateSchema(pa.schema([("tail", pa.string())]), pa.schema([("n", pa.int64())]))
DAY = 86_400


class Root:
    """Three checkpoints with runs, two open files, one with pending rows, and a file just finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url, self.out_url = f"file://{folder}/root", f"file://{folder}/out"
        self.store, self.out = open_store(self.url), open_store(self.out_url)
        self.checkpoints = CheckpointStore(self.store)
        with KeyedStateBackend.open(f"file://{folder}/scratch", retained_checkpoints=9) as backend:
            flights = backend.state("flights", SCHEMA)
            for number in range(3):
                flights.put(pa.table({"tail": [f"N{key}" for key in range(50)], "n": [number] * 50}))
                self.publish(backend.checkpoint())

    def publish(self, made: Checkpoint) -> None:
        number = made.checkpoint_id
        scratch = open_store(f"file://{self.folder}/scratch")
        for name in made.object_names():
            self.store.put_if_absent(name, scratch.get(name))
        if number == 0:
            segment = Segments(self.store, system_environment()).writer()
            rows = add_rows(segment, "later.parquet", pa.table({"x": [1, 2]}))
            self.rows = segment.finish().of(rows)
        finished = ()
        if number == 2:
            self.piece = self.out.stage("done.csv", b"done")
            commit = CommitPoint(target="done.csv", parts=(self.piece,), length=4, crc32c=crc32c(b"done"), nonce="d")
            finished = (FinishedFile(commit=commit, rows=1),)
        growing = (self.open_file("growing.csv"), self.open_file("later.parquet", pending=(self.rows,)))
        output = OutputState(operator="flights", url=self.out.url, finished=finished, open=growing)
        record = Checkpoint(
            checkpoint_id=number,
            batch_id=number,
            query_id="query",
            offsets_digest=f"digest{number}",
            max_parallelism=made.max_parallelism,
            parallelism=1,
            nonce=f"nonce{number}",
            created_at=1_700_000_000.0 + number,
            operators=made.operators,
            outputs=(output,),
            properties={"program": "demo"},
        )
        self.checkpoints.publish(record)

    @staticmethod
    def open_file(target: str, **how: Any) -> OpenFile:
        return OpenFile(target=target, subtask=0, layout="l", opened_at=1.0, written_at=2.0, rows=2, bytes=9, **how)

    def runs(self, checkpoint_id: int) -> list[RunHandle]:
        operators: tuple[OperatorState, ...] = self.checkpoints.get(checkpoint_id).operators
        return [run for operator in operators for subtask in operator.subtasks for run in subtask.runs]

    def run_names(self, checkpoint_id: int) -> list[str]:
        return [run.name for run in self.runs(checkpoint_id)]

    def path(self, name: str) -> Path:
        return self.folder / "root" / name

    def damage(self, name: str, offset: int) -> None:
        data = bytearray(self.path(name).read_bytes())
        data[offset] ^= 1
        self.path(name).chmod(0o600)
        self.path(name).write_bytes(bytes(data))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def run(*arguments: str) -> Result:
    answer = CliRunner().invoke(stateline, list(arguments))
    assert "Traceback" not in answer.output
    assert answer.exception is None or isinstance(answer.exception, SystemExit), repr(answer.exception)
    return answer


def facts(answer: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.stdout.splitlines()]


# -- checkpoint -------------------------------------------------------------------------------------------------------


def test_ls_shows_every_retained_checkpoint(root: Root) -> None:
    answer = run("checkpoint", "ls", root.url)
    assert answer.exit_code == 0
    header, *lines = answer.output.splitlines()
    assert header.split()[:2] == ["id", "batch"]
    assert [line.split()[:3] for line in lines] == [[f"{n}", f"{n}", f"2023-11-14T22:13:2{n}Z"] for n in range(3)]
    found = facts(run("checkpoint", "ls", root.url, "--json"))
    assert [fact["checkpoint_id"] for fact in found] == [0, 1, 2]
    assert [fact["finished_files"] for fact in found] == [0, 0, 1]
    assert found[0]["new_bytes"] == found[0]["bytes"] > 0


def test_ls_names_a_record_that_cannot_be_read_after_those_that_can(root: Root) -> None:
    root.damage(record_name(1), 40)
    answer = run("checkpoint", "ls", root.url, "--json")
    assert answer.exit_code == 1
    assert [fact["checkpoint_id"] for fact in facts(answer)] == [0, 2]
    assert "chk-1/_metadata" in answer.stderr
    assert "byte" in answer.stderr


def test_ls_names_a_record_that_is_gone_after_those_that_are_there(root: Root) -> None:
    root.path(record_name(1)).unlink()
    answer = run("checkpoint", "ls", root.url, "--json")
    assert answer.exit_code == 1
    assert [fact["checkpoint_id"] for fact in facts(answer)] == [0, 2]
    assert "chk-1/_metadata" in answer.stderr


def test_show_tells_what_a_checkpoint_holds(root: Root) -> None:
    answer = run("checkpoint", "show", root.url)
    assert answer.exit_code == 0
    for text in ("checkpoint 2", "digest2", "(tail: string) -> (n: int64)", "growing.csv", "done.csv", "program"):
        assert text in answer.output
    older = run("checkpoint", "show", f"{root.url}/chk-1/_metadata", "--json")
    assert facts(older)[0]["nonce"] == "nonce1"


def test_verify_of_an_intact_root_is_sound_and_counts(root: Root) -> None:
    root.store.put("shared/orphan", b"garbage")
    answer = run("checkpoint", "verify", root.url)
    assert answer.exit_code == 0, answer.output
    assert "all is intact. 3 checkpoints" in answer.output
    assert "orphaned   shared/orphan  7 bytes" in answer.output
    [report] = facts(run("checkpoint", "verify", root.url, "--json"))
    assert report["sound"] is True
    assert set(root.run_names(2)) < set(report["reachable"])
    assert [item["object"] for item in report["orphaned"]] == ["shared/orphan"]
    listed = run("checkpoint", "verify", f"{root.url}/chk-0", "--objects")
    assert listed.exit_code == 0
    assert f"reachable  {root.run_names(0)[0]}" in listed.output


def test_verify_names_the_damaged_bytes_and_the_checkpoints_that_need_them(root: Root) -> None:
    [run_of_it] = root.runs(0)
    name, middle = run_of_it.name, run_of_it.length // 2
    root.damage(name, run_of_it.offset + middle)
    answer = run("checkpoint", "verify", root.url)
    assert answer.exit_code == 1
    [line] = [line for line in answer.output.splitlines() if line.startswith("CORRUPT")]
    needed = ", ".join(str(number) for number in range(3) if name in root.run_names(number))
    assert f"{name}, needed by checkpoint {needed}:" in line
    assert "record batch 0" in line
    [report] = facts(run("checkpoint", "verify", root.url, "--json"))
    start, end = report["findings"][0]["place"].split("bytes ")[1].split(" (")[0].split(" to ")
    assert int(start) <= middle < int(end)


def test_verify_tells_of_damage_though_the_query_retires_a_checkpoint_meanwhile(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified(checkpoints: CheckpointStore, **more: Any) -> VerifyReport:
        report = verify_root(checkpoints, **more)
        root.checkpoints.retain(1)
        return report

    newest = root.runs(2)[-1]
    name = newest.name
    root.damage(name, newest.offset + newest.length // 2)
    monkeypatch.setattr(checkpoint_commands, "verify_root", verified)
    answer = run("checkpoint", "verify", root.url)
    assert answer.exit_code == 1
    assert f"CORRUPT    {name}" in answer.output
    assert "record batch 0" in answer.output


def test_verify_names_what_is_missing_in_the_root_and_in_the_output(root: Root) -> None:
    name = root.run_names(1)[-1]
    root.path(name).unlink()
    root.out.discard([root.piece])
    answer = run("checkpoint", "verify", root.url)
    assert answer.exit_code == 1
    assert f"MISSING    {name}, needed by checkpoint" in answer.output
    assert f"{root.out.url}/{root.piece.name}" in answer.output
    without = run("checkpoint", "verify", root.url, "--no-outputs")
    assert root.piece.name not in without.output


@pytest.mark.parametrize("newest", [False, True])
def test_verify_goes_on_where_a_record_is_damaged(root: Root, newest: bool) -> None:
    root.damage(record_name(2 if newest else 1), 100)
    answer = run("checkpoint", "verify", root.url)
    assert answer.exit_code == 1
    assert f"CORRUPT    chk-{2 if newest else 1}/_metadata" in answer.output
    assert "2 checkpoints" in answer.output


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["checkpoint", "ls", "{}/nothing"], 1),
        (["checkpoint", "show", "{}/nothing"], 1),
        (["checkpoint", "show", "{}/root/chk-77"], 1),
        (["checkpoint", "verify", "{}/nothing"], 1),
        (["checkpoint", "verify", "{}/root/chk-9"], 1),
        (["checkpoint", "ls"], 2),
        (["checkpoint", "ls", "nowhere://x"], 2),
        (["checkpoint", "ls", "{}/root", "--option", "what"], 2),
        (["checkpoint", "ls", "{}/root", "--option", "what=1"], 2),
        (["checkpoint", "verify", "{}/root", "--what"], 2),
        (["savepoint", "ls", "nowhere://x"], 2),
        (["savepoint", "drop", "{}/nothing"], 1),
        (["savepoint", "drop", "{}/root/shared", "--delete"], 2),
        (["savepoint", "create", "{}/nothing", "{}/savepoints"], 1),
        (["savepoint", "create", "{}/root", "{}/savepoints", "--checkpoint", "9"], 1),
        (["sweep", "{}/nothing"], 1),
        (["sweep"], 2),
        (["sweep", "{}/root", "--min-age", "soon"], 2),
    ],
)
def test_wrong_calls_and_missing_things_are_told_in_one_message(
    root: Root, arguments: list[str], exit_code: int
) -> None:
    answer = run(*[argument.replace("{}", f"file://{root.folder}") for argument in arguments])
    assert answer.exit_code == exit_code, answer.output
    assert "Error: " in answer.output


def test_text_from_a_store_cannot_steer_a_terminal(root: Root) -> None:
    record = root.checkpoints.get(2)
    hostile = Checkpoint(
        checkpoint_id=3,
        batch_id=3,
        query_id="\x1b[2Jquery",
        offsets_digest="",
        max_parallelism=record.max_parallelism,
        parallelism=1,
        nonce="n3",
        created_at=1e11,
        properties={"\x1b]0;": "\u202e\x07"},
    )
    root.checkpoints.publish(hostile)
    for arguments in (["show", root.url], ["ls", root.url], ["verify", root.url]):
        answer = run("checkpoint", *arguments)
        assert answer.exit_code == 0
        assert not set("\x1b\x07\u202e") & set(answer.output)


def test_a_finding_cannot_steer_a_terminal(root: Root) -> None:
    path = root.path(record_name(1))
    data = path.read_bytes()
    body = data[: data.rindex(b',\n  "crc32c"')].replace(b'"target":"growing.csv"', b'"target":"/\\u001b"')
    path.chmod(0o600)
    path.write_bytes(body + b',\n  "crc32c": "%08x"\n}\n' % crc32c(body))
    answer = run("checkpoint", "verify", root.url)
    assert answer.exit_code == 1
    assert r"\x1b" in answer.output
    assert answer.output.replace("\n", "").isprintable()


# -- savepoint --------------------------------------------------------------------------------------------------------


def made_savepoint(root: Root) -> str:
    root.checkpoints.mark_published(2)
    answer = run("savepoint", "create", root.url, f"file://{root.folder}/savepoints", "--label", "before upgrade")
    assert answer.exit_code == 0, answer.output
    return answer.output.strip()


def test_a_savepoint_is_made_listed_verified_and_dropped(root: Root) -> None:
    refused = run("savepoint", "create", root.url, f"file://{root.folder}/savepoints", "--wait", "0")
    assert refused.exit_code == 2
    assert "not visible yet" in refused.output
    url = made_savepoint(root)
    assert open_savepoint(url).checkpoint.checkpoint_id == 2
    verified = run("checkpoint", "verify", url)
    assert verified.exit_code == 0, verified.output
    [listed] = facts(run("savepoint", "ls", f"file://{root.folder}/savepoints", "--json"))
    assert (listed["state"], listed["label"], listed["checkpoint_id"]) == ("free", "before upgrade", 2)
    assert "before upgrade" in run("savepoint", "ls", f"file://{root.folder}/savepoints").output
    dry = run("savepoint", "drop", url)
    assert dry.exit_code == 0
    assert "would delete" in dry.output
    assert open_savepoint(url).checkpoint.checkpoint_id == 2
    assert run("savepoint", "drop", url, "--delete").exit_code == 0
    assert run("savepoint", "ls", f"file://{root.folder}/savepoints", "--json").output == ""
    assert run("savepoint", "drop", url, "--delete").exit_code == 1


def test_a_savepoint_needs_no_output_that_it_takes_nothing_from(root: Root) -> None:
    record = root.checkpoints.get(2)
    [output] = record.outputs
    waiting = (root.open_file("later.parquet", pending=(root.rows,)),)
    elsewhere = msgspec.structs.replace(output, url="nowhere://out", finished=(), open=waiting)
    root.checkpoints.publish(
        msgspec.structs.replace(record, checkpoint_id=3, batch_id=3, nonce="n3", outputs=(elsewhere,))
    )
    assert run("savepoint", "create", root.url, f"file://{root.folder}/savepoints").exit_code == 0


def test_a_dry_drop_refuses_what_a_real_one_refuses(root: Root) -> None:
    url = made_savepoint(root)
    store = CheckpointStore(f"file://{root.folder}/savepoints")
    savepoint = open_savepoint(store.store, url.rpartition("/")[2])
    start_from_savepoint(savepoint, store, query_id="new", mode="claim")
    elsewhere = f"file://{root.folder}/kept-by-hand"
    shutil.copytree(url.removeprefix("file://"), elsewhere.removeprefix("file://"))
    for wrong, exit_code in ((url, 1), (elsewhere, 2), (root.url, 2), (f"{root.url}/chk-2", 2)):
        for more in ((), ("--delete",)):
            answer = run("savepoint", "drop", wrong, *more)
            assert answer.exit_code == exit_code, answer.output
            assert "delete " not in answer.output
            assert "Error: drop_savepoint" in answer.output
    assert open_savepoint(url).checkpoint.checkpoint_id == 2


def test_a_copy_of_a_claimed_savepoint_is_dropped_by_the_name_of_its_owner(root: Root) -> None:
    url = made_savepoint(root)
    store = CheckpointStore(f"file://{root.folder}/savepoints")
    savepoint = open_savepoint(store.store, url.rpartition("/")[2])
    start_from_savepoint(savepoint, store, query_id="new", mode="claim")
    copied = root.folder / "elsewhere" / "savepoint-copy"
    shutil.copytree(url.removeprefix("file://"), copied)
    refused = run("savepoint", "drop", f"file://{copied}", "--delete", "--owned-by", "another")
    assert refused.exit_code == 1
    assert "add --owned-by new" in refused.output
    assert run("savepoint", "drop", f"file://{copied}", "--owned-by", "new").exit_code == 0
    assert (copied / "_metadata").exists()
    assert run("savepoint", "drop", f"file://{copied}", "--owned-by", "new", "--delete").exit_code == 0
    assert [path for path in copied.rglob("*") if path.is_file()] == []
    assert open_savepoint(url).owner() == "new"


def test_a_damaged_savepoint_and_an_incomplete_one_are_told(root: Root) -> None:
    url = made_savepoint(root)
    folder = Path(url.removeprefix("file://"))
    (folder.parent / "savepoint-half" / "shared").mkdir(parents=True)
    (folder.parent / "savepoint-half" / "shared" / "x").write_bytes(b"x")
    found = {fact["folder"]: fact for fact in facts(run("savepoint", "ls", f"file://{folder.parent}", "--json"))}
    assert found["savepoint-half"]["state"] == "incomplete"
    (folder / "_claimed").write_bytes(b"whose?")
    for arguments in (["savepoint", "ls", f"file://{folder.parent}"], ["checkpoint", "verify", url]):
        answer = run(*arguments)
        assert answer.exit_code == 1
        assert re.search("(DAMAGED|CORRUPT) .*_claimed.* does not begin as a document", answer.output)
    (folder / "_claimed").unlink()
    metadata = folder / "_metadata"
    metadata.chmod(0o600)
    metadata.write_bytes(metadata.read_bytes()[:-5])
    answer = run("savepoint", "ls", f"file://{folder.parent}")
    assert answer.exit_code == 1
    assert "DAMAGED _metadata: " in answer.output
    assert run("checkpoint", "verify", url).exit_code == 1


# -- sweep ------------------------------------------------------------------------------------------------------------


def age(path: Path, days: float) -> None:
    moment = path.stat().st_mtime - days * DAY
    os.utime(path, (moment, moment))


LEFT, YOUNG = "0" * 32, "1" * 32
"""What makes a name one that Stateline gives."""


def everything_aged(root: Root, days: float) -> None:
    for path in root.folder.rglob("*"):
        if path.is_file():
            age(path, days)


def test_a_sweep_removes_what_nothing_reaches_and_nothing_else(root: Root) -> None:
    garbage = [f"shared/{LEFT}.arrow", f"chk-1/{LEFT}", f"taskowned/{LEFT}"]
    for name in garbage:
        root.store.put(name, b"garbage")
    dead: list[Part] = [root.out.stage("dead.csv", b"dead"), root.store.stage("dead", b"dead")]
    everything_aged(root, 30)
    age(root.path(record_name(2)), -1)  # Newer than the garbage.
    before = {path for path in root.folder.rglob("*") if path.is_file()}
    dry = run("sweep", root.url, "--outputs")
    assert dry.exit_code == 0, dry.output
    assert "Nothing was deleted" in dry.output
    assert {path for path in root.folder.rglob("*") if path.is_file()} == before
    for name in garbage:
        assert f"leftover  {root.url}/{name}" in dry.output
    assert f"{root.out.url}/{dead[0].name}" in dry.output
    assert root.piece.name not in dry.output
    swept = run("sweep", root.url, "--outputs", "--delete", "--json")
    assert swept.exit_code == 0, swept.output
    after = {path for path in root.folder.rglob("*") if path.is_file()}
    gone = {root.path(name) for name in garbage} | {root.folder / "out" / dead[0].name, root.path(dead[1].name)}
    assert before - after == gone
    assert run("checkpoint", "verify", root.url).exit_code == 0


def test_a_sweep_is_not_led_to_a_place_that_its_caller_does_not_name(root: Root, tmp_path_factory: Any) -> None:
    foreign = tmp_path_factory.mktemp("foreign")
    store = open_store(foreign)
    dead = store.stage("dead.csv", b"dead")
    everything_aged(root, 30)
    record = root.checkpoints.get(2)
    [output] = record.outputs
    led = msgspec.structs.replace(output, url=store.url)
    changed = msgspec.structs.replace(record, checkpoint_id=3, batch_id=3, nonce="n3", outputs=(led,))
    root.checkpoints.publish(changed)
    for delete in ([], ["--delete"]):
        refused = run("sweep", root.url, "--outputs", "--min-age", "0s", *delete)
        assert refused.exit_code == 2, refused.output
        assert f"--also {store.url}" in refused.output
        assert store.read_staged(dead) == b"dead"
    named = run("sweep", root.url, "--outputs", "--also", str(foreign.parent))
    assert named.exit_code == 0, named.output


def test_a_sweep_spares_what_others_put_into_its_folders(root: Root) -> None:
    foreign = ["shared/report.pdf", f"shared/sub/{LEFT}", "taskowned/left", "chk-1/notes", f"chk-x/{LEFT}"]
    foreign += [f"shared/{'0' * 64}", ".inprogress/notes", f".inprogress/sub/{LEFT}"]
    for name in foreign:
        root.store.put(name, b"theirs")
        root.out.put(name, b"theirs")
    everything_aged(root, 30)
    age(root.path(record_name(2)), -1)
    swept = run("sweep", root.url, "--outputs", "--delete", "--min-age", "0s")
    assert swept.exit_code == 0, swept.output
    assert [store.get(name) for store in (root.store, root.out) for name in foreign] == [b"theirs"] * 2 * len(foreign)


def test_dropping_a_savepoint_spares_what_others_put_into_its_folder(root: Root) -> None:
    folder = Path(made_savepoint(root).removeprefix("file://"))
    foreign = [folder / "README", folder / "chk-1" / LEFT]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"theirs")
    assert run("savepoint", "drop", f"file://{folder}", "--delete").exit_code == 0
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(foreign)


def test_a_sweep_spares_the_young_and_the_outputs_it_is_not_given(root: Root) -> None:
    root.store.put(f"shared/{YOUNG}.arrow", b"y")
    root.store.put(f"shared/rows-{LEFT}.arrows", b"y")
    dead = root.out.stage("dead.csv", b"dead")
    everything_aged(root, 30)
    age(root.path(f"shared/{YOUNG}.arrow"), -27)
    assert run("sweep", root.url, "--delete").exit_code == 0
    assert root.path(f"shared/{YOUNG}.arrow").exists()
    assert root.path(f"shared/rows-{LEFT}.arrows").exists(), "the newest record is as old: the next one may name it"
    assert (root.folder / "out" / dead.name).exists()
    [result, _] = facts(run("sweep", root.url, "--min-age", "0s", "--json"))
    assert result["young"] == 2


def test_a_sweep_spares_pieces_of_an_output_that_was_moved_and_is_reached_by_a_link(root: Root) -> None:
    dead = root.out.stage("dead.csv", b"dead")
    everything_aged(root, 30)
    (root.folder / "out").rename(root.folder / "larger-disk")
    (root.folder / "out").symlink_to(root.folder / "larger-disk")
    assert run("sweep", root.url, "--outputs", "--delete").exit_code == 0
    assert not (root.folder / "out" / dead.name).exists()
    assert (root.folder / "out" / root.piece.name).exists()


def test_each_target_of_a_sweep_is_swept_at_its_own_present(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that was just younger than the newest record is so still when an hour went by for another target."""
    clock, ages = ManualClock(), []

    def slow(store: BlobStore, *_: object, min_age: float, **__: object) -> SweepResult:
        ages.append(min_age)
        clock.advance(3600)
        return SweepResult(examined=0, reachable=0, young=0, leftovers=0, leftover_bytes=0, deleted=True)

    monkeypatch.setattr("stateline.cli.sweep.sweep_staged", slow)
    monkeypatch.setattr("stateline.cli.sweep.system_environment", lambda: Environment(clock=clock))
    everything_aged(root, 2)
    assert run("sweep", root.url, "--outputs", "--delete", "--min-age", "0s").exit_code == 0
    first, second = ages
    assert first > 2 * 86_400
    assert second == first + 3600


@pytest.mark.parametrize(("piece_days", "record_days", "goes"), [(2, 3, False), (3, 2, True), (8, 9, True)])
def test_a_piece_that_the_next_checkpoint_may_name_stays_at_any_age(
    root: Root, piece_days: float, record_days: float, goes: bool
) -> None:
    """A live query stages pieces before it decides them: without them its decision could not be published."""
    piece = root.out.stage("next.csv", b"rows")
    everything_aged(root, 30)
    age(root.folder / "out" / piece.name, piece_days - 30)
    age(root.path(record_name(2)), record_days - 30)
    assert run("sweep", root.url, "--outputs", "--delete", "--min-age", "0s").exit_code == 0
    assert (root.folder / "out" / piece.name).exists() is not goes
    assert run("checkpoint", "verify", root.url).exit_code == 0


def test_a_root_that_cannot_be_read_is_not_swept(root: Root) -> None:
    root.store.put(f"shared/{LEFT}", b"garbage")
    everything_aged(root, 30)
    root.damage(record_name(2), 77)
    answer = run("sweep", root.url, "--delete")
    assert answer.exit_code == 1
    assert "chk-2/_metadata" in answer.output
    assert root.path(f"shared/{LEFT}").exists()


def test_a_root_is_not_swept_where_a_record_is_gone_from_between_the_others(root: Root) -> None:
    needed = [name for number in (0, 2) for name in root.run_names(number)]
    root.store.put(f"shared/{LEFT}", b"garbage")
    everything_aged(root, 30)
    root.path(record_name(1)).unlink()
    answer = run("sweep", root.url, "--delete")
    assert answer.exit_code == 1
    assert "chk-1/_metadata" in answer.output
    assert all(root.path(name).exists() for name in [*needed, f"shared/{LEFT}"])


def test_a_sweep_leaves_nothing_out_that_its_caller_would(root: Root) -> None:
    lenient = CheckpointStore(root.store, settings=CheckpointStoreSettings(allow_older=True))
    everything_aged(root, 30)
    root.damage(record_name(2), 77)
    with pytest.raises(CorruptDataError, match="chk-2/_metadata"):
        sweep_root(lenient, delete=True)
