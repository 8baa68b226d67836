"""Every name that a docstring or a comment refers to is there."""

from __future__ import annotations

import ast
import builtins
import functools
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.arch.source_tree import SOURCE, Module, modules

ROLE = re.compile(r":(?:mod|class|meth|func|attr|data|exc):`~?([\w.]+)(?:\(\))?`")
DOTTED = re.compile(r"``(stateline(?:\.\w+)+)``")
SNAKE = re.compile(r"``([a-z]+(?:_[a-z0-9]+)+)(?:\(\))?``")
"""A module, an option, a method: whatever it is, the package or a library that it uses has to know it."""
FOREIGN = {"pyspark", "pyarrow", "msgspec", "concurrent", "threading", "hypothesis"}

LIBRARY_WORDS = {"as_completed", "timestamp_ntz"}


def prose(module: Module) -> Iterator[tuple[int, str]]:
    """Docstrings, also those of attributes, and comments, each with the line where it starts."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@functools.cache
def names(module: Module) -> frozenset[str]:
    """Every name in the code of a module."""
    fields = ("id", "attr", "arg", "name", "asname")
    return frozenset(str(getattr(node, field, None)) for node in ast.walk(module.tree) for field in fields)


@functools.cache
def package_names() -> frozenset[str]:
    return frozenset().union(*map(names, modules()))


@functools.cache
def package_words() -> frozenset[str]:
    """Names of the package and of its modules, and the words of texts that are not prose: options, formats, fields."""
    found = {part for module in modules() for part in module.name.split(".")}
    found |= {path.stem for path in SOURCE.glob("*.py")} | LIBRARY_WORDS | package_names()
    for module in modules():
        docstrings = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                found |= {text, *re.findall(r"\w+", text)}
    return frozenset(found)


@functools.cache
def known_modules() -> dict[str, Module]:
    return {module.name: module for module in modules()}


def resolves(target: str, module: Module) -> bool:
    """Whether a name means something where it is written: in its module, in the package, or in a library."""
    parts = target.split(".")
    if parts[0] in FOREIGN or hasattr(builtins, parts[0]):
        return True
    if parts[0] != "stateline":
        return set(parts) <= package_names() | names(module)
    known = known_modules()
    length = max(length for length in range(1, len(parts) + 1) if ".".join(parts[:length]) in known)
    there, rest = known[".".join(parts[:length])], parts[length:]
    is_there = not rest or rest[0] in names(there) or f'"{rest[0]}"' in there.text  # What __getattr__ of it loads.
    return is_there and set(rest[1:]) <= package_names()


def unresolved(module: Module) -> list[str]:
    found = []
    for line, text in prose(module):
        found += [(line, target) for target in ROLE.findall(text) if not resolves(target, module)]
        found += [
            (line, target)
            for target in DOTTED.findall(text)
            if target not in package_words() and not resolves(target, module)
        ]
        found += [(line, word) for word in SNAKE.findall(text) if word not in package_words()]
    return [f"{module.relative}:{line} {target}" for line, target in found]


def test_every_reference_resolves() -> None:
    assert [finding for module in modules() for finding in unresolved(module)] == []


@pytest.mark.parametrize(
    "text",
    [
        "See :class:`Gone`.",
        "See :meth:`~stateline.errors.StatelineError.gone_for_good`.",
        "See :mod:`stateline.gone`.",
        "Does not own the rest (``stateline.gone``).",
        "Does not own the rest (``gone_with_the_wind``).",
    ],
)
def test_a_reference_to_nothing_is_seen(text: str) -> None:
    for source in (f'"""{text}"""', f"# {text}"):
        assert unresolved(Module(modules()[0].path, source, ast.parse(source)))


@pytest.mark.parametrize(
    "text",
    [
        "See :class:`Here` and :attr:`Here.size`, and :class:`ValueError`.",
        "See :func:`stateline.errors.chain_of`, ``stateline.errors`` and ``key_groups``.",
        "See :attr:`stateline.files.RollingPolicy.max_bytes` and :class:`pyspark.sql.Row`.",
    ],
)
def test_a_reference_to_something_is_let_through(text: str) -> None:
    source = f'"""{text}"""\nclass Here:\n    size = 1'
    assert unresolved(Module(modules()[0].path, source, ast.parse(source))) == []
