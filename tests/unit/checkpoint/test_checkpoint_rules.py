"""Every number in a record has its first and its last allowed value."""

import pytest
from checkpoint_kit import checkpoint, finished_file, full_checkpoint, open_file, part, run
from msgspec.structs import replace

from stateline.checkpoint import (
    MAX_FILE_STATE_THRESHOLD,
    FileState,
    InlineState,
    InputState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.checkpoint.api import EARLIER_CHECKPOINTS
from stateline.checkpoint.rules import check_checkpoint
from stateline.errors import InvalidInputError
from stateline.handles import RowsHandle

BASE = replace(checkpoint(5), max_parallelism=4, parallelism=2, operators=())
RUN = replace(run("shared/r"), first_key_group=1, last_key_group=2)
ROWS = RowsHandle(name="shared/rows", offset=0, length=1, crc32c=1, rows=1)
FILE = FileState(name="shared/f", relative=False, size=1, crc32c=1)
OPEN = open_file("t", ROWS)
FINISHED = finished_file("t", (part("p"),))
LARGEST = 2**63 - 1


def with_run(**changes):
    subtask = SubtaskState(first_key_group=0, last_key_group=3, runs=(replace(RUN, **changes),))
    return replace(BASE, operators=(OperatorState(name="o", schema="", definition="", subtasks=(subtask,)),))


def with_output(*, finished=(), growing=()):
    return replace(BASE, outputs=(OutputState(operator="o", url="u", finished=finished, open=growing),))


def with_rows(**changes):
    return with_output(growing=(replace(OPEN, pending=(replace(ROWS, **changes),)),))


def with_input(**changes):
    return replace(BASE, inputs=(InputState(name="i", column="at", **changes),))


def with_state(**changes):
    return replace(BASE, states={"s": replace(FILE, **changes)})


def with_point(**changes):
    return with_output(finished=(replace(FINISHED, commit=replace(FINISHED.commit, **changes)),))


def with_part(**changes):
    piece = replace(part("p"), **changes)
    return with_point(parts=(piece,), length=piece.length)


CASES = {
    "checkpoint id": (lambda value: replace(BASE, checkpoint_id=value), 0, 10**18 - 1),
    "batch id": (lambda value: replace(BASE, batch_id=value), -1, 10**18 - 1),
    "watermark": (lambda value: with_input(watermark_us=value), -(2**63), LARGEST),
    "late watermark": (lambda value: with_input(late_watermark_us=value), -(2**63), LARGEST),
    "parallelism": (lambda value: replace(BASE, parallelism=value), 1, 4),
    "run offset": (lambda value: with_run(offset=value), 0, LARGEST - 3),
    "run length": (lambda value: with_run(length=value), 0, LARGEST),
    "run checksum": (lambda value: with_run(crc32c=value), 0, 2**32 - 1),
    "run tombstones": (lambda value: with_run(tombstones=value, rows=7), 0, 7),
    "run rows": (lambda value: with_run(tombstones=1, rows=value), 1, LARGEST),
    "run first key group": (lambda value: with_run(first_key_group=value), 0, 2),
    "run last key group": (lambda value: with_run(last_key_group=value), 1, 3),
    "run checkpoint": (lambda value: with_run(checkpoint_id=value), -1, 5),
    "rows offset": (lambda value: with_rows(offset=value), 0, None),
    "rows length": (lambda value: with_rows(length=value), 0, None),
    "rows checksum": (lambda value: with_rows(crc32c=value), 0, 2**32 - 1),
    "rows": (lambda value: with_rows(rows=value), 0, None),
    "open rows": (lambda value: with_output(growing=(replace(OPEN, rows=value),)), 0, None),
    "open bytes": (lambda value: with_output(growing=(replace(OPEN, bytes=value),)), 0, None),
    "open subtask": (lambda value: with_output(growing=(replace(OPEN, subtask=value),)), 0, None),
    "finished rows": (lambda value: with_output(finished=(replace(FINISHED, rows=value),)), 0, None),
    "point checksum": (lambda value: with_point(crc32c=value), 0, 2**32 - 1),
    "point length": (lambda value: with_point(length=value), 4, 4),
    "part length": (lambda value: with_part(length=value), 0, LARGEST),
    "part checksum": (lambda value: with_part(crc32c=value), 0, 2**32 - 1),
    "state size": (lambda value: with_state(size=value), 0, None),
    "state checksum": (lambda value: with_state(crc32c=value), 0, 2**32 - 1),
    "inline bytes": (
        lambda value: replace(BASE, states={"s": InlineState(data=bytes(max(value, 0)))}),
        0,
        MAX_FILE_STATE_THRESHOLD,
    ),
}


def complaint(value):
    try:
        return check_checkpoint(value)
    except InvalidInputError as error:
        return str(error)


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_allowed_from_the_first_to_the_last_value(name):
    make, first, last = CASES[name]
    assert complaint(make(first)) is None
    if name != "inline bytes":
        assert complaint(make(first - 1)) is not None
    if last is not None:
        assert complaint(make(last)) is None
        assert complaint(make(last + 1)) is not None


@pytest.mark.parametrize(
    ("value", "allowed"), [(0.0, True), (-0.5, False), (253402300799.5, True), (253402300800.0, False)]
)
def test_times_are_those_that_calendars_can_show(value, allowed):
    assert (complaint(replace(BASE, created_at=value)) is None) is allowed


@pytest.mark.parametrize(
    ("ranges", "allowed"),
    [
        ([(0, 3)], True),
        ([(0, 0), (1, 3)], True),
        ([], False),
        ([(0, 2)], False),
        ([(1, 3)], False),
        ([(0, 4)], False),
        ([(0, 1), (1, 3)], False),
        ([(0, 1), (3, 3)], False),
        ([(2, 3), (0, 1)], False),
        ([(0, 3), (4, 3)], False),
    ],
)
def test_subtasks_cover_every_key_group_once_and_in_order(ranges, allowed):
    subtasks = tuple(SubtaskState(first_key_group=first, last_key_group=last) for first, last in ranges)
    operator = OperatorState(name="o", schema="", definition="", subtasks=subtasks)
    assert (complaint(replace(BASE, operators=(operator,))) is None) is allowed


@pytest.mark.parametrize("text", ["", "-1", "1.5", "abc", "9" * 5000, "\u0663"])
def test_a_number_of_earlier_checkpoints_that_is_none_is_told(text):
    record = replace(full_checkpoint(), properties={EARLIER_CHECKPOINTS: text})
    assert EARLIER_CHECKPOINTS in check_checkpoint(record)
    sound = replace(record, properties={EARLIER_CHECKPOINTS: "12"})
    assert (check_checkpoint(sound), sound.earlier_checkpoints) == (None, 12)
