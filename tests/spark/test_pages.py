"""The code of every page of the documentation runs, as the program that a reader would make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateline.blob.memory import MemoryStore
from tests.arch.source_tree import ROOT, repository_files
from tests.pages import blocks_of, run_page
from tests.spark.page_worlds import WORLDS, streams, write_rows

PAGES = [
    path
    for path in repository_files()
    if path.suffix == ".md" and any(block.fragment is None for block in blocks_of(path.read_text()))
]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_rows(folder)
    return folder


def test_worlds_belong_to_pages() -> None:
    assert set(WORLDS) <= set(NAMES)
    assert len(PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_code_of_a_page_runs(
    page: Path, spark: SparkSession, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"spark": spark, **streams(spark, source)}
    world = WORLDS.get(page.relative_to(ROOT).as_posix())
    try:
        run_page(page, tmp_path, names | (world(names, tmp_path) if world else {}))
        for query in spark.streams.active:
            query.processAllAvailable()
            assert query.exception() is None
    finally:
        for query in spark.streams.active:
            query.stop()
        MemoryStore.forget("payments")
