"""The constraints of other versions are those that ``pyproject.toml`` and ``constraints.txt`` say."""

from __future__ import annotations

import re

import pytest

from tests.arch.source_tree import ROOT
from tests.pins.__main__ import EXTRAS, OF_DEVELOPERS, chosen, lowest, main, of_users, pinned


def test_every_package_of_a_user_has_a_lowest_version_which_its_pin_reaches() -> None:
    low, pins = lowest(), pinned()
    assert {"pyspark", "pyarrow", "numpy", "boto3", "deltalake", "click"} <= of_users().keys() <= low.keys()
    for name in of_users():
        assert _numbers(low[name]) <= _numbers(pins[name]), name


def test_tools_of_developers_stay_pinned() -> None:
    assert set(OF_DEVELOPERS) <= EXTRAS.keys()
    assert lowest()["hypothesis"] == pinned()["hypothesis"]


def test_pins_may_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    main(["pinned", "pyspark==4.1.0"])
    lines = capsys.readouterr().out.split()
    assert "pyspark==4.1.0" in lines
    assert len(lines) == len(pinned())
    assert chosen("newest") == {}


def test_the_workflow_names_choices_that_there_are() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    named = re.findall(r"pins: \"?(\w+)", text)
    assert set(named) == {"pinned", "lowest", "newest"}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
