"""What errors say: after ``subject:`` a sentence that an English speaker would write, then what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.arch.source_tree import PACKAGE, Module, modules
from tests.arch.test_language import last_name

BAD_FORMS = {
    r"\b(is|are) none\b": ("'abc' is none", "'abc' is not a job id"),
    r"(?<!there )\bis no (?!longer\b)": ("5 is no function", "5 is not a function"),
    r"(?-i:^(it|they)\b)": ("it is empty", "must not be empty"),
    r"\b(has|have) none\b": ("the root has none", "the root has no checkpoint"),
    r"\bthere is (none|nobody)\b": ("there is none", "the root has no checkpoint"),
    r"\bcame\b(?! (before|from|back))": ("3 values came", "expected 2 values, got 3"),
    r"\bwas expected\b": ("a row was expected", "expected a row, got int"),
    r"\b(wanted:|wanted is)": ("stored: a; wanted: b", "expected b, got a"),
    r"^\S+ is out of bounds\b": ("5 is out of bounds", "must be 0 to 4, got 5"),
    r"\bleave\b.{0,20}\baway\b": ("Leave the option away", "Leave the option out"),
    r"\bput(s)? (a value )?out\b": ("what it puts out", "its output"),
    r"\bwith a point\b": ("a name that begins with a point", "a name that begins with a dot"),
    r"\bas what\b": ("as what their format is", "in their own format"),
    r"^say\b": ("Say df.withWatermark(...)", "Call df.withWatermark(...)"),
}
"""Forms that this package had, as patterns, each with a specimen and what to write instead."""


def texts(node: ast.AST, function: ast.FunctionDef | None = None) -> Iterator[str]:
    """The texts that an argument may be: both branches of a choice, and what a local name was given."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, function)
        yield from texts(node.orelse, function)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from texts(value, function)
    elif isinstance(node, ast.BinOp):
        yield "".join((*texts(node.left, function), *texts(node.right, function)))
    elif isinstance(node, ast.Name) and function is not None:
        for inner in ast.walk(function):
            if isinstance(inner, ast.Assign) and node.id in map(last_name, inner.targets):
                yield from texts(inner.value)


def is_error(call: ast.Call) -> bool:
    return last_name(call.func).endswith("Error") or last_name(call.func) == "BadParameter"


def arguments(call: ast.Call) -> list[ast.expr]:
    """The message and the hint of an error."""
    return [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg in {"message", "hint"})]


def makers(module: Module) -> set[str]:
    """Functions that make an error of the texts that they are given."""
    found = set()
    for function in functions(module):
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
        for call in calls(function):
            named = {inner.id for text in arguments(call) for inner in ast.walk(text) if isinstance(inner, ast.Name)}
            if is_error(call) and named & given:
                found.add(function.name)
    return found - {"__init__"}


def functions(module: Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def messages(module: Module) -> set[tuple[str, str]]:
    """All that errors of a module say, each with its place."""
    own = makers(module)
    found = set()
    pending: list[tuple[ast.AST, ast.FunctionDef | None]] = [(module.tree, None)]
    while pending:
        node, function = pending.pop()
        function = node if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.Call):
            given = node.args if last_name(node.func) in own else arguments(node) if is_error(node) else ()
            found |= {(module.where(argument), text) for argument in given for text in texts(argument, function)}
        pending += ((child, function) for child in ast.iter_child_nodes(node))
    return found


def findings(module: Module) -> list[str]:
    return sorted(
        f"{where} {text!r} ({form})"
        for where, text in messages(module)
        for form in BAD_FORMS
        if re.search(form, text, re.IGNORECASE)
    )


def test_errors_are_told_in_plain_english() -> None:
    found = {module.path.relative_to(PACKAGE).as_posix(): findings(module) for module in modules()}
    assert [finding for bad in found.values() for finding in bad] == []


@pytest.mark.parametrize("form", BAD_FORMS)
def test_the_form_is_seen_and_its_better_one_is_not(form: str) -> None:
    bad, better = BAD_FORMS[form]
    assert re.search(form, bad, re.IGNORECASE)
    assert not any(re.search(other, better, re.IGNORECASE) for other in BAD_FORMS)


@pytest.mark.parametrize(
    "source",
    [
        "raise InvalidInputError('it is empty', subject='x', hint='Give one')",
        "raise InvalidInputError(f'{x!r} is no name', hint='Give one')",
        "raise InvalidInputError('must not be empty', hint='Leave it away')",
        "def f(x):\n    reason = 'y' if x else 'it is empty'\n    raise InvalidInputError(reason, hint='Give one')",
        "def _bad(reason):\n    return OSError(reason)\ndef f():\n    raise _bad('it is ' 'empty')",
    ],
)
def test_texts_are_found_wherever_they_are_written(source: str) -> None:
    assert findings(Module(modules()[0].path, source, ast.parse(source)))
