"""What is installed: the package, and the two modules by which Spark finds its data sources."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.arch.source_tree import ROOT, SOURCE
from tests.release.__main__ import findings, main

SIDE_FILES = {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "pyproject.toml", "PKG-INFO"}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    return folder


def source_files() -> set[str]:
    names = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_file())
    return {name for name in names if "__pycache__" not in name}


def test_a_wheel_holds_all_of_the_source_and_nothing_else(distributions: Path) -> None:
    (wheel,) = distributions.glob("*-any.*")
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    assert names == source_files()
    assert {"stateline/py.typed", "pyspark_stateline.py", "pyspark_stateline_files.py"} <= names


def test_a_source_distribution_holds_what_builds_the_wheel(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert names - SIDE_FILES - {".gitignore"} == {f"src/{name}" for name in source_files()}
    assert names >= SIDE_FILES


def test_an_installed_wheel_works_without_the_checkout(distributions: Path, tmp_path: Path) -> None:
    """Its dependencies come from this environment, so that no index is asked."""
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    (wheel,) = distributions.glob("*-any.*")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "empty")}))
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        f"sys.path.append({sysconfig.get_path('purelib')!r})\n"
        "import stateline, stateline.blob, stateline.recoverable, stateline.checkpoint, stateline.state\n"
        "from stateline.changelog import ChangelogStorage\n"
        "from stateline.key_groups import KeyGroupRange\n"
        "with ChangelogStorage.open('file://' + sys.argv[1]) as storage:\n"
        "    writer = storage.create_writer('an-operator', KeyGroupRange(0, 127))\n"
        "    start = writer.initial_sequence_number()\n"
        "    writer.append(5, b'x')\n"
        "    handle = writer.persist(start, 1).result().remote\n"
        "    print([change.value for change in storage.create_reader().read(handle)], stateline.__file__)\n"
        "(command,) = entry_points(group='console_scripts', name='stateline')\n"
        "sys.argv = ['stateline', '--version']; command.load()()\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [str(python), "-I", "-c", code, str(tmp_path / "log")]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("[b'x'] " + str(site)), ran.stdout


def test_a_tag_must_agree_with_the_version_and_the_changelog(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the tag must be v0.1.0, as in pyproject.toml, got v9.9.9" in findings("v9.9.9")
    assert main([]) == 2
    assert main(["v9.9.9"]) == 1
    assert "CHANGELOG.md must not have a section Unreleased" in capsys.readouterr().err


def test_the_recipe_names_the_version_and_what_the_package_needs() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    assert f'version: "{project["version"]}"' in recipe
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["spark"]):
        name, _, bound = requirement.replace("[sql]", "").partition(">=")
        conda = {"xxhash": "python-xxhash"}.get(name, name)
        assert f"- {conda} >={bound}\n" in recipe
