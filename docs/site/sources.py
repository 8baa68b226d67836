"""The sources of the site, in one folder: pages of ``docs``, some of the root, notebooks, and the API reference.

Pages are written to be read in the repository, too, so their links are relative to where they lie there. Here each link
gets the place that its target has on the site, or, where the site does not have it, the address of the file in the
public repository. A link to nothing is left as it is, and Sphinx refuses it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from docs.site.api_pages import write_api_pages
from docs.site.navigation import sections_of

__all__ = ["HOME", "ROOT", "places", "write_sources"]

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / "docs" / "README.md"
REPOSITORY: Final = "https://github.com/stateline/stateline/blob/main/"

_ELSEWHERE: Final = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "internals/changes.md",
    "SECURITY.md": "reference/security.md",
}
"""Pages at the root of the repository, where readers of it look for them, and their places on the site."""
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\]\()(?P<link>[^)\s]+)(?=\))")
_LISTED: Final = re.compile(r"\]\((?P<page>[\w-]+\.md)[)#]")


def places() -> dict[Path, str]:
    """Each file that becomes a page, and its place on the site."""
    pages = {path: path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    found = {path: place.with_name(place.name.replace("README", "index")).as_posix() for path, place in pages.items()}
    found |= {ROOT / name: place for name, place in _ELSEWHERE.items()}
    found |= {path: f"notebooks/{path.name}" for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    return found


def write_sources(folder: Path) -> None:
    """Writes all sources into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = places()
    for path, place in pages.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        text = _with_links_of_the_site(path.read_text(), path, pages)
        if path.name == "README.md":
            text += _navigation(path, pages)
        target.write_text(text)
    write_api_pages(folder / "reference")


def _with_links_of_the_site(text: str, path: Path, pages: Mapping[Path, str]) -> str:
    here = os.path.dirname(pages[path])

    def moved(found: re.Match[str]) -> str:
        name, mark, anchor = found["link"].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return found["link"]
        target = (path.parent / name).resolve()
        if target.is_dir() and (target / "README.md") in pages:
            target /= "README.md"
        if target in pages:
            return os.path.relpath(pages[target], here or ".") + mark + anchor
        if target.exists():
            return REPOSITORY + target.relative_to(ROOT).as_posix() + mark + anchor
        return found["link"]

    pieces, end = [], 0
    for fence in [*_FENCE.finditer(text), None]:
        start = len(text) if fence is None else fence.start()
        pieces.append(_LINK.sub(moved, text[end:start]))
        if fence is not None:
            pieces.append(fence[0])
            end = fence.end()
    return "".join(pieces)


def _navigation(path: Path, pages: Mapping[Path, str]) -> str:
    """Trees of contents for the pages that a ``README.md`` lists: of the home page by sections, else of its folder."""
    if path == HOME:
        trees = []
        for section in sections_of(path):
            entries = [(entry.title, pages[(path.parent / entry.link).resolve()]) for entry in section.entries]
            trees.append(_tree([f"{title} <{_document(place)}>" for title, place in entries], section.title))
        return "".join(trees)
    names = dict.fromkeys(_LISTED.findall(path.read_text()))
    return _tree([_document(name) for name in names if (path.parent / name).exists()], None)


def _document(place: str) -> str:
    return place.rpartition(".")[0]


def _tree(lines: list[str], caption: str | None) -> str:
    head = ["", "```{toctree}", ":hidden:", *([] if caption is None else [f":caption: {caption}"]), ""]
    return "\n".join([*head, *lines, "```", ""])
