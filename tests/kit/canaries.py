"""Secrets that must show nowhere, and a search for them in everything that a person or a program may read.

The canary has characters to which URLs, JSON, HTML or connection strings give a meaning. Its words are enough to find
it where a library has cut it to pieces.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from click.testing import CliRunner

from stateline.cli.commands import stateline
from stateline.errors import StatelineError

__all__ = ["CANARY", "WORDS", "Witness", "everything"]

CANARY = "Canary-A@h%41/p:q#f?x&y=z '\"<ü→\\%zz Hostile-A"
WORDS = ("canary", "canäry", "hostile")
_EXCERPT = 60


def everything(error: BaseException) -> str:
    """All that a person or a program may read of an error, also of what it was raised from and while."""
    said: list[str] = []
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        said += [*traceback.format_exception_only(link), str(link), repr(link), repr(vars(link))]
        waiting += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
    if isinstance(error, StatelineError):
        said.append(repr(pickle.loads(pickle.dumps(error))))
    shown = traceback.TracebackException.from_exception(error, capture_locals=False)
    return "\n".join([*said, *(line for line in shown.format(chain=True) if "raise" not in line)])


class Witness:
    """Looks for secrets in all that it is shown.

    Args:
        secrets: What must not be seen, in any spelling, and no word of :data:`WORDS` either.

    Attributes:
        looked: How many texts and objects it was shown, by their kind.
        found: Where a secret was seen, with what stood around it.
    """

    def __init__(self, *secrets: str) -> None:
        self.looked: Counter[str] = Counter()
        self.found: list[str] = []
        spellings = {each for secret in secrets for each in _spellings(secret)}
        self._marks = {each.lower() for each in spellings} | {word.encode() for word in WORDS}

    def see(self, kind: str, where: str, data: str | bytes) -> None:
        """Searches a text, or bytes."""
        self.looked[kind] += 1
        raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
        lowered = raw.lower()
        for mark in self._marks:
            at = lowered.find(mark)
            if at >= 0:
                self.found.append(f"{kind} {where}: {raw[max(0, at - _EXCERPT) : at + _EXCERPT]!r}")
                return

    def see_objects(self, *objects: object) -> None:
        """Searches what objects say of themselves. Pickles of plans have the options, as tasks need them."""
        for each in objects:
            self.see("object", type(each).__name__, f"{each!r}\n{each!s}\n{each}")

    def failing(self, call: Callable[[], object]) -> BaseException:
        """Calls what must fail, and searches its error with all that it was raised from."""
        try:
            call()
        except Exception as error:
            self.see("error", type(error).__name__, everything(error))
            return error
        raise AssertionError("it was meant to fail")

    def command(self, *arguments: str) -> int:
        """Runs a command, and searches what it prints; its exit code."""
        result = CliRunner().invoke(stateline, list(arguments))
        self.see("command", " ".join(arguments[:2]), result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code

    def see_logs(self, records: Iterable[logging.LogRecord], also: Sequence[str] = ("stateline",)) -> None:
        """Searches log records: messages, arguments and tracebacks; of other libraries, warnings and errors."""
        formatter = logging.Formatter("%(name)s %(message)s")
        for record in records:
            if record.name.startswith(tuple(also)) or record.levelno >= logging.WARNING:
                self.see("log", record.name, f"{formatter.format(record)} {record.args!r}")

    def see_store(self, store: Any) -> None:
        """Searches the names and bytes of all objects."""
        for info in store.list(""):
            self.see("bytes", info.name, info.name.encode() + b"\n" + store.get(info.name))


def _spellings(secret: str) -> set[bytes]:
    texts = {
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        html.escape(secret),
    }
    raw = secret.encode()
    aligned = {base64.b64encode(b"\0" * skip + raw)[4 if skip else 0 : -4] for skip in range(3)}
    return {text.encode() for text in texts} | aligned | {raw.hex().encode()}
