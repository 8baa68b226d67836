"""What a batch covers, read from entries as Spark 4.3 writes them."""

from __future__ import annotations

import hashlib

import pytest

from stateline.errors import CorruptDataError, NotFoundError, UnsupportedVersionError
from stateline.pipeline.offsets import next_batch, offsets_digest

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795458599118,"conf":{"spark.sql.shuffle.partitions":"2"}}'
FLIGHTS = '{"path":"file:///src/a.parquet","timestamp":1795458598047,"batchId":3}'
OTHERS = '{"path":"file:///others/b.parquet","timestamp":1795458598491,"batchId":0}'
EARLIER = '{"path":"file:///src/earlier.parquet","timestamp":1795458598001,"batchId":2}'


def digest(*lines, **files):
    """Of batch 7, whose entry has these lines; other files by name, with ``__`` for a slash."""
    found = {"offsets/7": "\n".join(lines)} | {name.replace("__", "/"): text for name, text in files.items()}
    return offsets_digest(found.get, "file:///spark", 7)


def sha(*lines):
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def test_sources_in_order_are_found_by_their_numbers():
    found = digest(
        "v1",
        METADATA,
        '{"logOffset":3}',
        '{"logOffset":0}',
        "-",
        sources__0__3=f"v1\n{FLIGHTS}",
        sources__1__0=f"v1\n{OTHERS}",
    )
    assert found == sha('{"logOffset":3}', FLIGHTS, '{"logOffset":0}', OTHERS, "-")


@pytest.mark.parametrize("ids", [("flights", "others"), ("0", "1")])
def test_sources_with_ids_are_found_by_them(ids):
    lines = [f'{ids[1]}:{{"logOffset":0}}', f'{ids[0]}:{{"logOffset":3}}', "kafka:-"]
    logs = {f"sources__{ids[0]}__3": f"v1\n{FLIGHTS}", f"sources__{ids[1]}__0": f"v1\n{OTHERS}"}
    assert digest("v2", METADATA, *lines, **logs) == sha(lines[0], OTHERS, lines[1], FLIGHTS, "kafka:-")


def test_the_id_ends_at_the_first_colon():
    lines = ['topics:{"t":{"0":17}}', 'flights:{"logOffset":3}']
    found = digest("v2", METADATA, *lines, sources__flights__3=f"v1\n{FLIGHTS}")
    assert found == sha(*lines, FLIGHTS)


@pytest.mark.parametrize(
    ("version", "line", "log"),
    [("v1", '{"logOffset":3}', "sources__0__3.compact"), ("v2", 'x:{"logOffset":3}', "sources__x__3.compact")],
)
def test_a_compacted_log_gives_the_files_of_its_own_number_only(version, line, log):
    assert digest(version, METADATA, line, **{log: f"v1\n{EARLIER}\n{FLIGHTS}"}) == sha(line, FLIGHTS)


def test_a_form_that_is_not_known_is_refused():
    with pytest.raises(UnsupportedVersionError, match="file:///spark/offsets/7: expected an entry of version v1 or v2"):
        digest("v3", METADATA, 'flights:{"logOffset":3}')


@pytest.mark.parametrize(
    "lines",
    [
        ("v1",),
        ("v1", METADATA),
        ("v2", METADATA),
        ("v2", METADATA, "no id"),
        ("v2", METADATA, ":{}"),
        ("version", METADATA, "{}"),
        ("", "", "{}"),
    ],
)
def test_what_is_no_entry_is_refused(lines):
    with pytest.raises(CorruptDataError, match="no source offsets"):
        digest(*lines)


def test_a_batch_without_an_entry_is_an_error_that_names_it():
    with pytest.raises(NotFoundError, match="file:///spark/offsets/7"):
        offsets_digest({}.get, "file:///spark", 7)


def test_the_next_batch_follows_the_newest_name_in_the_commit_log_whatever_it_holds():
    names = ["9", "10", "metadata", "11.crc", ".10.crc.tmp"]
    assert next_batch({"metadata": '{"id":"q"}'}.get, lambda folder: names if folder == "commits" else []) == ("q", 11)
