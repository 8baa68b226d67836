"""Events as files: a folder for each kind, a file for each block of events, in the order in which Spark takes them.

The events of given settings are written once, beside their final folder, which gets its name when all are there. So a
run that was interrupted leaves nothing that looks complete, and two runs at once do not disturb each other.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from examples.nexmark.events import SCHEMAS, EventSettings, blocks

__all__ = ["prepare", "side_input"]

SIDE_ROWS = 10_000

_DESCRIPTION = "events.json"
_FORMAT = 1
_FIRST_MODIFIED = 1_356_998_400
"""Spark's file source takes files in the order of their times; only that matters."""
_WITH_FEW_VALUES = ["name", "city", "state", "channel", "url"]


def prepare(settings: EventSettings, folder: Path) -> Path:
    """The folder of these events below ``folder``: the one that is there, or a new one."""
    name = f"events-{settings.events}-rate-{settings.rate}-seed-{settings.seed}-block-{settings.block}"
    source = folder / name
    if _description_of(source) == _described(settings):
        return source
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        _write_events(settings, unfinished)
        if source.exists():
            shutil.rmtree(source)
        unfinished.rename(source)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return source


def side_input() -> pa.Table:
    """What q13 joins bids with: keys from 0, each with itself as text."""
    keys = pa.array(range(SIDE_ROWS), pa.int64())
    return pa.table({"key": keys, "value": keys.cast(pa.string())})


def _write_events(settings: EventSettings, folder: Path) -> None:
    for kind in (*SCHEMAS, "side"):
        (folder / kind).mkdir()
    for number, tables in enumerate(blocks(settings)):
        for kind, table in tables.items():
            _write(table, folder / kind, number)
    _write(side_input(), folder / "side", 0)
    (folder / _DESCRIPTION).write_text(_described(settings))


def _write(table: pa.Table, folder: Path, number: int) -> None:
    path = folder / f"{number:05}.parquet"
    dictionaries = [name for name in _WITH_FEW_VALUES if name in table.schema.names]
    pq.write_table(table, path, use_dictionary=dictionaries or False)
    os.utime(path, (_FIRST_MODIFIED + number, _FIRST_MODIFIED + number))


def _description_of(source: Path) -> str | None:
    try:
        return (source / _DESCRIPTION).read_text()
    except FileNotFoundError:
        return None


def _described(settings: EventSettings) -> str:
    return json.dumps({"format": _FORMAT, **asdict(settings)}, default=str, indent=2) + "\n"
