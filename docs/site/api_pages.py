"""The reference of the public packages: a page for each, from its docstrings."""

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


def write_api_pages(folder: Path) -> None:
    """Writes a page for each package below ``folder / "api"``, and adds their tree to ``folder / "api.md"``."""
    (folder / "api").mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        (folder / "api" / f"{name}.rst").write_text(_page(importlib.import_module(name)))
    listed = folder / "api.md"
    tree = ["", "```{toctree}", ":hidden:", "", *(f"{name} <api/{name}>" for name in PACKAGES), "```", ""]
    listed.write_text(listed.read_text() + "\n".join(tree))


def _page(module: ModuleType) -> str:
    name = module.__name__
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", "   :no-members:", ""]
    for member in _public_names(module):
        value = getattr(module, member)
        if inspect.isclass(value):
            lines += [
                f".. autoclass:: {name}.{member}",
                "   :members:",
                "   :inherited-members: Exception, tuple, dict, list, int",
            ]
        elif inspect.isroutine(value):
            lines += [f".. autofunction:: {name}.{member}"]
        else:
            lines += [f".. autodata:: {name}.{member}", "   :no-value:"]
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
