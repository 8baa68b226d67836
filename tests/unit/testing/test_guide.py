"""The examples of ``docs/guides/testing.md`` run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stateline.blob.memory import MemoryStore

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "testing.md").read_text()
EXAMPLES = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_each_section_has_its_example():
    assert [title for title, _ in EXAMPLES] == ["A program", "A processor", "What goes wrong", "A store"]


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_runs_as_a_script_of_its_own(title, code):
    try:
        exec(compile(code, f"docs/guides/testing.md, {title}", "exec"), {"__name__": "example"})
    finally:
        MemoryStore.forget("payments")
