"""The history of checkpoints: its bytes, its bound, and what a damaged one does, which is little."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import (
    CheckpointStore,
    InlineState,
    create_savepoint,
    start_from_savepoint,
    sweep_root,
    verify_root,
)
from stateline.checkpoint.api import HISTORY
from stateline.checkpoint.history import (
    CheckpointSummary,
    by_block,
    create_block,
    create_fenced_mark,
    decode_block,
    encode_block,
    fitting,
    is_outdated,
    read_block,
    rounded,
    summaries_in,
    with_summaries,
)
from stateline.checkpoint.layout import (
    HISTORY_BLOCK,
    HISTORY_BLOCKS,
    check_object_name,
    fenced_name,
    history_name,
    id_of_fenced,
)
from stateline.environment import system_environment
from stateline.errors import CorruptDataError, InvalidInputError, NotFoundError
from tests.unit.checkpoint.checkpoint_kit import checkpoint

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoint" / "history.v1.json"


def summary(number: int, **figures: float) -> CheckpointSummary:
    return CheckpointSummary(
        checkpoint_id=number, batch_id=number, created_at=1.5 + number, run=1, figures=rounded(figures)
    )


def of_operators(number: int, operators: int) -> CheckpointSummary:
    """Figures of many operators, no two alike."""
    names = [f"{figure} operator-{place:05}" for place in range(operators) for figure in ("rows", "bytes", "seconds")]
    figures = {name: math.sin(number * 31 + place) * 1e9 for place, name in enumerate(names)}
    return summary(number, parallelism=4, **figures)


@pytest.mark.parametrize(("operators", "least"), [(0, 64), (10, 64), (1_000, 2), (30_000, 0)])
def test_a_history_of_any_size_fits_into_a_record(operators: int, least: int) -> None:
    given = [of_operators(number, operators) for number in range(64 if operators <= 1_000 else 2)]
    kept = fitting(given)
    record = with_summaries(checkpoint(70), kept)
    root = CheckpointStore(open_store(f"memory://{system_environment().ids.new_id()}"))
    root.publish(replace(record, checkpoint_id=0))
    assert [each.checkpoint_id for each in summaries_in(record)] == [each.checkpoint_id for each in given]
    assert all(each.figures["parallelism"] == 4 for each in summaries_in(record))
    whole = [each for each, mine in zip(kept, given, strict=True) if each == mine]
    assert len(whole) >= least
    assert whole == given[len(given) - len(whole) :], "the newest ones keep their details"
    assert decode_block(encode_block(kept), "") == tuple(kept)


def test_a_history_with_names_that_are_too_long_is_left_out() -> None:
    names = [f"{number}" + "x" * 40_000 for number in range(400)]
    given = [summary(number, **dict.fromkeys(names, number)) for number in range(3)]
    kept = fitting(given)
    assert [each.checkpoint_id for each in kept] == [0, 1, 2]
    assert sum(len(each.figures) for each in kept) < 3 * 400


def sample() -> list[CheckpointSummary]:
    """Every column; one figure that only some have, a large whole number and a long fraction."""
    first = {"rows": 5, "record_seconds": 0.123456789, "table_version flights": 2**62}
    return [summary(64, **first), summary(65, rows=7), summary(70, rows=0)]


@pytest.fixture
def store() -> BlobStore:
    return open_store(f"memory://{system_environment().ids.new_id()}")


def test_what_was_written_is_read_in_an_object_and_in_a_record():
    wanted = tuple(sample())
    assert wanted[0].figures["record_seconds"] == 0.123457
    assert decode_block(encode_block(sample()), "x") == wanted
    assert summaries_in(with_summaries(checkpoint(3), sample())) == wanted
    assert decode_block(encode_block([]), "x") == ()
    assert summaries_in(None) == summaries_in(checkpoint(3)) == ()


def test_the_bytes_of_an_object_are_those_of_version_1():
    assert encode_block(sample()) == GOLDEN.read_bytes()


def test_a_number_that_json_does_not_have_is_unknown():
    (found,) = decode_block(encode_block([summary(1, a=math.nan, b=math.inf, c=1.0)]), "x")
    assert found.figures == {"c": 1}


def test_every_flipped_byte_of_an_object_is_noticed():
    data = encode_block(sample())
    for at in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode_block(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "x")


@pytest.mark.parametrize(
    "data",
    [
        b"no zlib",
        zlib.compress(b"{}"),
        zlib.compress(b"[]"),
        zlib.compress(encode_block([]))[:-3],
        zlib.compress(b" " * 64 * 1024 * 1024),
        zlib.compress(b'{"checkpoint_ids":[1],"batch_ids":[],"created_at":[],"runs":[],"figures":{}}'),
        zlib.compress(b'{"checkpoint_ids":[2,1],"batch_ids":[0,0],"created_at":[0,0],"runs":[1,1],"figures":{}}'),
    ],
)
def test_a_damaged_history_in_a_record_is_an_error_that_names_it(data):
    with pytest.raises(CorruptDataError, match="history of checkpoint 3"):
        summaries_in(replace(checkpoint(3), states={HISTORY: InlineState(data=data)}))


def test_members_of_a_newer_version_are_passed_over():
    text = b'{"checkpoint_ids":[1],"batch_ids":[1],"created_at":[2],"runs":[1],"figures":{},"further":[1]}'
    record = replace(checkpoint(1), states={HISTORY: InlineState(data=zlib.compress(text))})
    assert [found.checkpoint_id for found in summaries_in(record)] == [1]


def test_a_block_is_created_once_and_the_one_that_falls_out_goes(store):
    for block in (0, HISTORY_BLOCKS - 1):
        create_block(store, block, [summary(block * HISTORY_BLOCK)])
    before = store.get(history_name(0))
    create_block(store, 0, [summary(1)])
    assert store.get(history_name(0)) == before
    create_block(store, HISTORY_BLOCKS, [summary(HISTORY_BLOCKS * HISTORY_BLOCK)])
    with pytest.raises(NotFoundError):
        read_block(store, 0)
    assert len(read_block(store, HISTORY_BLOCKS - 1)) == 1


def test_a_block_under_the_name_of_another_is_refused(store):
    store.put(history_name(2), encode_block([summary(1)]))
    with pytest.raises(CorruptDataError, match="another block"):
        read_block(store, 2)


def test_summaries_are_grouped_by_block():
    found = by_block([summary(0), summary(HISTORY_BLOCK - 1), summary(HISTORY_BLOCK)])
    assert {block: len(some) for block, some in found.items()} == {0: 2, 1: 1}


def test_no_record_may_name_an_object_of_the_history():
    with pytest.raises(InvalidInputError, match="reserved"):
        check_object_name(history_name(3))


def root_with(store: BlobStore, newest_id: int) -> CheckpointStore:
    root = CheckpointStore(store)
    root.publish(with_summaries(checkpoint(newest_id), [summary(newest_id)]))
    return root


def test_the_sweep_finds_what_lies_behind_the_bound_and_nothing_else(store):
    newest = (HISTORY_BLOCKS + 2) * HISTORY_BLOCK
    old, kept, foreign = history_name(1), history_name(2), "history/notes.txt"
    marks = [fenced_name(number, f"{number:032x}") for number in (1, newest)]
    for name in (old, kept, foreign, *marks):
        store.put(name, b"x")
    root = root_with(store, newest)
    found = []
    sweep_root(root, min_age=0, delete=True, on_leftover=lambda info: found.append(info.name))
    assert sorted(found) == sorted([old, marks[0]])
    assert {info.name for info in store.list("history/")} == {kept, foreign, marks[1]}
    assert not is_outdated(foreign, newest)


def test_verify_tells_of_a_damaged_object_of_the_history_and_of_no_missing_one(store):
    root = root_with(store, 0)
    create_block(store, 3, [summary(3 * HISTORY_BLOCK)])
    assert verify_root(root).is_sound
    data = store.get(history_name(3))
    store.put(history_name(3), data.replace(b"1", b"2", 1))
    (finding,) = verify_root(root).findings
    assert finding.name == history_name(3)
    store.delete([history_name(3)])
    assert verify_root(root).is_sound


def test_a_mark_says_in_its_name_which_checkpoint_was_lost(store):
    create_fenced_mark(store, 7, "query", 1.5, "0" * 32)
    (info,) = store.list("history/")
    assert id_of_fenced(info.name) == 7
    assert b'"query_id":"query"' in store.get(info.name)


def test_a_savepoint_and_what_starts_from_it_have_no_history(store):
    root = root_with(store, 0)
    savepoint = create_savepoint(root, store)
    assert HISTORY not in savepoint.checkpoint.states
    other = CheckpointStore(open_store(f"memory://{system_environment().ids.new_id()}"))
    assert HISTORY not in start_from_savepoint(savepoint, other, query_id="other").states
