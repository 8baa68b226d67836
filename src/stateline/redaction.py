"""Secrets kept out of every text that a person may read: the one mechanism for it.

- Options of stores and tables pass :func:`hide_options`, and a wrapped credential passes :func:`hide`. From then on
  this process knows the secret, in each spelling in which a library may repeat it.
- Every error of Stateline passes its texts through :func:`redacted`, and cleans the errors that it is raised from
  (:func:`clean`). Records, logs, pages and the command line show errors as texts only.
- Patterns find what was never given as an option: a password in a URL, a signature, a keyword of a connection string.

A short secret is hidden only where it is a word of its own: one below four characters, or below nine letters without a
digit. Else a password such as ``key`` or ``postgres`` would make every message unreadable.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

__all__ = ["clean", "hide", "hide_inside", "hide_options", "redacted", "safe_error"]

_MASK: Final = "***"
_WORD_MAX: Final = 3
_LETTERS_MAX: Final = 8
_PART_MIN: Final = 4
"""Characters of a part of a password that is hidden alone."""

_NAMED: Final = (
    r"(?:[\w.-]*(?:password|passwd|pwd|secret|token|signature|credential|account_?key|access_?key|api_?key)|sig)"
)
_PATTERN: Final = re.compile(
    rf"({_NAMED}\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^&\s'\";,)]+)"
    r"|((?:(?<=:)|/)/[^\s:/@'\"]*:)[^\s]*(?=@)",
    re.IGNORECASE,
)
_SECRET_OPTION: Final = re.compile(
    r"pass(?:word|wd|phrase)?$|pwd$|secret|token|signature|credential|(?:access|account|api|private|encryption|shared)"
    r"[-_.]?key|connection[-_.]?string|authorization|^sig$",
    re.IGNORECASE,
)
_HARMLESS_OPTION: Final = re.compile(r"(?:file|path|uri|url|timeout|enabled|expires?[-_.]?\w*|ms)$", re.IGNORECASE)
_HARMLESS: Final = frozenset({"", "true", "false"})
_USER: Final = re.compile(r"[A-Za-z][\w+.-]*(?::/{0,2}|//)([^:]*):(.*)@", re.DOTALL)
_PAIR: Final = re.compile(rf"(?:^|[\s?&;]){_NAMED}\s*=\s*('(?:[^'\\]|\\.)*'|[^&;\s]+)", re.IGNORECASE)
_RESERVED: Final = re.compile(r"[@:/?#&=%\s'\"\[\]\\]+")

_hidden: dict[str, None] = {}
_hidden_pattern: re.Pattern[str] | None = None


def hide(secret: str) -> None:
    """Makes a secret known: no text shows it any more, plain, quoted, escaped or percent-encoded."""
    global _hidden_pattern  # noqa: PLW0603 - secrets belong to the process
    spellings = {spelling for spelling in _spellings(secret) if spelling.strip()}
    if spellings <= _hidden.keys():
        return
    _hidden.update(dict.fromkeys(spellings))
    longest_first = sorted(_hidden.copy(), key=len, reverse=True)
    _hidden_pattern = re.compile("|".join(map(_matching, longest_first)))


def hide_options(options: Mapping[str, object]) -> None:
    """Makes the secrets among options known: by the name of an option, and inside URLs and connection strings."""
    for name, value in options.items():
        if not isinstance(value, str) or value.lower() in _HARMLESS:
            continue
        if _SECRET_OPTION.search(name) and not _HARMLESS_OPTION.search(name):
            hide(value)
        hide_inside(value)


def hide_inside(value: str) -> None:
    """Makes the secrets inside a URL or a connection string known."""
    user = _USER.match(value)
    if user is not None:
        hide(user[2])
        # A library that cannot parse the URL quotes parts of it, as a host in lower case or a port.
        for part in _RESERVED.split(user[2]):
            if len(part) >= _PART_MIN and part != user[2]:
                hide(part)
                hide(part.lower())
    for found in _PAIR.finditer(value):
        hide(re.sub(r"\\(.)", r"\1", found[1][1:-1]) if found[1].startswith("'") else found[1])


def redacted(text: str) -> str:
    """The text with every known secret, and what looks like one, replaced by ``***``."""
    if _hidden_pattern is not None:
        text = _hidden_pattern.sub(_MASK, text)
    if "@" not in text and "=" not in text:
        return text
    return _PATTERN.sub(lambda found: f"{found[1] or found[2]}{_MASK}", text)


def clean(error: BaseException | None) -> None:
    """Takes secrets out of an error and of all that it was raised from, in place.

    An error that still shows one, as those that read the answer of a service whenever they are shown, is replaced by a
    stand-in where another one refers to it.
    """
    links = list(_chain(error))
    for link in links:
        if not _shows(link):
            continue
        link.args = tuple(_cleaned(each) for each in link.args)
        values = dict(getattr(link, "__dict__", {}))
        values |= {name: getattr(link, name, None) for name in ("filename", "filename2", "strerror", "msg", "reason")}
        for name, value in values.items():
            cleaned = _cleaned(value)
            if cleaned is not value:
                with suppress(AttributeError, TypeError):
                    setattr(link, name, cleaned)

    stubborn = {id(link): _stand_in(link) for link in links if _shows(link)}
    for link in links if stubborn else ():
        suppresses = link.__suppress_context__
        for name in ("__cause__", "__context__", *getattr(link, "__dict__", {})):
            found = getattr(link, name, None)
            if isinstance(found, BaseException) and id(found) in stubborn:
                setattr(link, name, stubborn[id(found)])
        link.__suppress_context__ = suppresses


def safe_error(error: BaseException) -> BaseException:
    """The error after :func:`clean`, or a stand-in with its text if it, or its cause, would still show a secret."""
    clean(error)
    return _stand_in(error) if any(map(_shows, _chain(error))) else error


def _stand_in(error: BaseException) -> BaseException:
    return RuntimeError(f"{type(error).__name__}: {redacted(_text(error))}")


def _cleaned(value: object) -> object:
    """A value without secrets: the same object if it shows none, such as the parsed answer of a service."""
    if isinstance(value, BaseException) or not _is_shown_by(value):
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {_cleaned(name): _cleaned(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(each) for each in value] if isinstance(value, list) else tuple(map(_cleaned, value))
    return redacted(_text(value, repr))


def _is_shown_by(value: object) -> bool:
    shown = value if isinstance(value, str) else _text(value, repr)
    return redacted(shown) != shown


def _spellings(secret: str) -> Iterator[str]:
    for text in dict.fromkeys((secret, secret.strip(), unquote(secret), unquote_plus(secret))):
        yield text
        for encoded in (quote(text, safe=""), quote(text), quote_plus(text)):
            yield encoded
            yield re.sub("%..", lambda found: found[0].lower(), encoded)
        yield repr(text)[1:-1]
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield html.escape(text)
        yield text.replace("\\", "\\\\").replace("'", "\\'")
        yield text.encode("ascii", "backslashreplace").decode()


def _matching(spelling: str) -> str:
    literal = re.escape(spelling)
    is_word = len(spelling) <= _WORD_MAX or (len(spelling) <= _LETTERS_MAX and spelling.isalpha())
    return rf"(?<!\w){literal}(?!\w)" if is_word else literal


def _text(error: object, text: Callable[[object], str] = str) -> str:
    try:
        return text(error)
    except Exception as failure:  # noqa: BLE001 - of whatever class, with whatever __str__
        return f"(its text raised {type(failure).__name__})"


def _shows(error: BaseException) -> bool:
    kept = [error.args, *getattr(error, "__dict__", {}).values()]
    return _is_shown_by("\n".join((_text(error), *(_text(each, repr) for each in (error, *kept)))))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        kept = [each for each in getattr(link, "__dict__", {}).values() if isinstance(each, BaseException)]
        waiting += [link.__cause__, link.__context__, *kept, *getattr(link, "exceptions", ())]
