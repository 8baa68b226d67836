"""When a file is complete."""

import pytest

from stateline.errors import InvalidInputError
from stateline.files.rolling import RollingPolicy


@pytest.mark.parametrize(
    ("policy", "size", "opened_at", "written_at", "complete"),
    [
        (RollingPolicy(roll_bytes=10), 9, 0, 0, False),
        (RollingPolicy(roll_bytes=10), 10, 0, 0, True),
        (RollingPolicy(roll_seconds=60), 0, 941, 1000, False),
        (RollingPolicy(roll_seconds="1min"), 0, 940, 1000, True),
        (RollingPolicy(idle_seconds=5), 0, 0, 996, False),
        (RollingPolicy(idle_seconds=5), 0, 0, 995, True),
        (RollingPolicy(every_checkpoint="true"), 0, 1000, 1000, True),
    ],
)
def test_the_first_limit_that_is_reached_rolls_the_file(policy, size, opened_at, written_at, complete):
    assert policy.is_complete(size=size, opened_at=opened_at, written_at=written_at, now=1000) is complete


def test_a_bad_limit_is_refused_by_name():
    with pytest.raises(InvalidInputError, match="roll_bytes"):
        RollingPolicy(roll_bytes="lots")


@pytest.mark.parametrize(
    ("policy", "due"),
    [
        (RollingPolicy(roll_bytes=1), None),
        (RollingPolicy(roll_seconds=60), 160.0),
        (RollingPolicy(idle_seconds=5), 125.0),
        (RollingPolicy(roll_seconds=60, idle_seconds=5), 125.0),
        (RollingPolicy(roll_seconds=10, idle_seconds=5), 110.0),
        (RollingPolicy(roll_seconds="never", idle_seconds="never"), None),
    ],
)
def test_a_file_is_complete_from_the_moment_at_which_it_is_due(policy, due):
    times = {"opened_at": 100.0, "written_at": 120.0}
    assert policy.due_at(**times) == due
    if due is not None:
        assert not policy.is_complete(size=0, **times, now=due - 0.001)
        assert policy.is_complete(size=0, **times, now=due)


def test_the_age_is_five_minutes_by_default_only_where_nobody_comes_to_finish_the_files():
    policy = RollingPolicy(roll_seconds="auto")
    assert (policy.shortest_seconds, policy.due_at(opened_at=0, written_at=0)) == (None, None)
    assert policy.going_on().roll_seconds == policy.going_on().shortest_seconds == 300.0
    for said in (None, "never", "1 hour", 20):
        policy = RollingPolicy(roll_seconds=said)
        assert policy.going_on() == policy
    assert RollingPolicy(roll_seconds="never").roll_seconds is None


def test_a_word_that_is_no_age_is_refused():
    with pytest.raises(InvalidInputError, match="roll_seconds: 'sometimes' is not valid"):
        RollingPolicy(roll_seconds="sometimes")
