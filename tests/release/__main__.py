"""``python -m tests.release v1.2.3``: do a tag, the version and the changelog agree? Exit status 1 if they do not."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def findings(tag: str) -> list[str]:
    """What keeps ``tag`` from being released, each as a sentence."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = [] if tag == f"v{version}" else [f"the tag must be v{version}, as in pyproject.toml, got {tag}"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if f"\n## {version}\n" not in changelog:
        found.append(f"CHANGELOG.md must have a section {version}")
    if "\n## Unreleased\n" in changelog:
        found.append("CHANGELOG.md must not have a section Unreleased: give it the version")
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("expected one tag, such as v1.2.3\n")
        return 2
    found = findings(arguments[0])
    sys.stderr.write("".join(f"{finding}\n" for finding in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
