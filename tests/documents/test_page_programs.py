"""Pages become programs as ``tests/pages.py`` says."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tests.pages import blocks_of, placed, program_of, run_page

PAGE = """# A page

```python
first = 1
```

- An indented block:

  ```python
  second = first + 1
  place = "s3://bucket/state"
  ```

<!-- fragment: it needs a cluster -->
```python
raise SystemExit
```

```console
$ python
```

```python
trigger = {"processingTime": "10 seconds"}
assert second == 3
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_blocks_have_their_lines_and_reasons() -> None:
    found = [(block.line, block.code.splitlines()[0], block.fragment) for block in blocks_of(PAGE)]
    assert found == [
        (4, "first = 1", None),
        (10, "second = first + 1", None),
        (16, "raise SystemExit", "it needs a cluster"),
        (24, 'trigger = {"processingTime": "10 seconds"}', None),
    ]


def test_a_page_that_is_wrong_fails_at_its_line(page: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failed:
        run_page(page, tmp_path)
    assert traceback.extract_tb(failed.value.__traceback__)[-1].lineno == 25
    page.write_text(PAGE.replace("== 3", "== 2"))
    names = run_page(page, tmp_path)
    assert (names["place"], names["trigger"]) == (f"{tmp_path}/bucket/state", {"processingTime": "0 seconds"})


def test_a_fragment_is_no_part_of_the_program(page: Path, tmp_path: Path) -> None:
    assert len(program_of(page, tmp_path).body) == 5


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("flights/in", "/f/flights/in"),
        ("s3a://bucket/flights/spark", "/f/bucket/flights/spark"),
        ("file:///tmp/guide/state", "file:///f/tmp/guide/state"),
        ("sqlite:////data/flights.db", "sqlite:////f/data/flights.db"),
        ("/var/cache/stateline", "/f/var/cache/stateline"),
        ("Europe/Berlin", "Europe/Berlin"),
        ("10 minutes", "10 minutes"),
        ("origin string, n long", "origin string, n long"),
    ],
)
def test_places_lie_in_the_folder(text: str, place: str) -> None:
    assert placed(text, Path("/f")) == place
