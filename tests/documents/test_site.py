"""The documentation builds as a site without a warning, and needs nothing from elsewhere when it is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site.docstrings import restructured
from docs.site.navigation import sections_of
from docs.site.sources import HOME, places, write_sources
from tests.arch.source_tree import ROOT

FETCHED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="(?:stylesheet|preload)"[^>]*"(?:https?:)?//"""
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("site")]  # Else each process builds it.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "docs.site",
        "--no-notebooks",
        "--output",
        f"{folder}/site",
        "--work",
        f"{folder}/work",
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_every_page_is_on_the_site(site: Path) -> None:
    missing = [place for place in places().values() if not (site / re.sub(r"\.\w+$", ".html", place)).exists()]
    assert missing == []
    assert (site / "reference" / "api" / "stateline.spark.html").read_text().count("KeyedStream") > 10
    aggregations = (site / "reference" / "api" / "stateline.state.aggregate.html").read_text()
    assert "What is computed, as text \N{EN DASH} equal texts compute the same" in aggregations


def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    assert [page.name for page in pages if FETCHED.search(page.read_text())] == []
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(['\"]?(?:https?:)?//|@import", path.read_text())]
    assert styles == []
    assert FETCHED.search('<script src="https://cdn.example/x.js">')


def test_llms_txt_lists_every_page_of_the_navigation_with_a_line_and_its_text(site: Path) -> None:
    entries = [entry for section in sections_of(HOME) for entry in section.entries]
    listed = re.findall(r"^- \[(.+)\]\((.+)\): (.+)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert [(title, line) for title, _, line in listed] == [(entry.title, entry.line) for entry in entries]
    assert [place for _, place, _ in listed if not (site / place).exists()] == []


def test_each_entry_of_the_navigation_is_a_page_with_a_line() -> None:
    entries = [entry for section in sections_of(HOME) for entry in section.entries]
    assert len(entries) > 30
    assert [entry.link for entry in entries if (HOME.parent / entry.link).resolve() not in places()] == []
    assert [entry.title for entry in entries if not entry.line.endswith(".")] == []


def test_links_lead_to_the_place_of_their_target(tmp_path: Path) -> None:
    write_sources(tmp_path)
    guide = (tmp_path / "guides" / "testing.md").read_text()
    assert "](../evidence/reliability.md)" in guide
    assert "](https://github.com/stateline/stateline/blob/main/tests/kit/README.md)" in guide
    assert "](../decisions/index.md)" in (tmp_path / "internals" / "contributing.md").read_text()


def test_docstrings_become_restructured_text() -> None:
    lines = ["Facts:", "- one,", "  and more", "- two", "", "| a | b |", "|---|---|", "| 1 | `x` |", "the end"]
    assert restructured(lines) == [
        *("Facts:", "", "- one,", "  and more", "- two", ""),
        *("", ".. list-table::", "   :header-rows: 1", "", "   * - a", "     - b", "   * - 1", "     - `x`", ""),
        "the end",
    ]


def test_every_page_is_listed_in_a_readme_of_the_documentation() -> None:
    """The build says it, too, but not in a second."""
    readmes = [path for path in places() if path.name == "README.md"]
    listed = {
        (readme.parent / link.partition("#")[0]).resolve()
        for readme in readmes
        for link in re.findall(r"\]\(([^)\s:]+)\)", readme.read_text())
    }
    assert sorted(str(path.relative_to(ROOT)) for path in {*places()} - listed - {HOME}) == []
