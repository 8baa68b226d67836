"""The plan of a composition: in order, within the limit of 32 sources, and balanced."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.blob.gcs_compose import SOURCES_MAX, compose_steps
from stateline.handles import Part

HOME = "home"


def run(sources):
    """Plays the steps over strings; returns the target, the requests, and the bytes written to intermediates."""
    made, written = {source.name: source.name for source in sources}, 0

    def intermediate(place, group, container):
        return Part(name=f"<{place}>", length=sum(part.length for part in group), crc32c=0, container=container)

    for requests, step in enumerate(compose_steps(sources, HOME, intermediate), start=1):
        assert 1 <= len(step.sources) <= SOURCES_MAX
        assert len({source.container for source in step.sources}) == 1
        joined = "".join(made[source.name] for source in step.sources)
        if step.result is None:
            assert step.sources[0].container == HOME or len(step.sources) == 1
            return joined, requests, written
        if step.result.container != step.sources[0].container:
            assert len(step.sources) == 1
        assert step.result.name not in made
        made[step.result.name] = joined
        written += step.result.length
    raise AssertionError("no step made the target")


def pieces(containers):
    return [Part(name=f"p{index},", length=1, crc32c=0, container=where) for index, where in enumerate(containers)]


@given(st.lists(st.sampled_from(["home", "temporary", "older"]), min_size=1, max_size=150))
def test_any_pieces_in_any_buckets_are_joined_in_order(containers):
    target, _, _ = run(pieces(containers))
    assert target == "".join(f"p{index}," for index in range(len(containers)))


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 100, 1000, 1024, 1025, 3000])
def test_the_tree_is_balanced(count):
    _, requests, written = run(pieces([HOME] * count))
    levels = max(math.ceil(math.log(count, SOURCES_MAX) - 1e-9), 1)
    assert written == count * (levels - 1)
    assert requests <= count // 16 + 2


def test_up_to_32_pieces_of_the_bucket_need_one_request():
    assert run(pieces([HOME] * 32))[1] == 1


def test_pieces_of_a_temporary_bucket_are_composed_there_and_moved_once():
    assert run(pieces(["temporary"] * 20))[1:] == (2, 20)
    assert run(pieces(["temporary"]))[1:] == (1, 0)


def test_ten_gigabytes_in_pieces_of_64_mib_take_six_requests():
    _, requests, written = run(pieces([HOME] * 160))
    assert (requests, written) == (6, 160)
