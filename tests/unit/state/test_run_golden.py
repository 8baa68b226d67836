"""Runs written by released formats are read for ever. ``python tests/unit/state/test_run_golden.py`` writes new ones.

Never rewrite a file that is committed: add one for a new version instead.
"""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange
from stateline.state.keys import group_rows, key_rows
from stateline.state.rows import StateRows
from stateline.state.run import RunSettings, check_slice, check_whole, decode_batches, encode_run, read_index
from stateline.state.runs import Run
from stateline.state.schema import StateSchema

FOLDER = Path(__file__).parents[2] / "golden" / "run"
MAX_PARALLELISM = 8
D = decimal.Decimal
SCHEMA = StateSchema(
    pa.schema([("name", pa.string()), ("day", pa.date32())]),
    pa.schema(
        [
            ("n", pa.int64()),
            ("mean.sum", pa.float64()),
            ("total", pa.decimal128(20, 2)),
            ("seen", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
        ]
    ),
)
DAY = dt.date(2013, 1, 1)
SEEN = dt.datetime(2013, 1, 1, 12, 30, 0, 123456, tzinfo=dt.UTC)
ROWS: dict[tuple[Any, ...], tuple[Any, ...]] = {
    ("N14228", DAY): (111, 11.5, D("2.00"), SEEN, ["EWR", None]),
    ("N24211", DAY): (130, float("inf"), D("-0.01"), SEEN, []),
    ("N24211", None): (1, None, None, None, None),
    (None, DAY): (2512, -0.5, D(10) ** 17, SEEN, ["é"]),
    ("", dt.date(1950, 12, 31)): (0, 0.0, D("0.00"), dt.datetime(1950, 1, 1, tzinfo=dt.UTC), ["", "x" * 40]),
    **{(f"N{number:05d}", DAY): (number, float(number), D(number), SEEN, [str(number)]) for number in range(40)},
}
NAMES = ["run.v2", "run_zstd.v2"]
DELETED = [("gone", DAY), (None, None)]


def load(name: str) -> tuple[pa.Buffer, RunHandle]:
    handle = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=RunHandle)
    return pa.py_buffer((FOLDER / f"{name}.arrow").read_bytes()), handle


def as_rows(batches: list[StateRows]) -> tuple[dict[tuple[Any, ...], tuple[Any, ...]], list[tuple[Any, ...]]]:
    live, deleted = {}, []
    for batch in batches:
        keys = zip(*(column.to_pylist() for column in batch.keys.columns), strict=True)
        values = zip(*(column.to_pylist() for column in batch.values), strict=True)
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if batch.deleted is not None and batch.deleted[row]:
                deleted.append(key)
            else:
                live[key] = value
    return live, sorted(deleted, key=str)


@pytest.mark.parametrize("name", NAMES)
def test_a_released_run_is_read(name: str) -> None:
    buffer, handle = load(name)
    check_whole(buffer, handle)
    index = read_index(buffer, handle)
    assert index.max_parallelism == MAX_PARALLELISM
    assert len(index.batches) > 1
    assert as_rows(decode_batches(buffer, handle, SCHEMA, index, range(len(index.batches)))) == (
        ROWS,
        sorted(DELETED, key=str),
    )


@pytest.mark.parametrize("name", NAMES[:1])
def test_a_slice_of_a_released_run_is_read(name: str) -> None:
    buffer, handle = load(name)
    index = read_index(buffer, handle)
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for group in range(MAX_PARALLELISM):
        part = KeyGroupRange(group, group)
        batches = index.covering(part)
        check_slice(buffer, handle, index, batches)
        visible = Run(decode_batches(buffer, handle, SCHEMA, index, batches), part, MAX_PARALLELISM)
        live, _ = as_rows(list(visible.batches))
        assert not found.keys() & live.keys()
        found |= live
    assert found == ROWS


def write(name: str, compression: str) -> None:
    names = [*ROWS, *DELETED]
    nothing = (None,) * len(SCHEMA.values)
    values = [*ROWS.values(), *([nothing] * len(DELETED))]
    columns = [pa.array([key[i] for key in names], field.type) for i, field in enumerate(SCHEMA.keys)]
    groups = group_rows(key_rows(SCHEMA, columns))
    order = pa.array(groups.order)
    rows = StateRows(
        groups.keys,
        tuple(pa.array([row[i] for row in values], field.type).take(order) for i, field in enumerate(SCHEMA.values)),
        groups.order >= len(ROWS),
    )
    everything = KeyGroupRange(0, MAX_PARALLELISM - 1)
    settings = RunSettings(batch_rows=16, compression=compression)
    encoded = encode_run(Run([rows], everything, MAX_PARALLELISM), SCHEMA, MAX_PARALLELISM, settings)
    handle = RunHandle(
        name=f"shared/{name}.arrow",
        offset=0,
        length=len(encoded.data),
        crc32c=encoded.crc32c,
        rows=encoded.rows,
        tombstones=encoded.tombstones,
        first_key_group=0,
        last_key_group=MAX_PARALLELISM - 1,
        checkpoint_id=12,
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.arrow").write_bytes(encoded.data)
    (FOLDER / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(handle), indent=2) + b"\n")


if __name__ == "__main__":
    for name in NAMES:
        if not (FOLDER / f"{name}.arrow").exists():
            write(name, "zstd" if "zstd" in name else "none")
