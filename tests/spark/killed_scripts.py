"""All scripts in a process that is killed at a random time, and again in a new one: ``--seed N`` prints JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from stateline.spark import get_or_create_session
from tests.spark import scripts
from tests.spark.killing import ROOT

SECONDS_MAX = 40.0
"""About as long as all scripts take."""


def run_all(folder: Path, names: list[str], seconds: float) -> None:
    """Runs the scripts in this process, which dies after so many seconds; 0 for never."""
    get_or_create_session("scripts", "local[2]", quiet=True, **{"spark.driver.memory": "512m"})
    if seconds:
        threading.Timer(seconds, os.killpg, (0, signal.SIGKILL)).start()
    found = {name: scripts.run(scripts.SCRIPTS[name], folder / name) for name in names}
    (folder / "found.json").write_text(json.dumps(found))


def killed(seed: int) -> dict[str, Any]:
    """What was found, in the form of a slice of a soak."""
    dice = random.Random(seed)
    names = list(scripts.SCRIPTS)
    dice.shuffle(names)
    with tempfile.TemporaryDirectory(prefix="stateline-scripts-") as name:
        folder = Path(name)
        for each in names:
            scripts.prepare(folder / each)
        failures = []
        for seconds in (dice.uniform(0.0, SECONDS_MAX), 0.0):
            (folder / "found.json").unlink(missing_ok=True)
            command = [sys.executable, "-m", "tests.spark.killed_scripts", "--folder", name, "--seconds", str(seconds)]
            with (folder / "log").open("ab") as log, contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*command, *names],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    timeout=600,
                    check=False,
                )
        found = json.loads((folder / "found.json").read_text()) if (folder / "found.json").exists() else {}
        wanted = {each: scripts.expected(each) for each in names}
        if found != wanted:
            failures.append(f"expected {wanted}, found {found}\n{(folder / 'log').read_text()[-6000:]}")
    return {"points": len(names), "failures": failures}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.folder is None:
        sys.stdout.write(f"{json.dumps(killed(arguments.seed))}\n")
    else:
        run_all(Path(arguments.folder), arguments.names, arguments.seconds)


if __name__ == "__main__":
    main()
