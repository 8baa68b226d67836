"""The tree is the architecture: layers, fences, and imports that stay light."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from tests.arch.source_tree import PACKAGE, ROOT

HEAVY = {
    "pyspark",
    "py4j",
    "pandas",
    "boto3",
    "botocore",
    "google.cloud",
    "azure",
    "click",
    "rich",
    "prometheus_client",
    "opentelemetry",
}
PACKAGES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
PROGRAM = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""


def modules_loaded_by(name: str) -> set[str]:
    """What ``import name`` loads in a fresh interpreter."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), name]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(answer.stdout))


def test_the_layer_contracts_hold() -> None:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert " 0 broken" in answer.stdout


@pytest.mark.parametrize("name", ["stateline", *(f"stateline.{package}" for package in PACKAGES)])
def test_importing_a_package_loads_neither_pyspark_nor_a_cloud_sdk(name: str) -> None:
    assert modules_loaded_by(name) & HEAVY == set()


def test_the_commands_load_what_shows_them_alone() -> None:
    """Each call of ``stateline`` waits for what it imports; pandas alone takes as long as half of the rest."""
    assert modules_loaded_by("stateline.cli.commands") & HEAVY == {"click", "rich"}


def test_the_check_on_heavy_imports_can_fail() -> None:
    assert "pyspark" in modules_loaded_by("stateline.spark.session")
