"""The calculator of ``docs/sizing.md`` counts requests as the code makes them, and the page shows what it says."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.requests import CASES, Case, measure
from examples.sizing import RECORD_BYTES, Prices, Stream, estimate, main, write_requests
from tests.arch.source_tree import ROOT

PAGE = ROOT / "docs" / "sizing.md"
SHORT_CASES = (*CASES[:2], Case("12 subtasks, 300 kB each", 12, 1, 120, 30_000, 13))


@pytest.mark.parametrize("case", SHORT_CASES, ids=[case.name for case in SHORT_CASES])
def test_requests_of_a_checkpoint_are_those_of_the_benchmark(case: Case, tmp_path: Path) -> None:
    usual = Counter(measure(case, tmp_path, 5)[-1])
    bytes_each = case.keys * (case.value_bytes + 8) * case.tables / case.subtasks
    assert write_requests(case.subtasks, bytes_each) == usual["put_if_absent"] == case.wanted
    stream = Stream(rows_per_second=1, keys=1e9, subtasks=case.subtasks, trigger=10)
    found = estimate(stream)
    written = write_requests(case.subtasks, found.written_bytes_per_checkpoint / case.subtasks)
    assert found.puts_per_checkpoint - written == pytest.approx(usual["put"])
    assert found.gets_per_checkpoint == sum(usual[name] for name in ("get", "get_range", "head", "list"))


def test_subtasks_that_write_much_make_several_objects() -> None:
    assert write_requests(4, 65 * 2**20) == 1 + 4 * 2
    assert write_requests(1_000_000, 300) == 1 + 1_000_000, "the driver takes 256 MiB of all of them"


@pytest.mark.parametrize(("subtasks", "keys"), [(1, 1), (4, 8), (4, 40), (16, 16)])
def test_what_is_little_stays_in_the_record_for_a_while(subtasks: int, keys: int, tmp_path: Path) -> None:
    asked = measure(Case("little", subtasks, 1, keys, 20, 2), tmp_path, 40, record_bytes=RECORD_BYTES)
    mean = sum(batch["put_if_absent"] for batch in asked) / len(asked)
    assert mean <= write_requests(subtasks, keys * 28 / subtasks) <= mean + 0.6


def test_costs_go_with_the_trigger_and_with_the_prices() -> None:
    often, seldom = (
        estimate(Stream(rows_per_second=100_000, keys=1e7, subtasks=64, trigger=trigger), Prices(put=0.01, get=0))
        for trigger in (1, 30)
    )
    assert often.requests_usd == pytest.approx(30 * seldom.requests_usd, rel=0.01)
    assert seldom.requests_usd == pytest.approx(365 * 86_400 / 12 / 30 * 66 * 0.01 / 1000)


def test_the_page_shows_what_the_calculator_says(capsys: pytest.CaptureFixture[str]) -> None:
    [(command, shown)] = re.findall(r"\$ python -m examples\.sizing (--rows.*)\n((?:.+\n)+)```", PAGE.read_text())
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown


def test_a_trigger_that_is_too_short_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split("--rows-per-second 10 --keys 10 --trigger 0.5"))
    assert "this trigger is hardly longer" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(shlex.split("--rows-per-second 0 --keys 10"))
