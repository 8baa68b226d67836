"""Cases that were found by hand, or drawn once, and went wrong then."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from tests.readers.cases import Case, Step
from tests.readers.filters import Filter
from tests.readers.kinds import nan

__all__ = ["INPUTS"]

_TOP: Final = "\U0010ffff"
_HIVE: Final = "__HIVE_DEFAULT_PARTITION__"


def _written(table: str, kinds: str, *batches: list[tuple[Any, ...]], **more: Any) -> Case:
    """A case without other writers. Columns are called c, d, ... if ``kinds`` does not say."""
    columns = []
    for number, kind in enumerate(kinds.split()):
        name, _, given = kind.rpartition(":")
        columns.append((name or "cdefg"[number], given))
    steps, number = [], 0
    for batch in batches:
        rows = tuple((number + at, *row) for at, row in enumerate(batch, 1))
        number += len(batch)
        steps.append(Step("write", rows))
    return Case(table=table, columns=tuple(columns), steps=tuple(steps), **more)


_PAIRS: Final = [("a", nan), ("a", 1.0), ("b", nan)]
_FLOATS: Final = [(1.0,), (nan,)]

INPUTS: Final[dict[str, Case]] = {
    "an upsert by a key that is NaN": _written("delta", "double", [(nan,), (1.0,)], [(nan,), (1.0,)], key=("c",)),
    "an upsert by a key that holds NaN": _written("delta", "string double", _PAIRS, _PAIRS, _PAIRS, key=("c", "d")),
    "an upsert by both zeros": _written("delta", "double", [(0.0,), (-0.0,)], [(-0.0,)], key=("c",)),
    "an upsert by both zeros into a database": _written("sqlite", "double", [(0.0,), (-0.0,)], [(-0.0,)], key=("c",)),
    "text that cannot be raised": _written("delta", "string", [("x" * 32 + _TOP + "y",)]),
    "text that cannot be raised, in Iceberg": _written("iceberg", "string", [("x" * 32 + _TOP + "y",)]),
    "a name that Delta cannot have": Case("delta", (("a b, c", "string"),), (Step("write", ((1, "a"),)),)),
    "a partition of null and of the empty text": _written(
        "iceberg", "string long:int64", [(None, 1), ("", 2)], partition_by=("c",)
    ),
    "a partition of null and of its marker": _written("iceberg", "string", [(None,), (_HIVE,)], partition_by=("c",)),
    "a partition of the empty text and of the marker": _written(
        "iceberg", "string", [("",), (_HIVE,)], partition_by=("c",)
    ),
    "a partition of NaN": _written("iceberg", "double string", [(nan, "a"), (1.0, "b")], partition_by=("c",)),
    "a partition of a long text": _written("iceberg", "string", [("long" * 1250,)], partition_by=("c",)),
    "a partition of a name with a dot": _written("iceberg", "a.b:string int64", [("a", 1)], partition_by=("a.b",)),
    "a name with a dot": _written("iceberg", "a.b:int64", [(1,), (2,)]),
    "a date by a name with a dot": _written("iceberg", "D.x:date", [(1,), (None,)], partition_by=("D.x",)),
    "a day by a name with a dot": _written("iceberg", "t.s:timestamp", [(1,), (None,)], partition_by=("day(t.s)",)),
    "a timestamp without a zone beside a column without nulls": Case(
        "delta", (("n", "timestamp_ntz"),), (Step("write", ((1, 0),)), Step("write", ((2, None),)))
    ),
    "a renamed column": Case(
        table="iceberg",
        columns=(("n", "int64"),),
        steps=(
            Step("write", ((1, 1),)),
            Step("rename", column="n", value="x"),
            Step("add", column="n", value="int64"),
            Step("write", ((2, 2),)),
        ),
    ),
    "a column dropped and added again": Case(
        table="iceberg",
        columns=(("n", "int64"), ("m", "string")),
        steps=(
            Step("write", ((1, 1, "a"),)),
            Step("drop", column="n"),
            Step("add", column="n", value="int64"),
            Step("write", ((2, 2, "b"),)),
        ),
    ),
    "a warehouse with a number sign": _written("iceberg", "int64", [(1,)], folder="a#b"),
    "a warehouse with a question mark": _written("iceberg", "int64", [(1,)], folder="a?b"),
    "NaN in a file": _written("files", "double", _FLOATS),
    "NaN in Delta": _written("delta", "double float", [(1.0, nan), (nan, 1.0)]),
    "NaN in Iceberg": _written("iceberg", "double float", [(1.0, nan), (nan, 1.0)]),
    "text that is no UTF-8, in Delta": _written("delta", "string", [("a\udcff",)]),
    "text that is no UTF-8, in SQLite": _written("sqlite", "string", [("a\udcff",)]),
    "a moment that Python has not, in Iceberg": _written("iceberg", "timestamp", [(2**62,)]),
    "a moment that Python has not, in Delta": _written("delta", "timestamp", [(2**62,)]),
    "a date that Python has not, in Delta": _written("delta", "date", [(-719163,)]),
    "a table with a name of 64 bytes": _written("postgresql", "int64", [(1,)], target="x" * 64),
    "a column with a name of 80 bytes": _written("postgresql", "é" * 40 + ":int64", [(1,)]),
    "NUL in text": _written("postgresql", "string", [("a\0b",)]),
    "NUL in a list of text": _written("postgresql", "texts", [(["a\0b"],)]),
    "a decimal below zero as a partition": _written(
        "delta", "decimal string", [(Decimal("-0.01"), "a")], partition_by=("c",)
    ),
    "deletes by Spark between upserts": Case(
        table="delta",
        columns=(("c", "double"), ("d", "string")),
        key=("c",),
        steps=(
            Step("write", ((1, nan, "a"), (2, 1.0, "b"))),
            Step("delete", where=Filter("c", "=", (nan,)), spark=True),
            Step("write", ((3, nan, "c"),)),
        ),
    ),
}
"""By what is special about them."""
