"""Numbers as people read them: counts, bytes, durations, ages."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["UNKNOWN", "bytes_text", "count_text", "duration_text", "share_text"]

_BYTES: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_COUNTS: Final = ("", "k", "M", "G", "T", "P")
_STEP: Final = 1000
UNKNOWN: Final = "\N{EN DASH}"
"""What stands in place of a number that nobody knows."""

_EXACT_BELOW: Final = 10_000
_WHOLE_FROM: Final = 100
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400


def count_text(value: float | None) -> str:
    """A count: exact while it is short, then with a unit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < _EXACT_BELOW:
        return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= _WHOLE_FROM else f"{value:.3g}"
    return _scaled(value, _COUNTS, "")


def bytes_text(value: float | None) -> str:
    """Bytes, in decimal units."""
    return UNKNOWN if value is None or not math.isfinite(value) else _scaled(value, _BYTES, " ")


def duration_text(seconds: float | None) -> str:
    """A duration or an age: two units at most."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs" if seconds else "0 s"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for unit, name, smaller, smaller_name in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit:,} {name}" + (f" {rest} {smaller_name}" if rest else "")
    rest = whole % _MINUTE
    return f"{whole // _MINUTE} min" + (f" {rest} s" if rest else "")


def share_text(part: float, whole: float) -> str:
    """A part of a whole, in per cent."""
    return UNKNOWN if not whole else f"{100 * part / whole:.0f} %"


def _scaled(value: float, units: tuple[str, ...], gap: str) -> str:
    size, unit = abs(value), 0
    while size >= _STEP - 0.5 and unit < len(units) - 1:
        size, unit = size / _STEP, unit + 1
    digits = 0 if unit == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    text = f"{size:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{'-' if value < 0 else ''}{text}{gap}{units[unit]}".rstrip()
