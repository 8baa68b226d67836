"""A copy of a segment holds exactly what was checked, also where one of several reads of the same bytes was wrong."""

from __future__ import annotations

import pytest

from stateline.blob import StoreDecorator
from stateline.blob.checksum import crc32c
from stateline.blob.memory import MemoryStore
from stateline.changelog.segment import Section, SectionKind, encode_segment, read_directory
from stateline.changelog.segment_writer import SEGMENT_SUFFIX
from stateline.checkpoint.objects import Extent, check_object, copy_object
from stateline.environment import SystemIds
from stateline.errors import CorruptDataError

NAME = f"shared/x{SEGMENT_SUFFIX}"


class OneBadRead(StoreDecorator):
    """Flips one bit of one byte, in the read of that byte with a given number."""

    def __init__(self, inner, position, read):
        super().__init__(inner)
        self.position, self.reads_left = position, read

    def get_range(self, name, start, end):
        data = bytearray(self.inner.get_range(name, start, end))
        if start <= self.position < end:
            self.reads_left -= 1
            if self.reads_left == 0:
                data[self.position - start] ^= 1
        return bytes(data)


@pytest.fixture
def source():
    store = MemoryStore(SystemIds().new_id())
    runs = (b"a run of state", b"another one")
    sections = [Section(SectionKind.RUN, "sums", 7, (data,), len(data), crc32c(data)) for data in runs]
    store.put_if_absent(NAME, b"".join(encode_segment(sections).pieces))
    return store


def extents(store):
    entries = read_directory(store, NAME).entries
    return [Extent(entry.offset, entry.length, entry.crc32c, is_whole=False) for entry in entries]


def test_a_wrong_read_of_any_byte_is_never_copied(source):
    size, expected = source.head(NAME).size, extents(source)
    for position in range(size):
        for read in (1, 2):
            target = MemoryStore(SystemIds().new_id())
            try:
                copy_object(OneBadRead(source, position, read), NAME, expected, target, NAME)
            except CorruptDataError:
                assert [*target.list("")] == []
            else:
                assert crc32c(target.get(NAME)) == crc32c(source.get(NAME)), (position, read)


def test_a_wrong_read_of_the_directory_is_an_error_of_a_check(source):
    last = source.head(NAME).size - 1
    assert check_object(source, NAME, extents(source)) == last + 1
    for read in (1, 2):
        with pytest.raises(CorruptDataError):
            check_object(OneBadRead(source, last - 30, read), NAME, extents(source))
