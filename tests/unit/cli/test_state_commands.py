"""``stateline state``: rows by key, differences, files, from checkpoints and savepoints."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from stateline.checkpoint import CheckpointStore
from stateline.cli.commands import stateline
from stateline.errors import UnavailableError
from stateline.state import KeyedStateBackend, StateSchema
from stateline.state.run_store import process_open_runs
from stateline.state.stored import SliceReader

SCHEMA = StateSchema(
    pa.schema([("tail", pa.string()), ("day", pa.date32())]),
    pa.schema([("n", pa.int64()), ("fare", pa.decimal128(10, 2)), ("raw", pa.binary()), ("mean", pa.float64())]),
)
DAY = dt.date(2024, 1, 2)


def rows(*keys: str, n: int) -> pa.Table:
    columns = {
        "tail": list(keys),
        "day": [DAY] * len(keys),
        "n": [n] * len(keys),
        "fare": [decimal.Decimal("1.50")] * len(keys),
        "raw": [b"\xff\x00"] * len(keys),
        "mean": [float("nan")] * len(keys),
    }
    return pa.table(columns, schema=SCHEMA.row)


@pytest.fixture
def url(tmp_path: Path) -> str:
    where = f"file://{tmp_path}/root"
    with KeyedStateBackend.open(where, retained_checkpoints=9) as backend:
        flights = backend.state("flights", SCHEMA)
        flights.put(rows("N1", "N2", "N3", n=1))
        backend.checkpoint()
        flights.put(rows("N2", "N4", n=2))
        flights.put(rows("N3", n=1))
        flights.delete(rows("N1", n=0))
        backend.checkpoint()
    return where


def run(*arguments: str) -> Result:
    answer = CliRunner().invoke(stateline, ["state", *arguments])
    assert "Traceback" not in answer.output
    assert answer.exception is None or isinstance(answer.exception, SystemExit), repr(answer.exception)
    return answer


def facts(answer: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_ls_names_operators_keys_and_values(url: str) -> None:
    answer = run("ls", url)
    assert answer.exit_code == 0
    assert "flights" in answer.output
    assert "tail: string, day: date32[day]" in answer.output
    [fact] = facts(run("ls", f"{url}/chk-0", "--json"))
    assert (fact["operator"], fact["stored_rows"], fact["checkpoint_id"]) == ("flights", 3, 0)
    assert fact["values"]["fare"] == "decimal128(10, 2)"


def test_get_prints_one_row_of_any_checkpoint(url: str) -> None:
    answer = run("get", url, "N2", "2024-01-02", "--json")
    assert answer.exit_code == 0
    assert facts(answer) == [{"tail": "N2", "day": "2024-01-02", "n": 2, "fare": "1.50", "raw": "/wA=", "mean": "nan"}]
    assert facts(run("get", f"{url}/chk-0", "N2", "2024-01-02", "--json"))[0]["n"] == 1
    table = run("get", url, "N2", "2024-01-02", "--operator", "flights")
    assert [line.split() for line in table.output.splitlines()][3:5] == [["n", "2"], ["fare", "1.50"]]


def test_a_key_that_is_not_there_is_exit_code_1(url: str) -> None:
    answer = run("get", url, "N1", "2024-01-02")
    assert answer.exit_code == 1
    assert "no such key in checkpoint 1" in answer.stderr
    assert run("get", url, "N1", r"\N").exit_code == 1


def test_diff_gives_the_net_changes(url: str) -> None:
    answer = run("diff", f"{url}/chk-0", f"{url}/chk-1", "--json")
    assert answer.exit_code == 0
    found = sorted((fact["__change"], fact["tail"], fact["n"]) for fact in facts(answer))
    assert found == [("delete", "N1", 1), ("insert", "N4", 2), ("update_after", "N2", 2), ("update_before", "N2", 1)]
    text = run("diff", f"{url}/chk-0", url, "--limit", "2")
    assert len(text.output.splitlines()) == 2
    assert run("diff", url, url).output == ""


def test_diff_reads_both_as_the_newer_one_in_any_order(tmp_path: Path) -> None:
    where = f"file://{tmp_path}/root"
    keys = pa.schema([("k", pa.int64())])
    for number, kept in enumerate((pa.int32(), pa.int64())):
        with KeyedStateBackend.open(where, retained_checkpoints=9) as backend:
            state = backend.state("o", StateSchema(keys, pa.schema([("v", kept)])))
            state.put(pa.table({"k": [1, 2 + number], "v": pa.array([number, 7], kept)}))
            backend.checkpoint()
    for before, after, change in (("chk-0", "chk-1", "insert"), ("chk-1", "chk-0", "delete")):
        answer = run("diff", f"{where}/{before}", f"{where}/{after}", "--json")
        assert answer.exit_code == 0, answer.output
        assert {"__change": change, "k": 3, "v": 7} in facts(answer)
        assert len(facts(answer)) == 3


def test_diff_knows_that_a_younger_operator_had_no_rows(tmp_path: Path) -> None:
    where = f"file://{tmp_path}/root"
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
    with KeyedStateBackend.open(where, retained_checkpoints=9) as backend:
        backend.checkpoint()
        backend.state("o", schema).put(pa.table({"k": [1], "v": [7]}))
        backend.checkpoint()
    for before, after, change in (("chk-0", "chk-1", "insert"), ("chk-1", "chk-0", "delete")):
        for more in ([], ["--operator", "o"]):
            answer = run("diff", f"{where}/{before}", f"{where}/{after}", "--json", *more)
            assert facts(answer) == [{"__change": change, "k": 1, "v": 7}], answer.output


def test_an_answer_that_is_not_read_to_its_end_is_no_verdict(url: str) -> None:
    command = [sys.executable, "-m", "stateline.cli", "state", "diff", f"{url}/chk-0", url]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_characters_that_the_terminal_has_not_are_escaped(tmp_path: Path, more: list[str]) -> None:
    where = f"file://{tmp_path}/root"
    with KeyedStateBackend.open(where) as backend:
        schema = StateSchema(pa.schema([("ключ", pa.string())]), pa.schema([("v", pa.string())]))
        backend.state("o", schema).put(pa.table({"ключ": ["k"], "v": ["é\U0001f600"]}))
        backend.checkpoint()
    command = [sys.executable, "-m", "stateline.cli", "state", "get", where, "k", *more]
    world = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=world, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    if more:
        assert json.loads(done.stdout.decode("latin-1")) == {"ключ": "k", "v": "é\U0001f600"}
    else:
        assert "é\\U0001f600" in done.stdout.decode("latin-1")


def test_every_text_can_be_a_key(tmp_path: Path) -> None:
    where = f"file://{tmp_path}/root"
    keys = [None, r"\N", r"\\N", r"\\\N", r"\\", "N", r"\n", "", r"\\NN"]
    with KeyedStateBackend.open(where) as backend:
        schema = StateSchema(pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64())]))
        backend.state("o", schema).put(pa.table({"k": keys, "v": range(len(keys))}))
        backend.checkpoint()
    typed = [r"\N", r"\\N", r"\\\N", r"\\\\N", r"\\", "N", r"\n", "", r"\\NN"]
    found = [facts(run("get", where, text, "--json")) for text in typed]
    assert found == [[{"k": key, "v": number}] for number, key in enumerate(keys)]


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "arrow"])
def test_export_writes_all_rows_once_and_overwrites_nothing(url: str, tmp_path: Path, ending: str) -> None:
    target = f"file://{tmp_path}/exported/state.{ending}"
    answer = run("export", url, target, "--columns", "tail,n")
    assert answer.exit_code == 0, answer.output
    assert "3 rows of checkpoint 1" in answer.output
    path = tmp_path / "exported" / f"state.{ending}"
    if ending == "parquet":
        found = pq.read_table(path).to_pylist()
    elif ending == "arrow":
        found = pa.ipc.open_file(path).read_all().to_pylist()
    else:
        found = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((row["tail"], row["n"]) for row in found) == [("N2", 2), ("N3", 1), ("N4", 2)]
    before = path.read_bytes()
    again = run("export", f"{url}/chk-0", target)
    assert again.exit_code == 1
    assert path.read_bytes() == before


def test_an_export_that_would_overwrite_is_refused_before_the_work(url: str, tmp_path: Path) -> None:
    target = f"file://{tmp_path}/exported/state.jsonl"
    assert run("export", url, target, "--columns", "n").exit_code == 0
    [name] = CheckpointStore(url).get(0).object_names()
    (tmp_path / "root" / name).unlink()  # Whoever reads state fails now.
    process_open_runs().clear()
    answer = run("export", url, target, "--columns", "n")
    assert answer.exit_code == 1
    assert "the file exists already. Give another name" in answer.output


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), UnavailableError("the network is gone")])
def test_an_export_that_was_given_up_leaves_no_pieces(
    url: str, tmp_path: Path, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan(reader: SliceReader, *arguments: Any) -> Iterator[pa.RecordBatch]:
        yield from whole(reader, *arguments)
        raise failure

    whole = SliceReader.scan
    monkeypatch.setattr(SliceReader, "scan", scan)
    answer = run(
        "export", url, f"file://{tmp_path}/exported/x.csv", "--columns", "n", "--target-option", "chunk_size=1"
    )
    assert answer.exit_code == (130 if isinstance(failure, KeyboardInterrupt) else 1)
    assert [path for path in (tmp_path / "exported").rglob("*") if path.is_file()] == []


def test_days_and_moments_that_python_has_not_are_shown(tmp_path: Path) -> None:
    far = pa.timestamp("us", "UTC")
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("t", far), ("days", pa.list_(pa.date32()))]))
    year_10000 = 253402300800_000000
    with KeyedStateBackend.open(f"file://{tmp_path}/far") as backend:
        table = pa.table({"k": [-1, 2], "t": [year_10000, 0], "days": [[2**30, None], None]}, schema=schema.row)
        backend.state("o", schema).put(table)
        backend.checkpoint()
    [row] = facts(run("get", f"file://{tmp_path}/far", "--json", "--", "-1"))
    assert row["k"] == -1
    assert row["t"].startswith("10000-01-01 00:00:00")
    assert str(2**30) in row["days"][0]
    assert row["days"][1] is None
    assert "10000-01-01" in run("get", f"file://{tmp_path}/far", "--", "-1").output
    near = facts(run("get", f"file://{tmp_path}/far", "2", "--json"))
    assert near == [{"k": 2, "t": "1970-01-01T00:00:00+00:00", "days": None}]


def test_text_that_is_not_utf8_is_found_and_shown_escaped(tmp_path: Path) -> None:
    schema = StateSchema(pa.schema([("k", pa.string())]), pa.schema([("v", pa.string())]))
    latin = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    where = f"file://{tmp_path}/latin"
    with KeyedStateBackend.open(where) as backend:
        backend.state("o", schema).put(pa.table({"k": latin, "v": latin}, schema=schema.row))
        backend.checkpoint()
    typed = os.fsdecode(b"caf\xe9")  # As Python gives the bytes that a shell passes.
    assert facts(run("get", where, typed, "--json")) == [{"k": r"caf\xe9", "v": r"caf\xe9"}]
    assert r"caf\xe9" in run("get", where, typed).output
    answer = run("export", where, f"file://{tmp_path}/x.jsonl")
    assert (answer.exit_code, list(tmp_path.glob("x.*"))) == (2, [])
    assert "column 'k': a value is not UTF-8" in answer.output
    assert run("export", where, f"file://{tmp_path}/x.arrow").exit_code == 0


def test_json_holds_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    schema = StateSchema(pa.schema([("k", pa.string())]), pa.schema([]))
    with KeyedStateBackend.open(f"file://{tmp_path}/steers") as backend:
        backend.state("o", schema).put(pa.table({"k": ["é\x1b\x7f\x9b31m\u202e\U000e0001"]}, schema=schema.row))
        backend.checkpoint()
    key = "é\x1b\x7f\x9b31m\u202e\U000e0001"
    answer = run("get", f"file://{tmp_path}/steers", key, "--json")
    assert facts(answer) == [{"k": key}]
    assert answer.stdout.rstrip("\n").isprintable()
    assert "é" in answer.stdout


def test_columns_line_up_where_characters_are_wide(tmp_path: Path) -> None:
    schema = StateSchema(pa.schema([("鍵", pa.string())]), pa.schema([("値段", pa.int64())]))
    with KeyedStateBackend.open(f"file://{tmp_path}/wide") as backend:
        backend.state("o", schema).put(pa.table({"鍵": ["日本"], "値段": [7]}, schema=schema.row))
        backend.checkpoint()
    lines = run("get", f"file://{tmp_path}/wide", "日本").output.splitlines()
    assert lines == ["column  value", "鍵      日本", "値段    7"]


def test_a_savepoint_is_read_like_a_checkpoint(url: str, tmp_path: Path) -> None:
    made = CliRunner().invoke(stateline, ["savepoint", "create", url, f"file://{tmp_path}/kept"])
    savepoint = made.output.strip()
    assert facts(run("get", savepoint, "N4", "2024-01-02", "--json"))[0]["n"] == 2
    assert run("diff", url, savepoint).exit_code == 2


def test_a_missing_run_is_named_with_the_checkpoints_that_need_it(url: str, tmp_path: Path) -> None:
    [name] = CheckpointStore(url).get(0).object_names()
    (tmp_path / "root" / name).unlink()
    process_open_runs().clear()
    for arguments in (["get", url, "N2", "2024-01-02"], ["diff", f"{url}/chk-0", url], ["export", url, "{}"]):
        answer = run(*[argument.replace("{}", f"file://{tmp_path}/x.parquet") for argument in arguments])
        assert answer.exit_code == 1
        assert name in answer.output
        assert "checkpoint 0, 1" in answer.output
    assert not (tmp_path / "x.parquet").exists()


def test_damage_is_named_and_never_read_as_data(url: str, tmp_path: Path) -> None:
    [name] = CheckpointStore(url).get(0).object_names()
    path = tmp_path / "root" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))
    process_open_runs().clear()
    for arguments in (["get", f"{url}/chk-0", "N2", "2024-01-02"], ["export", url, f"file://{tmp_path}/x.parquet"]):
        answer = run(*arguments)
        assert answer.exit_code == 1
        assert name in answer.output
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "{}", "N2"],
        ["get", "{}", "N2", "tomorrow"],
        ["get", "{}"],
        ["get", "{}", "N2", "2024-01-02", "--operator", "flight"],
        ["export", "{}", "{}/x.docx"],
        ["export", "{}", "{}/x.parquet", "--columns", "nope"],
        ["export", "{}", "{}/x.csv"],
        ["export", "{}", "{}/x.parquet", "--columns", "n,n"],
        ["ls", "nowhere://x"],
    ],
)
def test_wrong_calls_are_told_with_exit_code_2(url: str, arguments: list[str]) -> None:
    answer = run(*[argument.replace("{}", url) for argument in arguments])
    assert answer.exit_code == 2, answer.output
    assert "Error: " in answer.output
