"""Each inline section has an identity of its own: equal bytes are not the same section."""

from __future__ import annotations

import contextlib
import itertools
import random

import pyarrow as pa
import pytest

from stateline.checkpoint.objects import renamed
from stateline.handles import RunHandle
from stateline.sizes import resized
from stateline.state.aggregate import max as max_of
from stateline.state.aggregate import sum as sum_of
from stateline.state.changes import changes_of_stored
from stateline.state.stored import StoredState
from stateline.testing import KeyedStreamHarness
from tests.kit.early_versions import unnamed_inline_sections
from tests.kit.invariants import InvariantViolation
from tests.kit.sizes import SIZES
from tests.kit.state_invariants import check_feeds

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
PACKING = [{"record_bytes": "20KiB"}, {"record_bytes": "3500"}, {"record_bytes": "0"}, {"inline_bytes": "0"}]


def stage_of(**options):
    options = {"retained_checkpoints": "20", **options}
    stream = KeyedStreamHarness(SCHEMA, "k", parallelism=1, options=options)
    return stream.aggregate(total=sum_of("v"))


def changed(stage, before, after):
    first, last = (StoredState.of(stage.root, stage.checkpoints.get(number)) for number in (before, after))
    return [tuple(row.values()) for batch in changes_of_stored(first, last) for row in batch.to_pylist()]


def read(stage, number):
    stored = StoredState.of(stage.root, stage.checkpoints.get(number))
    return sorted(tuple(row.values()) for batch in stored.reader().scan(stored.whole()) for row in batch.to_pylist())


@pytest.mark.parametrize("options", PACKING)
def test_the_change_feed_sees_a_value_come_back(options):
    stage = stage_of(**options)
    for value in (100, 50, -50):
        stage.run_batch([{"k": "a", "v": value}])
    assert changed(stage, 0, 1) == [("update_before", "a", 100), ("update_after", "a", 150)]
    assert changed(stage, 1, 2) == [("update_before", "a", 150), ("update_after", "a", 100)]
    assert changed(stage, 0, 2) == []


@pytest.mark.parametrize("options", PACKING)
def test_records_of_early_versions_have_a_right_change_feed(options):
    with unnamed_inline_sections():
        stage = stage_of(**options)
        for value in (100, 50, -50):
            stage.run_batch([{"k": "a", "v": value}])
    stage.restart()
    for value in (50, -50, 0):
        stage.run_batch([{"k": "a", "v": value}])
    states = [read(stage, number) for number in range(6)]
    assert states == [[("a", total)] for total in (100, 150, 100, 150, 100, 100)]
    for before, after in itertools.combinations(range(6), 2):
        old, new = states[before][0][1], states[after][0][1]
        wanted = [] if old == new else [("update_before", "a", old), ("update_after", "a", new)]
        assert changed(stage, before, after) == wanted


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("options", PACKING)
def test_equal_small_runs_are_searched_each_on_its_own(options, early):
    """A maximum that does not change: three batches of the same keys, then one with keys that no run has."""
    for keys, new in itertools.product((1, 2, 5, 40, 300), (1, 30, 500)):
        stream = KeyedStreamHarness(SCHEMA, "k", parallelism=1, options=options)
        stage = stream.aggregate(top=max_of("v"))
        rows = [{"k": f"{key}", "v": key} for key in range(keys)]
        with unnamed_inline_sections() if early else contextlib.nullcontext():
            for _ in range(3):
                stage.run_batch(rows)
        others = [{"k": f"new {key}", "v": -1} for key in range(new)]
        found = stage.run_batch([*({**row, "v": -1} for row in rows), *others])
        assert sorted(row["top"] for row in found) == [*[-1] * new, *range(keys)]
        assert len(stage.state()) == keys + new


def test_runs_of_an_early_savepoint_with_equal_bytes_are_searched_once():
    """Its runs have one checkpoint: nothing is left that tells runs of equal bytes apart."""
    with unnamed_inline_sections():
        stage = stage_of()
        for _ in range(3):
            stage.run_batch([{"k": f"{key}", "v": 0} for key in range(40)])
    record = renamed(stage.checkpoint, str, run_checkpoint_id=-1)
    runs: tuple[RunHandle, ...] = record.operators[0].subtasks[0].runs
    assert len(runs) == 3
    assert len({run.identity for run in runs}) == 1
    stored = StoredState.of(stage.root, record)
    reader = stored.reader()
    for count in (1, 20, 40, 60):
        keys = pa.array([f"{key}" for key in range(count)])
        assert reader.get(stored.whole(), [keys]).num_rows == min(count, 40)
    assert sum(map(len, reader.scan(stored.whole()))) == 40


def test_sections_of_one_record_have_identities_of_their_own_also_when_packed():
    for options in PACKING[:3]:
        stage = stage_of(**options)
        for _ in range(3):
            stage.run_batch([{"k": "a", "v": 0}])
            sections = list(stage.checkpoint.sections())
            assert len({section.identity for section in sections}) == len(sections)
        first, last = (list(stage.checkpoints.get(number).sections()) for number in (1, 2))
        assert {section.identity for section in first if isinstance(section, RunHandle)} <= {
            section.identity for section in last
        }


def test_the_invariant_sees_sections_that_are_known_by_their_bytes():
    with unnamed_inline_sections():
        stage = stage_of()
        for value in (100, 50, -50):
            stage.run_batch([{"k": "a", "v": value}])
        with pytest.raises(InvariantViolation, match="E7"):
            check_feeds(stage.root, stage.checkpoints.list())
    check_feeds(stage.root, stage.checkpoints.list())


@pytest.mark.parametrize("chosen", SIZES)
@pytest.mark.parametrize("options", PACKING)
def test_changes_lead_from_each_retained_checkpoint_to_each_later_one(options, chosen):
    dice = random.Random(7)
    with resized(SIZES[chosen]):
        stage = stage_of(**options)
        for _ in range(12):
            stage.run_batch([{"k": dice.choice("abcdefgh"), "v": dice.choice([-1, 0, 1])} for _ in range(4)])
        check_feeds(stage.root, stage.checkpoints.list())
    assert len(stage.checkpoints.list()) == 12
