"""``make check`` and ``make audit``: are vulnerabilities known of what ``constraints.txt`` pins?

A known vulnerability is a failure, with its name and the versions that mend it. An index that cannot be reached, or
that does not know a package, is none: a check that hangs on somebody's server must not turn red by itself. But it is
said loudly, since ``pip-audit`` alone calls that "no known vulnerabilities" and goes on. With ``--strict`` it is a
failure, too: who runs ``make audit`` wants an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
SECONDS_MAX = 120
SECONDS_PER_REQUEST = "10"


def ask(constraints: Path) -> dict[str, Any]:
    """What pip-audit reports.

    Raises:
        RuntimeError: It gave no report; the text says why.
    """
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), "--no-deps", "--disable-pip"]
    options = ["--format", "json", "--progress-spinner", "off", "--timeout", SECONDS_PER_REQUEST]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no answer within {SECONDS_MAX} s") from error
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer") from error


def judge(dependencies: Sequence[dict[str, Any]], *, strict: bool) -> tuple[int, list[str]]:
    """The exit status and what to say of the packages of a report."""
    said = [
        f"{package['name']} {package['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'none'}"
        for package in dependencies
        for found in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in dependencies if "skip_reason" in package]
    audited = len(dependencies) - len(skipped)
    is_bad = bool(said)
    if audited:
        said.append(f"audited: {audited} packages, {'see above' if is_bad else 'no vulnerability is known'}")
    if skipped or not audited:
        reason = f"the index does not know {', '.join(skipped)}" if audited else "index unreachable, or it is not PyPI"
        said.append(f"NOT AUDITED: {len(skipped)} of {len(dependencies)} packages: {reason}")
        is_bad = is_bad or strict
    return int(is_bad), said


def main() -> int:
    strict = "--strict" in sys.argv[1:]
    try:
        status, said = judge(ask(CONSTRAINTS)["dependencies"], strict=strict)
    except RuntimeError as error:
        status, said = int(strict), [f"NOT AUDITED: index unreachable ({error})"]
    sys.stdout.write("".join(f"{line}\n" for line in said))
    return status


if __name__ == "__main__":
    sys.exit(main())
