"""Frames taken apart by their blocks, and by what pandas offers in public: the same."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from stateline.spark.processor import frame_blocks
from stateline.spark.processor.frame_blocks import FrameColumns, blocks_are_known, frame_parts


@pytest.fixture(params=["blocks", "public"])
def by_block(request, monkeypatch):
    """Both ways; the second is what another pandas would get."""
    known = request.param == "blocks"
    monkeypatch.setattr(frame_blocks, "blocks_are_known", lambda: known)
    return known


def joined(frames, names, *, by_block, kind=None):
    columns = FrameColumns(by_block=by_block)
    for frame in frames:
        columns.add(frame, frame.columns.tolist())
    parts = columns.columns(lambda given: [given.index(name) for name in names])
    series = [[pd.Series(part, dtype=kind) for part in of_column] for of_column in parts]
    return pd.DataFrame({name: pd.concat(of_column) for name, of_column in zip(names, series, strict=True)})


def test_the_blocks_of_this_pandas_are_known():
    assert blocks_are_known()


def test_a_pandas_with_other_blocks_is_told_by_its_answers(monkeypatch):
    def wrong(self, frame, names):
        self._parts.append((names, [np.zeros(len(frame)) for _ in names]))

    for broken in (wrong, lambda self, frame, names: frame.no_such_thing):
        monkeypatch.setattr(FrameColumns, "_add_blocks", broken)
        assert not blocks_are_known.__wrapped__()


@pytest.mark.usefixtures("by_block")
def test_a_part_has_its_own_index_and_takes_writes():
    frame = pd.DataFrame({"a": range(6), "b": list("uvwxyz"), "t": pd.to_datetime(range(6)), "f": np.arange(6) / 2})
    part = frame_parts(frame)
    parts = [part(start, end) for start, end in ((0, 2), (2, 3), (3, 6))]
    for (start, end), made in zip(((0, 2), (2, 3), (3, 6)), parts, strict=True):
        pd.testing.assert_frame_equal(made, frame.iloc[start:end].reset_index(drop=True))
    parts[1]["c"] = [1]
    parts[1].loc[0, "a"] = 100
    parts[1]["b"] = parts[1]["b"].str.upper()
    assert parts[1].values.tolist() == [[100, "W", pd.Timestamp(2), 1.0, 1]]
    pd.testing.assert_frame_equal(part(3, 6), parts[2])
    assert parts[0].merge(parts[2], how="cross").shape == (6, 8)


def test_frames_of_any_layout_are_joined_in_their_order(by_block):
    frames = [
        pd.DataFrame({"n": [1, 2], "s": ["a", None], "m": [3, 4]}),
        pd.DataFrame({"m": [5], "n": [6], "s": ["b"]}),
        pd.DataFrame({"n": [7.5], "s": ["c"], "m": [8]}),
        pd.DataFrame({"n": pd.array([None, 9], "Int64"), "s": ["d", "e"], "m": [1, 2]}),
        pd.DataFrame({"n": [1], "s": pd.Categorical(["f"]), "m": [10]})[["s", "m", "n"]],
        pd.DataFrame({"n": [2], "s": pd.to_datetime(["2024-01-01"]), "m": [11]}),
        pd.DataFrame({"n": [2], "s": pd.to_datetime(["2024-01-01"]).tz_localize("UTC"), "m": [12]}),
    ]
    made = joined(frames, ["n", "s", "m"], by_block=by_block, kind="object")
    expected = pd.concat([frame[["n", "s", "m"]].astype(object) for frame in frames])
    assert made.map(repr).values.tolist() == expected.map(repr).values.tolist()


def test_a_frame_that_is_changed_and_yielded_again_counts_twice(by_block):
    frame = pd.DataFrame({"n": [1], "s": ["a"]})

    def again():
        yield frame
        frame.loc[0, "n"] = 2
        frame["s"] = "b"
        yield frame

    assert joined(again(), ["s", "n"], by_block=by_block).values.tolist() == [["a", 1], ["b", 2]]


def test_blocks_keep_their_types(by_block):
    frames = [
        pd.DataFrame(
            {"i": np.int32([n]), "f": np.float32([n]), "t": pd.to_datetime([n]), "d": pd.to_timedelta([n]), "o": ["x"]}
        )
        for n in range(5)
    ]
    expected = pd.concat(frames).reset_index(drop=True)
    made = joined(frames, list("iftdo"), by_block=by_block).reset_index(drop=True)
    pd.testing.assert_frame_equal(made, expected)
