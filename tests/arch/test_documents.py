"""Documents that fail when they are wrong: code parses, links lead somewhere, names exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from tests.arch.source_tree import PACKAGE, ROOT, repository_files
from tests.pages import blocks_of

DOCUMENTS = [path for path in repository_files() if path.suffix == ".md"]
IDS = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
PAGE = re.compile(r"(?<![\w/])docs/[\w/-]+\.md")
DOTTED = re.compile(r"`(stateline(?:\.\w+)+)(?:\(\))?`")
MAP_ENTRY = re.compile(r"^(?P<indent> *)(?P<name>[\w./-]+)(?:  .*)?$")


def anchors(document: Path) -> set[str]:
    """The anchors that a reader's browser makes of the headings."""
    titles = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_code_in_documents_is_valid(document: Path) -> None:
    """What runs is run by ``tests/spark/test_pages.py``; here is what can be said of fragments, too."""
    for block in blocks_of(document.read_text()):
        imports = [node for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.ImportFrom)]
        names = [f"{node.module}.{alias.name}" for node in imports for alias in node.names]
        assert [name for name in names if name.startswith("stateline.") and not exists(name)] == []


def test_a_fragment_that_imports_what_does_not_exist_is_seen() -> None:
    [block] = blocks_of("<!-- fragment: why -->\n```python\nfrom stateline.blob import open_stores\n```\n")
    assert block.fragment == "why"
    assert not exists("stateline.blob.open_stores")


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name) if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_pages_that_the_code_names_exist() -> None:
    sources = [path for path in repository_files() if path.suffix == ".py"]
    named = {(path.relative_to(ROOT).as_posix(), page) for path in sources for page in PAGE.findall(path.read_text())}
    assert len(named) > 10
    assert [(source, page) for source, page in sorted(named) if not (ROOT / page).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_names_in_documents_exist(document: Path) -> None:
    missing = [name for name in DOTTED.findall(document.read_text()) if not exists(name)]
    assert missing == []


def exists(dotted: str) -> bool:
    """Whether ``dotted`` is a module, or an attribute of one."""
    module, _, attribute = dotted.rpartition(".")
    try:
        if importlib.util.find_spec(dotted) is not None:
            return True
    except ModuleNotFoundError:
        return exists(module) and hasattr(resolve(module), attribute)
    return hasattr(resolve(module), attribute)


def resolve(dotted: str) -> object:
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        module, _, attribute = dotted.rpartition(".")
        return getattr(resolve(module), attribute)


def test_every_document_has_one_title_and_it_comes_first() -> None:
    for document in DOCUMENTS:
        titles = re.findall(r"^# .*", FENCE.sub("", document.read_text()), re.MULTILINE)
        assert len(titles) == 1, document
        assert document.read_text().startswith(titles[0]), document


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((folder / "README.md").read_text()))
    assert {path.name for path in folder.glob("*.md")} - listed == {"README.md"}


def test_the_package_map_names_every_module_once() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    [block] = [code for _, code in FENCE.findall(text) if code.startswith("src/stateline/")]
    folders: list[str] = []
    named: list[str] = []
    for line in block.splitlines():
        entry = MAP_ENTRY.match(line)
        assert entry is not None, line
        depth = len(entry["indent"]) // 2
        folders[depth:] = [entry["name"].rstrip("/")]
        named.append("/".join(folders))
    modules = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    packages = {path.parent.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("__init__.py")}
    assert sorted(named) == sorted({*modules, *packages, "src/stateline/__init__.py"})
