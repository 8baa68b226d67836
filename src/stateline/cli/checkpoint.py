"""``stateline checkpoint``: the checkpoints of a root, one of them in detail, and whether all is intact."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import click
import msgspec
import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.blob.checksum import crc32c
from stateline.checkpoint import (
    Checkpoint,
    CheckpointStore,
    CheckpointStoreSettings,
    Finding,
    InputState,
    OperatorState,
    OutputState,
    Problem,
    Relocation,
    VerifyReport,
    locate,
    relocate_outputs,
    resolve_pointer,
    verify_root,
    verify_savepoint,
)
from stateline.checkpoint.api import HISTORY
from stateline.checkpoint.history import summaries_in
from stateline.cli.output import (
    CommandGroup,
    delete_option,
    json_option,
    mapping_option,
    output_option,
    plain,
    print_facts,
    print_json,
    print_table,
    progress,
    store_option,
    table_option,
    time_text,
)
from stateline.errors import CorruptDataError, DataLossError, NotFoundError
from stateline.handles import RunHandle
from stateline.pipeline.table_status import Verdict, table_statuses
from stateline.state.run import damaged_place
from stateline.state.schema import StateSchema

__all__ = ["checkpoint", "ls", "relocate", "retire", "show", "verify"]

_COLUMNS: Final = {
    "id": "checkpoint_id",
    "batch": "batch_id",
    "created": "created",
    "parallelism": "parallelism",
    "runs": "runs",
    "rows": "stored_rows",
    "bytes": "bytes",
    "new bytes": "new_bytes",
    "finished": "finished_files",
    "open": "open_files",
}


@click.group(cls=CommandGroup)
def checkpoint() -> None:
    """Look at checkpoints.

    ROOT is a checkpoint root on any store, such as file:///data/state or s3://bucket/state. POINTER is a root (its
    newest checkpoint), ROOT/chk-ID, or the folder of a savepoint.
    """


@checkpoint.command("ls")
@click.argument("root")
@json_option
@store_option
def ls(root: str, options: dict[str, str], *, as_json: bool) -> None:
    """List the retained checkpoints of ROOT, oldest first.

    "rows" counts stored rows, old versions and deletions included. "new bytes" is what the checkpoint added. A record
    that cannot be read, or is gone, is named on standard error, after those that can, with exit code 1.
    """
    store = open_store(root, options)
    damage: CorruptDataError | DataLossError | None = None
    try:
        found = CheckpointStore(store).list()
    except (CorruptDataError, DataLossError) as error:
        damage = error
        found = CheckpointStore(store, settings=CheckpointStoreSettings(allow_older=True)).list()
    if not found:
        raise _no_checkpoint(root)
    print_facts([_facts(record) for record in found], _COLUMNS, as_json=as_json)
    if damage is not None:
        raise damage


@checkpoint.command("show")
@click.argument("pointer")
@json_option
@store_option
def show(pointer: str, options: dict[str, str], *, as_json: bool) -> None:
    """Show one checkpoint or savepoint: its operators with their state, its files, its position.

    With --json the whole record is printed, as it is stored.
    """
    snapshot = resolve_pointer(pointer, options=options)
    record = snapshot.checkpoint
    if as_json:
        print_json(msgspec.to_builtins(record))
        return
    kind = "savepoint of checkpoint" if snapshot.is_savepoint else "checkpoint"
    click.echo(f"{kind} {record.checkpoint_id}  in {plain(snapshot.store.url)}")
    for name, value in (
        ("batch", record.batch_id),
        ("query", record.query_id),
        ("created", time_text(record.created_at)),
        ("parallelism", f"{record.parallelism} of at most {record.max_parallelism}"),
        *(("watermark", f"{_watermark_text(state)}  of the input of {state.name}") for state in record.inputs),
        ("offsets", record.offsets_digest or "none"),
        ("nonce", record.nonce),
        *sorted(record.properties.items()),
    ):
        click.echo(f"  {plain(str(name)):<12} {plain(str(value))}")
    for operator in record.operators:
        _show_operator(operator)
    for output in record.outputs:
        _show_output(output)
    for name, state in record.states.items():
        if name == HISTORY:
            click.echo(f"\nhistory: {_history_text(record)}")
            continue
        click.echo(f"\nstate {plain(name)}: {plain(str(msgspec.to_builtins(state))[:200])}")


@checkpoint.command("verify")
@click.argument("pointer")
@click.option("--outputs/--no-outputs", default=True, help="Look at the pieces of open files in the outputs, too.")
@output_option
@click.option("--tables", is_flag=True, help="Compare the tables that rows go to, too, as `stateline table status`.")
@table_option
@click.option("--objects", is_flag=True, help="Also name every object that is reachable.")
@json_option
@store_option
@click.pass_context
def verify(
    context: click.Context,
    pointer: str,
    output_options: dict[str, str],
    table_options: dict[str, str],
    options: dict[str, str],
    *,
    outputs: bool,
    tables: bool,
    objects: bool,
    as_json: bool,
) -> None:
    """Read every object that is needed and recompute every checksum.

    A root is verified with all its checkpoints; ROOT/chk-ID and savepoints by themselves. Says what is missing or
    damaged, where, and which checkpoints need it, and what no checkpoint reaches. Objects that nobody reaches do no
    harm: they do not change the exit code.
    """
    found = locate(pointer, options=options)
    store, root = found.store, CheckpointStore(found.store)
    with progress("verifying", hidden=as_json) as tell:
        if found.savepoint is not None:
            report = verify_savepoint(found.savepoint, progress=tell)
        else:
            stores = _output_stores(root, found.checkpoint_id, output_options) if outputs else {}
            report = verify_root(root, checkpoint_id=found.checkpoint_id, outputs=stores, progress=tell)
    if not report.checkpoint_ids and not report.findings:
        raise _no_checkpoint(pointer)
    if tables and found.savepoint is None:
        _compare_tables(root, table_options, report)
    places = _damaged_places(root, report) if found.savepoint is None else {}
    if as_json:
        print_json(_report_facts(store, report, places))
    else:
        _print_report(store, report, places, objects=objects)
    context.exit(0 if report.is_sound else 1)


@checkpoint.command("retire")
@click.argument("root")
@click.option(
    "--keep", required=True, type=click.IntRange(min=1), metavar="N", help="How many of the newest checkpoints stay."
)
@delete_option
@json_option
@store_option
def retire(root: str, keep: int, options: dict[str, str], *, delete: bool, as_json: bool) -> None:
    """Retire all but the newest checkpoints of ROOT, also those whose records cannot be read or are gone.

    A query does it by itself, but never to a checkpoint that is damaged, because that may be restored from a copy. This
    is how to let go of it: what only it needed becomes a leftover for `stateline sweep`. Tombstones and markers of
    checkpoints that were retired before are written anew where they are gone. Safe while the query runs.
    """
    store = open_store(root, options)
    checkpoints = CheckpointStore(store, settings=CheckpointStoreSettings(retire_unreadable=True))
    ids = checkpoints.retirable(keep)
    if delete:
        checkpoints.retain(keep)
    if as_json:
        print_json({"root": store.url, "checkpoints": ids, "deleted": delete})
        return
    for checkpoint_id in ids:
        click.echo(f"{'retired' if delete else 'would retire'}  checkpoint {checkpoint_id}")
    click.echo(f"{plain(store.url)}: {len(ids)} checkpoints{' retired' if delete else ' to retire'}")
    if not delete:
        click.echo("Nothing was deleted: add --delete")


@checkpoint.command("relocate")
@click.argument("root")
@mapping_option(
    "--output",
    "outputs",
    required=True,
    metavar="OPERATOR=URL",
    help="Where the output of an operator is now; may be repeated. That of stateline_files is called files.",
)
@click.option("--record", is_flag=True, help="Record it; without it, only look whether all is there.")
@output_option
@json_option
@store_option
def relocate(
    root: str,
    outputs: dict[str, str],
    output_options: dict[str, str],
    options: dict[str, str],
    *,
    record: bool,
    as_json: bool,
) -> None:
    """Record that outputs of the query of ROOT were moved, so that it goes on there.

    Stop the query first, and move the whole folder, hidden files included. What the newest checkpoint needs is looked
    for in the new place. With --record one more checkpoint says where the outputs are: the same state, the same open
    files. Then start the program with the new place. A root that was moved itself needs no command.
    """
    stores = {operator: open_store(url, output_options) for operator, url in outputs.items()}
    found = relocate_outputs(CheckpointStore(open_store(root, options)), stores, dry_run=not record)
    places = _places(found)
    is_new = found.record is not found.before
    if as_json:
        print_json(
            {
                "checkpoint_id": found.record.checkpoint_id,
                "recorded": record and is_new,
                "bytes_read": found.bytes_read,
                "outputs": places,
            }
        )
        return
    for place in places:
        click.echo(
            plain(
                f"output of {place['operator']}: {place['old']} -> {place['new']}, {place['open']} open files, "
                f"{place['finished']} to be made visible"
            )
        )
    if not is_new:
        click.echo(f"Nothing to record: checkpoint {found.record.checkpoint_id} says so already")
    elif record:
        click.echo(f"Recorded as checkpoint {found.record.checkpoint_id}")
    else:
        click.echo("All that is needed is there. Nothing was recorded: add --record")


# -- verify -----------------------------------------------------------------------------------------------------------


def _output_stores(
    root: CheckpointStore, checkpoint_id: int | None, options: Mapping[str, str]
) -> dict[str, BlobStore]:
    """The stores of the outputs that the checkpoints name; records that cannot be read are reported by the verdict."""
    readable = CheckpointStore(root.store, settings=CheckpointStoreSettings(allow_older=True))
    try:
        records = readable.list() if checkpoint_id is None else [readable.get(checkpoint_id)]
    except CorruptDataError:
        return {}
    urls = {output.url for record in records for output in record.outputs}
    return {url: open_store(url, options) for url in sorted(urls)}


def _compare_tables(root: CheckpointStore, options: Mapping[str, str], report: VerifyReport) -> None:
    """Adds a finding for each table that has lost rows of the newest checkpoint, or cannot be read."""
    for status in table_statuses(root, options):
        if not status.verdict.is_sound:
            problem = Problem.UNREADABLE if status.verdict is Verdict.UNREACHED else Problem.MISSING
            due = () if status.due is None else (status.due,)
            report.add(problem, status.target, due, status.detail or f"the table is {status.verdict}")


def _damaged_places(root: CheckpointStore, report: VerifyReport) -> dict[str, str]:
    """Where damaged runs are damaged, by name."""
    corrupt = {finding.name for finding in report.findings if finding.problem is Problem.CORRUPT}
    places: dict[str, str] = {}
    for checkpoint_id in report.checkpoint_ids if corrupt else ():
        with suppress(NotFoundError):  # Retired by the query since it was looked at.
            for run in _runs(root.get(checkpoint_id).operators):
                if run.name in corrupt - places.keys():
                    place = _damaged_place(root.store, run)
                    if place is not None:
                        places[run.name] = place
    return places


def _damaged_place(store: BlobStore, run: RunHandle) -> str | None:
    """Where a run is damaged, as bytes of its section; ``None`` if it is not, and another section is."""
    size = store.head(run.name).size
    data = store.get_range(run.name, min(run.offset, size), min(run.end, size))
    if len(data) == run.length and crc32c(data) == run.crc32c:
        return None
    return f"{damaged_place(pa.py_buffer(data), run)}, counted from byte {run.offset}"


def _report_facts(store: BlobStore, report: VerifyReport, places: Mapping[str, str]) -> dict[str, object]:
    return {
        "root": store.url,
        "sound": report.is_sound,
        "checkpoints": report.checkpoint_ids,
        "bytes_read": report.bytes_read,
        "reachable": report.reachable,
        "findings": [
            {
                "problem": finding.problem.value,
                "object": finding.name,
                "checkpoints": finding.checkpoint_ids,
                "detail": finding.detail,
                "place": places.get(finding.name),
            }
            for finding in report.findings
        ],
        "orphaned": [
            {"object": info.name, "bytes": info.size, "modified": time_text(info.modified_at)}
            for info in report.orphaned
        ],
    }


def _print_report(store: BlobStore, report: VerifyReport, places: Mapping[str, str], *, objects: bool) -> None:
    for name in report.reachable if objects else ():
        click.echo(f"reachable  {plain(name)}")
    for info in report.orphaned:
        click.echo(f"orphaned   {plain(info.name)}  {info.size:,} bytes, modified {time_text(info.modified_at)}")
    for finding in report.findings:
        place = f" {places[finding.name]}" if finding.name in places else ""
        what = plain(f"{finding.name}{_needed_by(finding)}: {finding.detail}{place}")
        click.echo(f"{finding.problem.upper():<9}  {what}")
    verdict = "all is intact" if report.is_sound else f"{len(report.findings)} problems"
    click.echo(
        f"{plain(store.url)}: {verdict}. {len(report.checkpoint_ids)} checkpoints, {len(report.reachable)} objects "
        f"reachable, {report.bytes_read:,} bytes read, {len(report.orphaned)} orphaned"
    )


def _needed_by(finding: Finding) -> str:
    if not finding.checkpoint_ids:
        return ""
    return f", needed by checkpoint {', '.join(map(str, finding.checkpoint_ids))}"


# -- ls and show ------------------------------------------------------------------------------------------------------


def _no_checkpoint(place: str) -> NotFoundError:
    return NotFoundError("there is no checkpoint", subject=place, hint="Give the URL of a checkpoint root")


def _runs(operators: tuple[OperatorState, ...]) -> list[RunHandle]:
    return [run for operator in operators for subtask in operator.subtasks for run in subtask.runs]


def _facts(record: Checkpoint) -> dict[str, object]:
    # One run may be named by several subtasks, and counts once.
    runs = {run.identity: run for run in _runs(record.operators)}.values()
    return {
        "checkpoint_id": record.checkpoint_id,
        "batch_id": record.batch_id,
        "created": time_text(record.created_at),
        "query_id": record.query_id,
        "parallelism": record.parallelism,
        "operators": [operator.name for operator in record.operators],
        "runs": len(runs),
        "stored_rows": sum(run.rows for run in runs),
        "bytes": sum(run.length for run in runs),
        "new_bytes": sum(run.length for run in runs if run.checkpoint_id == record.checkpoint_id),
        "finished_files": sum(len(output.finished) for output in record.outputs),
        "open_files": sum(len(output.open) for output in record.outputs),
        "watermarks_us": {state.name: state.watermark_us for state in record.inputs},
    }


def _watermark_text(state: InputState) -> str:
    return "none yet" if state.watermark_us is None else f"{time_text(state.watermark_us / 1e6)} by {state.column}"


def _show_operator(operator: OperatorState) -> None:
    click.echo(f"\noperator {plain(operator.name)}: {_schema_text(operator)}")
    click.echo(f"  computes {plain(operator.definition[:500])}")
    rows = [
        (
            f"{subtask.first_key_group}..{subtask.last_key_group}",
            len(subtask.runs),
            sum(run.rows for run in subtask.runs),
            sum(run.tombstones for run in subtask.runs),
            sum(run.length for run in subtask.runs),
        )
        for subtask in operator.subtasks
    ]
    print_table(("key groups", "runs", "rows", "tombstones", "bytes"), rows, indent="  ")


def _schema_text(operator: OperatorState) -> str:
    try:
        return plain(str(StateSchema.decode(operator.schema)))
    except CorruptDataError as error:
        return f"DAMAGED schema: {plain(error.message)}"


def _history_text(record: Checkpoint) -> str:
    """What a record carries of the history."""
    try:
        summaries = summaries_in(record)
    except CorruptDataError as error:
        return f"DAMAGED: {plain(error.message)}"
    if not summaries:
        return "empty"
    return (
        f"checkpoints {summaries[0].checkpoint_id:,} to {summaries[-1].checkpoint_id:,}; `stateline ui` shows all of it"
    )


def _show_output(output: OutputState) -> None:
    click.echo(f"\noutput of {plain(output.operator)}: {plain(output.url)}")
    rows = [("finished", file.commit.target, file.rows, file.commit.length) for file in output.finished]
    rows += [("open", file.target, file.rows, file.bytes) for file in output.open]
    print_table(("state", "file", "rows", "bytes"), rows, indent="  ")


# -- relocate ----------------------------------------------------------------------------------------------------------


def _places(found: Relocation) -> list[dict[str, object]]:
    """The outputs that move."""
    return [
        {"operator": new.operator, "old": old.url, "new": new.url, "open": len(new.open), "finished": len(new.finished)}
        for old, new in zip(found.before.outputs, found.record.outputs, strict=True)
        if old.url != new.url
    ]
