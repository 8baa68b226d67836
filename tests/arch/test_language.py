"""Words and constructs that the package does without."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest

from tests.arch.source_tree import Module, modules, python_files

WORDS = "TO-DO FIX-ME XX-X HA-CK NotImplemented-Error".replace("-", "").split()
"""The hyphens keep this file from finding itself."""

UNFINISHED = re.compile(r"\b(" + "|".join(WORDS) + r")\b")
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "tools"}
CODE_FROM_DATA_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"}
CODE_FROM_DATA_CALLS = {"eval", "exec", "compile", "__import__"}
CODE_FROM_DATA_ATTRIBUTES = {("yaml", "load"), ("yaml", "full_load"), ("yaml", "unsafe_load")}
ALL_ERRORS = {"Exception", "BaseException"}

Rule = Callable[[ast.AST], bool]


def unfinished(module: Module) -> list[str]:
    lines = enumerate(module.text.splitlines(), start=1)
    return [f"{module.relative}:{number} {line.strip()}" for number, line in lines if UNFINISHED.search(line)]


def is_assert(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert)


def is_catch_of_everything_by_no_name(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and node.type is None


def is_silent_handler(node: ast.AST) -> bool:
    """A handler that does nothing."""
    return isinstance(node, ast.ExceptHandler) and all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in node.body
    )


def is_broad_handler_that_forgets(node: ast.AST) -> bool:
    """Catches every error, and neither raises nor looks at what it caught."""
    if not isinstance(node, ast.ExceptHandler) or not names_of(node.type) & ALL_ERRORS:
        return False
    inside = [inner for statement in node.body for inner in ast.walk(statement)]
    raises = any(isinstance(inner, ast.Raise) for inner in inside)
    looks = any(isinstance(inner, ast.Name) and inner.id == node.name for inner in inside)
    return not raises and not looks


def is_broad_suppress(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or last_name(node.func) != "suppress":
        return False
    return any(names_of(argument) & ALL_ERRORS for argument in node.args)


def is_code_from_data(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in CODE_FROM_DATA_MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] in CODE_FROM_DATA_MODULES
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in CODE_FROM_DATA_CALLS
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return (node.func.value.id, node.func.attr) in CODE_FROM_DATA_ATTRIBUTES
    return False


def is_refusal_without_a_hint(node: ast.AST) -> bool:
    """An error of the caller's that does not say what to do instead."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "InvalidInputError":
        return False
    return not {"hint", None} & {keyword.arg for keyword in node.keywords}


def names_of(expression: ast.expr | None) -> set[str]:
    """``{"A", "B"}`` for ``A``, ``x.A`` and ``(A, x.B)``."""
    if isinstance(expression, ast.Tuple):
        return {name for element in expression.elts for name in names_of(element)}
    return {last_name(expression)} if expression is not None else set()


def last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


RULES: dict[str, Rule] = {
    "python -O drops assert: raise an error of stateline.errors": is_assert,
    "a bare except also catches the end of the program": is_catch_of_everything_by_no_name,
    "every error is caught and none is looked at": is_broad_handler_that_forgets,
    "every error is suppressed": is_broad_suppress,
    "data could become code": is_code_from_data,
    "whoever is refused is told what to do": is_refusal_without_a_hint,
}

SPECIMENS: dict[Rule, str] = {
    is_assert: "assert x",
    is_catch_of_everything_by_no_name: "try:\n    x()\nexcept:\n    raise",
    is_broad_handler_that_forgets: "try:\n    x()\nexcept (OSError, Exception):\n    y = 1",
    is_broad_suppress: "with contextlib.suppress(OSError, Exception):\n    x()",
    is_refusal_without_a_hint: "raise InvalidInputError('it is empty', subject='x')",
    is_code_from_data: "import os, pickle.whatever",
}


def findings(rule: Rule) -> Iterator[str]:
    for module in modules():
        if rule is is_assert and module.is_conformance_suite:
            continue
        yield from (module.where(node) for node in ast.walk(module.tree) if rule(node))


@pytest.mark.parametrize("reason", RULES)
def test_the_package_does_without(reason: str) -> None:
    assert list(findings(RULES[reason])) == [], reason


@pytest.mark.parametrize("reason", RULES)
def test_the_rule_sees_what_it_forbids(reason: str) -> None:
    rule = RULES[reason]
    assert any(rule(node) for node in ast.walk(ast.parse(SPECIMENS[rule])))


def unexplained_handlers(module: Module) -> list[str]:
    """Handlers that do nothing and say nothing: a narrow one may, if a comment in it says why."""
    lines = module.text.splitlines()
    handlers = [node for node in ast.walk(module.tree) if is_silent_handler(node)]
    return [
        module.where(handler)
        for handler in handlers
        if isinstance(handler, ast.ExceptHandler)
        and not any("#" in line for line in lines[handler.lineno : handler.end_lineno])
    ]


def test_no_error_is_swallowed_without_a_reason() -> None:
    assert [finding for module in modules() for finding in unexplained_handlers(module)] == []
    silent = "try:\n    x()\nexcept OSError:\n    pass"
    path = modules()[0].path
    assert unexplained_handlers(Module(path, silent, ast.parse(silent)))
    assert not unexplained_handlers(Module(path, f"{silent}  # why", ast.parse(silent)))


@pytest.mark.parametrize("call", ["eval('1')", "exec('1')", "yaml.load(x)", "from marshal import loads"])
def test_the_rule_on_code_from_data_sees_every_form(call: str) -> None:
    assert any(is_code_from_data(node) for node in ast.walk(ast.parse(call)))
    assert not any(is_code_from_data(node) for node in ast.walk(ast.parse("re.compile('x'); model.eval()")))


def test_nothing_is_left_unfinished() -> None:
    assert [finding for module in python_files() for finding in unfinished(module)] == []
    assert UNFINISHED.search("# TO-DO: later".replace("-", ""))


def test_no_module_has_a_vague_name() -> None:
    vague = [
        module.relative
        for module in modules()
        if VAGUE_NAMES & {word for part in module.name.split(".") for word in part.strip("_").split("_")}
    ]
    assert vague == []
