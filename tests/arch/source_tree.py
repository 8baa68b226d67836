"""What the tests of style look at: the files of this repository, parsed once."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "stateline"


@dataclass(frozen=True)
class Module:
    """One Python file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def relative(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def name(self) -> str:
        """The dotted name, for modules of the package."""
        parts = self.path.relative_to(SOURCE).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_conformance_suite(self) -> bool:
        """Whether it holds tests that are shipped: asserts are their point, and their names say what they ask."""
        return self.path.parent == PACKAGE / "testing" and self.path.stem.endswith("_conformance")

    def where(self, node: ast.AST) -> str:
        return f"{self.relative}:{getattr(node, 'lineno', 1)}"


@functools.cache
def ignored_names() -> frozenset[str]:
    """Files and folders that git ignores by plain name, and those of git itself."""
    lines = (ROOT / ".gitignore").read_text().split()
    return frozenset({".git", *(line.rstrip("/") for line in lines if re.fullmatch(r"[\w.-]+/?", line))})


def repository_files() -> Iterator[Path]:
    """Every file that belongs to the repository, sorted."""
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = sorted(set(subfolders) - ignored_names())
        for name in sorted(names):
            if name not in ignored_names() and not name.endswith(".pyc") and ".egg-info" not in folder:
                yield Path(folder, name)


@functools.cache
def parse(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, text, ast.parse(text, str(path)))


@functools.cache
def modules() -> tuple[Module, ...]:
    """Every module of the package."""
    return tuple(parse(path) for path in sorted(PACKAGE.rglob("*.py")))


def python_files() -> Iterator[Module]:
    """Every Python file of the repository, tests and examples included."""
    for path in repository_files():
        if path.suffix == ".py":
            yield parse(path)
