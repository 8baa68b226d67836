"""Runs that somebody reads as plain Arrow files, in the way that the documentation shows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from stateline.state import KeyedStateBackend, StateSchema
from tests.pages import blocks_of

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "state-as-data.md"
SCHEMA = StateSchema(pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64()), ("t", pa.string())]))


def shown() -> str:
    """The block of the page that reads files."""
    [code] = [block.code for block in blocks_of(PAGE.read_text()) if "places" in block.code]
    return code


def test_runs_whose_whole_numbers_differ_in_width_are_one_table(tmp_path: Path) -> None:
    with KeyedStateBackend.open(f"{tmp_path}") as backend:
        state = backend.state("s", SCHEMA)
        for key, number in ((1, 1), (2, 300), (2**40, -(2**50))):
            state.put(pa.table({"id": [key], "n": [number], "t": ["x"]}))
            record = backend.checkpoint()
    runs = [run for subtask in record.operators[0].subtasks for run in subtask.runs]
    places = [(str(tmp_path / run.name), run.offset, run.length) for run in runs]
    sections = [pa.memory_map(path).read_buffer().slice(offset, length) for path, offset, length in places]
    schemas = [pa.ipc.open_file(section).schema for section in sections]
    assert [schema.field("n").type for schema in schemas] == [pa.int8(), pa.int16(), pa.int64()]
    with pytest.raises(pa.ArrowInvalid, match="Schema at index 1 was different"):
        pa.concat_tables([pa.ipc.open_file(section).read_all() for section in sections])
    found = {"places": places}
    exec(compile(shown(), str(PAGE), "exec"), found)
    rows = found["rows"]
    assert rows.schema.field("n").type == rows.schema.field("id").type == pa.int64()
    assert sorted(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True)) == [
        (1, 1),
        (2, 300),
        (2**40, -(2**50)),
    ]
