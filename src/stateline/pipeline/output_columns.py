"""Whether rows of a changed schema, or of other folders, may go where files are already. Pure.

Rules:
- A column may be added, and one may be left out: readers fill in nulls.
- A column that any file of the folder has keeps its type, also inside structures, lists and maps. Otherwise readers of
  the folder could not read it any more. Nulls may be allowed or not.
- Whole numbers may get more bits, and so may floats: readers that know the wider type read both.
- A column that is there keeps its spelling: some readers ignore case, and others do not.
- Columns of CSV may only be added or left out at the end, because readers find them by position.
- The columns that become folders stay, in their order, whatever the format. Spark takes folders for the table: where
  some tell a column, it reads no file above them, without a word; where they tell different ones, it reads nothing.
- The zone whose clock names folders of timestamps stays: the name tells no zone, so readers could not tell them apart.
- Operators of one pipeline that write into one folder, or one below that of the other, write the same columns: whoever
  reads the folder reads the rows of both.

Each record remembers the columns of its outputs among its properties, by format and folder, and those that became
folders, and their zone, by folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import pyarrow as pa

from stateline.blob.places import is_within
from stateline.checkpoint import Checkpoint
from stateline.checkpoint.envelope import decode_value
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files import FileOutput
from stateline.pipeline.graph import OperatorPlan
from stateline.pipeline.plan import PipelinePlan

__all__ = ["check_columns", "check_folders", "check_shared_folders", "columns_of", "columns_properties"]

_PREFIX: Final = "columns of "
_FOLDERS_PREFIX: Final = "folders of "
_ZONE_PREFIX: Final = "zone of folders of "
_ZONE: Final = "UTC"
"""Of folders of which no record tells the zone."""
_SERVICE_OPTIONS: Final = ("endpoint", "account")
"""Options of stores by which the same URL is another place."""
_WIDER: Final = (("int8", "int16", "int32", "int64"), ("float", "double"))
"""Each type is read as any after it."""


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """The columns of a schema and what is inside them: types by path, such as ``{"a": "list", "a.[]": "int64"}``."""
    return {path: text for field in schema for path, text in _leaves(_escape(field.name), field.type)}


def check_columns(plan: PipelinePlan, newest: Checkpoint, output_urls: Mapping[str, str]) -> None:
    """Checks that the rows of a plan may go where the rows of a record are.

    Raises:
        InvalidInputError: A column has another type there; says which.
        CorruptDataError: What the record remembers of them cannot be read.
    """
    for operator in plan.graph.operators:
        stored = _remembered(newest.properties, _key(operator, output_urls))
        wanted = operator.output_columns
        spellings = {path.lower(): path for path in stored}
        for path, text in wanted.items():
            if path not in stored and path.lower() in spellings:
                raise _refused(operator, f"column {path!r} is called {spellings[path.lower()]!r} there")
            if not _reads(text, stored.get(path, text)):
                raise _refused(operator, f"column {path!r} has the type {stored[path]} there, and {text} now")
        if operator.output is not None and operator.output.form.by_position:
            (old, new) = ([path for path in columns if "." not in path] for columns in (stored, wanted))
            if any(left != right for left, right in zip(old, new, strict=False)):
                reason = f"the columns are {old} there, and {new} now: readers find them by position"
                raise _refused(operator, reason)


def check_folders(plan: PipelinePlan, newest: Checkpoint, output_urls: Mapping[str, str]) -> None:
    """Checks that the files of a plan lie in the same folders as those that are there, and those that are open.

    Raises:
        InvalidInputError: Other columns become folders now, or by the clock of another zone; says which.
        CorruptDataError: What the record remembers of them cannot be read.
    """
    opened = {output.operator: output.url for output in newest.outputs if output.open}
    for operator in plan.graph.operators:
        if operator.output is None or not operator.output_columns:
            continue
        wanted = list(operator.output.partition_by)
        for url in (output_urls.get(operator.name, ""), opened.get(operator.name, "")):
            key = _FOLDERS_PREFIX + url
            text = newest.properties.get(key, json.dumps(wanted))
            subject = f"property {key!r} of the newest checkpoint"
            stored = decode_value(text, list[str], "the folders of the output", subject)
            if stored != wanted:
                raise _refused(operator, f"partition_by is {stored} there, and {wanted} now")
            zone = newest.properties.get(_ZONE_PREFIX + url, _ZONE)
            if key in newest.properties and zone != _zone(operator):
                raise _refused(operator, f"partition_zone is {zone} there, and {_zone(operator)} now")


def check_shared_folders(operators: Sequence[OperatorPlan]) -> None:
    """Checks that operators which share a folder write the same columns into it.

    Raises:
        InvalidInputError: Two do not; names both and their columns.
    """
    for one, other in combinations(operators, 2):
        if one.output is None or other.output is None or not _meet(one.output, other.output):
            continue
        if one.output.partition_by != other.output.partition_by:
            what: tuple[str, object, object] = "partition_by", [*one.output.partition_by], [*other.output.partition_by]
        elif _zone(one) != _zone(other):
            what = "partition_zone", _zone(one), _zone(other)
        elif one.output.format == other.output.format and not _same_columns(one, other):
            what = "columns", _described(one), _described(other)
        else:
            continue
        raise InvalidInputError(
            f"cannot write different {what[0]} into one folder, {one.output.url}: {what[1]} and {what[2]}",
            operation="alongside",
            subject=f"operators {one.name!r} and {other.name!r}",
            hint="Readers of the folder could not tell them apart. Give each operator a folder of its own",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def columns_properties(plan: PipelinePlan, newest: Checkpoint | None, output_urls: Mapping[str, str]) -> dict[str, str]:
    """What the next record remembers: all columns that any file of its outputs may have, and which became folders."""
    kept = (_PREFIX, _FOLDERS_PREFIX, _ZONE_PREFIX)
    found = {} if newest is None else {k: v for k, v in newest.properties.items() if k.startswith(kept)}
    for operator in plan.graph.operators:
        if operator.output_columns:
            key = _key(operator, output_urls)
            found[key] = json.dumps(_remembered(found, key) | dict(operator.output_columns))
            if operator.output is not None:
                url = output_urls.get(operator.name, "")
                found[_FOLDERS_PREFIX + url] = json.dumps(list(operator.output.partition_by))
                if _zone(operator) != _ZONE:
                    found[_ZONE_PREFIX + url] = _zone(operator)
    return found


def _zone(operator: OperatorPlan) -> str:
    """The zone whose clock names the folders of an output; that of all others where no folder is named by a clock."""
    if operator.output is None:
        return _ZONE
    kinds = (operator.output_columns.get(_escape(column), "") for column in operator.output.partition_by)
    return operator.output.partition_zone if any("tz=" in kind for kind in kinds) else _ZONE


def _meet(one: FileOutput, other: FileOutput) -> bool:
    """Whether readers of one output find the files of the other."""
    if any(one.store_options.get(name) != other.store_options.get(name) for name in _SERVICE_OPTIONS):
        return False
    return is_within(one.url, other.url) or is_within(other.url, one.url)


def _same_columns(one: OperatorPlan, other: OperatorPlan) -> bool:
    if one.output_columns != other.output_columns:
        return False
    return (
        one.output is None or not one.output.form.by_position or list(one.output_columns) == list(other.output_columns)
    )


def _described(operator: OperatorPlan) -> list[str]:
    return [f"{path} {text}" for path, text in operator.output_columns.items()]


def _remembered(properties: Mapping[str, str], key: str) -> dict[str, str]:
    subject = f"property {key!r} of the newest checkpoint"
    return decode_value(properties.get(key, "{}"), dict[str, str], "the columns of the output", subject)


def _key(operator: OperatorPlan, output_urls: Mapping[str, str]) -> str:
    form = "" if operator.output is None else operator.output.format
    return f"{_PREFIX}{form} {output_urls.get(operator.name, '')}"


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind):
        yield path, "struct"
        for field in kind:
            yield from _leaves(f"{path}.{_escape(field.name)}", field.type)
    elif pa.types.is_map(kind):
        yield path, "map"
        yield from _leaves(f"{path}.{{key}}", kind.key_type)
        yield from _leaves(f"{path}.{{value}}", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield path, "list"
        yield from _leaves(f"{path}.[]", kind.value_type)
    else:
        yield path, str(kind)


def _reads(wanted: str, stored: str) -> bool:
    """Whether readers of the wanted type can read the stored one."""
    return wanted == stored or any(
        {wanted, stored} <= set(row) and row.index(stored) < row.index(wanted) for row in _WIDER
    )


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace(".", "\\:")


def _refused(operator: OperatorPlan, reason: str) -> InvalidInputError:
    return InvalidInputError(
        reason,
        operation="start",
        subject=f"output of operator {operator.name!r}",
        hint="Readers could not read both in one folder. Go on with what is there, give a changed column another name, "
        "or start a new query with a new output folder",
        kind=ErrorKind.SCHEMA_MISMATCH,
    )
