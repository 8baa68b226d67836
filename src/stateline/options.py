"""Strings to typed settings: sizes, durations, booleans, and refusal of what is unknown.

Each layer has its settings in a frozen dataclass, whose fields say with :func:`setting` how a string becomes a value.

Facts:
- Sizes: ``"5MB"`` = 5,000,000 bytes (decimal, as in SI), ``"5MiB"`` = 5,242,880 bytes; a bare number is bytes.
- Durations: ``"500ms"``, ``"10s"``, ``"2min"``, ``"1h"``, ``"1d"``; a bare number is seconds. Also what Spark takes as
  an interval, from microseconds to weeks: ``"10 minutes"``, ``"1 hour 30 minutes"``, ``"interval 1 hour"``. Months and
  years are refused, as by Spark's windows: they have no fixed length.
- An unknown key is an error that names the nearest known one, never silence.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from fractions import Fraction
from types import UnionType
from typing import Any, Final, SupportsIndex, TypeVar

from stateline.errors import ErrorKind, InvalidInputError
from stateline.redaction import hide, hide_options
from stateline.sizes import sizes

__all__ = [
    "Secret",
    "check_kind",
    "check_known",
    "check_text",
    "duration_microseconds",
    "normalise_settings",
    "parse_bool",
    "parse_choice",
    "parse_duration",
    "parse_int",
    "parse_size",
    "plain_options",
    "pop_prefixed",
    "setting",
    "settings_from_options",
]

S = TypeVar("S")
C = TypeVar("C", bound=str)

_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", start=1)},
}
_INTERVAL: Final = re.compile(r"interval\s+(?:'([^']*)'$)?", re.IGNORECASE | re.ASCII)
_TERM: Final = re.compile(r"([+-]?)\s*('?)([0-9]+\.?[0-9]*|\.[0-9]+)\2\s*([a-z]*)(?:\s+|$)", re.IGNORECASE | re.ASCII)
"""Sign, number and unit: ``- 1 hour``, and ``'1' hour`` as in a literal of SQL."""
_UNITS: Final = {
    name: microseconds
    for microseconds, names in (
        (1, "us microsecond microseconds"),
        (1_000, "ms millisecond milliseconds"),
        (1_000_000, "s sec second seconds"),
        (60_000_000, "m min minute minutes"),
        (3_600_000_000, "h hour hours"),
        (86_400_000_000, "d day days"),
        (604_800_000_000, "week weeks"),
    )
    for name in names.split()
}
_WITHOUT_LENGTH: Final = frozenset({"month", "months", "year", "years"})
_DURATION_HINT: Final = 'a duration such as 0.5 (seconds), "500ms", "10s", "5min" or "1 hour 30 minutes"'
_MICROSECONDS_MAX: Final = 2**63 - 1
_MAX_TEXT: Final = 100
"""Characters of a size or a duration. Longer ones are none, and take long to parse."""
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class Secret:
    """A credential that shows itself only to :meth:`reveal`: masked in ``str``, ``repr`` and formats, never pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        hide(value)

    def reveal(self) -> str:
        """The credential itself. Pass it straight to the SDK; do not keep it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __str__(self) -> str:
        return "***"

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidInputError(
            "a credential cannot be pickled",
            operation="pickle",
            subject="Secret",
            hint="Let each process find its credentials through the SDK's own chain",
        )


def parse_size(value: int | str, name: str = "size") -> int:
    """Bytes from an integer or a string such as ``"5MB"`` or ``"20KiB"``.

    Raises:
        InvalidInputError: Not a size, negative, or not a whole number of bytes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise _bad(name, value, "a size of 0 bytes or more")
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) and len(value) <= _MAX_TEXT else None
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise _bad(name, value, 'a size such as 1048576, "5MB" (decimal) or "5MiB" (binary)')
    size = Fraction(match[1]) * _SIZE_UNITS[match[2].lower()]
    if size.denominator != 1:
        raise _bad(name, value, "a whole number of bytes")
    return int(size)


def parse_duration(value: float | str | timedelta, name: str = "duration") -> float:
    """Seconds from a number, a ``timedelta`` or a string such as ``"500ms"`` or ``"1 hour 30 minutes"``.

    Raises:
        InvalidInputError: Not a duration, negative, or not finite.
    """
    microseconds = _microseconds(value, name)
    if microseconds < 0:
        raise _bad(name, value, "a finite duration of 0 or more")
    return float(microseconds / _UNITS["second"])


def duration_microseconds(value: float | str | timedelta, name: str = "duration") -> int:
    """Whole microseconds of a duration that may be negative. What a text says beyond them is cut off, as by Spark.

    Raises:
        InvalidInputError: Not a duration, not finite, or longer than Spark can count.
    """
    exact = _microseconds(value, name)
    microseconds = int(exact) if isinstance(value, str) else round(exact)
    if abs(microseconds) > _MICROSECONDS_MAX:
        raise _bad(name, value, f"a duration of at most {_MICROSECONDS_MAX} microseconds")
    return microseconds


def _microseconds(value: object, name: str) -> Fraction:
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:  # So written, it is also true of NaN.
            raise _bad(name, value, "a finite duration of 0 or more")
        return Fraction(value) * _UNITS["second"]
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise _bad(name, value, _DURATION_HINT)
    text = value.strip()
    interval = _INTERVAL.match(text)
    if interval is not None:
        text = text[interval.end() :] if interval[1] is None else interval[1].strip()
    total, at = Fraction(0), 0
    while at < len(text) or at == 0:
        term = _TERM.match(text, at)
        unit = "" if term is None else term[4].lower()
        if unit in _WITHOUT_LENGTH:
            raise InvalidInputError(
                f"{value!r} has no fixed length", subject=name, hint="Give weeks, days or shorter units, as for windows"
            )
        if unit == "" and interval is None and term is not None and term.span() == (0, len(text)):
            unit = "second"
        if term is None or unit not in _UNITS:
            raise _bad(name, value, _DURATION_HINT)
        total += Fraction(f"{term[1]}{term[3]}") * _UNITS[unit]
        at = term.end()
    return total


def parse_bool(value: bool | str, name: str = "flag") -> bool:
    """A boolean from ``True``/``False`` or one of true/false, yes/no, on/off, 1/0 (any case)."""
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _bad(name, value, "true or false")


def parse_int(
    value: SupportsIndex | str, name: str = "number", *, minimum: int | None = None, maximum: int | None = None
) -> int:
    """An integer within the inclusive bounds, of Python, numpy or any other kind, or the text of one."""
    try:
        if isinstance(value, bool):
            raise ValueError(value)
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise _bad(name, value, "a whole number") from None
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        low = "" if minimum is None else f"{minimum} <= "
        high = "" if maximum is None else f" <= {maximum}"
        raise _bad(name, value, f"a whole number with {low}value{high}")
    return number


def parse_choice(value: str, choices: Iterable[C], name: str = "choice") -> C:
    """One of ``choices``, given in any case: the values of a ``Literal`` type are ``typing.get_args(type)``."""
    known = tuple(choices)
    text = value.strip().lower() if isinstance(value, str) else ""
    for choice in known:
        if choice == text:
            return choice
    raise _bad(name, value, f"one of {', '.join(known)}")


def setting(
    default: Any,
    parse: Callable[[Any, str], Any],
    *,
    help: str,  # noqa: A002 - the word users know
    size: str = "",
) -> Any:
    """A dataclass field whose value is parsed from what the user gave.

    Args:
        default: The default as a user would write it, such as ``"5MB"``.
        parse: ``parse(value, name)`` returns the typed value or raises :class:`InvalidInputError`.
        help: One sentence for the table of options in the docs.
        size: The field of :class:`~stateline.sizes.Sizes` that is the default, where it decides which way the code
            takes; ``default`` is how a user would write it.
    """
    metadata = {"parse": parse, "help": help, "default": default}
    if size:
        return dataclasses.field(default_factory=lambda: getattr(sizes(), size), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def normalise_settings(settings: Any) -> None:
    """Parses every :func:`setting` field of a frozen dataclass in place; call it first in ``__post_init__``."""
    for spec in dataclasses.fields(settings):
        parse = spec.metadata.get("parse")
        if parse is not None:
            object.__setattr__(settings, spec.name, parse(getattr(settings, spec.name), spec.name))


def plain_options(options: Mapping[str, str] | None) -> dict[str, str]:
    """A dictionary of one's own from what a user gave as options; an empty one for ``None``.

    From then on no error shows a secret among their values.

    Raises:
        InvalidInputError: It is no mapping.
    """
    if options is None:
        return {}
    check_kind(options, Mapping, "options")
    for name in options:
        check_kind(name, str, f"option {name!r}")
    hide_options(options)
    return dict(options)


def pop_prefixed(options: dict[str, str], prefix: str) -> dict[str, str]:
    """Takes the options with a prefix out, and gives them without it."""
    return {key.removeprefix(prefix): options.pop(key) for key in list(options) if key.startswith(prefix)}


def settings_from_options(cls: type[S], options: Mapping[str, str]) -> S:
    """Builds a settings dataclass from string options, keyed by field name.

    Raises:
        InvalidInputError: An unknown key (the hint names the nearest known one) or a bad value.
    """
    names = [spec.name for spec in dataclasses.fields(cls)]  # type: ignore[arg-type]
    given = plain_options(options)
    check_known(given, names)
    return cls(**given)


def check_known(options: Iterable[str], known: Iterable[str], what: str = "option") -> None:
    """Refuses any key of ``options`` that is not in ``known``.

    Raises:
        InvalidInputError: Names the unknown key, the nearest known one, or the whole list where none is near.
    """
    names = list(known)
    for key in options:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(names)) or 'none'}"
            raise InvalidInputError(f"unknown {what}", subject=repr(key), hint=hint, kind=ErrorKind.UNKNOWN_OPTION)


def check_kind(value: object, kind: type | UnionType, name: str, expected: str = "") -> None:
    """Refuses an argument of another type, where it would fail later and far from its caller.

    Args:
        value: What the user gave.
        kind: The class, or ``this | that``.
        name: The argument.
        expected: What to give, in words that go on after "Give"; by default the class.

    Raises:
        InvalidInputError: It is something else.
    """
    if not isinstance(value, kind):
        name_of_kind = getattr(kind, "__name__", str(kind))
        raise InvalidInputError(
            f"expected {name_of_kind}, got {type(value).__name__}",
            subject=name,
            hint=f"Give {expected or f'a value of type {name_of_kind}'}",
        )


def check_text(value: object, name: str) -> None:
    """Refuses what is no text, or text that no record can keep.

    Raises:
        InvalidInputError: It is no ``str``, or has surrogates.
    """
    check_kind(value, str, name, "text")
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise _bad(name, value, "text that is valid Unicode") from None


def _bad(name: str, value: object, expected: str) -> InvalidInputError:
    return InvalidInputError(f"{value!r} is not valid", subject=name, hint=f"Give {expected}")
