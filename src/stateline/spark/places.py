"""Where a place that a user names is: one meaning for the program, for Spark's driver, and for every task.

A relative path is resolved once, in the user's program, against the folder that the program is in at the call. No other
process can do so later: the JVM keeps the folder that it was started in, its Python workers share that folder, and a
server of Spark Connect has a folder of its own, which may vanish with it. So:

- Functions and classes of Stateline resolve what they are given by :func:`resolved`, which refuses a relative path on
  Connect.
- A classic program hands the options of ``stateline`` and ``stateline_files`` to Spark's readers and writers.
  :func:`watch_places` has these resolve the options that name places, before Spark sees them.
- The data sources run in workers. There a relative path was not resolved, so :func:`refuse_relative` refuses it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from stateline.blob.urls import is_relative
from stateline.errors import InvalidInputError
from stateline.spark.api_mode import is_connect
from stateline.tables import resolve_options

__all__ = ["refuse_relative", "resolved", "watch_places"]

_COPIES: Final = "localcopies"
_PLACES: Final = {"stateline": ("path",), "stateline_files": ("path", "checkpoint", "checkpointlocation", _COPIES)}
"""By data source: the options that name places, without the case and underscores that Spark does not keep."""

_WORDS: Final = ("auto", "none")
"""Values of ``local_copies`` that name no folder."""

_TABLE: Final = "table."
_FORMAT_WITH_PLACES: Final = "iceberg"
"""The table of files that has places among its options."""

_SAID: Final = "_stateline_said"
_WATCHED: Final = "_stateline_watched"


def resolved(place: str, what: str, session: Any) -> str:
    """The same place for every process: a relative path becomes absolute.

    Args:
        place: What the user gave: a path or a URL, also one that only Spark knows.
        what: What the user calls it, for the error.
        session: The session, or a DataFrame of it.

    Raises:
        InvalidInputError: It is relative, and the session is one of Spark Connect.
    """
    if not isinstance(place, str | os.PathLike) or not is_relative(os.fspath(place)):
        return place
    if is_connect(session):
        raise _relative(place, what)
    return _in_this_program(os.fspath(place), what)


def refuse_relative(source: str, options: Mapping[str, str]) -> None:
    """Refuse options of a data source that name a relative path, in a worker, where nothing can resolve it.

    Args:
        source: The name of the data source.
        options: Its options, as Spark hands them over.

    Raises:
        InvalidInputError: One does; names it, and says what to write.
    """

    def refuse(place: str, what: str) -> str:
        raise _relative(place, what)

    _with_places(source, options, refuse)


def watch_places() -> None:
    """Have Spark's readers and writers resolve the places of our formats, in this program. Idempotent."""
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter  # noqa: PLC0415 - not in a client of Connect
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter  # noqa: PLC0415

    for kind, end in (
        (DataFrameReader, "load"),
        (DataFrameWriter, "save"),
        (DataStreamReader, "load"),
        (DataStreamWriter, "start"),
    ):
        if _WATCHED not in vars(kind):
            for name in ("format", "option", "options"):
                setattr(kind, name, _remembering(getattr(kind, name)))
            setattr(kind, end, _resolving(getattr(kind, end)))
            setattr(kind, _WATCHED, True)


def _remembering(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a builder, which keeps what it is told: PySpark only hands it on to the JVM."""
    is_format, is_option = method.__name__ == "format", method.__name__ == "option"

    @functools.wraps(method)
    def remember(self: Any, *args: Any, **named: Any) -> Any:
        said = vars(self).setdefault(_SAID, {})
        if is_format:
            said[None] = args[0] if args else named.get("source")
        elif is_option:
            key, value = (*args, named.get("value"))[:2] if args else (named.get("key"), named.get("value"))
            said[key] = value
        else:
            said.update(named)
        return method(self, *args, **named)

    return remember


def _resolving(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method that ends a builder, with places that are absolute where the format is ours."""

    @functools.wraps(method)
    def resolve(
        self: Any,
        path: Any = None,
        format: str | None = None,  # noqa: A002 - Spark's word
        *args: Any,
        **named: Any,
    ) -> Any:
        said = vars(self).get(_SAID, {})
        source = str(format or said.get(None) or "").lower()
        if source in _PLACES:
            given = {**{name: value for name, value in said.items() if name is not None}, **named}
            made = _with_places(source, given, _in_this_program)
            for name in given.keys() - named.keys():
                if made[name] != given[name]:
                    self.option(name, made[name])
            named = {name: made[name] for name in named}
            path = _with_places(source, {"path": path}, _in_this_program)["path"]
        return method(self, path, format, *args, **named)

    return resolve


def _in_this_program(place: str, _: str) -> str:
    return os.path.abspath(place.removeprefix("file:"))


def _with_places(source: str, options: Mapping[str, Any], resolve: Callable[[str, str], str]) -> dict[str, Any]:
    """The options of a data source, with relative paths resolved in those that name a place."""
    made = dict(options)
    for name, value in options.items():
        plain = name.replace("_", "").lower()
        if plain not in _PLACES[source] or (plain == _COPIES and value in _WORDS):
            continue
        if isinstance(value, str) and value and is_relative(value):
            made[name] = resolve(value, name)
    names = {name[len(_TABLE) :]: name for name in options if name.lower().startswith(_TABLE)}
    table = {short: options[name] for short, name in names.items()}
    for short, value in resolve_options(_FORMAT_WITH_PLACES, table, resolve).items():
        made[names[short]] = value
    return made


def _relative(place: str | os.PathLike[str], what: str) -> InvalidInputError:
    return InvalidInputError(
        f"must be an absolute path or a URL, got {os.fspath(place)!r}: Spark runs in another folder than the program",
        subject=what,
        hint="Write /folder/name for a disk that all hosts share, or a URL such as s3://bucket/name. A classic program "
        "may write relative paths after stateline.spark.register(spark)",
    )
