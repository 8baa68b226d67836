"""What all commands share: how they answer people and programs, and how they fail.

- Answers go to standard output; errors and progress to standard error.
- With ``--json`` a command prints one JSON object per line and no progress.
- Nothing from a store reaches the terminal unescaped: a name or a value could steer it.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from stateline.errors import InvalidInputError, NotInstalledError, StatelineError
from stateline.quantities import count_text
from stateline.state.plain_values import python_rows, time_text, value_text

__all__ = [
    "EXIT_CODES",
    "INTERRUPTED",
    "UNREAD",
    "CommandGroup",
    "delete_option",
    "json_option",
    "mapping_option",
    "output_option",
    "plain",
    "print_facts",
    "print_json",
    "print_table",
    "progress",
    "python_rows",
    "store_option",
    "table_option",
    "target_option",
    "time_text",
    "value_text",
]

EXIT_CODES: Final = (
    "Exit codes: 0 done, and all is well; 1 bad news: something is damaged, missing or not there, or the store failed; "
    "2 the call was wrong, or a package is missing; 130 interrupted; 141 the answer was not read to its end."
)

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as shells have it: no verdict."""

UNREAD: Final = 141
"""The exit code where nobody reads the answer to its end, as shells have it: no verdict either."""


class CommandGroup(click.Group):
    """A group whose commands fail with one line instead of a traceback, and say what their exit codes mean."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """As click's; gives the command the page's last line."""
        cmd.epilog = cmd.epilog or EXIT_CODES
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's; turns our errors, a full disk and Ctrl-C into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except StatelineError as error:
            wrong_call = isinstance(error, InvalidInputError | NotInstalledError)
            raise (_WrongCallError if wrong_call else click.ClickException)(plain(str(error))) from error
        except KeyboardInterrupt:
            click.echo("Interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                _let_go_of_stdout()  # Whoever read the answer has seen enough.
                raise click.exceptions.Exit(UNREAD) from None
            raise click.ClickException(plain(str(error))) from error


def _let_go_of_stdout() -> None:
    """What is still in the buffer goes nowhere, so that the end of the process does not fail on it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _WrongCallError(click.ClickException):
    exit_code = 2


class _MappingOption(click.Option):
    """An option that is repeated as ``NAME=VALUE``, and reaches its command as a dict."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"metavar": "NAME=VALUE"} | settings | {"multiple": True})

    def process_value(self, ctx: click.Context, value: Any) -> dict[str, str]:
        pairs = [text.partition("=") for text in super().process_value(ctx, value)]
        for name, separator, _ in pairs:
            if not separator:
                raise click.BadParameter(f"{name!r} is not {self.metavar}", ctx, self)
        return {name: value for name, _, value in pairs}


mapping_option: Final = partial(click.option, cls=_MappingOption)
"""An option that is repeated as ``NAME=VALUE``, and reaches its command as a dict."""

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
store_option: Final = mapping_option("--option", "options", help="A setting of the store; may be repeated.")
output_option: Final = mapping_option("--output-option", "output_options", help="A setting of the outputs.")
target_option: Final = mapping_option("--target-option", "target_options", help="A setting of TARGET.")
table_option: Final = mapping_option("--table-option", "table_options", help="A setting of the tables.")
delete_option: Final = click.option("--delete", is_flag=True, help="Delete; without it, only list what would go.")


def plain(text: str) -> str:
    """Text without characters that could steer a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> None:
    """Aligned columns: numbers to the right, everything else to the left."""
    given = [list(row) for row in rows]
    cells = [[f"{cell:,}" if isinstance(cell, int) else plain(str(cell)) for cell in row] for row in given]
    numeric = [bool(given) and all(isinstance(row[at], int) for row in given) for at in range(len(headers))]
    widths = [max(map(cell_len, column)) for column in zip(headers, *cells, strict=True)]
    for row in [list(headers), *cells]:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = (gap + cell if right else cell + gap for cell, gap, right in zip(row, gaps, numeric, strict=True))
        click.echo(f"{indent}{'  '.join(padded)}".rstrip())


def print_facts(facts: Sequence[Mapping[str, object]], columns: Mapping[str, str], *, as_json: bool) -> None:
    """A table of facts, or one JSON object for each.

    Args:
        facts: One mapping for each row. What is absent or ``None`` is blank in the table.
        columns: The headings of the table, and which fact stands under each.
        as_json: Print all facts as JSON instead.
    """
    if as_json:
        for fact in facts:
            print_json(fact)
        return
    rows = [["" if fact.get(key) is None else fact[key] for key in columns.values()] for fact in facts]
    print_table(list(columns), rows)


def print_json(facts: Mapping[str, object]) -> None:
    """One JSON object on one line. Bytes are base64, decimals text, times ISO 8601, NaN and infinities text.

    What cannot be printed is escaped as JSON escapes it, not only what JSON asks for: a terminal obeys more than that,
    and one that is not set to UTF-8 has fewer characters.
    """
    value = _json_value(dict(facts))
    text = json.dumps(value, ensure_ascii=False)
    if not _can_be_written(text):
        text = json.dumps(value)
    click.echo(text if text.isprintable() else "".join(map(_json_char, text)))


def _can_be_written(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _json_char(char: str) -> str:
    return char if char.isprintable() else json.dumps(char)[1:-1]


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    return value


class _RateColumn(ProgressColumn):
    """How much is done in a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{count_text(speed)}/s", style="progress.data.speed")


@contextmanager
def progress(what: str, *, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Shows how far something is, on standard error, if that is a terminal.

    Yields:
        ``tell(done, in_all)``.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    is_hidden = hidden or not console.is_terminal
    # What is printed meanwhile goes above the bar where both are one terminal, and where it belongs otherwise.
    shared = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, disable=is_hidden, redirect_stdout=shared) as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, in_all: int) -> None:
            bar.update(task, completed=done, total=in_all)

        yield tell
