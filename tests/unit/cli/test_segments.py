"""``stateline changelog`` over segments of a checkpoint root: changes, runs and rows, next to other objects."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from stateline.blob.checksum import crc32c
from stateline.blob.memory import MemoryStore
from stateline.changelog import StateChange
from stateline.changelog.block import Compression
from stateline.changelog.changes import encode_changes
from stateline.changelog.columns import ChangeColumns
from stateline.changelog.segment import Section, SectionKind, encode_segment
from stateline.cli.commands import stateline
from stateline.files.pending import encoded_rows
from stateline.key_groups import KeyGroupRange
from stateline.sizes import Sizes
from stateline.state.run import RunSettings, encode_run
from stateline.state.runs import Run
from stateline.state.schema import StateSchema
from tests.unit.state.state_kit import changes

NAME = "segments"
SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.string())]))
SEGMENT = "shared/0123.segment"


def section(kind: SectionKind, owner: str, *pieces: Any) -> Section:
    data = b"".join(pieces)
    return Section(kind, owner, 12, (data,), len(data), crc32c(data))


def run_section(rows: int) -> Section:
    run = Run([changes(SCHEMA, {k: (f"value {k}",) for k in range(rows)})], KeyGroupRange(0, 127), 128)
    encoded = encode_run(run, SCHEMA, 128, RunSettings(batch_rows=100))
    return section(SectionKind.RUN, "flights", encoded.data)


ROWS = pa.table({"n": [1, 2], "t": ["a", "b\x1b[31m"]})
CHANGES = encode_changes(uuid.UUID(int=7), 3, ChangeColumns.of([StateChange(5, b"apple")]), Compression.NONE).section
SECTIONS = [CHANGES, run_section(1000), section(SectionKind.ROWS, "out/f.parquet", *encoded_rows(ROWS))]


@pytest.fixture
def root() -> Iterator[MemoryStore]:
    store = MemoryStore(NAME)
    store.put(SEGMENT, b"".join(encode_segment(SECTIONS).pieces))
    store.put("chk-12/_metadata", b"{}")
    yield store
    MemoryStore.forget(NAME)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(stateline, ["changelog", *arguments])


def test_ls_of_a_root_lists_every_section_of_its_segments(root: MemoryStore) -> None:
    answer = command("ls", f"memory://{NAME}")
    assert answer.exit_code == 0
    assert "_metadata" not in answer.output
    facts = json.loads(command("ls", f"memory://{NAME}", "--json").output)
    assert (facts["name"], facts["problems"]) == (SEGMENT, [])
    assert [(one["kind"], one["owner"], one["number"], one["rows"]) for one in facts["sections"]] == [
        ("changes", uuid.UUID(int=7).hex, 3, 1),
        ("run", "flights", 12, 1000),
        ("rows", "out/f.parquet", 12, None),
    ]
    assert [one["bytes"] for one in facts["sections"]] == [one.length for one in SECTIONS]


def test_ls_reads_only_the_tail_of_a_long_run(root: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.cli.sections.sizes", lambda: Sizes(run_tail_bytes=64))
    fetched: list[int] = []
    fetch = MemoryStore.get_range
    monkeypatch.setattr(
        MemoryStore, "get_range", lambda self, *place: fetched.append(place[2] - place[1]) or fetch(self, *place)
    )
    facts = json.loads(command("ls", f"memory://{NAME}", "--json").output)
    assert facts["sections"][1]["rows"] == 1000
    assert fetched.count(64) == 1
    assert SECTIONS[1].length not in fetched


def test_cat_prints_changes_and_rows(root: MemoryStore) -> None:
    lines = command("cat", f"memory://{NAME}").output.splitlines()
    assert lines[0] == "5\tapple"
    rows = [json.loads(line) for line in lines[1:]]
    assert sorted((row["k"], row["v"]) for row in rows[:-2]) == [(k, f"value {k}") for k in range(1000)]
    assert [row["__hash"] for row in rows[:-2]] == sorted(row["__hash"] for row in rows[:-2])
    assert rows[-2:] == ROWS.to_pylist()
    assert "\x1b" not in lines[-1]
    assert command("cat", f"memory://{NAME}", "--limit", "3").output.splitlines() == lines[:3]


def test_cat_as_json_says_where_a_line_is_from(root: MemoryStore) -> None:
    lines = [json.loads(line) for line in command("cat", f"memory://{NAME}", "--json").output.splitlines()]
    assert lines[0] == {
        "object": SEGMENT,
        "log_id": uuid.UUID(int=7).hex,
        "sequence_number": 3,
        "key_group": 5,
        "value": "YXBwbGU=",
    }
    assert lines[-1] == {
        "object": SEGMENT,
        "kind": "rows",
        "owner": "out/f.parquet",
        "number": 12,
        "row": {"n": 2, "t": "b\x1b[31m"},
    }


def test_key_groups_pick_changes_and_no_rows(root: MemoryStore) -> None:
    assert command("cat", f"memory://{NAME}", "--key-groups", "5").output.splitlines() == ["5\tapple"]
    assert command("cat", f"memory://{NAME}", "--key-groups", "6").output == ""


def test_damage_in_a_section_of_any_kind_is_told_with_its_place(root: MemoryStore) -> None:
    good = root.get(SEGMENT)
    assert command("verify", f"memory://{NAME}").exit_code == 0
    made = encode_segment(SECTIONS)
    for one, offset in zip(SECTIONS, made.offsets, strict=True):
        for place in (0, one.length // 3, one.length // 2, one.length - 1):
            bad = bytearray(good)
            bad[offset + place] ^= 4
            root.put(SEGMENT, bytes(bad))
            for name in ("verify", "cat"):
                answer = command(name, f"memory://{NAME}")
                assert answer.exit_code == 1
                assert re.search(r"byte|\[\d+:\d+\]", answer.output)


@pytest.mark.parametrize("kind", [SectionKind.RUN, SectionKind.ROWS])
def test_a_section_whose_checksum_is_right_and_whose_meaning_is_not_is_found(
    root: MemoryStore, kind: SectionKind
) -> None:
    for wrong in (b"no Arrow", b"".join(encoded_rows(ROWS))[:-200] if kind is SectionKind.ROWS else run_bytes(4)):
        root.put(SEGMENT, b"".join(encode_segment([section(kind, "owner", wrong)]).pieces))
        for name in ("verify", "cat"):
            answer = command(name, f"memory://{NAME}")
            assert answer.exit_code == 1, (name, wrong)
            assert "Traceback" not in answer.output


def run_bytes(flip: int) -> bytes:
    """A run of which a hash was exchanged, so that it is not sorted."""
    (data,) = run_section(10).pieces
    (first,) = pa.ipc.open_file(data).get_batch(0).column(0)[:1].to_pylist()
    return bytes(data).replace(first.to_bytes(8, "little"), (2**64 - flip).to_bytes(8, "little"), 1)
