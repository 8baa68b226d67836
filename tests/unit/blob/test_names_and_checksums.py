"""What a blob may be called, and the arithmetic of checksums."""

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.blob.checksum import combine_crc32c, crc32c, crc32c_of_parts
from stateline.blob.names import MAX_NAME_BYTES, MAX_SEGMENT_BYTES, check_name, check_prefix
from stateline.errors import InvalidInputError
from stateline.handles import Part
from tests.kit.strategies import blob_names

BAD_NAMES = [
    "", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b", "../x", "a\\b", "a\0b", "a\nb", "a\x7f", "\ud800",
    "x" * (MAX_SEGMENT_BYTES + 1), "é" * 128, "/".join(["x" * 250] * 4), None, 7,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(name):
    with pytest.raises(InvalidInputError):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["a", "a/b", "...", "a/..b", ".hidden", "ключ/値", "a b", "%2e%2e", "x" * 255, "a:b*?"]
)
def test_good_names_pass(name):
    assert check_name(name) == name


@given(blob_names())
def test_every_drawn_name_is_one(name):
    assert check_name(name) == name
    assert len(name.encode()) <= MAX_NAME_BYTES


@given(st.text())
def test_what_passes_stays_below_the_root(name):
    try:
        check_name(name)
    except InvalidInputError:
        return
    assert not name.startswith("/")
    assert not {"", ".", ".."} & set(name.split("/"))


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "chk-1"])
def test_prefixes_pass(prefix):
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "a//", "../", "a/../", "a\0"])
def test_bad_prefixes_are_refused(prefix):
    with pytest.raises(InvalidInputError):
        check_prefix(prefix)


def test_the_check_value_of_crc32c():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_checksum_goes_on_where_another_ended(left, right):
    whole = google_crc32c.value(left + right)
    assert crc32c(right, crc32c(left)) == whole
    assert crc32c(bytearray(left + right)) == crc32c(memoryview(left + right)) == whole


@given(st.binary(max_size=300), st.integers(0, 10_000))
def test_checksums_combine_without_the_bytes(left, zeros):
    right = bytes(zeros) + left
    assert combine_crc32c(crc32c(left), crc32c(right), len(right)) == google_crc32c.value(left + right)


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_the_checksum_of_parts_is_that_of_their_concatenation(pieces):
    parts = [Part(name=str(index), length=len(data), crc32c=crc32c(data)) for index, data in enumerate(pieces)]
    assert crc32c_of_parts(parts) == google_crc32c.value(b"".join(pieces))
