"""``start()`` of a ``stateline_files`` stream: what the sink cannot find out, and what an earlier run left.

Facts (Spark 4):

- Spark calls a Python sink only for a batch. It reports neither the trigger nor the end of a query, and a run without
  new rows has no batch.
- So ``start()`` of PySpark's writers is wrapped, for this format only. It gives the sink the option ``trigger``. Where
  the stream ends by itself, it first publishes the files that an earlier run left open, and raises what fails there.
- A program that never called :func:`stateline.spark.register` has no wrapper. The sink then publishes the rows of each
  batch in its commit, which is right for every trigger.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from stateline.errors import InvalidInputError
from stateline.pipeline.offsets import read_with_hadoop
from stateline.spark.api_mode import is_connect
from stateline.spark.connect.server_call import call_on_server
from stateline.spark.query.takeover import Runs, watched
from stateline.spark.sinks.files import FilesSink, finish_earlier_run
from stateline.spark.sinks.files_options import FilesSinkOptions

__all__ = ["wrap_starts"]

_WRAPPED: Final = "_stateline_starts"
_TRIGGERS_THAT_END: Final = ("AvailableNowTrigger", "OneTimeTrigger")
_FIELDS_THAT_END: Final = ("available_now", "once")
"""The triggers of a query that ends by itself, in the JVM and in the protocol of Connect."""
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True, slots=True)
class _Described:
    """What a program has said to a writer.

    Attributes:
        format: The format.
        ends: Whether the query ends by itself.
        options: Its options.
        query_name: Spark's name of the query; empty for none.
    """

    format: str
    ends: bool
    options: Mapping[str, str]
    query_name: str


def wrap_starts(session: SparkSession) -> None:
    """Wraps ``start()`` of the writers that a session makes. Idempotent."""
    kind = _writer_kind(session)
    if _WRAPPED not in vars(kind):
        kind.start = _wrapped(kind.start)
        setattr(kind, _WRAPPED, True)


def _writer_kind(session: SparkSession) -> Any:
    if not is_connect(session):
        return DataStreamWriter
    from pyspark.sql.connect.streaming.readwriter import (  # noqa: PLC0415 - needs the client of Connect
        DataStreamWriter as RemoteWriter,
    )

    return RemoteWriter


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def start(self: Any, *arguments: Any, **keywords: Any) -> Any:
        given = dict(parameters.bind(self, *arguments, **keywords).arguments)
        described = _described(self, given)
        if described.format != FilesSink.name():
            return original(self, *arguments, **keywords)
        return _start_files(self, described, lambda: original(self, *arguments, **keywords))

    return start


def _start_files(writer: Any, described: _Described, start: Callable[[], Any]) -> Any:
    """Starts a stream into files.

    Raises:
        StatelineError: What an earlier run left open could not be published.
    """
    session = writer._spark if hasattr(writer, "_spark") else writer._session  # noqa: SLF001 - classic, Connect
    writer.option("trigger", "ends" if described.ends else "endless")
    if described.ends:
        _finish_earlier_run(session, described)
    place = f"{FilesSink.name()} {described.options.get('path')} {described.options.get('checkpoint')}"
    with Runs.beginning(place) as run:
        return run.begun(watched(start()))


def _finish_earlier_run(session: SparkSession, described: _Described) -> None:
    options = dict(described.options)
    location = _location(session, described)
    if is_connect(session):
        call_on_server(session, _FinishOnServer(options, location))
        return
    parsed = _parsed(options)
    if parsed is not None and location:
        finish_earlier_run(parsed, location, read_with_hadoop(session, location))


class _FinishOnServer:
    """:func:`finish_earlier_run` in a Python worker beside the server's driver."""

    def __init__(self, options: Mapping[str, str], location: str) -> None:
        self._options = dict(options)
        self._location = location

    def __call__(self, _: SparkSession) -> None:
        parsed = _parsed(self._options)
        if parsed is not None:
            finish_earlier_run(parsed, self._location)


def _parsed(options: Mapping[str, str]) -> FilesSinkOptions | None:
    """The options; ``None`` for wrong ones, which the first batch refuses."""
    try:
        return FilesSinkOptions.from_spark(options)
    except InvalidInputError:
        return None


def _location(session: SparkSession, described: _Described) -> str:
    """Where Spark keeps the checkpoint of the query; empty for a temporary one."""
    given = {name.lower(): text for name, text in described.options.items()}.get("checkpointlocation")
    if given:
        return given
    checkpoints = session.conf.get(_CHECKPOINTS, None) if described.query_name else None
    return f"{checkpoints}/{described.query_name}" if checkpoints else ""


def _described(writer: Any, given: Mapping[str, Any]) -> _Described:
    """What was said to a writer before, and with the call of ``start()``."""
    said = _said_on_connect(writer) if hasattr(writer, "_write_proto") else _said(writer)
    options = dict(said.options)
    options |= {str(name): str(value) for name, value in given.get("options", {}).items() if value is not None}
    if given.get("path"):
        options = {name: text for name, text in options.items() if name.lower() != "path"} | {"path": given["path"]}
    name = given.get("queryName") or said.query_name or options.get("queryName", "")
    return _Described(given.get("format") or said.format, said.ends, options, name)


def _said_on_connect(writer: Any) -> _Described:
    proto = writer._write_proto  # noqa: SLF001 - the client does not show what was said
    ends = proto.WhichOneof("trigger") in _FIELDS_THAT_END
    path = {"path": proto.path} if proto.path else {}
    return _Described(proto.format, ends, {**proto.options, **path}, proto.query_name)


def _said(writer: Any) -> _Described:
    """Private fields of Spark's writer in the JVM, which shows nothing of what was said to it."""
    made = writer._jwrite  # noqa: SLF001 - as PySpark's own methods do
    kind = made.getClass()

    def field(name: str) -> Any:
        found = kind.getDeclaredField(name)
        found.setAccessible(True)
        return found.get(made)

    source = str(field("source"))
    if source != FilesSink.name():
        return _Described(source, False, {}, "")
    entries, options = field("extraOptions").originalMap().iterator(), {}
    while entries.hasNext():
        entry = entries.next()
        options[str(entry._1())] = str(entry._2())  # noqa: SLF001 - the names of a Scala pair
    ends = any(name in str(field("trigger").toString()) for name in _TRIGGERS_THAT_END)
    return _Described(source, ends, options, options.get("queryName", ""))
