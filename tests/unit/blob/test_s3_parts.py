"""The plan of an upload: every byte once, in order, within the limits of S3, and as little read as can be."""

from hypothesis import given
from hypothesis import strategies as st

from stateline.blob.s3_parts import PART_BYTES_MIN, Segment, plan_parts

MIB = 1024 * 1024
lengths = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), max_size=30)


def read_bytes(plan):
    """What has to pass through this machine: everything in parts of several segments."""
    return sum(part[index].end - part[index].start for part in plan if len(part) > 1 for index in range(len(part)))


@given(lengths)
def test_every_byte_is_in_exactly_one_part_in_order(pieces):
    flat = [
        (segment.piece, at)
        for part in plan_parts(pieces, 10)
        for segment in part
        for at in range(segment.start, segment.end)
    ]
    assert flat == [(piece, at) for piece, length in enumerate(pieces) for at in range(length)]


@given(lengths)
def test_every_part_but_the_last_is_long_enough(pieces):
    sizes = [sum(segment.end - segment.start for segment in part) for part in plan_parts(pieces, 10)]
    assert all(size >= 10 for size in sizes[:-1])
    assert all(size > 0 for size in sizes)
    assert all(size < 30 for part, size in zip(plan_parts(pieces, 10), sizes, strict=True) if len(part) > 1)


@given(lengths)
def test_a_range_is_copied_only_out_of_a_piece_that_allows_it(pieces):
    for part in plan_parts(pieces, 10):
        if len(part) == 1 and (part[0].start, part[0].end) != (0, pieces[part[0].piece]):
            assert pieces[part[0].piece] > 10
            assert part[0].end - part[0].start >= 10


@given(st.lists(st.integers(10, 60), max_size=30), st.integers(1, 9))
def test_long_pieces_are_never_read(pieces, tail):
    assert read_bytes(plan_parts(pieces, 10)) == 0
    assert read_bytes(plan_parts([*pieces, tail], 10)) == 0


def test_a_short_piece_costs_one_minimal_part():
    assert plan_parts([1 * MIB, 64 * MIB, 64 * MIB]) == [
        [Segment(0, 0, 1 * MIB), Segment(1, 0, PART_BYTES_MIN - 1 * MIB)],
        [Segment(1, PART_BYTES_MIN - 1 * MIB, 64 * MIB)],
        [Segment(2, 0, 64 * MIB)],
    ]


def test_ten_gigabytes_in_pieces_of_64_mib_are_moved_by_the_service_alone():
    plan = plan_parts([64 * MIB] * 160)
    assert len(plan) == 160
    assert read_bytes(plan) == 0
