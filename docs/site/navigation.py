"""Which pages the site has, and in which order: what ``docs/README.md`` lists.

A section of that page is a part of the site's navigation, and each entry, ``- [Title](path): what it is.``, a page. The
same lines become ``llms.txt``. So a page that is not listed is in no navigation, and the build fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Entry", "Section", "llms_text", "sections_of"]

_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY: Final = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<link>[^)\s]+)\):\s(?P<line>.*(?:\n  .+)*)", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)\s]+\)")


@dataclass(frozen=True)
class Entry:
    """A page of the navigation.

    Attributes:
        title: As the navigation shows it.
        link: As the page that lists it has it.
        line: What the page is about, without markup of links.
    """

    title: str
    link: str
    line: str


@dataclass(frozen=True)
class Section:
    """A part of the navigation.

    Attributes:
        title: Its heading.
        entries: Its pages, in order.
    """

    title: str
    entries: Sequence[Entry]


def sections_of(page: Path) -> list[Section]:
    """The sections of a page that list pages."""
    parts = _SECTION.split(page.read_text())[1:]
    found = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        entries = [
            Entry(entry["title"], entry["link"], _LINK.sub(r"\1", re.sub(r"\n  ", " ", entry["line"])))
            for entry in _ENTRY.finditer(text)
        ]
        if entries:
            found.append(Section(title, entries))
    return found


def llms_text(title: str, summary: str, sections: Sequence[tuple[str, Sequence[tuple[str, str, str]]]]) -> str:
    """The pages for language models, as https://llmstxt.org has it.

    Args:
        title: Of the site.
        summary: One paragraph.
        sections: Of each its title, and of each page in it its title, its place on the site and what it is about.
    """
    lines = [f"# {title}", "", f"> {summary}"]
    for heading, pages in sections:
        lines += ["", f"## {heading}", "", *(f"- [{name}]({place}): {line}" for name, place, line in pages)]
    return "\n".join(lines) + "\n"
