"""What is committed works on every machine, and everything committed is explained."""

from __future__ import annotations

import re
import tomllib

from tests.arch.source_tree import ROOT, repository_files
from tests.pins.__main__ import normal_name

PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.!+_-]*")
MACHINE_PATHS = re.compile(r"(?<![\w.$}>-])/(?:work/|root/\.|tmp/v/|opt/(?:wheels|pypi)|home/\w+/|Users/\w+/)")
DOWNLOADS = re.compile(r"files\.pythonhosted\.org|--(?:extra-)?index-url|--find-links|\.whl\b|://[^\s]*/simple\b")
THIS_FILE = "tests/arch/test_repository.py"


def text_files() -> list[tuple[str, str]]:
    found = []
    for path in repository_files():
        data = path.read_bytes()
        if b"\0" not in data:
            found.append((path.relative_to(ROOT).as_posix(), data.decode("utf-8")))
    return [(name, text) for name, text in found if name != THIS_FILE]


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number} {line.strip()}"
        for name, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_path_of_one_machine_is_committed() -> None:
    assert lines_with(MACHINE_PATHS) == []
    assert MACHINE_PATHS.search("see /" + "root/.cache")


def test_no_download_address_is_committed() -> None:
    assert lines_with(DOWNLOADS) == []


def test_constraints_are_sorted_pins_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    names = [normal_name(line.partition("==")[0]) for line in lines]
    assert len(names) == len(set(names)), "a package is pinned twice"
    assert names == sorted(names)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    wanted = {normal_name(re.split(r"[\[<>=!~; ]", requirement)[0]) for group in groups for requirement in group}
    wanted |= {normal_name(re.split(r"[\[<>=!~; ]", name)[0]) for name in project["build-system"]["requires"]}
    pinned = {normal_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert wanted - pinned - {"stateline"} == set()


def test_every_target_of_make_is_explained_and_no_file() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)(.*)$", text, re.MULTILINE)
    assert {"help", "setup", "test", "check", "bench", "demo", "nexmark", "clean"} <= {name for name, _ in targets}
    assert [name for name, rest in targets if not re.search(r"## \S", rest)] == []
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    assert phony == {name for name, _ in targets}
    readme = (ROOT / "README.md").read_text()
    assert [name for name, _ in targets if f"make {name}" not in readme] == []


def test_test_files_have_names_of_their_own() -> None:
    """Two of one name cannot be collected together, but pass when they run alone."""
    names = [path.name for path in repository_files() if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
