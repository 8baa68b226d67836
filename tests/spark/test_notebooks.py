"""Every notebook runs from its first cell to its last, and ends in a picture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.arch.source_tree import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_the_notebooks_that_the_documentation_lists() -> None:
    assert NAMES == ["flights", "nexmark", "time-travel"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=NAMES)
def test_a_notebook_is_kept_without_what_came_out(notebook: Path) -> None:
    assert [cell["id"] for cell in code_cells(notebook) if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_and_ends_in_a_picture(notebook: Path, tmp_path: Path) -> None:
    copy = tmp_path / notebook.name
    copy.write_bytes(notebook.read_bytes())
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(tmp_path),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }
    command = [sys.executable, "-m", "jupyter", "execute", "--inplace", "--timeout=500", copy.name]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=560)
    assert ran.returncode == 0, ran.stderr[-4000:]
    *_, last, cleaning = code_cells(copy)
    assert any("image/png" in output.get("data", {}) for output in last["outputs"])
    assert "rmtree" in "".join(cleaning["source"])
    assert [path.name for path in tmp_path.glob(f"{notebook.stem}-*")] == [], "it removes its folder"
