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
