"""The tables of options in the docs are those of the code. Run as a program, this file rewrites them."""

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
STORES = DOCS / "reference" / "stores"
PAGE = STORES / "README.md"
TABLES = {
    PAGE: 3,
    STORES / "s3.md": 1,
    STORES / "gcs.md": 1,
    STORES / "azure.md": 1,
    DOCS / "reference" / "output-files.md": 2,
}
TABLE = re.compile(r"<!-- options: (\S+)\.(\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def own_fields(settings):
    inherited = {
        spec.name
        for base in settings.__mro__[1:]
        if dataclasses.is_dataclass(base)
        for spec in dataclasses.fields(base)
    }
    return [spec for spec in dataclasses.fields(settings) if spec.name not in inherited and spec.metadata]


def table_of(module, name):
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for spec in own_fields(getattr(importlib.import_module(module), name)):
        default = spec.metadata["default"]
        shown = "" if default in (None, "") else f"`{default}`"
        rows.append(f"| `{spec.name}` | {shown} | {spec.metadata['help']} |")
    return "\n".join(rows) + "\n"


def rewritten(text):
    return TABLE.sub(
        lambda found: f"<!-- options: {found[1]}.{found[2]} -->\n{table_of(found[1], found[2])}<!-- end -->", text
    )


@pytest.mark.parametrize(("page", "tables"), TABLES.items(), ids=[page.name for page in TABLES])
def test_the_tables_of_options_are_those_of_the_code(page, tables):
    text = page.read_text()
    assert len(TABLE.findall(text)) == tables
    assert text == rewritten(text), f"run: python {Path(__file__).name}"


def test_what_the_page_says_of_small_pieces_is_what_the_code_does():
    from stateline.recoverable.api import RecoverableWriterSettings
    from stateline.recoverable.folding import PIECES_PER_TIER, tier_count

    tiers = tier_count(RecoverableWriterSettings().fold_size)
    text = PAGE.read_text()
    assert f"at most {(PIECES_PER_TIER - 1) * tiers} short pieces" in text
    assert {5: "five"}[tiers] in text


if __name__ == "__main__":
    for page in TABLES:
        page.write_text(rewritten(page.read_text()))
    sys.exit(0)
