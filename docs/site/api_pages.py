"""The reference of the public packages and of the formats: a page for each module, from its docstrings."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["PACKAGES", "write_api_pages"]

PACKAGES: Final = (
    "stateline.spark",
    "stateline.state.aggregate",
    "stateline.errors",
    "stateline.testing",
    "stateline.state",
    "stateline.recoverable",
    "stateline.checkpoint",
    "stateline.changelog",
    "stateline.blob",
    "stateline.key_groups",
    "stateline.prometheus",
)
"""What programs import, most used first."""


FORMATS: Final = (
    "stateline.checkpoint.layout",
    "stateline.checkpoint.envelope",
    "stateline.checkpoint.metadata",
    "stateline.handles",
    "stateline.state.run",
)
"""Modules whose docstrings specify stored bytes."""


_FOREIGN_BASES: Final = ("Exception", "Struct", "tuple", "dict", "list", "int", "StrEnum", "Protocol", "Generic", "ABC")
"""Classes of others, whose methods are not told again."""


def write_api_pages(folder: Path) -> None:
    """Writes the pages of ``api.md`` and ``formats.md`` in a folder, and adds their trees of contents to these two."""
    described: dict[int, str] = {}
    for listed, names in (("api", PACKAGES), ("formats", FORMATS)):
        (folder / listed).mkdir(parents=True, exist_ok=True)
        for name in names:
            module = importlib.import_module(name)
            text = _head(module) if names is FORMATS else _head(module) + _members(module, described)
            (folder / listed / f"{name}.rst").write_text(text)
        tree = ["", "```{toctree}", ":hidden:", "", *(f"{name} <{listed}/{name}>" for name in names), "```", ""]
        page = folder / f"{listed}.md"
        page.write_text(page.read_text() + "\n".join(tree))


def _head(module: ModuleType) -> str:
    name = module.__name__
    return "\n".join([name, "=" * len(name), "", f".. automodule:: {name}", "   :no-members:", "", ""])


def _members(module: ModuleType, described: dict[int, str]) -> str:
    """What a package offers. What another one has shown already is only named."""
    lines: list[str] = []
    for member in _public_names(module):
        value, name = getattr(module, member), f"{module.__name__}.{member}"
        is_class, is_function = inspect.isclass(value), inspect.isroutine(value)
        elsewhere = described.setdefault(id(value), name)
        if elsewhere != name and (is_class or is_function):
            lines.append(f"``{member}`` is :py:obj:`{elsewhere}`.")
        elif is_class:
            lines += [f".. autoclass:: {name}", "   :members:", f"   :inherited-members: {', '.join(_FOREIGN_BASES)}"]
        elif is_function:
            lines.append(f".. autofunction:: {name}")
        else:
            lines += [f".. autodata:: {name}", "   :no-value:"]
        lines.append("")
    return "\n".join(lines)


def _public_names(module: ModuleType) -> list[str]:
    """What a module offers: its ``__all__``, in its order, or what it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
