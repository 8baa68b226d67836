"""The entry point of the command ``stateline``.

Exit codes: 0 done, 1 the answer is bad news, 2 the call was wrong or a package is missing, 130 interrupted,
141 the answer was not read to its end.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["main"]

_INTERRUPTED: Final = 130


def main() -> None:
    """Runs the command line of this process and exits."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Not every terminal has the characters of every state.
    try:
        with _leaving_at_once():
            commands = importlib.import_module("stateline.cli.commands")
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.exit(_missing(error.name))
    commands.stateline(prog_name="stateline")


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Ctrl-C ends the process while modules load: some swallow it there, and others make errors of theirs of it."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _missing(package: str) -> int:
    sys.stderr.write(f"The package {package} is not installed. Run: pip install 'stateline[cli]'\n")
    return 2
