"""``docs/guides/without-spark.md`` is a program."""

from pathlib import Path

from tests.pages import code_of

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "without-spark.md"


def test_the_page_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    text = PAGE.read_text()
    assert text.count("/tmp/without-spark") >= 5
    program = code_of(text).replace("/tmp/without-spark", str(tmp_path))
    assert program.count("assert ") >= 6
    exec(compile(program, str(PAGE), "exec"), {"__name__": "page"})
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["planes.jsonl"]
    assert len(list((tmp_path / "state").glob("chk-*/_metadata"))) == 11
