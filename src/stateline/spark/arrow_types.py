"""Spark's schemas as Arrow schemas.

Facts:
- Spark hands timestamps to Python in the time zone of the session. The instant does not depend on it, so schemas here
  always say UTC, and what is stored does not change with a setting of the session.
- The converter of PySpark takes the zone since 4.2; before, it says UTC by itself.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stateline.errors import ErrorKind, InvalidInputError

__all__ = ["arrow_schema"]

_ZONE: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of rows of a Spark schema.

    Raises:
        InvalidInputError: A column of a type that has no form in Arrow.
    """
    try:
        return to_arrow_schema(schema, **_ZONE)
    except PySparkException as error:
        raise InvalidInputError(
            f"a column has no form in Arrow ({error})",
            subject="schema",
            hint="Drop or convert the column",
            kind=ErrorKind.SCHEMA_MISMATCH,
        ) from error
