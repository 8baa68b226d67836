"""Pages of the documentation as programs.

The blocks of Python of a page are one program, in their order. A block that cannot run says why, in a comment in front
of it: ``<!-- fragment: it needs a bucket -->``. Its code must compile, and what it imports from Stateline must exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FRAGMENT = re.compile(r"<!-- fragment: (\S.*) -->")
_PLACES = re.compile(r"(?P<scheme>s3a?://|file://|sqlite:///|)(?P<path>/(?:tmp|data|var)/\S*|(?<=://)bucket/\S*)")
_RELATIVE = re.compile(r"[a-z][\w-]*(?:/[\w.*-]+)+")


@dataclass(frozen=True)
class Block:
    """A block of Python.

    Attributes:
        line: Of the page, where its code begins, from 1.
        code: Without what it is indented by.
        fragment: Why it cannot run, or ``None``.
    """

    line: int
    code: str
    fragment: str | None


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of Python of a page."""
    lines = text.splitlines()
    start = indent = -1
    for number, line in enumerate(lines):
        mark = line.strip()
        if not mark.startswith("```"):
            continue
        if start >= 0:
            code = "\n".join(each[indent:] for each in lines[start:number])
            reason = _FRAGMENT.fullmatch(lines[start - 2].strip()) if start > 1 else None
            yield Block(start + 1, code, None if reason is None else reason[1])
            start = -1
        elif mark == "```python":
            start, indent = number + 1, len(line) - len(line.lstrip())


def program_of(page: Path, folder: Path) -> ast.Module:
    """The program of a page, whose lines are numbered as in the page, and all of whose places lie in ``folder``.

    Relative paths count as places, too: Spark takes them from the folder where its session began. And nobody waits for
    a trigger's interval.
    """
    program = ast.Module([], [])
    for block in blocks_of(page.read_text()):
        if block.fragment is None:
            tree = ast.parse(block.code)
            ast.increment_lineno(tree, block.line - 1)
            program.body += tree.body
    return _Placed(folder).visit(program)


def run_page(page: Path, folder: Path, names: dict[str, object] | None = None) -> dict[str, object]:
    """Runs the program of a page. Returns its names."""
    found = {"__name__": "page", **(names or {})}
    exec(compile(program_of(page, folder), str(page), "exec", dont_inherit=True), found)
    return found


class _Placed(ast.NodeTransformer):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        for number, key in enumerate(node.keys):
            if isinstance(key, ast.Constant) and key.value == "processingTime":
                node.values[number] = ast.copy_location(ast.Constant("0 seconds"), node.values[number])
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            node.value = placed(node.value, self._folder)
        return node


def placed(text: str, folder: Path) -> str:
    """The same place below ``folder``, if the text is a place."""
    if found := _PLACES.fullmatch(text):
        scheme = found["scheme"] if found["scheme"] in ("file://", "sqlite:///") else ""
        return f"{scheme}{folder}/{found['path'].lstrip('/')}"
    return f"{folder}/{text}" if _RELATIVE.fullmatch(text) else text
