"""Draws cases: names of columns, types, values, partitions, keys, and what other writers do between batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.readers.cases import Case, Step
from tests.readers.filters import COMPARISONS, Filter, is_broken
from tests.readers.kinds import KINDS

__all__ = ["SPARK_READS", "TABLES", "draw"]

TABLES: Final = (
    "delta",
    "delta-upsert",
    "iceberg",
    "files",
    "sqlite",
    "sqlite-upsert",
    "postgresql",
    "postgresql-upsert",
)
SPARK_READS: Final = ("delta", "iceberg", "files")
"""How the names of tables begin that Spark reads."""
_PLAIN: Final = ("a", "b", "c", "d", "n")
_NAMES: Final = (
    "a.b",
    "A",
    "D.x",
    "t.s",
    "a b",
    "a,b",
    "a;b",
    "{a}",
    "(a)",
    "a\nb",
    "a\tb",
    "a=b",
    "a`b",
    'a"b',
    "a'b",
    "a%20b",
    "a/b",
    "a#b",
    "a?b",
    "a\\b",
    "_a",
    " a",
    "é",
    "日本",
    "x" * 63,
    "x" * 64,
    "é" * 40,
    "select",
    "element",
    "1",
)
_FOLDERS: Final = ("t", "t", "t", "a b", "a%20b", "a+b", "é", "a=b", "a'b", "a#b", "a?b")
_TARGETS: Final = ("flights", "flights", "Flights", "a b", 'a"b', "a'b", "select", "x" * 63, "x" * 64, "é" * 32)
_LAKE_ONLY: Final = ("texts", "pair")
_SHARE_OF_RARE: Final = 0.02
_SHARE_OF_NAMES: Final = 0.35


def draw(table: str, seed: int) -> Case:
    """The case of a seed.

    Args:
        table: One of :data:`TABLES`.
        seed: Any number.
    """
    dice = random.Random(f"{table} {seed}")
    form, _, mode = table.partition("-")
    columns = _columns(dice, form)
    key = _key(dice, columns) if mode == "upsert" else ()
    is_lake = form in ("delta", "iceberg", "files")
    partitions = _partitions(dice, form, columns) if is_lake and mode != "upsert" else ()
    case = Case(
        table=form,
        columns=columns,
        steps=(),
        partition_by=partitions,
        key=key,
        deletes=bool(key) and dice.random() < 0.4,
        parallelism=dice.choice((1, 1, 2)),
        folder=dice.choice(_FOLDERS) if is_lake else "t",
        target="flights" if is_lake else dice.choice(_TARGETS),
        seed=seed,
    )
    return _with_steps(dice, case)


def _columns(dice: random.Random, form: str) -> tuple[tuple[str, str], ...]:
    kinds = [kind for kind in KINDS if form in ("delta", "iceberg", "files") or kind not in _LAKE_ONLY]
    weights = [3 if kind in ("string", "double", "float") else 1 for kind in kinds]
    names: list[str] = []
    for _ in range(dice.randint(1, 4)):
        pool = _NAMES if dice.random() < _SHARE_OF_NAMES else _PLAIN
        name = dice.choice(pool)
        if name not in names and (name.lower() not in map(str.lower, names) or dice.random() < 0.1):
            names.append(name)
    return tuple((name, dice.choices(kinds, weights)[0]) for name in names)


def _partitions(dice: random.Random, form: str, columns: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    able = [(name, kind) for name, kind in columns if kind not in _LAKE_ONLY]
    if form == "files":
        able = [(name, kind) for name, kind in able if kind == "string"]
    if not able or (len(columns) < 2 and form != "iceberg") or dice.random() < 0.4:
        return ()
    chosen = dice.sample(able, dice.choice((1, 1, 1, min(2, len(able)))))
    if len(chosen) == len(columns) and form != "iceberg":
        chosen = chosen[:-1]
    made = []
    for name, kind in chosen:
        moments = ("year", "month", "day", "hour") if kind != "date" else ("year", "month", "day")
        if form == "iceberg" and kind in ("date", "timestamp", "timestamp_ntz") and dice.random() < 0.6:
            made.append(f"{dice.choice(moments)}({name})")
        else:
            made.append(name)
    return tuple(made)


def _key(dice: random.Random, columns: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    able = [name for name, kind in columns if kind not in _LAKE_ONLY]
    if not able:
        return ("rid",)
    return tuple(dice.sample(able, min(len(able), dice.choice((1, 1, 2)))))


class _Values:
    """Draws the values of a case: few of each column, so that they come again."""

    def __init__(self, dice: random.Random, case: Case) -> None:
        self._dice = dice
        self._pools: dict[str, list[Any]] = {}
        for name, kind in case.columns:
            given = KINDS[kind]
            pool = dice.sample(given.values, min(len(given.values), dice.randint(2, 5)))
            if given.rare and dice.random() < _SHARE_OF_RARE:
                pool.append(dice.choice(given.rare))
            if name in case.key:
                pool = [value for value in pool if value is not None] or [given.values[1]]
            self._pools[name] = pool
        self._number = 0

    def row(self) -> tuple[Any, ...]:
        """A row with the next id."""
        self._number += 1
        return (self._number, *(self._dice.choice(pool) for pool in self._pools.values()))

    def of(self, column: str) -> Any:
        """A value of a column."""
        return self._dice.choice(self._pools[column])


def _with_steps(dice: random.Random, case: Case) -> Case:
    values = _Values(dice, case)
    steps = []
    for number in range(dice.randint(1, 4)):
        if number and dice.random() < 0.6:
            steps += _between(dice, case, values, steps)
        steps.append(_write(dice, case, values, steps))
    if dice.random() < 0.4:
        steps += _between(dice, case, values, steps)
    return _replaced(case, tuple(steps))


def _replaced(case: Case, steps: tuple[Step, ...]) -> Case:
    return Case(**{**{name: getattr(case, name) for name in case.__dataclass_fields__}, "steps": steps})


def _write(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> Step:
    rows = [values.row() for _ in range(dice.randint(1, 6))]
    gone: list[tuple[Any, ...]] = []
    if case.key:
        rows = _one_for_each_key(case, rows)
        if case.deletes:
            earlier = [row for step in steps if step.do == "write" for row in step.rows]
            gone = dice.sample(earlier, min(len(earlier), dice.randint(0, 2)))
            keys = {_key_of(case, row) for row in rows}
            gone = [row for row in gone if _key_of(case, row) not in keys]
            gone = _one_for_each_key(case, gone)
    return Step("write", tuple(rows), tuple(gone))


def _one_for_each_key(case: Case, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return list({_key_of(case, row): row for row in rows}.values())


def _key_of(case: Case, row: tuple[Any, ...]) -> tuple[str, ...]:
    names = ["rid", *(name for name, _ in case.columns)]
    values = dict(zip(names, row, strict=True))
    return tuple(
        "0.0" if isinstance(values[name], float) and values[name] == 0 else repr(values[name]) for name in case.key
    )


def _between(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> list[Step]:
    """What other writers do."""
    changed = any(step.do in ("rename", "add", "drop") for step in steps)
    able = [draw for draw, forms in _OTHERS.items() if case.table in forms and not (changed and draw in _OF_ROWS)]
    found = []
    for _ in range(dice.choice((1, 1, 2))):
        if not able:
            break
        step = dice.choice(able)(dice, case, values, steps)
        if step is not None:
            found.append(step)
            if step.do in ("rename", "add", "drop"):
                break
    return found


def _filter(dice: random.Random, case: Case, values: _Values) -> Filter | None:
    able = [(name, kind) for name, kind in case.columns if kind not in _LAKE_ONLY]
    if not able:
        return None
    name, kind = dice.choice(able)
    value = values.of(name)
    if value is None or is_broken(value):
        return Filter(name, dice.choice(("null", "not null")))
    if kind in ("float", "double") and dice.random() < 0.2:
        return Filter(name, "nan")
    return Filter(name, dice.choice(COMPARISONS), (value,))


def _delete(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> Step | None:
    where = _filter(dice, case, values)
    return None if where is None else Step("delete", where=where, spark=True)


def _update(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> Step | None:
    where = _filter(dice, case, values)
    able = [name for name, kind in case.columns if kind not in _LAKE_ONLY and name not in case.key]
    if where is None or not able:
        return None
    column = dice.choice(able)
    value = values.of(column)
    return None if is_broken(value) else Step("update", where=where, column=column, value=value, spark=True)


def _merge(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> Step | None:
    ids = [row[0] for step in steps if step.do == "write" for row in step.rows]
    if case.key or not ids:
        return None
    fresh = values.row()
    return Step("merge", (fresh, (dice.choice(ids), *values.row()[1:])), spark=True)


def _insert(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> Step | None:
    row = values.row()
    if case.key or any(is_broken(value) for value in row):
        return None
    # deltalake names a folder by all digits of a number, which may be more than a name can have.
    return Step("insert", (row,), spark=bool(case.partition_by) or dice.random() < 0.5)


def _remove(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> Step | None:
    rows = [row for step in steps if step.do == "write" for row in step.rows]
    return Step("delete", (dice.choice(rows),)) if rows else None


def _compact(dice: random.Random, case: Case, *_: Any) -> Step:
    return Step("compact", spark=case.table in ("delta", "iceberg") and dice.random() < 0.5)


def _vacuum(dice: random.Random, case: Case, *_: Any) -> Step:
    return Step("vacuum", spark=case.table == "iceberg" or (case.table == "delta" and dice.random() < 0.5))


def _manifests(*_: Any) -> Step:
    return Step("manifests", spark=True)


def _rename(dice: random.Random, case: Case, _: _Values, steps: list[Step]) -> Step | None:
    if any(step.do == "rename" for step in steps):
        return None
    return Step("rename", column=dice.choice(case.columns)[0], value="renamed")


def _add(dice: random.Random, case: Case, _: _Values, steps: list[Step]) -> Step | None:
    if any(step.column == "added" for step in steps):
        return None
    kind = "string" if case.table != "iceberg" else dice.choice([kind for _, kind in case.columns])
    return Step("add", column="added", value=kind)


def _again(dice: random.Random, case: Case, values: _Values, steps: list[Step]) -> Step | None:
    """Drops a column, or adds one under a name that was dropped or renamed before."""
    dropped = [step for step in steps if step.do in ("drop", "rename")]
    if dropped:
        name = dropped[-1].column
        return Step("add", column=name, value=dict(case.columns)[name])
    # A column that a partition is made of cannot be dropped, which pyiceberg notices when it is too late.
    able = [name for name, _ in case.columns if not any(name in part for part in case.partition_by)]
    return Step("drop", column=dice.choice(able)) if able else None


Drawn = Callable[[random.Random, Case, _Values, list[Step]], Step | None]
_OTHERS: Final[dict[Drawn, tuple[str, ...]]] = {
    _delete: ("delta", "iceberg"),
    _update: ("delta", "iceberg"),
    _merge: ("delta", "iceberg"),
    _insert: ("delta", "iceberg"),
    _remove: ("delta", "sqlite", "postgresql"),
    _compact: ("delta", "iceberg", "sqlite", "postgresql"),
    _vacuum: ("delta", "iceberg", "sqlite", "postgresql"),
    _manifests: ("iceberg",),
    _rename: ("iceberg",),
    _add: ("iceberg", "sqlite", "postgresql"),
    _again: ("iceberg",),
}
_OF_ROWS: Final = (_delete, _update, _merge, _insert, _remove, _rename)
"""What names columns, or has rows of all columns: left out once the columns have changed."""
