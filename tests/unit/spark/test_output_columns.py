"""Which changes of a schema the folder of an output stands."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.checkpoint import Checkpoint, OutputState
from stateline.errors import CorruptDataError, ErrorKind, InvalidInputError
from stateline.files import FileOutput
from stateline.handles import OpenFile
from stateline.pipeline.compatibility import check_plan
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.output_columns import (
    check_columns,
    check_folders,
    check_shared_folders,
    columns_of,
    columns_properties,
)
from stateline.pipeline.plan import PipelinePlan
from stateline.spark.pipeline import Pipeline
from tests.unit.pipeline.records import record

HERE = {"files": "file:///out"}
ELSEWHERE = {"files": "file:///other"}
LONG, TEXT = pa.int64(), pa.string()


def plan(schema: pa.Schema, name: str = "parquet", partition_by: tuple[str, ...] = ()) -> PipelinePlan:
    output = FileOutput(url="file:///out", format=name, partition_by=partition_by)
    operator = OperatorPlan(name="files", tables={}, definition="", output=output, output_columns=columns_of(schema))
    return PipelinePlan(
        root_url="memory://root", parallelism=1, max_parallelism=1, graph=Graph.of_one_input([operator])
    )


def after(*schemas: pa.Schema, name: str = "parquet") -> Checkpoint:
    """The record after rows of these schemas were written, one after the other."""
    newest = None
    for schema in schemas:
        newest = record(properties=columns_properties(plan(schema, name), newest, HERE))
    assert newest is not None
    return newest


def allowed(newest: Checkpoint, schema: pa.Schema, name: str = "parquet", folder: dict[str, str] = HERE) -> bool:
    try:
        check_columns(plan(schema, name), newest, folder)
    except InvalidInputError as error:
        return error.kind is not ErrorKind.SCHEMA_MISMATCH
    return True


def test_columns_may_be_added_and_left_out_and_may_be_null():
    newest = after(pa.schema([("a", LONG), ("b", TEXT)]))
    assert allowed(newest, pa.schema([("b", TEXT), ("a", LONG), ("c", TEXT)]))
    assert allowed(newest, pa.schema([("b", TEXT)]))
    assert allowed(newest, pa.schema([pa.field("a", LONG, nullable=False)]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LONG, pa.int32()),
        (LONG, TEXT),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.list_(LONG), pa.list_(TEXT)),
        (pa.list_(LONG), LONG),
        (pa.struct([("x", LONG)]), pa.struct([("x", TEXT)])),
        (pa.map_(TEXT, LONG), pa.map_(TEXT, pa.list_(LONG))),
    ],
)
def test_a_column_keeps_its_type(old, new):
    newest = after(pa.schema([("a", old)]))
    assert allowed(newest, pa.schema([("a", old)]))
    assert not allowed(newest, pa.schema([("a", new)]))
    assert not allowed(after(pa.schema([("a", old)]), pa.schema([("b", LONG)])), pa.schema([("a", new)])), "for ever"


def test_numbers_may_get_more_bits_and_never_less():
    newest = after(pa.schema([("a", pa.int16()), ("f", pa.list_(pa.float32()))]))
    wide = pa.schema([("a", LONG), ("f", pa.list_(pa.float64()))])
    assert allowed(newest, wide)
    assert not allowed(after(pa.schema([("a", pa.int16())]), wide), pa.schema([("a", pa.int16())]))
    assert not allowed(newest, pa.schema([("a", pa.float64())]))


def test_fields_of_structures_may_be_added():
    assert allowed(
        after(pa.schema([("a", pa.list_(pa.struct([("x", LONG)])))])),
        pa.schema([("a", pa.list_(pa.struct([("y", TEXT), ("x", LONG)])))]),
    )


def test_a_dot_in_a_name_is_no_structure():
    assert allowed(after(pa.schema([("a.b", LONG)])), pa.schema([("a", pa.struct([("b", TEXT)]))]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.field("Delay", LONG), pa.field("delay", TEXT)),
        (pa.field("Delay", LONG), pa.field("delay", LONG)),
        (pa.field("a", pa.list_(pa.struct([("X", LONG)]))), pa.field("a", pa.list_(pa.struct([("x", TEXT)])))),
    ],
)
@pytest.mark.parametrize("name", ["parquet", "jsonl", "csv"])
def test_a_column_keeps_its_spelling_because_not_every_reader_tells_cases_apart(old, new, name):
    newest = after(pa.schema([old]), name=name)
    assert allowed(newest, pa.schema([old]), name)
    assert not allowed(newest, pa.schema([new]), name)
    both = after(pa.schema([("Delay", LONG)]), pa.schema([("delay", LONG)]), name=name)
    assert allowed(both, pa.schema([("Delay", LONG)]), name), "who has both already goes on"


def test_csv_tells_columns_by_position():
    newest = after(pa.schema([("a", LONG), ("b", TEXT)]), name="csv")
    assert allowed(newest, pa.schema([("a", LONG), ("b", TEXT), ("c", TEXT)]), "csv")
    assert allowed(newest, pa.schema([("a", LONG)]), "csv")
    assert not allowed(newest, pa.schema([("b", TEXT)]), "csv")
    assert not allowed(newest, pa.schema([("b", TEXT), ("a", LONG)]), "csv")


def test_another_folder_another_format_and_old_records_have_no_say():
    text = pa.schema([("a", TEXT)])
    newest = after(pa.schema([("a", LONG)]))
    assert not allowed(newest, text)
    assert allowed(newest, text, folder=ELSEWHERE)
    assert allowed(newest, text, "arrow")
    assert allowed(record(), text)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": "\ud800"}'])
def test_a_memory_that_cannot_be_read_is_told(text: str) -> None:
    schema = pa.schema([("a", LONG)])
    [key] = [key for key in after(schema).properties if key.startswith("columns of")]
    newest = record(properties={key: text})
    with pytest.raises(CorruptDataError, match="the columns of the output cannot be read"):
        check_columns(plan(schema), newest, HERE)
    with pytest.raises(CorruptDataError):
        columns_properties(plan(schema), newest, HERE)


DAYS = pa.schema([("id", LONG), ("day", TEXT), ("hour", LONG)])


def in_folders(*columns: str, opened: bool = False) -> Checkpoint:
    """The record after files were written in folders of these columns."""
    file = OpenFile(target="f", subtask=0, layout="0", opened_at=0, written_at=0, rows=1, bytes=1, pending=())
    output = OutputState(operator="files", url=HERE["files"], finished=(), open=(file,) if opened else ())
    return record(outputs=(output,), properties=columns_properties(plan(DAYS, partition_by=columns), None, HERE))


@pytest.mark.parametrize("now", [(), ("hour",), ("day", "hour"), ("hour", "day")])
@pytest.mark.parametrize("name", ["parquet", "csv"])
def test_folders_stay_as_they_are(now: tuple[str, ...], name: str) -> None:
    newest = in_folders("day")
    check_folders(plan(DAYS, name, ("day",)), newest, HERE)
    with pytest.raises(InvalidInputError, match=r"partition_by is \['day'\] there"):
        check_folders(plan(DAYS, name, now), newest, HERE)
    with pytest.raises(InvalidInputError, match=r"partition_by is \[\] there, and \['day'\] now"):
        check_folders(plan(DAYS, name, ("day",)), in_folders(), HERE)


def test_another_output_may_have_other_folders_unless_open_files_go_on_there() -> None:
    check_folders(plan(DAYS), in_folders("day"), ELSEWHERE)
    with pytest.raises(InvalidInputError, match=r"partition_by is \['day'\] there"):
        check_folders(plan(DAYS), in_folders("day", opened=True), ELSEWHERE)


def test_who_only_finishes_files_need_not_know_their_folders() -> None:
    newest, finishing = in_folders("day", opened=True), plan(pa.schema([]))
    check_folders(finishing, newest, HERE)
    assert columns_properties(finishing, newest, HERE) == newest.properties


def test_a_memory_of_folders_that_cannot_be_read_is_told() -> None:
    [key] = [key for key in in_folders().properties if key.startswith("folders of")]
    with pytest.raises(CorruptDataError, match="the folders of the output cannot be read"):
        check_folders(plan(DAYS), record(properties={key: "{"}), HERE)


def test_open_files_in_another_folder_are_refused_with_both_and_told_how_to_go_on_there():
    schema = pa.schema([("a", LONG)])
    file = OpenFile(target="part-1.parquet", subtask=0, layout="l", opened_at=0.0, written_at=0.0, rows=1, bytes=8)
    there = OutputState(operator="files", url="file:///other", open=(file,))
    newest = record(outputs=(there,), properties=columns_properties(plan(schema), None, ELSEWHERE))
    check_plan(plan(schema), newest, ELSEWHERE)
    with pytest.raises(
        InvalidInputError, match=r"file:///other.*file:///out.*relocate \S+ --output files=file:///out`"
    ):
        check_plan(plan(schema), newest, HERE)
    check_plan(plan(schema), record(outputs=(OutputState(operator="files", url="file:///other"),)), HERE)


def writing(name: str, url: str, *fields: tuple[str, pa.DataType], **output: object) -> OperatorPlan:
    columns = columns_of(pa.schema(fields))
    place = FileOutput(url=url, **output)
    return OperatorPlan(name=name, tables={}, definition="", output=place, output_columns=columns)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/out", "/data/out"),
        ("/data/out", "/data/out/"),
        ("/data/out", "file:///data/out"),
        ("file:///data/out", "file:/data//x/../out/"),
        ("file:///data/my%20out", "/data/my out"),
        ("/data/out", "/data/out/hourly"),
        ("s3://bucket/out", "s3a://bucket/out/"),
        ("s3://bucket", "s3://bucket/out"),
        ("abfss://c@account.dfs.core.windows.net/out", "az://c/out"),
    ],
)
def test_operators_that_write_different_columns_into_one_folder_are_refused_however_it_is_spelled(one, other):
    first, second = writing("by_k", one, ("k", LONG), ("n", LONG)), writing("by_j", other, ("j", TEXT), ("n", LONG))
    message = r"'by_k' and 'by_j'.*\['k int64', 'n int64'\] and \['j string', 'n int64'\].*folder of its own"
    with pytest.raises(InvalidInputError, match=message) as caught:
        check_shared_folders([first, writing("elsewhere", "/other", ("x", LONG)), second])
    assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH
    with pytest.raises(InvalidInputError, match="'by_j' and 'by_k'"):
        check_shared_folders([second, first])
    check_shared_folders([first, writing("same", other, ("n", LONG), ("k", LONG))])


def test_a_folder_behind_a_link_is_the_same_folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    operators = [
        writing("a", str(tmp_path / "link"), ("k", LONG)),
        writing("b", f"file://{tmp_path}/out/x", ("j", LONG)),
    ]
    with pytest.raises(InvalidInputError, match="'a' and 'b'"):
        check_shared_folders(operators)


def test_other_folders_other_services_and_other_formats_may_have_other_columns():
    k, j = ("k", LONG), ("j", LONG)
    for one, other in (
        (writing("a", "/out", k), writing("b", "/output", j)),
        (writing("a", "/out", k), writing("b", "s3://out", j)),
        (writing("a", "/out", k), writing("b", "/out", j, format="jsonl")),
        (writing("a", "s3://b/x", k, store_options={"endpoint": "http://one"}), writing("b", "s3://b/x", j)),
        (writing("a", "/out", k), OperatorPlan(name="b", tables={}, definition="")),
    ):
        assert check_shared_folders([one, other]) is None, "nothing is refused"


def test_other_columns_of_folders_and_another_order_in_csv_are_refused_too():
    k, j = ("k", LONG), ("j", LONG)
    with pytest.raises(InvalidInputError, match=r"different partition_by.*\['k'\] and \[\]"):
        check_shared_folders([writing("a", "/out", k, j, partition_by=("k",)), writing("b", "/out", k, j)])
    with pytest.raises(InvalidInputError, match="different columns"):
        check_shared_folders([writing("a", "/out", k, j, format="csv"), writing("b", "/out", j, k, format="csv")])


def test_two_pipelines_are_refused_where_they_are_put_together():
    stream = object()

    def pipeline(operator: OperatorPlan) -> Pipeline:
        graph = Graph.of_one_input([operator])
        whole = PipelinePlan(root_url="/state", parallelism=1, max_parallelism=1, graph=graph)
        return Pipeline(whole, {operator.name: stream}, {operator.name: object()})

    first = pipeline(writing("by_k", "/data/out", ("k", LONG)))
    with pytest.raises(InvalidInputError, match=r"alongside operators 'by_k' and 'by_j'"):
        first.alongside(pipeline(writing("by_j", "file:///data/out/", ("j", LONG))))
    both = first.alongside(pipeline(writing("by_j", "/data/out", ("k", LONG))))
    with pytest.raises(InvalidInputError, match=r"alongside operators 'by_k' and 'third'"):
        both.alongside(pipeline(writing("third", "/data", ("k", TEXT))))


def test_the_zone_of_folders_stays_where_a_folder_is_named_by_a_clock():
    moment, day = ("at", pa.timestamp("us", "UTC")), ("day", pa.date32())

    def zoned(column: str, zone: str) -> PipelinePlan:
        operator = writing(
            "files", "file:///out", moment, day, ("x", LONG), partition_by=(column,), partition_zone=zone
        )
        return PipelinePlan(
            root_url="memory://root", parallelism=1, max_parallelism=1, graph=Graph.of_one_input([operator])
        )

    for before, after_it in (("UTC", "Europe/Berlin"), ("Europe/Berlin", "UTC"), ("Asia/Tokyo", "Europe/Berlin")):
        newest = record(properties=columns_properties(zoned("at", before), None, HERE))
        check_folders(zoned("at", before), newest, HERE)
        check_folders(zoned("at", after_it), newest, ELSEWHERE)
        with pytest.raises(InvalidInputError, match=f"partition_zone is {before} there, and {after_it} now"):
            check_folders(zoned("at", after_it), newest, HERE)
        later = record(properties=columns_properties(zoned("at", before), newest, ELSEWHERE))
        with pytest.raises(InvalidInputError, match="partition_zone"):
            check_folders(zoned("at", after_it), later, HERE)
        days = record(properties=columns_properties(zoned("day", before), None, HERE))
        check_folders(zoned("day", after_it), days, HERE)
    properties = columns_properties(zoned("at", "UTC"), None, HERE)
    assert not any("zone" in key for key in properties), "a program of before reads the record"
    with pytest.raises(InvalidInputError, match="partition_zone"):
        check_shared_folders([*zoned("at", "UTC").graph.operators, *zoned("at", "Asia/Tokyo").graph.operators])
