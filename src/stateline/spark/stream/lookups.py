"""As-of joins and lookups, from what users say of keyed streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.options import plain_options
from stateline.pipeline.event_time import Duration
from stateline.pipeline.lookups import find_lookup, lookup_in_operator, lookup_url
from stateline.pipeline.operators.asof import AsofProgram
from stateline.pipeline.operators.asof_sides import AsofSide
from stateline.pipeline.operators.lookup import LookupProgram
from stateline.spark.pipeline import Pipeline
from stateline.spark.places import resolved
from stateline.spark.stream.keyed_rows import KeyedRows
from stateline.spark.stream.outputs import StageOutputs

__all__ = ["asof_join_of", "lookup_of"]


def asof_join_of(
    left: KeyedRows,
    right: KeyedRows,
    how: str,
    mode: str,
    suffix: str,
    tolerance: Duration | None,
    deleted: str | None,
) -> AsofProgram:
    """The program of an as-of join; see :meth:`~stateline.spark.stream.keyed_stream.KeyedStream.join_asof`."""
    sides = (AsofSide(rows.keyed_schema, rows.keys, rows.watermark, rows.updates) for rows in (left, right))
    return AsofProgram.bind(
        *sides,
        how=how,
        mode=mode,
        suffix=suffix,
        tolerance=tolerance,
        deleted=None if deleted is None else right.columns.own(deleted),
    )


def lookup_of(
    rows: KeyedRows,
    source: StageOutputs | str,
    operator: str | None,
    columns: Sequence[str] | None,
    how: str,
    suffix: str,
    options: Mapping[str, str] | None,
) -> tuple[LookupProgram, Pipeline | None]:
    """The program of a lookup, and the pipeline of the stage that it looks into.

    See :meth:`~stateline.spark.stream.keyed_stream.KeyedStream.lookup`.
    """
    beside = None
    if isinstance(source, StageOutputs):
        if options is not None:
            raise InvalidInputError(
                "cannot be given: the stage is in this checkpoint",
                operation="lookup",
                subject="options",
                hint="Give them with the URL of another root",
            )
        found, shown = lookup_in_operator(source._operator, operator, columns)  # noqa: SLF001 - of one package
        beside = source._pipeline  # noqa: SLF001 - of one package
    else:
        url = lookup_url(resolved(source, "source", rows.pipeline.session), rows.pipeline.plan.root_url)
        found, shown = find_lookup(url, operator, columns, plain_options(options), system_environment())
    program = LookupProgram.bind(
        rows.keyed_schema,
        rows.keys,
        found,
        shown,
        how=how,
        suffix=suffix,
        event_times=rows.event_times,
        updates=rows.updates,
    )
    return program, beside
