"""How Spark hands over the options of a data source.

They are strings, Spark's own among them, and the case of their names is lost. So a name may be written in Spark's way
or in Python's: ``partitionBy`` and ``partition_by`` are one option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from stateline.errors import InvalidInputError
from stateline.options import check_known

__all__ = ["DataSourceOptions", "parse_names", "parse_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSourceOptions:
    """Base of the options of a data source.

    A field made by :func:`stateline.options.setting` is an option. A field ``<name>_options`` without one takes all
    options that begin with ``<name>.``, whose case is kept.
    """

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> Self:
        """Options as Spark hands them over.

        Raises:
            InvalidInputError: An unknown option, an option given twice, a bad value, or options that contradict
                each other.
        """
        known = {_plain(spec.name): spec.name for spec in fields(cls) if spec.metadata}
        groups = {spec.name.removesuffix("_options"): spec.name for spec in fields(cls) if not spec.metadata}
        given: dict[str, Any] = {spec.name: {} for spec in fields(cls) if not spec.metadata}
        for key, value in options.items():
            prefix, dot, rest = key.partition(".")
            if dot and prefix.lower() in groups:
                given[groups[prefix.lower()]][rest] = value
                continue
            if _plain(key) not in known:
                check_known([key], known.values())
            name = known[_plain(key)]
            if name in given:
                raise InvalidInputError(
                    "must be given once, got it in two spellings", subject=name, hint="Give each option once"
                )
            given[name] = value
        return cls(**given)


def parse_text(value: Any, _: str) -> Any:
    """A string option, as it is."""
    return value


def parse_names(value: str | tuple[str, ...], _: str) -> tuple[str, ...]:
    """Names of columns, separated by commas."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(name.strip() for name in names if name.strip())


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
