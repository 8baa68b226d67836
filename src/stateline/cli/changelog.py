"""``stateline changelog``: look into segments on any store, without their handles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import click

from stateline.blob import BlobStore, open_store
from stateline.blob.names import STAGING_PREFIX
from stateline.changelog.changes import ChangesTable
from stateline.changelog.inspection import (
    FoundSection,
    Inspection,
    Problem,
    changes_of,
    inspect_segment,
    verify_section,
)
from stateline.changelog.segment import SectionKind
from stateline.changelog.segment_writer import SEGMENT_SUFFIX
from stateline.cli.output import CommandGroup, json_option, plain, print_facts, print_json, python_rows, store_option
from stateline.cli.sections import batches_of, row_count
from stateline.errors import CorruptDataError, InvalidInputError, NotFoundError
from stateline.key_groups import KeyGroupRange

__all__ = ["cat", "changelog", "ls", "verify"]

_COLUMNS: Final = {
    "offset": "offset",
    "bytes": "bytes",
    "kind": "kind",
    "owner": "owner",
    "number": "number",
    "key groups": "key_groups",
    "rows": "rows",
    "change bytes": "change_bytes",
    "compression": "compression",
    "blocks": "blocks",
}


@click.group(cls=CommandGroup)
def changelog() -> None:
    """Look into segments of a store.

    They hold state changes, runs of state, and rows of open files. URL is an object or a folder, such as
    file:///data/changelog, or s3://bucket/flights/state for all segments of a checkpoint root.
    """


@changelog.command("ls")
@click.argument("url")
@json_option
@store_option
@click.pass_context
def ls(context: click.Context, url: str, options: dict[str, str], *, as_json: bool) -> None:
    """List the sections of an object, or of every object in a folder.

    Reads directories, tables of changes and tails of runs only. Exits with 1 if one of them is damaged.
    """
    damaged = False
    for store, name in _objects(url, options):
        found = inspect_segment(store, name)
        sections = []
        problems = list(found.problems)
        for section in found.sections:
            try:
                sections.append(_facts(store, name, section))
            except CorruptDataError as error:
                problems.append(Problem.of(error, section.entry.offset))
        damaged = damaged or bool(problems)
        if as_json:
            problem_facts = [_problem_facts(problem) for problem in problems]
            print_json({"name": name, "bytes": found.size, "sections": sections, "problems": problem_facts})
        else:
            _print_object(found, sections, problems)
    context.exit(1 if damaged else 0)


@changelog.command("cat")
@click.argument("url")
@click.option("--key-groups", help="Only changes of these, inclusive: 5 or 0-63. Metadata always comes, rows never.")
@click.option("--limit", type=click.IntRange(min=0), help="Stop after so many lines.")
@json_option
@store_option
def cat(url: str, key_groups: str | None, limit: int | None, options: dict[str, str], *, as_json: bool) -> None:
    """Print changes as key group (-1: metadata) and value, and rows as JSON; one per line.

    Bytes that are not printable ASCII are escaped as in Python; in JSON they are base64. Stops at the first damaged
    byte, names its offset, and exits with 1.
    """
    for line in islice(_lines(url, options, _parse_range(key_groups)), limit):
        if as_json:
            print_json(line)
        elif "row" in line:
            print_json(line["row"])
        else:
            click.echo(f"{line['key_group']}\t{_escaped(line['value'])}")


def _lines(url: str, options: Mapping[str, str], wanted: KeyGroupRange | None) -> Iterator[dict[str, Any]]:
    for store, name in _objects(url, options):
        found = inspect_segment(store, name)
        for section in found.sections:
            entry = section.entry
            line: dict[str, Any] = {"object": name}
            if entry.kind is SectionKind.CHANGES:
                line |= {"log_id": entry.owner, "sequence_number": entry.number}
                for change in changes_of(store, name, section, wanted):
                    yield line | {"key_group": change.key_group, "value": change.value}
            elif wanted is None:
                line |= {"kind": entry.kind.value, "owner": entry.owner, "number": entry.number}
                for batch in batches_of(store, name, entry):
                    yield from (line | {"row": row} for row in python_rows(batch))
        if found.problems:
            problem = found.problems[0]
            raise CorruptDataError(problem.message, operation="read", subject=f"{plain(name)} at byte {problem.offset}")


@changelog.command("verify")
@click.argument("url")
@json_option
@store_option
@click.pass_context
def verify(context: click.Context, url: str, options: dict[str, str], *, as_json: bool) -> None:
    """Read every byte of an object, or of every object in a folder, and recompute every checksum.

    Prints one line per object, and one per damaged place with its offset. Exits with 1 on any damage.
    """
    damaged = False
    for store, name in _objects(url, options):
        found = inspect_segment(store, name)
        problems = [*found.problems, *_problems_within(store, found)]
        damaged = damaged or bool(problems)
        if as_json:
            facts = {"name": name, "bytes": found.size, "sections": len(found.sections), "intact": not problems}
            print_json({**facts, "problems": [_problem_facts(problem) for problem in problems]})
            continue
        state = "DAMAGED" if problems else "intact"
        click.echo(f"{state:<7}  {found.size:>12,} bytes  {len(found.sections):>6} sections  {plain(name)}")
        for problem in problems:
            click.echo(f"         at byte {problem.offset}: {plain(problem.message)}")
    context.exit(1 if damaged else 0)


def _objects(url: str, options: Mapping[str, str]) -> Iterator[tuple[BlobStore, str]]:
    """The object that the URL names, or every object below it: only segments, if there are any by name."""
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
    names = [name for name in names if name.endswith(SEGMENT_SUFFIX)] or names
    if not names:
        raise NotFoundError("there is no such object, and no folder with objects", subject=url, hint="Check the URL")
    for name in names:
        yield store, name


def _problems_within(store: BlobStore, found: Inspection) -> Iterator[Problem]:
    for section in found.sections:
        problem = verify_section(store, found.name, section)
        if problem is None and section.entry.kind is not SectionKind.CHANGES:
            try:
                for _ in batches_of(store, found.name, section.entry):
                    pass
            except CorruptDataError as error:
                problem = Problem.of(error, section.entry.offset)
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
        raise click.BadParameter(
            f"{text!r} is not a key group or a range, such as 5 or 0-63", param_hint="--key-groups"
        )
    return wanted


def _facts(store: BlobStore, name: str, section: FoundSection) -> dict[str, Any]:
    entry, table = section.entry, section.table
    facts: dict[str, Any] = {
        "offset": entry.offset,
        "bytes": entry.length,
        "kind": entry.kind.value,
        "owner": entry.owner,
        "number": entry.number,
    }
    if table is None:
        return facts | {"rows": row_count(store, name, entry)}
    return facts | {
        "key_groups": _groups(table),
        "rows": table.changes,
        "first_key_group": table.key_groups[0],
        "last_key_group": table.key_groups[1],
        "change_bytes": table.size,
        "compression": table.compression.name.lower(),
        "blocks": len(table.blocks),
    }


def _problem_facts(problem: Problem) -> dict[str, object]:
    return {"offset": problem.offset, "message": problem.message}


def _print_object(found: Inspection, sections: list[dict[str, Any]], problems: list[Problem]) -> None:
    click.echo(f"{plain(found.name)}  {found.size:,} bytes")
    if sections:
        print_facts(sections, _COLUMNS, as_json=False)
    for problem in problems:
        click.echo(f"  DAMAGED at byte {problem.offset}: {plain(problem.message)}")


def _groups(table: ChangesTable) -> str:
    data = [block.key_groups for block in table.blocks if not block.is_metadata]
    groups = ("meta " if table.key_groups[0] < 0 else "") + (f"{data[0][0]}..{data[-1][1]}" if data else "")
    return groups.strip() or "none"


def _escaped(value: bytes) -> str:
    """Printable ASCII as it is, the rest in hexadecimal: nothing reaches the terminal that could steer it."""
    return repr(value)[2:-1]
