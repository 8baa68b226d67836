"""From docstrings, as this house writes them, to reStructuredText.

Two things are written for readers of the code and are Markdown: tables with bars, and lists right below the line that
introduces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["restructured"]

_ITEM: Final = re.compile(r"( *)(?:[-*]|\d+\.) ")
_CELL: Final = re.compile(r"(?<!\\)\|")


def restructured(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring with tables and lists as reStructuredText has them."""
    found: list[str] = []
    table: list[str] = []
    for line in [*lines, ""]:
        if line.lstrip().startswith("|"):
            table.append(line)
            continue
        if table:
            found += _table(table)
            table = []
        if _begins_a_list(line, found[-1] if found else ""):
            found.append("")
        found.append(line)
    return found[:-1]


def _begins_a_list(line: str, before: str) -> bool:
    item = _ITEM.match(line)
    if item is None or not before.strip() or _ITEM.match(before):
        return False
    return len(before) - len(before.lstrip()) <= len(item[1])


def _table(lines: Sequence[str]) -> Iterator[str]:
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    yield ""
    yield f"{indent}.. list-table::"
    yield f"{indent}   :header-rows: 1"
    yield ""
    for line in lines:
        cells = [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            continue
        for number, cell in enumerate(cells):
            yield f"{indent}   {'*' if number == 0 else ' '} - {cell}"
    yield ""
