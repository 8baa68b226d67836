"""What is installed: the package, and the two modules by which Spark finds its data sources."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.arch.source_tree import ROOT, SOURCE


def test_a_wheel_holds_all_of_the_source_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    source = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    assert names == {name for name in source if "__pycache__" not in name}
    assert {"stateline/py.typed", "pyspark_stateline.py", "pyspark_stateline_files.py"} <= names
