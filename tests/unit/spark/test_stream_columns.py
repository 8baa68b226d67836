"""Which column a name means, by Spark's rule."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.errors import ErrorKind, InvalidInputError
from stateline.spark.columns.names import StreamColumns, column_of

NAMES = ("Key", "a", "A", "Ä")
SCHEMA = pa.schema([(name, pa.int64()) for name in NAMES])


def test_names_are_found_in_any_spelling_unless_the_session_tells_them_apart():
    columns = StreamColumns(NAMES, case_sensitive=False)
    assert [columns.own(name) for name in ("key", "KEY", "Key", "ä", "other", 7, None)] == [
        *["Key"] * 3, "Ä", "other", 7, None,
    ]  # fmt: skip
    exact = StreamColumns(NAMES, case_sensitive=True)
    assert [exact.own(name) for name in ("key", "Key", "a", "A")] == ["key", "Key", "a", "A"]


@pytest.mark.parametrize("name", ["a", "A"])
def test_of_columns_that_differ_in_case_only_none_can_be_named(name):
    with pytest.raises(InvalidInputError, match=r"'[aA]'.*ambiguous: the stream has \['a', 'A'\]") as caught:
        StreamColumns(NAMES, case_sensitive=False).own(name)
    assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH


def test_a_column_is_known_by_each_name_that_was_given_to_it():
    columns = StreamColumns(NAMES, case_sensitive=False)
    spelled = columns.spelled(SCHEMA, ["key", "KEY", "key", "Key", "nothing", 5])
    assert spelled.names == [*NAMES, "key", "KEY"]
    assert StreamColumns(NAMES, case_sensitive=True).spelled(SCHEMA, ["key"]) == SCHEMA
    assert [column_of(NAMES, name) for name in ("KEY", "a", "A")] == ["Key", "a", "A"]
