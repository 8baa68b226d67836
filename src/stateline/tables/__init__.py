"""Commits into tables and databases: what a record decided, once, whoever comes and however late.

:mod:`stateline.tables.api` is the protocol. Each format has a module, which is loaded, with its library, when a table
of it is opened.
"""

from stateline.tables.api import Attempt, NewFile, Outcome, Table, TableChange, TableLoss, TableState, TableToken
from stateline.tables.commit import check_kept, check_token, commit_once, move_token
from stateline.tables.rows import are_distinct, canonical_keys, check_keys, check_rows, joined_rows, key_hashes
from stateline.tables.targets import FILE_TABLES, TABLE_FORMATS, TableTarget, open_table, resolve_options
from stateline.tables.values import check_values

__all__ = [
    "FILE_TABLES",
    "TABLE_FORMATS",
    "Attempt",
    "NewFile",
    "Outcome",
    "Table",
    "TableChange",
    "TableLoss",
    "TableState",
    "TableTarget",
    "TableToken",
    "are_distinct",
    "canonical_keys",
    "check_kept",
    "check_keys",
    "check_rows",
    "check_token",
    "check_values",
    "commit_once",
    "joined_rows",
    "key_hashes",
    "move_token",
    "open_table",
    "resolve_options",
]
