"""Two ways to continue with a table that lost rows of the records: write them again, or accept the loss.

Both end with a token that says what the table then counts as having. Where another table has the name now, one more
checkpoint names it, decided like any other: a driver that is still at work loses the slot and stops.

Steps, each of which may be repeated after a crash:

1. Nothing is changed before every record, file and row that is needed was found.
2. The token goes back to the newest checkpoint whose rows are there. From here on, the table is behind its records, and
   every start is refused.
3. The missing checkpoints are committed in order, each with its token, as a driver would.
4. The new identity of the table is recorded, where it has one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from msgspec.structs import replace

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint.api import checkpoint_time
from stateline.checkpoint.relocation import kept_states
from stateline.checkpoint.table_records import TableRecord, following_tables, table_properties, table_records
from stateline.environment import Environment, system_environment
from stateline.errors import DataLossError, ErrorKind, InvalidInputError, NotFoundError
from stateline.files.pending import load_rows
from stateline.pipeline.table_commits import change_of, new_file, target_of
from stateline.tables import NewFile, Table, TableState, commit_once, move_token, open_table

__all__ = ["Repair", "TableRepair", "repair_tables"]


class Repair(enum.Enum):
    """What becomes of rows that the records decided, and that a table has lost."""

    REWRITE = "rewrite"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRepair:
    """What :func:`repair_tables` found, for one table.

    Attributes:
        operator: The operator.
        target: The table, for people.
        reason: What happened to it; empty if nothing is missing.
        due: The newest checkpoint whose rows must be in the table; ``None`` for none.
        kept: The newest one whose rows are there; ``None`` for none.
        is_certain: Whether ``kept`` is known.
        rewritten: Checkpoints that are written again, in order.
        recorded: Whether one more checkpoint names the table that is there now.
    """

    operator: str
    target: str
    reason: str = ""
    due: int | None = None
    kept: int | None = None
    is_certain: bool = True
    rewritten: tuple[int, ...] = ()
    recorded: bool = False


def repair_tables(
    root: CheckpointStore,
    options: Mapping[str, str],
    repair: Repair,
    *,
    operator: str | None = None,
    dry_run: bool = True,
    environment: Environment | None = None,
) -> list[TableRepair]:
    """Make tables continue that were rolled back, recreated, or lost their token. Stop the query before.

    Args:
        root: The root.
        options: How the tables are reached, and the stores of their files.
        repair: Which way.
        operator: The operator whose table it is; ``None`` for all.
        dry_run: Check everything, and change nothing.
        environment: Clock and ids.

    Raises:
        NotFoundError: The root has no checkpoint, or no such table.
        InvalidInputError: A table does not exist, or cannot be repaired this way; says why.
        DataLossError: A file that is needed was deleted.
        UnavailableError: A table cannot be reached.
        FencedError: A driver continued meanwhile. Stop it first.
    """
    world = environment or system_environment()
    newest = root.newest("table")
    records = table_records(newest)
    if operator is not None and operator not in records:
        raise NotFoundError(
            f"expected an operator with a table, {sorted(records)}, got {operator!r}",
            operation="table",
            subject=root.store.url,
            hint="`stateline table status` shows the operators",
        )
    made = []
    for name in sorted(records) if operator is None else [operator]:
        with ExitStack() as opened:
            case = _Case(root, newest, name, options, world, opened)
            made.append(case.repaired(repair, dry_run=dry_run))
        newest = root.newest("table")
    return made


class _Case:
    """One table of one root.

    Args:
        root: The root.
        newest: Its newest record.
        operator: The operator.
        options: Those of the table.
        environment: Clock and ids.
        opened: Closes what is opened here.
    """

    def __init__(
        self,
        root: CheckpointStore,
        newest: Checkpoint,
        operator: str,
        options: Mapping[str, str],
        environment: Environment,
        opened: ExitStack,
    ) -> None:
        self._root = root
        self._newest = newest
        self._operator = operator
        self._environment = environment
        self._known = table_records(newest)[operator]
        self._is_published = root.is_published(newest)
        self._due = following_tables(newest)[operator].committed if self._is_published else self._known.committed
        url = next((output.url for output in newest.outputs if output.operator == operator), "")
        target = target_of(self._known, url, options)
        self._files: BlobStore | None = None
        if self._known.takes_files and url:
            self._files = opened.enter_context(open_store(url, target.store_options))
        self._table: Table = opened.enter_context(
            open_table(target, schema=None, store=self._files, environment=environment)
        )

    def repaired(self, repair: Repair, *, dry_run: bool) -> TableRepair:
        """Look, decide, and do it unless ``dry_run``."""
        found, state = self._found()
        if not found.reason:
            return found
        is_rewriting = repair is Repair.REWRITE
        missing = self._missing(found) if is_rewriting else []
        renamed = self._renamed(state) if found.recorded else None
        if not dry_run:
            move_token(self._table, self._known.app, found.kept if is_rewriting else self._due, self._environment)
            for record in missing:
                self._rewrite(record, state)
            if renamed is not None:
                self._root.publish(renamed)
        return dataclasses.replace(found, rewritten=tuple(record.checkpoint_id for record in missing))

    def _found(self) -> tuple[TableRepair, TableState]:
        known, due = self._known, self._due
        state = self._table.look(known.app)
        sound = TableRepair(operator=self._operator, target=self._table.name, due=due, kept=due)
        if state.identity is None:
            if due is None and not known.identity:
                return sound, state
            raise self._refused(
                f"the table is missing: rows up to checkpoint {due} were in it",
                "Restore it, or create it with the same columns, and repeat the command",
            )
        is_other = bool(known.identity and state.identity) and state.identity != known.identity
        checked = "" if is_other else known.checked
        loss = None if state.committed is None else self._table.loss(state, known.app, checked)
        if loss is not None:
            found = dataclasses.replace(
                sound, reason=loss.reason, kept=loss.kept, is_certain=loss.is_certain, recorded=is_other
            )
            return found, state
        is_behind = due is not None and (state.committed is None or state.committed < due)
        if not is_other and not is_behind:
            return sound, state
        had = "no rows of this query" if state.committed is None else f"rows up to checkpoint {state.committed}"
        which = f"another table, {state.identity}, " if is_other else "the table "
        found = dataclasses.replace(sound, reason=f"{which}has {had}", kept=state.committed, recorded=is_other)
        return found, state

    def _missing(self, found: TableRepair) -> list[Checkpoint]:
        """The records whose rows are written again, oldest first; everything that they need is there."""
        if not found.is_certain:
            raise self._refused(
                f"cannot tell which rows are left: {found.reason}",
                "Accept the table with `stateline table accept`, or restore it to a version with all rows",
            )
        retained = {record.checkpoint_id: record for record in self._root.list()}
        missing: list[Checkpoint] = []
        at = self._due
        while at is not None and at != found.kept:
            record = retained.get(at)
            known = None if record is None else table_records(record).get(self._operator)
            if record is None or known is None or (found.kept is not None and at < found.kept):
                kept = "no rows" if found.kept is None else f"rows up to checkpoint {found.kept}"
                raise self._refused(
                    f"checkpoint {at} is not retained any more, and the table has {kept}",
                    "Restore a newer version of the table, or accept the loss with `stateline table accept`",
                )
            missing.insert(0, record)
            self._check_files(record)
            at = known.committed
        return missing

    def _check_files(self, record: Checkpoint) -> None:
        for file in self._files_of(record):
            try:
                size = -1 if self._files is None else self._files.head(file.name).size
            except NotFoundError:
                size = -1
            if size != file.length:
                raise DataLossError(
                    f"file {file.name} of checkpoint {record.checkpoint_id} was deleted or changed",
                    operation="table",
                    subject=self._table.name,
                    hint="Restore the file, or accept the loss with `stateline table accept`",
                )

    def _rewrite(self, record: Checkpoint, state: TableState) -> None:
        rows = [handle for each in record.deliveries if each.operator == self._operator for handle in each.rows]
        known = replace(table_records(record)[self._operator], identity=state.identity or "", checked=state.version)
        change = change_of(record, known, self._files_of(record), lambda: load_rows(self._root.store, rows))
        commit_once(self._table, change, self._environment)

    def _files_of(self, record: Checkpoint) -> tuple[NewFile, ...]:
        if not self._known.takes_files:
            return ()
        outputs = [output for output in record.outputs if output.operator == self._operator]
        return tuple(new_file(file) for output in outputs for file in output.finished)

    def _renamed(self, state: TableState) -> Checkpoint:
        """One more checkpoint of the newest batch, which names the table that is there now."""
        newest = self._newest
        tables: dict[str, TableRecord] = table_records(newest)
        if self._is_published:
            tables = following_tables(newest)
        elif {*tables, *(each.operator for each in newest.deliveries)} != {self._operator}:
            raise self._refused(
                f"checkpoint {newest.checkpoint_id} is not committed into all tables yet, and must not be repeated",
                "Start a new query with a new root and a new table",
            )
        tables[self._operator] = replace(
            tables[self._operator], identity=state.identity or "", version="", checked=state.version
        )
        record = replace(
            newest.without_deliveries() if self._is_published else newest,
            checkpoint_id=newest.checkpoint_id + 1,
            nonce=self._environment.ids.new_id(),
            created_at=checkpoint_time(self._environment.clock.now(), newest),
            outputs=tuple(
                replace(each, finished=() if self._is_published else each.finished) for each in newest.outputs
            ),
            properties=newest.properties | table_properties(tables),
        )
        return replace(record, states=kept_states(newest))

    def _refused(self, reason: str, hint: str) -> InvalidInputError:
        return InvalidInputError(
            reason, operation="table", subject=self._table.name, hint=hint, kind=ErrorKind.CONFLICT
        )
