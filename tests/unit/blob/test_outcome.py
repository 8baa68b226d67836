"""The rules for lost answers, as a table."""

import pytest

from stateline.blob.api import ObjectInfo
from stateline.blob.arguments import check_range
from stateline.blob.outcome import Fingerprint, parts_missing, too_short
from stateline.errors import InvalidInputError


def info(size=3, crc32c=7, nonce=""):
    return ObjectInfo(name="a", size=size, modified_at=0.0, crc32c=crc32c, nonce=nonce)


@pytest.mark.parametrize(
    ("found", "nonce", "ours"),
    [
        (None, "", False),
        (None, "n", False),
        (info(), "", True),
        (info(), "n", True),
        (info(nonce="n"), "n", True),
        (info(nonce="m"), "", True),
        (info(nonce="m"), "n", False),
        (info(size=4), "", False),
        (info(crc32c=8), "", False),
        (info(crc32c=8, nonce="n"), "n", False),
        (info(crc32c=None), "", False),
    ],
)
def test_what_is_there_is_judged_by_length_checksum_and_nonce(found, nonce, ours):
    assert Fingerprint(3, 7, nonce).matches(found) is ours


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 2), (-2, -1)])
def test_what_is_no_range_is_refused(start, end):
    with pytest.raises(InvalidInputError, match="is not a range"):
        check_range("a", start, end)


def test_errors_say_what_is_there_and_what_to_do():
    ours = Fingerprint(3, 9)
    assert "4 bytes, CRC32C 00000007" in str(ours.conflict("t", info(size=4)))
    assert "4 bytes)" in str(ours.conflict("t", info(size=4, crc32c=None)))
    for error in (ours.conflict("t", info()), parts_missing("t", "p"), too_short("t", 9, 3)):
        assert error.hint
        assert error.operation
        assert error.subject == "t"
