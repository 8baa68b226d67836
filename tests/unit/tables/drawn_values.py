"""Rows of drawn types and values, the odd ones often, and what a table shows of them afterwards.

One rule is asked of every table: a row is refused before a record stands, or its commit succeeds and the table's own
reader shows it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa

from stateline.blob import open_store
from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.graph import Graph
from stateline.pipeline.operators.arrow_function import ArrowFunctionProgram
from stateline.pipeline.plan import PLAIN
from stateline.tables import TableTarget
from stateline.testing import ManualClock
from tests.unit.pipeline.engine import Engine
from tests.unit.tables.table_kit import Place

DAY_US = 86_400_000_000
EVENTS = pa.schema([("e", pa.int64())])
SIGNALLING = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000001))[0]
TEXTS = [b"", b"a", "é漢🦉".encode(), b"a\0b", b"\xff\xfe", b"\xed\xa0\x80", b"x" * 300, b"y" * 5000, b"~", b"%00=/"]
INTS = [0, 1, -1, 127, -128]
FLOATS = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, SIGNALLING, 5e-324, 1.7e308]
DAYS = [0, 19_000, -719_162, -719_163, -719_528, -719_529, 2_932_896, 2_932_897, 2**31 - 1, -(2**31), -2_440_588]
MOMENTS = [0, 1, -1, 2**63 - 2, -(2**63), *(day * DAY_US for day in DAYS), 2_932_897 * DAY_US - 1, 2**62]
DIGITS = [0, 1, -125, 10**9 - 1, 10**9, -(10**20)]
LEAVES: dict[str, pa.DataType] = {
    "text": pa.string(),
    "long_text": pa.large_string(),
    "bytes": pa.binary(),
    "int": pa.int64(),
    "small": pa.int8(),
    "float": pa.float64(),
    "half": pa.float32(),
    "bool": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "decimal": pa.decimal128(9, 2),
}
SHAPES = ("plain", "plain", "plain", "list", "struct", "map", "dictionary")


def drawn_leaf(draw: random.Random, name: str, rows: int, odd: float) -> pa.Array:
    """A column of a type, with a value that is hardly ever seen at a rate of ``odd``."""
    kind = LEAVES[name]

    def pick(values: list[Any]) -> Any:
        return None if draw.random() < 0.1 else draw.choice(values if draw.random() < odd else values[:2])

    if name in ("text", "long_text", "bytes"):
        made = pa.array([pick(TEXTS) for _ in range(rows)], pa.large_binary() if name == "long_text" else pa.binary())
        return made if name == "bytes" else made.view(kind)
    if name in ("int", "small"):
        return pa.array([pick(INTS) for _ in range(rows)], kind)
    if name in ("float", "half"):
        return pa.array(pa.array([pick(FLOATS) for _ in range(rows)], pa.float64()).cast(kind, safe=False))
    if name == "bool":
        return pa.array([pick([True, False]) for _ in range(rows)])
    if name == "day":
        return pa.array([pick(DAYS) for _ in range(rows)], pa.int32()).view(kind)
    if name == "decimal":
        numbers = [pick(DIGITS) for _ in range(rows)]
        data = b"".join((number or 0).to_bytes(16, "little", signed=True) for number in numbers)
        valid = pa.array([number is not None for number in numbers]).buffers()[1]
        return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(data)])
    return pa.array([pick([m for m in MOMENTS if -(2**63) <= m < 2**63]) for _ in range(rows)], pa.int64()).view(kind)


def drawn_column(draw: random.Random, rows: int, odd: float) -> pa.Array:
    """A column, plain or nested."""
    name, shape = draw.choice(list(LEAVES)), draw.choice(SHAPES)
    if shape in ("list", "map"):
        ends = sorted(draw.randint(0, 2 * rows) for _ in range(rows))
        offsets = pa.array([0, *ends], pa.int32())
        inside = drawn_leaf(draw, name, 2 * rows, odd)
        if shape == "list":
            return pa.ListArray.from_arrays(offsets, inside)
        keys = pa.array([f"k{at}" for at in range(2 * rows)])
        return pa.MapArray.from_arrays(offsets, keys, inside)
    leaf = drawn_leaf(draw, name, rows, odd)
    if shape == "struct":
        mask = pa.array([draw.random() < 0.2 for _ in range(rows)])
        return pa.StructArray.from_arrays([leaf, pa.array(range(rows))], ["x", "n"], mask=mask)
    return leaf.dictionary_encode() if shape == "dictionary" and name in ("int", "bool") else leaf


def drawn_key(draw: random.Random, rows: int, odd: float) -> pa.Array:
    """A key, mostly without nulls and repeated values."""
    name = draw.choice(["text", "int", "float", "float", "day", "at", "decimal"])
    for _ in range(40):
        made = drawn_leaf(draw, name, rows, odd)
        if made.null_count == 0 and (name == "float" or len(made.dictionary_encode().dictionary) == rows):
            break
    return made


def drawn_rows(draw: random.Random, *, upsert: bool) -> pa.Table:
    """Rows with a number of their own, a key that tells them apart where there is one, and up to three columns."""
    count = draw.randint(1, 6)
    odd = draw.choice([0.0, 0.2, 1.0])
    columns: dict[str, Any] = {"n": pa.array(range(count))}
    if upsert:
        columns["k"] = drawn_key(draw, count, max(odd, 0.5))
    for number in range(draw.randint(1, 3)):
        columns[f"c{number}"] = drawn_column(draw, count, odd)
    return pa.table(columns).slice(draw.randint(0, 1) if count > 1 else 0)


class Query:
    """A query whose next batch has these rows."""

    def __init__(self, place: Place, target: TableTarget, rows: pa.Table) -> None:
        self.place, self.target, self.rows = place, target, rows

    def run(self) -> None:
        if self.target.takes_files:
            self._run_files()
        else:
            self._run_rows()

    @property
    def is_decided(self) -> bool:
        return self._decided()

    def _run_rows(self) -> None:
        rows = self.rows
        program = ArrowFunctionProgram.bind(
            EVENTS, ["e"], lambda events, state: (rows, None), pa.schema([("s", pa.int64())]), rows.schema
        )
        engine = Engine(program, EVENTS, environment=Environment(clock=ManualClock(1000.0)))
        engine.operator = dataclasses.replace(engine.operator, table=self.target)
        engine.plan = dataclasses.replace(engine.plan, graph=Graph.of_one_input([engine.operator], None))
        self._decided = lambda: engine.coordinator.newest is not None
        engine.restart(parallelism=1)
        engine.run([{"e": 1}])

    def _run_files(self) -> None:
        root, out, environment = open_store(f"memory://{self.place.folder}"), self.place.store(), Environment()
        assert out is not None
        output = FileOutput(
            url=out.url,
            partition_by=self.target.partition_by,
            columns_in_files=self.target.format == "iceberg",
            rolling=RollingPolicy(every_checkpoint=True),
        )
        self._decided = lambda: self._decision(root, out, output, environment).is_decided()
        with self.place.open(output.named(self.rows.schema), self.target) as table:
            table.files_url()
            output = dataclasses.replace(output, file_columns=table.file_columns())
        decision = self._decision(root, out, output, environment)
        made = [decision.stage(self.rows.to_batches())]
        decision.commit(made, batch_id=0, offsets_digest="d", query_id="q")

    def _decision(self, root: Any, out: Any, output: FileOutput, environment: Environment) -> FilesDecision:
        plan = files_plan(root.url, output, PLAIN, schema=self.rows.schema, table=self.target)
        return FilesDecision(plan, root, out, self.rows.schema, environment)


def held_by_rule(
    place: Place, target: TableTarget, rows: pa.Table, read: Any, *, moments_as_numbers: bool = False
) -> str:
    """Run rows through the driver: ``refused``, with no record, or ``shown``, as the table's reader shows them.

    Args:
        place: Where the table is.
        target: The table.
        rows: The rows.
        read: Returns the rows of the table as :func:`plain` makes them, by ``n``.
        moments_as_numbers: Whether it shows dates and timestamps as numbers, where they are not nested.
    """
    query = Query(place, target, rows)
    query._decided = lambda: False
    try:
        query.run()
    except InvalidInputError:
        assert not query.is_decided, f"refused after the record: {rows.schema} {rows}"
        return "refused"
    assert query.is_decided
    expected = expected_rows(rows, target, moments_as_numbers)
    found = read(expected)
    assert set(found) == set(expected), f"{rows.schema}: {found} for {expected}"
    for number, values in expected.items():
        for name, value in values.items():
            assert same(found[number][name], value), f"{name} of {number}: {found[number][name]!r} for {value!r}"
    return "shown"


def expected_rows(rows: pa.Table, target: TableTarget, moments_as_numbers: bool) -> dict[int, dict[str, Any]]:
    """What the table should show: of keys that differ by the sign of zero or the form of NaN, the newest."""
    kept: dict[Any, dict[str, Any]] = {}
    if moments_as_numbers:
        for at, field in enumerate(rows.schema):
            if pa.types.is_temporal(field.type):
                kind = pa.int32() if pa.types.is_date(field.type) else pa.int64()
                rows = rows.set_column(at, field.name, rows[field.name].cast(kind))
    columns = {name: values_of(column) for name, column in zip(rows.column_names, rows.columns, strict=True)}
    for at in range(rows.num_rows):
        row = {name: values[at] for name, values in columns.items()}
        key: Any = at if not target.key else tuple(plain(row[name]) for name in target.key)
        # The log of Delta has one form for null and for the empty text as the value of a partition.
        made = {name: None if name in target.partition_by and value == "" else value for name, value in row.items()}
        kept[repr(key)] = {name: plain(value) for name, value in made.items()}
    return {row["n"]: row for row in kept.values()}


def values_of(column: Any) -> list[Any]:
    """The values of a column; as texts where Python has no such years."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        return column.cast(pa.string()).to_pylist()


def plain(value: Any) -> Any:
    """A value in one form: no difference between zeros, forms of NaN, pairs and maps."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def same(found: Any, value: Any) -> bool:
    """Whether a table shows a value, also as the text that SQLite keeps of it."""
    found = plain(found)
    if isinstance(value, dict) and isinstance(found, dict):
        return set(found) == set(value) and all(same(found[name], each) for name, each in value.items())
    if isinstance(value, list) and isinstance(found, list):
        return len(found) == len(value) and all(same(one, other) for one, other in zip(found, value, strict=True))
    if isinstance(found, str) and isinstance(value, dt.datetime):
        return dt.datetime.fromisoformat(found.removesuffix("Z")) == value
    if isinstance(found, str) and isinstance(value, decimal.Decimal):
        return decimal.Decimal(found) == value
    if isinstance(found, str) and isinstance(value, dt.date):
        return found == value.isoformat()
    return bool(found == value)


def rows_of_arrow(found: pa.Table) -> dict[int, dict[str, Any]]:
    """The rows of a table that a library has read, by ``n``."""
    return {row["n"]: row for row in found.to_pylist()}


def folder_of(tmp_path: Path, number: int) -> Path:
    """A folder of its own for one draw."""
    folder = tmp_path / str(number)
    folder.mkdir()
    return folder
