"""``python -m tests.kit``."""

import json
import os
import subprocess
import sys

import pytest

from tests.kit.__main__ import main


def test_scenarios_are_listed(capsys):
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    for name in ("create_race", "store_publish_local", "micro_batch_reference"):
        assert name in output


def test_a_suite_prints_what_it_tried_by_operation_and_kind(capsys):
    assert main(["single", "--scenario", "store_publish", "--sample", "200"]) == 0
    output = capsys.readouterr().out
    assert "single store_publish: 200 runs" in output
    assert "lost_answer=" in output
    assert "runs a minute" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["pairs", "--scenario", "create_race", "--sample", "50"],
        ["zombies", "--scenario", "micro_batch_reference", "--sample", "50"],
        ["sim", "--scenario", "store_publish", "--seeds", "3:6"],
        ["powerloss", "--scenario", "create_race_local", "--sample", "5"],
    ],
)
def test_every_suite_gives_json(capsys, arguments):
    assert main([*arguments, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["suite"] == arguments[0]
    assert document["scenario"] == arguments[2]
    assert document["points"] > 0
    assert document["failures"] == []


def test_one_seed_can_be_traced(capsys):
    assert main(["sim", "--scenario", "store_publish", "--seed", "5", "--trace"]) == 0
    output = capsys.readouterr().out
    assert "replayed: equal" in output
    assert "writer-0" in output


def test_a_failure_has_an_exit_status_a_seed_and_a_trace(capsys):
    from tests.kit.planted.bugs import planted

    with planted("no_adoption"):
        assert main(["zombies", "--scenario", "micro_batch_reference"]) == 1
    output = capsys.readouterr().out
    assert "broken in micro_batch_reference by zombies, seed 0" in output
    assert "A is believed dead after" in output
    assert "driver-0" in output


def test_planted_bugs_are_counted(capsys):
    assert main(["planted", "--bug", "no_adoption", "--by", "zombies"]) == 0
    assert "1 of 1 planted bugs caught" in capsys.readouterr().out
    assert main(["planted", "--bug", "missing_is_success", "--by", "pairs", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["missed"] == ["missing_is_success"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["single", "--scenario", "nope"],
        ["powerloss", "--scenario", "create_race"],
        ["planted", "--bug", "nope"],
        ["single", "--trace"],
        ["list", "--load", "no_such_module_at_all"],
        ["list", "--load", ".relative"],
        ["list", "--load", "module_that_fails"],
        ["list", "--load", "module_of_bad_syntax"],
        ["model", "--scenario", "create_race"],
        ["single", "--bug", "no_adoption"],
        ["sim", "--scenario", "create_race", "--seed", "1", "--trace", "--json"],
    ],
)
def test_wrong_calls_are_told(capsys, arguments, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "module_that_fails.py").write_text("raise ValueError('it fails')")
    (tmp_path / "module_of_bad_syntax.py").write_text("x = = 1")
    assert main(arguments) == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["sim", "--seeds", "x"],
        [],
        ["sim", "--seeds", "0"],
        ["sim", "--seeds", "5:2"],
        ["zombies", "--sample", "0"],
        ["single", "--sample", "-1"],
    ],
)
def test_wrong_arguments_end_with_the_usage(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_the_same_seed_gives_the_same_trace_under_any_hash_seed():
    command = [sys.executable, "-m", "tests.kit", "sim", "--scenario", "micro_batch_reference"]
    digests = set()
    for hash_seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        output = subprocess.run(
            [*command, "--seed", "11", "--trace"], env=environment, capture_output=True, text=True, check=True
        ).stdout
        digests.add(output.strip().splitlines()[-1])
    assert len(digests) == 1


def test_the_list_is_also_a_document(capsys):
    assert main(["list", "--json"]) == 0
    assert "create_race" in [entry["scenario"] for entry in json.loads(capsys.readouterr().out)]
