"""``stateline changelog``: look into changelog objects on any store, without their handles.

Owns arguments and printing. Does not own reading or checking (``stateline.changelog.inspection``).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping

import click

from stateline.blob import BlobStore, open_store
from stateline.blob.names import STAGING_PREFIX
from stateline.changelog.api import StateChange
from stateline.changelog.inspection import (
    FoundFrame,
    Inspection,
    Problem,
    changes_of,
    inspect_object,
    verify_frame,
)
from stateline.cli.output import CommandGroup, map_options, store_option
from stateline.errors import CorruptDataError, InvalidInputError, NotFoundError
from stateline.key_groups import KeyGroupRange

__all__ = ["cat", "changelog", "ls", "verify"]

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_FRAME_COLUMNS = ("offset", "bytes", "log", "set", "key groups", "changes", "change bytes", "compression", "blocks")


@click.group(cls=CommandGroup)
def changelog() -> None:
    """Look into changelog objects.

    URL is an object or a folder, such as file:///data/changelog or s3://bucket/changelog/JOB/changelog/OBJECT.
    """


@changelog.command("ls")
@click.argument("url")
@_JSON
@store_option
@click.pass_context
def ls(context: click.Context, url: str, options: tuple[str, ...], *, as_json: bool) -> None:
    """List the frames of an object, or of every object in a folder.

    Reads indexes and heads only. Exits with 1 if one of them is damaged.
    """
    damaged = False
    for store, name in _objects(url, map_options(options)):
        found = inspect_object(store, name)
        damaged = damaged or bool(found.problems)
        if as_json:
            click.echo(json.dumps(_object_facts(found)))
        else:
            _print_object(found)
    context.exit(1 if damaged else 0)


@changelog.command("cat")
@click.argument("url")
@click.option("--key-groups", help="Only these, inclusive: 5 or 0-63. Metadata always comes.")
@click.option("--limit", type=click.IntRange(min=0), help="Stop after so many changes.")
@_JSON
@store_option
def cat(url: str, key_groups: str | None, limit: int | None, options: tuple[str, ...], *, as_json: bool) -> None:
    """Print the changes: key group (-1: metadata) and value, one per line.

    Bytes that are not printable ASCII are escaped as in Python; with --json, values are base64. Stops at the first
    damaged byte, names its offset, and exits with 1.
    """
    wanted = _parse_range(key_groups)
    left = limit
    for store, name in _objects(url, map_options(options)):
        found = inspect_object(store, name)
        for frame in found.frames:
            for change in changes_of(store, name, frame, wanted):
                if left is not None and left <= 0:
                    return
                left = None if left is None else left - 1
                click.echo(_change_line(name, frame, change, as_json=as_json))
        if found.problems:
            raise _damage(name, found.problems[0])


@changelog.command("verify")
@click.argument("url")
@_JSON
@store_option
@click.pass_context
def verify(context: click.Context, url: str, options: tuple[str, ...], *, as_json: bool) -> None:
    """Read every byte of an object, or of every object in a folder, and recompute every checksum.

    Prints one line per object, and one per damaged place with its offset. Exits with 1 on any damage.
    """
    damaged = False
    for store, name in _objects(url, map_options(options)):
        found = inspect_object(store, name)
        problems = [*found.problems, *_block_problems(store, found)]
        damaged = damaged or bool(problems)
        if as_json:
            facts = {"name": name, "bytes": found.size, "frames": len(found.frames), "intact": not problems}
            click.echo(json.dumps({**facts, "problems": [_problem_facts(problem) for problem in problems]}))
            continue
        state = "DAMAGED" if problems else "intact"
        click.echo(f"{state:<7}  {found.size:>12,} bytes  {len(found.frames):>6} frames  {_plain(name)}")
        for problem in problems:
            click.echo(f"         at byte {problem.offset}: {problem.message}")
    context.exit(1 if damaged else 0)


def _objects(url: str, options: Mapping[str, str]) -> Iterator[tuple[BlobStore, str]]:
    """The object that the URL names, or every object below it."""
    parent, _, leaf = url.rstrip("/").rpartition("/")
    if leaf and not parent.endswith("/"):
        store = open_store(parent or ".", options)
        try:
            store.head(leaf)
        except (NotFoundError, InvalidInputError):
            store.close()  # Not an object: a folder, or nothing.
        else:
            yield store, leaf
            return
    store = open_store(url, options)
    names = sorted(info.name for info in store.list("") if not info.name.startswith(STAGING_PREFIX))
    if not names:
        raise NotFoundError("there is no object and no folder with objects", subject=url, hint="Check the URL")
    for name in names:
        yield store, name


def _block_problems(store: BlobStore, found: Inspection) -> Iterator[Problem]:
    for frame in found.frames:
        problem = verify_frame(store, found.name, frame)
        if problem is not None:
            yield problem


def _parse_range(text: str | None) -> KeyGroupRange | None:
    if text is None:
        return None
    first, dash, last = text.partition("-")
    try:
        wanted = KeyGroupRange(int(first), int(last if dash else first))
    except ValueError:
        wanted = KeyGroupRange.EMPTY
    if not wanted:
        raise click.BadParameter(f"{text!r} is neither 5 nor 0-63", param_hint="--key-groups")
    return wanted


def _object_facts(found: Inspection) -> dict[str, object]:
    return {
        "name": found.name,
        "bytes": found.size,
        "frames": [_frame_facts(frame) for frame in found.frames],
        "problems": [_problem_facts(problem) for problem in found.problems],
    }


def _frame_facts(frame: FoundFrame) -> dict[str, object]:
    head = frame.head
    return {
        "offset": frame.offset,
        "bytes": head.length,
        "log_id": head.log_id.hex,
        "sequence_number": head.sequence_number,
        "first_key_group": head.key_groups[0],
        "last_key_group": head.key_groups[1],
        "changes": head.changes,
        "change_bytes": head.size,
        "compression": head.compression.name.lower(),
        "blocks": len(head.blocks),
    }


def _problem_facts(problem: Problem) -> dict[str, object]:
    return {"offset": problem.offset, "message": problem.message}


def _print_object(found: Inspection) -> None:
    click.echo(f"{_plain(found.name)}  {found.size:,} bytes")
    rows = [
        tuple(f"{fact:,}" if isinstance(fact, int) else str(fact) for fact in _row(frame)) for frame in found.frames
    ]
    widths = [max(map(len, column)) for column in zip(_FRAME_COLUMNS, *rows, strict=True)]
    for row in [_FRAME_COLUMNS, *rows] if rows else []:
        click.echo("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for problem in found.problems:
        click.echo(f"  DAMAGED at byte {problem.offset}: {problem.message}")


def _row(frame: FoundFrame) -> tuple[object, ...]:
    head = frame.head
    data = [block.key_groups for block in head.blocks if not block.is_metadata]
    groups = ("meta " if head.key_groups[0] < 0 else "") + (f"{data[0][0]}..{data[-1][1]}" if data else "")
    return (
        frame.offset,
        head.length,
        head.log_id.hex[:8],
        head.sequence_number,
        groups.strip() or "none",
        head.changes,
        head.size,
        head.compression.name.lower(),
        len(head.blocks),
    )


def _change_line(name: str, frame: FoundFrame, change: StateChange, *, as_json: bool) -> str:
    if not as_json:
        return f"{change.key_group}\t{_escaped(change.value)}"
    return json.dumps(
        {
            "object": name,
            "log_id": frame.head.log_id.hex,
            "sequence_number": frame.head.sequence_number,
            "key_group": change.key_group,
            "value": base64.b64encode(change.value).decode("ascii"),
        }
    )


def _escaped(value: bytes) -> str:
    """Printable ASCII as it is, the rest in hexadecimal: nothing reaches the terminal that could steer it."""
    return repr(value)[2:-1]


def _plain(name: str) -> str:
    """A name without characters that could steer a terminal."""
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")


def _damage(name: str, problem: Problem) -> CorruptDataError:
    return CorruptDataError(problem.message, operation="read", subject=f"{_plain(name)} at byte {problem.offset}")
