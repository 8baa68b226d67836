"""Constraints for pip, by which the tests run on other versions: ``python -m tests.pins lowest > lowest.txt``.

``pinned`` are those of ``constraints.txt``, ``lowest`` the oldest versions that ``pyproject.toml`` allows of everything
that a user may install, ``newest`` none at all. Further arguments replace single pins: ``pinned pyspark==4.1.4``. Tools
that only develop Stateline stay pinned in ``lowest``. What packages bring along is whatever pip finds.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,.-]+\])?(?P<versions>[^;]*)")
OF_DEVELOPERS = ("demo", "dev", "docs", "emulators", "lint", "notebooks", "testing")
"""Extras whose packages no user runs Stateline with."""


def normal_name(name: str) -> str:
    """A name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def asked(texts: Iterable[str]) -> dict[str, str]:
    """The versions that requirements ask for, as text, by the name of the package."""
    found = [match for text in texts if (match := REQUIREMENT.match(text)) and match["name"] != "stateline"]
    return {normal_name(match["name"]): match["versions"] for match in found}


def of_users() -> dict[str, str]:
    """What users may install."""
    extras = [text for name, texts in EXTRAS.items() if name not in OF_DEVELOPERS for text in texts]
    return asked([*PROJECT["dependencies"], *extras])


def pinned() -> dict[str, str]:
    """``constraints.txt``."""
    lines = (ROOT / "constraints.txt").read_text().split()
    return {normal_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def lowest() -> dict[str, str]:
    """The oldest versions of what users install, and the pins of what developers do.

    Raises:
        ValueError: One has no lower bound.
    """
    found = {name: pinned()[name] for name in asked(text for extra in OF_DEVELOPERS for text in EXTRAS[extra])}
    for name, versions in of_users().items():
        bound = re.search(r">=\s*([\w.]+)", versions)
        if bound is None:
            raise ValueError(f"{name}: expected a lower bound, got {versions!r}")
        found[name] = bound[1]
    return found


CHOICES = {"pinned": pinned, "lowest": lowest, "newest": dict}


def chosen(choice: str, replaced: Iterable[str] = ()) -> Mapping[str, str]:
    """The pins of a choice, with some replaced."""
    others = (text.partition("==") for text in replaced)
    return CHOICES[choice]() | {normal_name(name): version for name, _, version in others}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("choice", choices=CHOICES)
    parser.add_argument("replaced", nargs="*", help="NAME==VERSION")
    given = parser.parse_args(arguments)
    sys.stdout.writelines(f"{name}=={pin}\n" for name, pin in sorted(chosen(given.choice, given.replaced).items()))


if __name__ == "__main__":
    main(sys.argv[1:])
