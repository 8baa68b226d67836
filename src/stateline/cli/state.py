"""``stateline state``: the rows of keyed state, now or as any retained checkpoint or savepoint holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import click
import pyarrow as pa

from stateline.blob import BlobStore, StoreDecorator, open_store
from stateline.blob.api import Buffer
from stateline.checkpoint import CheckpointStore, CheckpointStoreSettings, resolve_pointer
from stateline.cli.output import (
    CommandGroup,
    json_option,
    plain,
    print_facts,
    print_json,
    print_table,
    progress,
    python_rows,
    store_option,
    target_option,
    value_text,
)
from stateline.errors import AlreadyExistsError, DataLossError, InvalidInputError, NotFoundError, StatelineError
from stateline.files.formats import FORMATS
from stateline.handles import Part
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.sizes import sizes
from stateline.state.changes import changes_of_stored
from stateline.state.plain_values import key_columns
from stateline.state.stored import StoredState

__all__ = ["diff", "export", "get", "ls", "state"]

_COLUMNS: Final = {
    "operator": "operator",
    "checkpoint": "checkpoint_id",
    "subtasks": "subtasks",
    "runs": "runs",
    "rows": "stored_rows",
    "bytes": "bytes",
    "state": "state",
}
_ROW_GROUP_ROWS: Final = 1_048_576

_operator_option = click.option("--operator", help="Name of the operator; not needed where there is one only.")


@click.group(cls=CommandGroup)
def state() -> None:
    """Read keyed state as data. Never disturbs a running query.

    POINTER is a checkpoint root (its newest checkpoint), ROOT/chk-ID for any retained one, or the folder of a
    savepoint, on any store.
    """


@state.command("ls")
@click.argument("pointer")
@json_option
@store_option
def ls(pointer: str, options: dict[str, str], *, as_json: bool) -> None:
    """List the operators with state: their keys, values and size.

    "rows" counts stored rows, old versions and deletions included.
    """
    snapshot = resolve_pointer(pointer, options=options)
    facts, schemas = [], []
    for operator in snapshot.checkpoint.operators:
        schema = StoredState.of(snapshot.store, snapshot.checkpoint, operator.name).schema
        schemas.append(schema)
        runs = {run.identity: run for subtask in operator.subtasks for run in subtask.runs}.values()
        facts.append(
            {
                "operator": operator.name,
                "keys": {field.name: str(field.type) for field in schema.keys},
                "values": {field.name: str(field.type) for field in schema.values},
                "subtasks": len(operator.subtasks),
                "runs": len(runs),
                "stored_rows": sum(run.rows for run in runs),
                "bytes": sum(run.length for run in runs),
                "checkpoint_id": snapshot.checkpoint.checkpoint_id,
            }
        )
    if not as_json:
        facts = [fact | {"state": str(schema)} for fact, schema in zip(facts, schemas, strict=True)]
    print_facts(facts, _COLUMNS, as_json=as_json)


@state.command("get")
@click.argument("pointer")
@click.argument("key", nargs=-1, required=True)
@_operator_option
@json_option
@store_option
@click.pass_context
def get(
    context: click.Context,
    pointer: str,
    key: tuple[str, ...],
    operator: str | None,
    options: dict[str, str],
    *,
    as_json: bool,
) -> None:
    r"""Print the row of one KEY: one value per key column, in their order.

    Where several rows have one grouping key, as the elements of a list or the rows of a join have, the values of the
    sub-key may be left out, for all these rows. \N means null, \\N the text \N; binary is given as base64; -- goes
    before a value that begins with a dash. Fetches only the parts of the state that may hold the key. Exits with 1 if
    the key is not there.
    """
    snapshot = resolve_pointer(pointer, options=options)
    stored = StoredState.of(snapshot.store, snapshot.checkpoint, operator)
    columns = key_columns(stored.schema, key)
    with _naming_who_needs_it(stored):
        rows = python_rows(stored.reader().get(stored.whole(), columns))
    if not rows:
        click.echo(f"There is no such key in checkpoint {stored.checkpoint_id}", err=True)
    if as_json:
        for row in rows:
            print_json(row)
    elif len(rows) == 1:
        print_table(("column", "value"), [(name, value_text(value)) for name, value in rows[0].items()])
    elif rows:
        print_table(list(rows[0]), [[value_text(value) for value in row.values()] for row in rows])
    context.exit(0 if rows else 1)


@state.command("diff")
@click.argument("before")
@click.argument("after")
@_operator_option
@click.option("--limit", type=click.IntRange(min=0), help="Stop after so many rows.")
@json_option
@store_option
def diff(
    before: str, after: str, operator: str | None, limit: int | None, options: dict[str, str], *, as_json: bool
) -> None:
    """Print what happened to each key from BEFORE to AFTER, two checkpoints of one root, in any order.

    The first column is insert, update_before, update_after or delete. A key that has the same values in both is not
    printed, whatever happened to it in between.
    """
    snapshots = [resolve_pointer(pointer, options=options) for pointer in (before, after)]
    newer = max(snapshots, key=lambda snapshot: snapshot.checkpoint.checkpoint_id)
    named = StoredState.of(newer.store, newer.checkpoint, operator)
    old, new = (named.in_record(snapshot.store, snapshot.checkpoint) for snapshot in snapshots)
    if old.store.url != new.store.url or old.max_parallelism != new.max_parallelism:
        raise InvalidInputError(
            "cannot compare checkpoints of different roots, or with different key groups",
            operation="diff",
            subject=f"{before} and {after}",
            hint="Give two checkpoints of one root; export others and compare the files",
        )
    rows = _changes(old, new)
    for number, row in enumerate(rows):
        if limit is not None and number >= limit:
            return
        if as_json:
            print_json(row)
        else:
            change, *values = row.items()
            click.echo("  ".join([f"{change[1]:<13}", *(f"{plain(name)}={_field(value)}" for name, value in values)]))


@state.command("export")
@click.argument("pointer")
@click.argument("target")
@_operator_option
@click.option("--format", "format_", type=click.Choice(list(FORMATS)), help="Default: what the ending of TARGET says.")
@click.option("--columns", help="Only these, comma-separated.")
@target_option
@json_option
@store_option
def export(
    pointer: str,
    target: str,
    operator: str | None,
    format_: str | None,
    columns: str | None,
    target_options: dict[str, str],
    options: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Write all rows into one new file, TARGET, on any store.

    The file appears whole or not at all, and an existing one is never overwritten.
    """
    chosen = format_ or target.rpartition(".")[2]
    if chosen not in FORMATS:
        raise click.BadParameter(f"give one of {', '.join(FORMATS)}", param_hint="--format")
    form = FORMATS[chosen]
    snapshot = resolve_pointer(pointer, options=options)
    stored = StoredState.of(snapshot.store, snapshot.checkpoint, operator)
    names = columns.split(",") if columns else stored.schema.row.names
    if len(set(names)) < len(names):
        raise click.BadParameter("a column is named twice", param_hint="--columns")
    reader = stored.reader()
    slices = stored.slices(max(stored.stored_rows // sizes().feed_rows, 1))
    folder, _, name = target.rpartition("/")
    settings = {
        key: target_options.pop(key) for key in RecoverableWriterSettings.option_names() & target_options.keys()
    }
    store = _Remembering(open_store(folder or ".", target_options))
    writer = RecoverableWriter(store, RecoverableWriterSettings.from_options(settings))
    _check_absent(store, name, target)
    rows = 0
    with (
        _naming_who_needs_it(stored),
        progress("exporting", hidden=as_json) as tell,
        _leaving_nothing(store),
        writer.open(name) as stream,
    ):
        schema = reader.columns_schema(names)
        form.check_schema(schema, for_spark=False)  # Whoever exports state need not read it with Spark.
        encoder = form.encoder(stream, schema, "snappy" if chosen == "parquet" else None, _ROW_GROUP_ROWS)
        try:
            for done, part in enumerate(slices, start=1):
                table = pa.Table.from_batches(reader.scan(part, names), schema=schema)
                if form.of_lines:  # The others hold whatever Arrow does.
                    form.check_rows(table)
                encoder.write(table)
                rows += table.num_rows
                tell(done, len(slices))
        finally:
            encoder.finish()  # After a failure, too: one that is thrown away writes when the stream is closed.
        stream.close_for_commit().commit()
    if as_json:
        print_json({"target": target, "rows": rows, "checkpoint_id": stored.checkpoint_id})
    else:
        click.echo(f"{rows:,} rows of checkpoint {stored.checkpoint_id} written to {plain(target)}")


def _check_absent(store: BlobStore, name: str, target: str) -> None:
    """Finds out before the work what the publication would refuse after it."""
    try:
        store.head(name)
    except NotFoundError:
        return
    raise AlreadyExistsError(
        "the file exists already", operation="export", subject=target, hint="Give another name: nothing is overwritten"
    )


class _Remembering(StoreDecorator):
    """Remembers the pieces of files that it was given."""

    def __init__(self, inner: BlobStore) -> None:
        super().__init__(inner)
        self.pieces: list[Part] = []

    def stage(self, target: str, data: Buffer) -> Part:
        piece = self.inner.stage(target, data)
        self.pieces.append(piece)
        return piece


@contextmanager
def _leaving_nothing(store: _Remembering) -> Iterator[None]:
    """Deletes the pieces of a file that will never be published: no root names them, so no sweep of a root would."""
    try:
        yield
    except BaseException:
        with suppress(StatelineError):  # What ended the work is what the user must hear of.
            store.discard(store.pieces)
        raise


def _changes(old: StoredState, new: StoredState) -> Iterator[Mapping[str, Any]]:
    with _naming_who_needs_it(old), _naming_who_needs_it(new):
        for batch in changes_of_stored(old, new):
            yield from python_rows(batch)


def _field(value: object) -> str:
    return plain(value_text(value))


@contextmanager
def _naming_who_needs_it(stored: StoredState) -> Iterator[None]:
    """Adds to the error of a missing object the retained checkpoints that need it."""
    try:
        yield
    except DataLossError as error:
        needed = ", ".join(map(str, _needed_by(stored, error.subject or ""))) or str(stored.checkpoint_id)
        raise DataLossError(
            f"{error.message}: checkpoint {needed}",
            operation=error.operation,
            subject=f"{stored.store.url}/{error.subject}",
            hint=error.hint,
        ) from error


def _needed_by(stored: StoredState, name: str) -> list[int]:
    try:
        records = CheckpointStore(stored.store, settings=CheckpointStoreSettings(allow_older=True)).list()
    except StatelineError:
        return []
    return [record.checkpoint_id for record in records if name in record.object_names()]
