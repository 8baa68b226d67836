"""Builds the site: ``python -m docs.site --help``."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.navigation import llms_text, sections_of
from docs.site.sources import HOME, ROOT, places, write_sources

SUMMARY = (
    "Stateline keeps the state of PySpark streams durable and their output exactly once: keyed operators, files and "
    "tables that are committed together by one record in a file system or object store."
)


def build(output: Path, work: Path, *, notebooks: bool) -> int:
    """Builds the site into ``output``; ``work`` keeps its sources and what Sphinx remembers. Returns an exit code."""
    sources = work / "sources"
    write_sources(sources)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "STATELINE_DOCS_NOTEBOOKS": "cache" if notebooks else "off",
        "STATELINE_DOCS_CACHE": str(work / "notebooks"),
    }
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--quiet", "--fresh-env"]
    command += ["--conf-dir", str(ROOT / "docs" / "site"), "--doctree-dir", str(work / "doctrees")]
    shutil.rmtree(output, ignore_errors=True)
    command += [str(sources), str(output)]
    code = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - Sphinx, from here
    if code == 0:
        _add_texts(sources, output)
    return code


def _add_texts(sources: Path, output: Path) -> None:
    """Adds the pages as Markdown beside those of HTML, and ``llms.txt``, which lists them."""
    for path in sources.rglob("*.md"):
        shutil.copyfile(path, output / path.relative_to(sources))
    pages = places()
    sections = [
        (
            section.title,
            [
                (entry.title, pages[(HOME.parent / entry.link).resolve()].replace(".ipynb", ".html"), entry.line)
                for entry in section.entries
            ],
        )
        for section in sections_of(HOME)
    ]
    (output / "llms.txt").write_text(llms_text("Stateline", SUMMARY, sections))


def main() -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description="Builds the documentation as a site.")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site", help="where the site goes (build/site)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "docs", help="for what is made on the way")
    parser.add_argument("--no-notebooks", action="store_true", help="show notebooks without running them")
    arguments = parser.parse_args()
    code = build(arguments.output, arguments.work, notebooks=not arguments.no_notebooks)
    if code == 0:
        sys.stdout.write(f"{arguments.output / 'index.html'}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
