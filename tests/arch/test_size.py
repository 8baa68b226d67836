"""Functions and files stay small enough to be read whole."""

from __future__ import annotations

import ast

from tests.arch.source_tree import PACKAGE, Module, modules

FUNCTION_LINES_MAX = 80
FILE_LINES_MAX = 500
LONG_FILE_LINES_MAX = 700

LONG_FILES = {
    "blob/local.py": "one protocol of system calls, whose order is the guarantee: apart, its halves would hide it",
}
"""Files that may have up to 700 lines, and why they are not cut."""


def length_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def long_functions(module: Module) -> list[str]:
    functions = (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [
        f"{module.where(function)} {function.name} has {length_without_docstring(function)} lines"
        for function in functions
        if length_without_docstring(function) > FUNCTION_LINES_MAX
    ]


def test_no_function_is_longer_than_a_screen() -> None:
    assert [finding for module in modules() for finding in long_functions(module)] == []


def test_no_file_is_longer_than_its_bound() -> None:
    bounds = {PACKAGE / name: LONG_FILE_LINES_MAX for name in LONG_FILES}
    lengths = {module.path: len(module.text.splitlines()) for module in modules()}
    too_long = {str(path): length for path, length in lengths.items() if length > bounds.get(path, FILE_LINES_MAX)}
    assert too_long == {}


def test_the_table_of_long_files_is_true() -> None:
    stale = [name for name in LONG_FILES if len((PACKAGE / name).read_text().splitlines()) <= FILE_LINES_MAX]
    assert stale == [], "these files have become short: take them out of the table"
    assert all(LONG_FILES.values())
