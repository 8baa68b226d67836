"""The entry point of the command ``stateline``.

Owns the exit codes: 0 done, 1 the answer is bad news, 2 the call was wrong or a package is missing, 130 interrupted,
141 the answer was not read to its end.
"""

from __future__ import annotations

import importlib
import io
import sys
from typing import Final

__all__ = ["main"]

_INTERRUPTED: Final = 130


def main() -> None:
    """Runs the command line of this process and exits."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Not every terminal has the characters of every state.
    try:
        commands = importlib.import_module("stateline.cli.commands")
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.exit(_missing(error.name))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    commands.stateline(prog_name="stateline")


def _missing(package: str) -> int:
    sys.stderr.write(f"The package {package} is not installed. Run: pip install 'stateline[cli]'\n")
    return 2
