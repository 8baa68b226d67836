"""How rows become bytes."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from stateline.files.formats import make_encoder


def parquet(*tables: pa.Table) -> bytes:
    sink = io.BytesIO()
    encoder = make_encoder("parquet", sink, tables[0].schema, "snappy", 1000)
    for table in tables:
        encoder.write(table)
    encoder.finish()
    return sink.getvalue()


def test_only_columns_that_repeat_get_a_dictionary():
    rows = 500
    table = pa.table(
        {
            "id": pa.array(range(rows)),
            "name": pa.array([f"n{index % 7}" for index in range(rows)]),
            "none": pa.nulls(rows),
            "a.b": pa.array([f"unique {index}" for index in range(rows)]),
            "nested": pa.array([[{"x": index}] for index in range(rows)]),
        }
    )
    data = parquet(table, table)
    found = pq.read_metadata(io.BytesIO(data)).row_group(0)
    encodings = {found.column(index).path_in_schema: found.column(index).encodings for index in range(5)}
    with_dictionary = {path for path, names in encodings.items() if "RLE_DICTIONARY" in names}
    assert with_dictionary == {"name", "none", "nested.list.element.x"}
    assert pq.read_table(io.BytesIO(data)).equals(pa.concat_tables([table, table]))


def test_a_file_without_rows_is_a_file():
    data = parquet(pa.table({"id": pa.array([], pa.int64())}))
    assert pq.read_table(io.BytesIO(data)).num_rows == 0
