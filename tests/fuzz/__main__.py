"""``make fuzz``: every decoder of stored bytes, for ``FUZZ_SECONDS`` each (60), guided by coverage.

``python -m tests.fuzz [TARGET ...]``; without one, all. Inputs that lead to new code are kept in ``.fuzz/TARGET``, and
the next run begins with them. Exit status 1 if a decoder did what it may not do; its input is then in ``.fuzz/found``:
put it into ``tests/fuzz/found``, which ``make test`` tries.

Where there is no atheris, random mutations without guidance take its place, and the last column says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
FOLDER = Path(os.environ.get("FUZZ_FOLDER", ".fuzz"))
GUIDED = "guided"
MAX_INPUT_BYTES = 16_384


def guided(name: str) -> None:
    """Runs in a process of its own, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["stateline"]), contextlib.redirect_stderr(io.StringIO()):
        from tests.fuzz.targets import TARGETS, attempt
    target = TARGETS[name]
    corpus = FOLDER / name
    corpus.mkdir(parents=True, exist_ok=True)
    (FOLDER / "found").mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={max(int(SECONDS), 1)}",
        f"-artifact_prefix={FOLDER / 'found'}/{name}.",
        f"-max_len={MAX_INPUT_BYTES}",
        "-rss_limit_mb=2048",
        "-timeout=20",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup(arguments, lambda data: attempt(target, data))
    atheris.Fuzz()


def unguided(name: str) -> tuple[int, str]:
    """How many inputs were tried, and what was found."""
    from tests.fuzz.mutation import mutations
    from tests.fuzz.targets import TARGETS, FindingError, attempt

    target = TARGETS[name]
    ends_at = time.monotonic() + SECONDS
    for number, data in enumerate(mutations(target.seeds, random.Random())):
        if time.monotonic() > ends_at:
            return number, ""
        try:
            attempt(target, data)
        except FindingError as finding:
            (FOLDER / "found").mkdir(parents=True, exist_ok=True)
            (FOLDER / "found" / f"{name}.{number}").write_bytes(data)
            return number, str(finding)
    return 0, ""


def in_a_process(name: str) -> tuple[int, str]:
    """As :func:`unguided`, with atheris."""
    command = [sys.executable, "-m", "tests.fuzz", GUIDED, name]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    tried = re.findall(r"number_of_executed_units:\s*(\d+)", said)
    return int(tried[-1]) if tried else 0, "" if done.returncode == 0 and tried else said[-3000:]


def main() -> int:
    if sys.argv[1:2] == [GUIDED]:
        guided(sys.argv[2])
        return 0
    from tests.fuzz.targets import TARGETS

    chosen = sys.argv[1:] or list(TARGETS)
    if unknown := set(chosen) - TARGETS.keys():
        sys.stderr.write(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}\n")
        return 2
    has_atheris = importlib.util.find_spec("atheris") is not None
    failed = 0
    for name in chosen:
        tried, finding = (in_a_process if has_atheris else unguided)(name)
        failed += bool(finding)
        how = "by coverage" if has_atheris else "at random: there is no atheris here"
        sys.stdout.write(f"{name:<20} {tried:>10,} inputs  {'FOUND' if finding else 'nothing':<8} {how}\n{finding}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
