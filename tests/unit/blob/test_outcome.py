"""The rules for lost answers, as a table."""

import pytest

from stateline.blob.api import ObjectInfo
from stateline.blob.outcome import Verdict, check_range, conflict, judge, parts_missing, too_short
from stateline.errors import InvalidInputError


def info(size=3, crc32c=7, nonce=""):
    return ObjectInfo(name="a", size=size, modified_at=0.0, crc32c=crc32c, nonce=nonce)


@pytest.mark.parametrize(
    ("found", "nonce", "verdict"),
    [
        (None, "", Verdict.ABSENT),
        (None, "n", Verdict.ABSENT),
        (info(), "", Verdict.OURS),
        (info(), "n", Verdict.OURS),
        (info(nonce="n"), "n", Verdict.OURS),
        (info(nonce="m"), "", Verdict.OURS),
        (info(nonce="m"), "n", Verdict.FOREIGN),
        (info(size=4), "", Verdict.FOREIGN),
        (info(crc32c=8), "", Verdict.FOREIGN),
        (info(crc32c=8, nonce="n"), "n", Verdict.FOREIGN),
        (info(crc32c=None), "", Verdict.FOREIGN),
    ],
)
def test_what_is_there_is_judged_by_length_checksum_and_nonce(found, nonce, verdict):
    assert judge(found, length=3, crc32c=7, nonce=nonce) is verdict


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 2), (-2, -1)])
def test_what_is_no_range_is_refused(start, end):
    with pytest.raises(InvalidInputError, match="is no range"):
        check_range("a", start, end)


def test_errors_say_what_is_there_and_what_to_do():
    assert "4 bytes, CRC32C 00000007" in str(conflict("t", info(size=4), length=3, crc32c=9))
    assert "4 bytes)" in str(conflict("t", info(size=4, crc32c=None), length=3, crc32c=9))
    for error in (conflict("t", info(), length=3, crc32c=9), parts_missing("t", "p"), too_short("t", 9, 3)):
        assert error.hint
        assert error.operation
        assert error.subject == "t"
