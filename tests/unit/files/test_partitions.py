"""Partition values become folder names that cannot escape and do not meet."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.blob.names import check_name
from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.files.partitions import NULL_PARTITION, is_abbreviated, partition_folder


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("EWR", "c=EWR"),
        ("../x", "c=..%2Fx"),
        ("a/b", "c=a%2Fb"),
        ("..", "c=.."),
        ("50%", "c=50%25"),
        ("a=b:c", "c=a%3Db%3Ac"),
        ("tab\there", "c=tab%09here"),
        ("Zürich 東京", "c=Zürich 東京"),
        (None, f"c={NULL_PARTITION}"),
        ("", f"c={NULL_PARTITION}"),
        (7, "c=7"),
        (True, "c=true"),
        (0.5, "c=0.5"),
        (float("nan"), "c=NaN"),
        (float("-inf"), "c=-Infinity"),
        (decimal.Decimal("1E+2"), "c=100"),
        (dt.date(2013, 1, 1), "c=2013-01-01"),
        (dt.datetime(2013, 1, 1, 5, 0, 0), "c=2013-01-01 05%3A00%3A00"),
        (dt.datetime(2013, 1, 1, 5, 0, 0, 250000), "c=2013-01-01 05%3A00%3A00.25"),
    ],
)
def test_values_are_written_as_spark_reads_them(value, folder):
    assert partition_folder(["c"], [value]) == folder
    check_name(folder + "/part-0.parquet")


def test_several_columns_nest_in_order():
    assert partition_folder(["a", "b"], [1, "x"]) == "a=1/b=x"
    assert partition_folder([], []) == ""


def test_a_value_too_long_for_a_folder_is_abbreviated_and_stays_distinct():
    one, other = "x" * 300, "x" * 299 + "y"
    folders = {partition_folder(["c"], [value]) for value in (one, other)}
    assert len(folders) == 2
    assert all(len(folder.encode()) <= 255 for folder in folders)
    assert is_abbreviated(["c"], [one])
    assert not is_abbreviated(["c"], ["x" * 200])


def test_a_column_whose_name_leaves_no_room_for_a_value_is_refused():
    """The folder would not begin with ``name=``, and no reader would find its files."""
    for name in ("x" * 221, "ü" * 110 + "x", "%" * 73 + "xx"):
        kind = pa.schema([(name, pa.string()), ("v", pa.int64())])
        FileOutput(url="unused", partition_by=(name,)).file_schema(kind)
        assert partition_folder([name], ["v" * 300]).partition("~")[0].endswith("=")
        longer = pa.schema([(name + "x", pa.string()), ("v", pa.int64())])
        with pytest.raises(InvalidInputError, match="leaves no room for a value"):
            FileOutput(url="unused", partition_by=(name + "x",)).file_schema(longer)


@given(st.text(max_size=400), st.text(max_size=400))
def test_different_values_never_share_a_folder_and_every_folder_is_a_legal_name(left, right):
    folders = [partition_folder(["c"], [value]) for value in (left, right)]
    for folder in folders:
        check_name(folder)
        assert folder.count("/") == 0
    assert (folders[0] == folders[1]) == ((left or None) == (right or None))
