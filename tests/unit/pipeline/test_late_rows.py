"""Which rows are late."""

import pyarrow as pa
import pytest

from stateline.pipeline.late_rows import rows_in_time

AT = pa.timestamp("us", "UTC")


def rows(times):
    return pa.table({"at": pa.chunked_array([pa.array(times[:2], AT), pa.array(times[2:], AT)])})


def test_a_row_is_late_at_or_below_what_is_closed_and_never_without_a_time():
    assert rows_in_time(rows([9, 10, 11, None]), "at", 10).tolist() == [False, False, True, True]


@pytest.mark.parametrize("closed_us", [None, -(2**62), 8])
def test_nothing_is_filtered_where_all_rows_are_in_time(closed_us):
    assert rows_in_time(rows([9, 10, 11, None]), "at", closed_us) is None
    assert rows_in_time(rows([]), "at", closed_us) is None
