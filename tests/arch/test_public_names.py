"""Every module says what is public, and says the truth; public things are described."""

from __future__ import annotations

import ast
import functools
import importlib

import pytest

from tests.arch.source_tree import Module, modules

UNNAMED = {"__main__"}
OWN_CLASSES = {node.name for module in modules() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}


def is_public(module: Module) -> bool:
    last = module.name.rpartition(".")[2]
    return not last.startswith("_") and last not in UNNAMED


def declared_names(module: Module) -> list[str] | None:
    """``__all__``; ``None`` without one."""
    return getattr(importlib.import_module(module.name), "__all__", None)


def public_definitions(module: Module) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in module.tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def undocumented(module: Module) -> list[str]:
    found = [] if ast.get_docstring(module.tree) else [f"{module.relative} has no docstring"]
    for definition in public_definitions(module):
        parts = [definition]
        if isinstance(definition, ast.ClassDef):
            methods = (node for node in definition.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            parts += [method for method in methods if not method.name.startswith("_") and not is_test(module, method)]
        found += [
            f"{module.where(part)} {part.name}"
            for part in parts
            if not described(part) and (part is definition or not inherits(definition, part.name))
        ]
    return found


@functools.cache
def described_methods() -> dict[str, set[str]]:
    """Which classes of the package describe a method of a name."""
    found: dict[str, set[str]] = {}
    for module in modules():
        for owner in ast.walk(module.tree):
            if isinstance(owner, ast.ClassDef):
                for method in owner.body:
                    if isinstance(method, ast.FunctionDef) and described(method):
                        found.setdefault(method.name, set()).add(owner.name)
    return found


def inherits(owner: ast.ClassDef, method: str) -> bool:
    """Whether ``method`` keeps a contract that another class describes, or one of a class from elsewhere."""
    outside = {name for base in owner.bases for name in [ast.unparse(base).partition("[")[0]]} - OWN_CLASSES
    return bool(described_methods().get(method, set()) - {owner.name}) or bool(outside - {"Protocol", "object"})


def is_test(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return module.is_conformance_suite and function.name.startswith("test_")


def is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in function.decorator_list)


def described(definition: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(ast.get_docstring(definition)) or (not isinstance(definition, ast.ClassDef) and is_overload(definition))


PUBLIC = [module for module in modules() if is_public(module)]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_all_names_exactly_what_is_public(module: Module) -> None:
    declared = declared_names(module)
    defined = {definition.name for definition in public_definitions(module)}
    if declared is None:
        assert not defined, "define __all__"
        assert [type(node).__name__ for node in module.tree.body] == ["Expr"], "define __all__"
        return
    assert len(declared) == len(set(declared))
    assert defined <= set(declared), "public definitions that __all__ does not name"
    loaded = importlib.import_module(module.name)
    assert [name for name in declared if not hasattr(loaded, name)] == [], "names that do not exist"
    assert set(declared) <= set(dir(loaded))


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_everything_public_is_described(module: Module) -> None:
    assert undocumented(module) == []


def test_the_lazy_names_of_the_spark_package_are_those_of_their_modules() -> None:
    import stateline.spark
    from stateline.state.aggregate import functions

    assert {*stateline.spark._MODULES, "Aggregator", *functions.__all__} == set(stateline.spark.__all__)
    for name, module in stateline.spark._MODULES.items():
        assert getattr(stateline.spark, name) is getattr(importlib.import_module(module), name)
        assert name in importlib.import_module(module).__all__
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = stateline.spark.no_such_name
