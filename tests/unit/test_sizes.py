"""Sizes that decide which way the code takes: defaults, text, and the settings that have their defaults there."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from stateline.errors import InvalidInputError
from stateline.sizes import VARIABLE, Sizes, parse_sizes, resized, sizes
from stateline.state.merge import MergeSettings
from stateline.state.run_store import RunReaderSettings
from tests.kit.sizes import TINY, as_text, smaller


def test_sizes_are_other_ones_for_a_while():
    assert sizes() == Sizes()
    with resized(TINY):
        assert sizes() == TINY
        with smaller(slice_rows=7):
            assert sizes() == dataclasses.replace(TINY, slice_rows=7)
        assert MergeSettings().small_rows == TINY.merge_small_rows
        assert RunReaderSettings().range_bytes == TINY.fetch_range_bytes
    assert sizes() == Sizes()


@pytest.mark.parametrize("settings", [MergeSettings, RunReaderSettings])
def test_settings_say_the_default_that_sizes_have(settings):
    for field in dataclasses.fields(settings):
        written = field.metadata["parse"](field.metadata["default"], field.name)
        assert getattr(settings(), field.name) == written


def test_every_size_is_lower_in_tiny_but_that_of_the_index():
    higher = {
        field.name for field in dataclasses.fields(Sizes) if getattr(TINY, field.name) >= getattr(Sizes(), field.name)
    }
    assert higher == {"index_rows_per_miss"}


def test_text_gives_sizes_back():
    assert parse_sizes("") == Sizes()
    assert parse_sizes("slice_rows=4, merge_free_rows = 0") == Sizes(slice_rows=4, merge_free_rows=0)
    assert parse_sizes(as_text(TINY)) == TINY


@pytest.mark.parametrize("text", ["slice_row=4", "slice_rows", "slice_rows=-1", "slice_rows=many", "slice_rows=0"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(InvalidInputError, match="slice_row"):
        parse_sizes(text)


def test_another_process_takes_sizes_from_its_environment():
    code = "from stateline.sizes import sizes; print(sizes().slice_rows)"
    environment = {**os.environ, VARIABLE: "slice_rows=4"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"
