"""Filters on rows, and what each reader calls them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tests.readers.kinds import array_of, python_of, spark_of, sql_of

__all__ = ["COMPARISONS", "Filter", "filters_for", "is_broken", "is_nan", "is_zero"]

COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=")
_ARROW: Final[dict[str, Callable[..., Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class Filter:
    """A condition on one column, or on a field of it.

    Attributes:
        column: Its name.
        op: A comparison, ``null``, ``not null``, ``nan`` or ``in``.
        values: What it is compared with.
        field: Of a structure; empty for the column itself.
    """

    column: str
    op: str
    values: tuple[Any, ...] = ()
    field: str = ""

    def kind(self, schema: pa.Schema) -> pa.DataType:
        """The type that is compared."""
        kind = schema.field(self.column).type
        return kind.field(self.field).type if self.field else kind

    def spark(self, schema: pa.Schema) -> str:
        """The condition in Spark's SQL."""
        path = ".".join("`" + part.replace("`", "``") + "`" for part in (self.column, self.field) if part)
        return self._sql(path, schema, spark_of, "isnan({})")

    def sql(self, schema: pa.Schema) -> str:
        """The condition in the SQL of DataFusion."""
        path = '"' + self.column.replace('"', '""') + '"' + (f"['{self.field}']" if self.field else "")
        return self._sql(path, schema, sql_of, "isnan({})")

    def _sql(self, path: str, schema: pa.Schema, literal: Callable[[Any, pa.DataType], str], nan: str) -> str:
        kind = self.kind(schema)
        if self.op in ("null", "not null"):
            return f"{path} IS {self.op.upper()}"
        if self.op == "nan":
            return nan.format(path)
        given = [literal(value, kind) for value in self.values]
        return f"{path} IN ({', '.join(given)})" if self.op == "in" else f"{path} {self.op} {given[0]}"

    def arrow(self, schema: pa.Schema) -> pc.Expression:
        """The condition as an expression of Arrow."""
        kind = self.kind(schema)
        path = pc.field(self.column, self.field) if self.field else pc.field(self.column)
        if self.op == "null":
            return path.is_null()
        if self.op == "not null":
            return path.is_valid()
        if self.op == "nan":
            return pc.is_nan(path)
        given = array_of(kind, self.values)
        return path.isin(given) if self.op == "in" else _ARROW[self.op](path, given[0])

    def iceberg(self, schema: pa.Schema) -> Any:
        """The condition as an expression of pyiceberg."""
        from pyiceberg import expressions as e

        path = e.Reference(f"{self.column}.{self.field}" if self.field else self.column)
        plain = {"null": e.IsNull, "not null": e.NotNull, "nan": e.IsNaN}
        if self.op in plain:
            return plain[self.op](path)
        given = [python_of(value, self.kind(schema)) for value in self.values]
        if self.op == "in":
            return e.In(path, given)
        classes = (e.EqualTo, e.NotEqualTo, e.LessThan, e.LessThanOrEqual, e.GreaterThan, e.GreaterThanOrEqual)
        return dict(zip(COMPARISONS, classes, strict=True))[self.op](path, given[0])


def filters_for(column: str, kind: pa.DataType, values: Iterable[Any], field: str = "") -> list[Filter]:
    """A filter of every kind for every value of a column."""
    if pa.types.is_struct(kind):
        inner = [value for value in values if value is not None]
        found = [Filter(column, "null"), Filter(column, "not null")]
        for each in kind:
            found += filters_for(column, each.type, [value[each.name] for value in inner], each.name)
        return found
    found = [Filter(column, "null", (), field), Filter(column, "not null", (), field)]
    if pa.types.is_nested(kind):
        return found
    if pa.types.is_floating(kind):
        found.append(Filter(column, "nan", (), field))
    given = {repr(value): value for value in values if value is not None and not is_broken(value)}
    for value in given.values():
        found += [Filter(column, op, (value,), field) for op in COMPARISONS]
    if given:
        found.append(Filter(column, "in", tuple(list(given.values())[:3]), field))
    return found


def is_broken(value: Any) -> bool:
    """Whether a value is text that is no UTF-8, which no reader takes in a filter."""
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def is_nan(value: Any) -> bool:
    """Whether a value is NaN."""
    return isinstance(value, float) and math.isnan(value)


def is_zero(value: Any) -> bool:
    """Whether a value is one of the two zeros."""
    return isinstance(value, float) and value == 0
