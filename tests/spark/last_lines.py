"""The README's program and two scripts in one process, whose last line waits for a stream: ``--times N`` prints JSON.

What such a program leaves is compared, and its standard error must have no complaint of a thread, a worker or a pipe.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable

from tests.spark.killing import ROOT
from tests.spark.marked_processes import START_SECONDS_MAX
from tests.spark.scripts import PARTS, ROWS, prepare

NAMES = ("keyed files, any", "Delta", "files")

_PROGRAM = """
import runpy, sys
from pathlib import Path
from stateline.spark import get_or_create_session
from tests.spark import scripts
place = Path(sys.argv[1])
get_or_create_session("script", "local[2]", **{"spark.driver.memory": "512m"})
for _ in range(int(sys.argv[2])):
    runpy.run_path("readme.py")
for name in ("keyed files, any", "Delta"):
    script = scripts.SCRIPTS[name].partition("found =")[0].replace("PLACE", str(place / name))
    exec(script)
script = scripts.SCRIPTS["files"].partition("found =")[0].replace("PLACE", str(place / "files"))
exec(script)  # Its last line waits for the stream, and is the last one of this program.
"""


def run_to_its_end(folder: Path, *, rows: int = 10_000, times: int = 1) -> list[str]:
    """Runs the program in an empty folder; what is wrong with what it left and what it said.

    Args:
        folder: An empty one.
        rows: What the README's program generates.
        times: How often the process runs the README's program; all but the first find no new rows.
    """
    for name in NAMES:
        prepare(folder / name)
    (code,) = re.findall(r"## A pipeline\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "1_000_000" in code, "the README's program has as many rows"
    (folder / "readme.py").write_text(code.replace("1_000_000", str(rows)))
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder), str(times)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=START_SECONDS_MAX + 60 * times,
        check=False,
    )
    if ended.returncode != 0:
        return [f"exit status {ended.returncode}\n{ended.stderr[-4000:]}"]
    found = {
        "files": ds.dataset(folder / "files" / "out", format="parquet").count_rows(),
        "Delta": DeltaTable(str(folder / "Delta" / "out")).to_pyarrow_table().num_rows,
        "keyed files, any": ds.dataset(folder / "keyed files, any" / "out", format="parquet").count_rows(),
    }
    wanted = {"files": ROWS, "Delta": ROWS, "keyed files, any": PARTS}
    wrong = [] if found == wanted else [f"expected {wanted}, found {found}"]
    said = [word for word in ("BrokenPipeError", "Traceback", "atexit") if word in ended.stderr]
    return [*wrong, *([f"said {', '.join(said)}\n{ended.stderr[-4000:]}"] if said else [])]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", type=int, default=3, help="processes")
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    found: dict[str, Any] = {"points": arguments.times, "failures": []}
    for _ in range(arguments.times):
        with tempfile.TemporaryDirectory(prefix="stateline-ends-") as name:
            rows, times = dice.choice((100, 10_000, 1_000_000)), dice.randint(1, 3)
            wrong = run_to_its_end(Path(name), rows=rows, times=times)
            found["failures"] += [f"{rows} rows, {times} times: {each}" for each in wrong]
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
