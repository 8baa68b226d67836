"""Where the sources of a query stand: the files of Spark's checkpoint that records and savepoints carry.

A record carries the entry of the offset log of its batch. A savepoint carries all that Spark needs to continue after
that batch in a new checkpoint folder. Both keep them in ``Checkpoint.states``, each file under :data:`SPARK_FILE` and
its name in Spark's checkpoint.

Facts (Spark 4, ``MicroBatchExecution``):

- Spark continues after the newest entry of the offset log if the commit log has that batch, and runs the batch again if
  not. It reads the entry of the batch before, too, so both entries are carried.
- A file source keeps the files that it has seen in ``sources/<id>/``, and ``rate`` keeps its start there. An entry that
  is newer than the offset is harmless: its files belong to the next batch, as after a crash.
- Operators of Spark's own keep state in ``state/``, by batch. Newer versions are overwritten, as after a crash.
- ``metadata`` holds the id of the query. A new query needs its own, so it is written and not carried.
- Files whose names begin with a dot are checksums and temporary files of Hadoop's. Spark reads files without them.

Restoring lays the files into an empty folder, in this order: a mark that names the savepoint, logs of the sources and
state, ``metadata``, and the entries of the logs. Every file is durable before the next one is created, and the first
record of the new root follows the last. A restore that was killed at any point is repeated by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from stateline.blob.names import check_name
from stateline.checkpoint.api import Checkpoint, FileState, InlineState
from stateline.checkpoint.offsets import ReadFile, offsets_digest, source_lines
from stateline.checkpoint.spark_files import SparkFiles, is_hidden
from stateline.environment import Ids
from stateline.errors import ConflictError, CorruptDataError, InvalidInputError

__all__ = [
    "POSITION",
    "SOURCES",
    "SPARK_CHECKPOINT",
    "SPARK_FILE",
    "PutState",
    "ReadState",
    "States",
    "carried_offsets",
    "carry_position",
    "check_not_begun",
    "has_position",
    "lay_position",
    "offsets_state",
    "position_problem",
    "spark_states",
    "without_position",
]

SPARK_FILE: Final = "spark:"
"""Prefix of a name in ``Checkpoint.states``: a file of Spark's checkpoint follows."""

SPARK_CHECKPOINT: Final = "spark.checkpoint"
"""Name in ``Checkpoint.properties``: the URL of Spark's checkpoint."""

SOURCES: Final = "spark.sources"
"""Name in ``Checkpoint.properties``: the sources of the query, in their order, as a JSON list of text."""

POSITION: Final = "savepoint.position"
"""Name in a savepoint's ``Checkpoint.properties``: the reason why it carries no position; empty if it carries one."""

_MARK: Final = "_stateline_savepoint"
_METADATA: Final = "metadata"
_LOGS: Final = ("offsets", "commits")
_CARRIED: Final = ("sources", "state")
_ATTEMPTS: Final = 3
"""Spark deletes old files of its logs at any time; then a newer one holds what they held."""

_MAX_ENTRY: Final = 256 * 1024
"""A record carries entries of the offset log up to this size."""

States: TypeAlias = dict[str, InlineState | FileState]
ReadState: TypeAlias = Callable[[InlineState | FileState], bytes]
PutState: TypeAlias = Callable[[bytes], InlineState | FileState]


def offsets_state(batch_id: int, entry: str) -> States:
    """Return what a record carries: the entry of the offset log of its batch, if it is known and small enough."""
    data = entry.encode()
    return {f"{SPARK_FILE}offsets/{batch_id}": InlineState(data=data)} if data and len(data) <= _MAX_ENTRY else {}


def carried_offsets(record: Checkpoint) -> str:
    """Return the entry of the offset log that a record carries; empty if it carries none."""
    state = record.states.get(f"{SPARK_FILE}offsets/{record.batch_id}")
    return state.data.decode() if isinstance(state, InlineState) else ""


def spark_states(states: Mapping[str, InlineState | FileState]) -> States:
    """Return the carried files of Spark's checkpoint, by their names there."""
    return {name.removeprefix(SPARK_FILE): state for name, state in states.items() if name.startswith(SPARK_FILE)}


def without_position(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint without the carried files of Spark's, but for those that its record must keep."""
    entry = f"{SPARK_FILE}offsets/{checkpoint.batch_id}"
    kept = {
        name: state
        for name, state in checkpoint.states.items()
        if not name.startswith(SPARK_FILE) or (name == entry and isinstance(state, InlineState))
    }
    return replace(checkpoint, states=kept)


def has_position(savepoint: Checkpoint) -> bool:
    """Whether a savepoint carries where its sources stand."""
    return savepoint.properties.get(POSITION) == ""


def position_problem(savepoint: Checkpoint) -> str:
    """Return why a savepoint does not carry where its sources stand."""
    return savepoint.properties.get(POSITION, "it was made by an earlier version of Stateline")


def carry_position(record: Checkpoint, files: SparkFiles | None, put: PutState) -> tuple[States, str]:
    """Put what a savepoint of a record must carry of Spark's checkpoint.

    Args:
        record: The record.
        files: Spark's checkpoint; ``None`` if it cannot be reached.
        put: Keeps the bytes of one file.

    Returns:
        The files, by the names of ``Checkpoint.states``, and the reason why there are none, which is empty otherwise.
    """
    if record.batch_id < 0:
        return {}, "no batch has run since the state was restored"
    logs, reason = _logs_in_record(record) if files is None else _logs_in_checkpoint(record, files)
    if reason:
        return {}, reason
    states: States = {SPARK_FILE + name: put(data) for name, data in logs.items()}
    if files is None:
        return states, ""
    missing = ""
    for _ in range(_ATTEMPTS):
        missing = _put_carried(states, files, put)
        if not missing:
            return states, ""
    return {}, f"{missing} was deleted from Spark's checkpoint while it was copied"


def _put_carried(states: States, files: SparkFiles, put: PutState) -> str:
    """Put the logs of the sources and the state that are not among ``states`` yet; return one that was deleted."""
    missing = ""
    for name in [name for folder in _CARRIED for name in files.names(folder)]:
        if SPARK_FILE + name not in states:
            data = files.read(name)
            if data is None:
                missing = name
            else:
                states[SPARK_FILE + name] = put(data)
    return missing


def _logs_in_record(record: Checkpoint) -> tuple[dict[str, bytes], str]:
    """The entries that a record alone knows: only of sources whose offsets say everything, such as Kafka's."""
    batch = record.batch_id
    entry = carried_offsets(record)
    if not entry:
        return {}, "Spark's checkpoint was not reachable, and the record has no source offsets"
    if not all(_is_whole(offset) for _, _, offset in source_lines(entry, f"offsets/{batch}")):
        return {}, "Spark's checkpoint was not reachable, and it holds a log of the sources"
    try:
        watermark = int(msgspec.json.decode(entry.split("\n")[1])["batchWatermarkMs"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        watermark = 0
    commit = f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode()
    found = {f"offsets/{batch}": entry.encode(), f"commits/{batch}": commit}
    if batch:
        found[f"offsets/{batch - 1}"] = entry.encode()
    return found, ""


def _logs_in_checkpoint(record: Checkpoint, files: SparkFiles) -> tuple[dict[str, bytes], str]:
    """The entries that Spark needs to continue after the batch of a record."""
    batch = record.batch_id
    committed = set(files.names("commits"))
    commit = f"commits/{batch}" if f"commits/{batch}" in committed else f"commits/{batch - 1}"
    names = [f"offsets/{batch}", *([f"offsets/{batch - 1}"] if batch else [])]
    found: dict[str, bytes] = {}
    for name in [*names, *([commit] if commit in committed else [])]:
        data = files.read(name)
        if data is None:
            return {}, f"Spark's checkpoint {files.url} has no {name}"
        found[name] = data
    if record.offsets_digest and offsets_digest(_text_of(files), files.url, batch) != record.offsets_digest:
        return {}, f"Spark's checkpoint {files.url} has other offsets for batch {batch} than the record"
    return found, ""


def _is_whole(offset: str) -> bool:
    """Whether an offset says everything: numbers by partition by topic, as Kafka's."""
    try:
        topics = msgspec.json.decode(offset, type=dict[str, dict[str, int]])
    except msgspec.DecodeError:
        return False
    return bool(topics)


def _text_of(files: SparkFiles) -> ReadFile:
    """Reads files as text; an entry that Spark has compacted is read from the next compact file."""

    def read(name: str) -> str | None:
        data = files.read(name)
        folder, _, leaf = name.rpartition("/")
        number, dot, _ = leaf.partition(".compact")
        if data is None and dot:
            compact = [each for each in files.names(folder) if each.endswith(".compact")]
            later = {int(each[len(folder) + 1 : -len(".compact")]): each for each in compact}
            newer = [each for each in later if each > int(number)]
            data = files.read(later[min(newer)]) if newer else None
        return None if data is None else data.decode()

    return read


def check_not_begun(files: SparkFiles) -> None:
    """Refuse a Spark checkpoint in which a restore was begun and never completed.

    Raises:
        ConflictError: Its files would make the source skip rows.
    """
    if files.read(_MARK) is not None:
        raise ConflictError(
            "holds files of a savepoint whose restore was not completed",
            operation="start",
            subject=files.url,
            hint='Start again from that savepoint with source="savepoint", or give Spark another checkpoint folder',
        )


def lay_position(savepoint: Checkpoint, read: ReadState, files: SparkFiles, ids: Ids) -> str:
    """Lay the files that a savepoint carries into a new Spark checkpoint. Idempotent.

    Args:
        savepoint: The savepoint.
        read: Reads the bytes of what it carries.
        files: The new Spark checkpoint.
        ids: Makes the id of the query.

    Returns:
        The id of the query that Spark starts there.

    Raises:
        ConflictError: The folder belongs to a query that has run batches, or to the restore of another savepoint.
        CorruptDataError: The savepoint names a file that is not one of Spark's checkpoint.
    """
    carried = spark_states(savepoint.states)
    for name in carried:
        _check_carried(name)
    mark = savepoint.nonce.encode()
    begun = files.read(_MARK)
    present = [name for folder in (*_CARRIED, *_LOGS) for name in files.names(folder)]
    foreign = [name for name in present if begun != mark or name not in carried]
    if foreign or begun not in (None, mark):
        raise _used(files, foreign[0] if foreign else _MARK)
    _create(files, _MARK, mark)
    for name in sorted(name for name in carried if not _is_log(name)):
        _create(files, name, read(carried[name]))
    files.create(_METADATA, msgspec.json.encode({"id": str(ids.new_uuid())}))
    newest = f"offsets/{savepoint.batch_id}"
    for name in sorted((name for name in carried if _is_log(name)), key=lambda name: (name == newest, name)):
        _create(files, name, read(carried[name]))
    return _query_of(files)


def _is_log(name: str) -> bool:
    return name.split("/", maxsplit=1)[0] in _LOGS


def _check_carried(name: str) -> None:
    """Refuse a name in a damaged savepoint that is no file of a log, of a source or of state."""
    try:
        known = check_name(name).split("/")[0] in (*_LOGS, *_CARRIED) and not is_hidden(name)
    except InvalidInputError:
        known = False
    if not known:
        raise CorruptDataError(
            f"must not carry a file named {name!r}",
            operation="start",
            subject="savepoint",
            hint="The savepoint is damaged. Use another one",
        )


def _create(files: SparkFiles, name: str, data: bytes) -> None:
    files.create(name, data)
    if files.read(name) != data:
        raise _used(files, name)


def _query_of(files: SparkFiles) -> str:
    data = files.read(_METADATA)
    try:
        return str(msgspec.json.decode(data or b"")["id"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise _used(files, _METADATA) from error


def _used(files: SparkFiles, name: str) -> ConflictError:
    return ConflictError(
        f"must be new to start from a savepoint, but it has {name}",
        operation="start",
        subject=files.url,
        hint="Give start() a new folder for Spark's checkpoint",
    )
