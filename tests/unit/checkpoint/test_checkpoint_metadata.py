"""The bytes of ``_metadata``: what is written reads back equal, and nothing else reads at all."""

import json
from pathlib import Path

import msgspec
import pytest
from checkpoint_kit import checkpoint, finished_file, full_checkpoint, open_file, run
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.blob.checksum import crc32c
from stateline.checkpoint import (
    Checkpoint,
    FileState,
    InlineState,
    InputState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.checkpoint import envelope as envelope_module
from stateline.checkpoint.metadata import (
    Retired,
    decode_claim,
    decode_record,
    decode_savepoint,
    encode_checkpoint,
    encode_claim,
    encode_floor,
    encode_published,
    encode_retired,
    encode_savepoint,
)
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.handles import ResumePoint, RowsHandle

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoint"
RETIRED = Retired(
    checkpoint_id=6,
    query_id="5d1f4c0e-query",
    nonce="n",
    created_at=1.5,
    delete=("shared/a", "shared/b"),
)


def golden_documents() -> dict[str, bytes]:
    return {
        "checkpoint.v1.json": encode_checkpoint(full_checkpoint()),
        "savepoint.v1.json": encode_savepoint(full_checkpoint()),
        "retired.v1.json": encode_retired(RETIRED),
        "floor.v1.json": encode_floor(3),
        "published.v1.json": encode_published(7),
        "claimed.v1.json": encode_claim('query "7"'),
    }


def resealed(body: bytes) -> bytes:
    """A document with a valid CRC over a changed body: what a hostile writer would make."""
    return body + b',\n  "crc32c": "%08x"\n}\n' % crc32c(body)


def body_of(data: bytes) -> bytes:
    return data[: data.rindex(b',\n  "crc32c"')]


@pytest.mark.parametrize("name", golden_documents())
def test_released_bytes_are_still_written(name):
    assert golden_documents()[name] == (GOLDEN / name).read_bytes()


def test_released_bytes_are_still_read():
    assert decode_record((GOLDEN / "checkpoint.v1.json").read_bytes(), "x") == full_checkpoint()
    assert decode_savepoint((GOLDEN / "savepoint.v1.json").read_bytes(), "x") == full_checkpoint()
    assert decode_record((GOLDEN / "retired.v1.json").read_bytes(), "x") == RETIRED
    assert decode_claim((GOLDEN / "claimed.v1.json").read_bytes(), "x") == 'query "7"'


def test_a_document_is_one_json_object_with_format_first_and_checksum_last():
    for name, data in golden_documents().items():
        members = json.loads(data)
        assert list(members)[:2] == ["format", "version"], name
        assert list(members)[-1] == "crc32c", name
        assert members["crc32c"] == f"{crc32c(body_of(data)):08x}", name
        assert max(len(line) for line in data.splitlines()) < 700, name


DECODERS = {
    "checkpoint.v1.json": decode_record,
    "retired.v1.json": decode_record,
    "savepoint.v1.json": decode_savepoint,
    "claimed.v1.json": decode_claim,
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("flip", [0x01, 0x20, 0xFF])
def test_every_flipped_byte_is_corrupt(name, flip):
    data = golden_documents()[name]
    decode = DECODERS[name]
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= flip
        with pytest.raises(CorruptDataError) as caught:
            decode(bytes(damaged), "root/chk-7/_metadata")
        assert not isinstance(caught.value, UnsupportedVersionError), position
        assert caught.value.subject == "root/chk-7/_metadata"


@pytest.mark.parametrize("name", DECODERS)
def test_every_truncation_and_any_trailing_byte_is_corrupt(name):
    data = golden_documents()[name]
    decode = DECODERS[name]
    for end in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode(data[:end], "x")
    for tail in (b"\n", b" ", b"\0", data):
        with pytest.raises(CorruptDataError):
            decode(data + tail, "x")


def test_a_newer_version_is_refused_by_name():
    newer = resealed(body_of(golden_documents()["checkpoint.v1.json"]).replace(b'"version": 1', b'"version": 2', 1))
    with pytest.raises(UnsupportedVersionError, match=r"format version 2: this program reads up to 1\. Upgrade"):
        decode_record(newer, "x")


def test_one_kind_of_document_is_never_taken_for_another():
    documents = golden_documents()
    with pytest.raises(
        CorruptDataError, match=r"expected a stateline\.checkpoint.* document, got a stateline\.savepoint"
    ):
        decode_record(documents["savepoint.v1.json"], "x")
    with pytest.raises(
        CorruptDataError, match=r"expected a stateline\.savepoint document, got a stateline\.checkpoint"
    ):
        decode_savepoint(documents["checkpoint.v1.json"], "x")
    with pytest.raises(CorruptDataError, match=r"got a stateline\.floor"):
        decode_record(documents["floor.v1.json"], "x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"shared/0-0.arrow", b"../../etc/passwd"),
        (b"shared/0-0.arrow", b"/etc/passwd"),
        (b"shared/0-0.arrow", b"shared/.."),
        (b"shared/0-0.arrow", b"chk-9/_metadata"),
        (b"shared/0-0.arrow", b"floor/0"),
        (b"shared/0-0.arrow", b"shared/a/_metadata"),
        (b"shared/0-0.arrow", b".inprogress/x"),
        (b"shared/rows", b"../rows"),
        (b"shared/rows", b"chk-9/_metadata"),
        (b"done.parquet", b"../done.parquet"),
        (b'"target":"origin=LGA/', b'"target":"/'),
        (b".inprogress/p1", b"../p1"),
        (b".inprogress/p2", b"/nprogress/p2"),
        (b'"temporary-bucket"', b'"../bucket"'),
        (b'"name":"model"', b'"name":"../shared/x"'),
        (b'"name":"model"', b'"name":"_metadata"'),
        (b"shared/tables", b"chk-9/_metadata"),
    ],
)
def test_a_hostile_name_is_refused_though_the_checksum_is_right(old, new):
    body = body_of(golden_documents()["checkpoint.v1.json"])
    assert old in body
    with pytest.raises(CorruptDataError):
        decode_record(resealed(body.replace(old, new)), "x")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("checkpoint.v1.json", b'  "query_id":', b'  "query_id": "other",\n  "query_id":'),
        ("checkpoint.v1.json", b'  "query_id":', b'  "query\\u005fid": "other",\n  "query_id":'),
        ("checkpoint.v1.json", b'{"name":"shared/0-0.arrow"', b'{"name":"shared/x","name":"shared/0-0.arrow"'),
        ("checkpoint.v1.json", b'{"program":', b'{"program":"other","program":'),
        ("savepoint.v1.json", b'"name":"model"', b'"name":"x","name":"model"'),
        ("retired.v1.json", b'  "delete":', b'  "delete": [],\n  "delete":'),
        ("claimed.v1.json", b'  "owner":', b'  "owner": "other",\n  "owner":'),
    ],
)
def test_a_member_that_comes_twice_is_refused_though_the_checksum_is_right(name, old, new):
    body = body_of(golden_documents()[name])
    assert body.count(old) == 1
    with pytest.raises(CorruptDataError, match="comes twice in one object"):
        DECODERS[name](resealed(body.replace(old, new)), "x")


@pytest.mark.parametrize("member", [b'"format": "stateline.checkpoint"', b'"version": 1', b'"crc32c": "00000000"'])
def test_a_member_of_the_envelope_that_comes_again_is_refused(member):
    body = body_of(golden_documents()["checkpoint.v1.json"])
    with pytest.raises(CorruptDataError, match=r"unknown field `(format|version|crc32c)`"):
        decode_record(resealed(body.replace(b'  "query_id":', b'  %s,\n  "query_id":' % member)), "x")


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("member", [b'"states": {', b'"properties": {'])
def test_values_without_a_bottom_are_refused(member, open_, close):
    body = body_of(golden_documents()["checkpoint.v1.json"])
    deep = open_ * 100_000 + b"1" + close * 100_000
    with pytest.raises(CorruptDataError):
        decode_record(resealed(body.replace(member, member + b'"deep": ' + deep + b",")), "x")


def test_another_order_or_layout_of_members_is_read():
    data = golden_documents()["checkpoint.v1.json"]
    first, last = b'  "checkpoint_id": 7,\n', b'  "parallelism": 3,\n'
    body = body_of(data)
    assert body.count(first) == body.count(last) == 1
    moved = body.replace(first, b"").replace(last, b"\t" + last + first)
    assert decode_record(resealed(moved), "x") == decode_record(data, "x")


@pytest.mark.parametrize("name", [b"chk-9/_metadata", b"floor/0", b"../x", b"savepoint-1/_claimed"])
def test_a_hostile_tombstone_cannot_delete_a_fence(name):
    body = body_of(golden_documents()["retired.v1.json"])
    with pytest.raises(CorruptDataError):
        decode_record(resealed(body.replace(b"shared/a", name)), "x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"checkpoint_id": 7', b'"checkpoint_id": -1'),
        (b'"checkpoint_id": 7', b'"checkpoint_id": 7.5'),
        (b'"checkpoint_id": 7', b'"checkpoint_id": "7"'),
        (b'"checkpoint_id": 7', b'"checkpoint_id": 1000000000000000000'),
        (b'"batch_id": 6', b'"batch_id": -2'),
        (b'"query_id": "5d1f4c0e-query"', b'"query_id": ""'),
        (b'"query_id"', b'"query"'),
        (b'"created_at": 1700000002.125', b'"created_at": 1e300'),
        (b'"created_at": 1700000002.125', b'"created_at": NaN'),
        (b'"max_parallelism": 128', b'"max_parallelism": 1000000'),
        (b'"parallelism": 3', b'"parallelism": 129'),
        (b'"last_key_group": 42', b'"last_key_group": 41'),
        (b'"length":1,', b'"length":-1,'),
        (b'"length":1,', b'"length":9223372036854775808,'),
        (b'"rows":3,', b'"rows":0,'),
        (b'"crc32c":4294967295', b'"crc32c":4294967296'),
        (b'"length":10,"crc32c":3', b'"length":11,"crc32c":3'),
        (b'"offset":12', b'"offset":-12'),
        (b'"properties": {', b'"unknown": 1, "properties": {'),
        (b'"properties": {', b'"properties": {"savepoint.checkpoints": "many", '),
        (b'"properties": {', b'"properties": {"savepoint.checkpoints": "-1", '),
        (b'"properties": {', b'"properties": {"savepoint.checkpoints": "1000000000000000000", '),
        (b'"name": "routes"', b'"name": "flights"'),
        (b'"checkpoint_id":6', b'"checkpoint_id":8'),
        (b'"subtask":2', b'"subtask":-2'),
        (b'"kind":"inline"', b'"kind":"other"'),
    ],
)
def test_a_number_out_of_range_is_refused_though_the_checksum_is_right(old, new):
    body = body_of(golden_documents()["checkpoint.v1.json"])
    assert old in body
    with pytest.raises(CorruptDataError):
        decode_record(resealed(body.replace(old, new)), "x")


def test_a_document_beyond_the_size_cap_is_refused_before_it_is_parsed(monkeypatch):
    data = golden_documents()["checkpoint.v1.json"]
    monkeypatch.setattr(envelope_module, "MAX_METADATA_BYTES", len(data))
    assert decode_record(data, "x") == full_checkpoint()
    monkeypatch.setattr(envelope_module, "MAX_METADATA_BYTES", len(data) - 1)
    with pytest.raises(CorruptDataError, match="must have at most"):
        decode_record(data, "x")
    with pytest.raises(InvalidInputError, match="must have at most"):
        encode_checkpoint(full_checkpoint())


def _changed(**changes: object) -> Checkpoint:
    return msgspec.structs.replace(full_checkpoint(), **changes)


@pytest.mark.parametrize(
    "wrong",
    [
        _changed(created_at=float("nan")),
        _changed(created_at=float("inf")),
        _changed(query_id="\ud800"),
        _changed(inputs=(InputState(name="a", column="at", watermark_us=2**70),)),
        _changed(inputs=(InputState(name="a", column="at", late_watermark_us=-(2**70)),)),
        _changed(inputs=full_checkpoint().inputs * 2),
        _changed(nonce=""),
        _changed(operators=list(full_checkpoint().operators)),
        _changed(operators=full_checkpoint().operators * 2),
        _changed(operators=(*full_checkpoint().operators, "another")),
        _changed(properties={"a": 1}),
        _changed(states={"a": InlineState(data=b"x" * 1_048_577)}),
        _changed(states={"a": FileState(name="../x", relative=True, size=0, crc32c=0)}),
        checkpoint(0, ("../a",)),
        checkpoint(0, outputs=(OutputState(operator="o", url="u", finished=(finished_file("../f", ()),)),)),
        checkpoint(0, outputs=(OutputState(operator="o", url="u", open=(open_file("/f"),)),)),
        checkpoint(
            0,
            operators=(
                OperatorState(
                    name="a", schema="", definition="", subtasks=(SubtaskState(first_key_group=0, last_key_group=1),)
                ),
            ),
        ),
        checkpoint(0, operators=(OperatorState(name="a", schema="", definition="", subtasks=()),)),
    ],
)
def test_what_no_reader_would_take_is_never_encoded(wrong):
    with pytest.raises(InvalidInputError):
        encode_checkpoint(wrong)


def test_a_file_that_is_finished_with_a_resume_point_is_refused():
    resume = ResumePoint(target="f", parts=(), length=0, crc32c=0, nonce="n")
    wrong = msgspec.structs.replace(finished_file("f", ()), commit=resume)
    with pytest.raises(InvalidInputError):
        encode_checkpoint(checkpoint(0, outputs=(OutputState(operator="o", url="u", finished=(wrong,)),)))


text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
crc = st.integers(0, 2**32 - 1)
rows_handles = st.builds(
    RowsHandle,
    name=st.just("shared/rows"),
    offset=st.integers(0, 2**62),
    length=st.integers(0, 2**62 - 1),
    crc32c=crc,
    rows=st.integers(0, 2**63 - 1),
)
states = st.one_of(
    st.builds(InlineState, data=st.binary(max_size=50)),
    st.builds(FileState, name=st.just("shared/f"), relative=st.booleans(), size=st.integers(0, 2**63 - 1), crc32c=crc),
)


@settings(deadline=None)
@given(
    st.integers(0, 10**18 - 1),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20),
    st.floats(0, 253402300799.0),
    st.dictionaries(text, text, max_size=4),
    st.dictionaries(text, states, max_size=4),
    st.lists(rows_handles, max_size=3),
    st.none() | st.integers(-(2**63), 2**63 - 1),
)
def test_any_checkpoint_reads_back_equal(checkpoint_id, word, seconds, properties, state, pending, watermark):
    growing = open_file("t", *pending)
    value = msgspec.structs.replace(
        checkpoint(checkpoint_id, ("a", "b"), query_id=word, nonce=word),
        offsets_digest=word,
        created_at=seconds,
        properties=properties,
        states=state,
        inputs=(InputState(name=word, column=word, watermark_us=watermark, late_watermark_us=watermark),),
        outputs=(OutputState(operator=word, url=word, open=(growing,)),),
    )
    assert decode_record(encode_checkpoint(value), "x") == value


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_corrupt(data):
    with pytest.raises(CorruptDataError):
        decode_record(data, "x")


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_arbitrary_members_under_a_right_checksum_are_corrupt(members):
    header = b'{\n  "format": "stateline.checkpoint",\n  "version": 1,\n'
    with pytest.raises(CorruptDataError):
        decode_record(resealed(header + members), "x")


def test_equal_tombstones_have_equal_bytes():
    assert encode_retired(RETIRED) == encode_retired(msgspec.structs.replace(RETIRED))


def test_a_run_may_be_older_than_the_root():
    old = msgspec.structs.replace(run("shared/a"), checkpoint_id=-1)
    state = OperatorState(
        name="a", schema="", definition="", subtasks=(SubtaskState(first_key_group=0, last_key_group=0, runs=(old,)),)
    )
    value = checkpoint(0, operators=(state,))
    assert decode_record(encode_checkpoint(value), "x") == value


if __name__ == "__main__":  # Writes the golden files of a new version; never change those of a released one.
    for golden_name, golden_data in golden_documents().items():
        (GOLDEN / golden_name).write_bytes(golden_data)
