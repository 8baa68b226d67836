"""From Arrow rows to the bytes of a file; each format is a module of its own.

To add one, write a module with a :class:`~stateline.files.formats.format.Format`, and enter it in :data:`FORMATS`.

| format | bytes | limits |
|---|---|---|
| ``parquet`` | row groups as ``row_groups`` says | what Spark cannot read from it |
| ``arrow`` | Arrow IPC file, record batches as ``row_groups`` says | |
| ``csv`` | RFC 4180 with a header line; a null is nothing, an empty string is ``""`` | flat columns |
| ``jsonl`` | one JSON object per line | keys of maps are not structures, fractions or booleans |
| ``text`` | one line per row; a null is an empty line | one string column; a value must not hold a line break |

Spark's intervals have no common form in files, so every format refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from stateline.files.formats.arrow import ArrowFormat
from stateline.files.formats.csv import CsvFormat
from stateline.files.formats.format import Format
from stateline.files.formats.jsonl import JsonLinesFormat
from stateline.files.formats.parquet import ParquetFormat
from stateline.files.formats.text import TextFormat

__all__ = ["FORMATS"]

FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {form.name: form for form in (ParquetFormat(), ArrowFormat(), CsvFormat(), JsonLinesFormat(), TextFormat())}
)
"""All formats by name."""
