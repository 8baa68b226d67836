"""Delta tables that others roll back, replace and clean up: which of it takes rows away while the token stays."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.tables import commit_once
from stateline.tables.api import TableLoss
from stateline.tables.commit import check_kept, move_token
from stateline.tables.delta_history import MARK, LogEntry, find_loss, parse_entry
from tests.unit.tables.table_kit import APP, SCHEMA, DeltaPlace

WORLD = system_environment()


def filled(folder, mode="append", commits=3):
    place = DeltaPlace(folder, mode)
    for number in range(commits):
        commit_once(place.open(), place.change(number, number - 1 if number else None, [number]), WORLD)
    return place


def loss_of(place, checked=""):
    table = place.open()
    return table.loss(table.look(APP), APP, checked)


def log_of(place):
    return place.folder / "t" / "_delta_log"


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("checked", ["", "2", "3"])
def test_a_restore_that_takes_rows_is_refused(tmp_path, mode, checked):
    place = filled(tmp_path, mode)
    place.table().restore(2)
    found = loss_of(place, checked)
    assert (found.kept, found.is_certain) == (1, True)
    assert found.reason == "version 4 of the table restored version 2"
    table = place.open()
    state = table.look(APP)
    with pytest.raises(InvalidInputError, match=r"rolled back.*up to checkpoint 1 of 2 are left") as caught:
        check_kept(table, state, APP, checked)
    assert "stateline table rewrite ROOT" in str(caught.value)
    assert "stateline table accept ROOT" in str(caught.value)
    with pytest.raises(InvalidInputError, match="rolled back"):
        commit_once(place.open(), place.change(3, 2, [7]), WORLD)
    assert place.rows() == [(0, "c0"), (1, "c1")]


def test_a_restore_by_time_is_found_by_its_files(tmp_path):
    place = filled(tmp_path, commits=4)
    place.append_foreign(9)
    place.compact()
    table = place.table()
    table.restore(3)
    path = log_of(place) / f"{table.version():020}.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["commitInfo"]["operationParameters"] = {"version": None, "timestamp": "2026-01-01 00:00:00.0"}
    path.write_text("\n".join(map(json.dumps, lines)))
    found = loss_of(place)
    assert (found.kept, found.is_certain) == (2, True)
    assert "restored version 3" in found.reason


def test_a_restore_that_keeps_our_rows_is_harmless(tmp_path):
    place = filled(tmp_path)
    table = place.table()
    table.delete("k = 1")
    table.restore(3)
    assert loss_of(place) is None
    place.table().restore(1)
    assert loss_of(place).kept == 0
    place.table().restore(5)
    assert loss_of(place) is None, "a restore that undoes a restore"
    assert len(place.rows()) == 3


@pytest.mark.parametrize("checked", ["", "2", "3"])
def test_what_others_may_do_is_never_taken_for_a_rollback(tmp_path, checked):
    place = filled(tmp_path)
    place.append_foreign(9)
    place.compact()
    place.vacuum()
    table = place.table()
    table.delete("k = 0")
    table.update(updates={"v": "'changed'"}, predicate="k = 1")
    write_deltalake(str(tmp_path / "t"), pa.table({"k": [5], "v": ["x"]}, schema=SCHEMA), mode="overwrite")
    assert loss_of(place, checked) is None
    place.table().create_checkpoint()
    for entry in sorted(log_of(place).glob("0*.json")):
        entry.unlink()
        assert loss_of(place, checked) is None, f"without {entry.name}"
        if entry.name.startswith("0" * 19 + "8"):
            break
    commit_once(place.open(), place.change(3, 2, [7]), WORLD)


def test_a_table_that_was_replaced_is_refused(tmp_path):
    place = filled(tmp_path)
    identity = place.table().metadata().id
    DeltaTable.create(str(tmp_path / "t"), Schema.from_arrow(SCHEMA), mode="overwrite")
    assert loss_of(place) == TableLoss(
        reason="version 4 of the table replaced it (CREATE OR REPLACE TABLE)", kept=None, is_certain=True
    )
    for known in ("", identity):
        with pytest.raises(InvalidInputError, match=r"rolled back|made anew"):
            commit_once(place.open(), place.change(3, 2, [7], known), WORLD)


def test_a_token_that_was_set_ends_the_refusal(tmp_path):
    place = filled(tmp_path)
    place.table().restore(2)
    move_token(place.open(), APP, 2, WORLD)
    assert loss_of(place, "2") is None
    commit_once(place.open(), place.change(3, 2, [7]), WORLD)
    assert place.rows() == [(0, "c0"), (1, "c1"), (7, "c3")]
    move_token(place.open(), APP, None, WORLD)
    assert place.open().look(APP).committed is None
    commit_once(place.open(), place.change(4, None, [8]), WORLD)


def test_tokens_have_the_time_of_their_commit(tmp_path):
    place = filled(tmp_path, commits=1)
    place.table().alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 hours"})
    commit_once(place.open(), place.change(1, 0, [1]), WORLD)
    move_token(place.open(), APP, 1, WORLD)
    entries = [json.loads(line) for path in log_of(place).glob("*.json") for line in path.read_text().splitlines()]
    times = [each["txn"]["lastUpdated"] for each in entries if "txn" in each]
    assert len(times) == 3
    now = WORLD.clock.now() * 1000
    assert all(now - 600_000 < time <= now for time in times)
    place.table().create_checkpoint()
    assert place.open().look(APP).committed == 1


class ModelLog:
    """A log whose rows are known: which of the application's commits are in each version."""

    def __init__(self):
        self.entries = [LogEntry(version=0, operation="CREATE TABLE")]
        self.rows: list[frozenset[int]] = [frozenset()]
        self.files: list[frozenset[str]] = [frozenset()]
        self.token = -1

    def add(self, operation, rows, files, **more):
        version = len(self.entries)
        added, removed = files - self.files[-1], self.files[-1] - files
        if operation == "RESTORE" and not added | removed:
            rows = self.rows[-1]  # Nothing happened, even if a user has accepted these files meanwhile.
        self.entries.append(LogEntry(version=version, operation=operation, added=added, removed=removed, **more))
        self.rows.append(rows)
        self.files.append(files)

    def step(self, chance):
        version, files = len(self.entries), self.files[-1]
        match chance.choice(["ours", "ours", "foreign", "compact", "restore", "restore by time", "mark", "replace"]):
            case "ours":
                self.token += 1
                self.add("WRITE", self.rows[-1] | {self.token}, files | {f"{version}"}, tokens={"a": self.token})
            case "foreign":
                self.add("WRITE", self.rows[-1], files | {f"{version}"}, tokens={"b": version})
            case "compact" if len(files) > 1:
                self.add("OPTIMIZE", self.rows[-1], frozenset({f"{version}"}))
            case "restore":
                at = chance.randrange(version)
                self.add("RESTORE", self.rows[at], self.files[at], restored=at)
            case "restore by time":
                at = chance.randrange(version)
                self.add("RESTORE", self.rows[at], self.files[at])
            case "replace" if chance.random() < 0.2:
                self.add("CREATE OR REPLACE TABLE", frozenset(), frozenset())
            case "mark" if self.token >= 0 and chance.random() < 0.3:
                rows = frozenset(range(self.token + 1))
                self.add("WRITE", rows, files, tokens={"a": self.token}, is_mark=True)
            case _:
                pass

    @property
    def whole(self):
        """Whether every row of the token's checkpoint and of those before it is there."""
        return self.rows[-1] == frozenset(range(self.token + 1))


@pytest.mark.parametrize("part", range(8))
def test_the_replay_of_a_log_finds_every_loss_and_no_other(part):
    for seed in range(50 * part, 50 * part + 50):
        replayed(seed)


def replayed(seed):
    chance = random.Random(seed)
    log = ModelLog()
    checked = None
    for _ in range(chance.randrange(1, 25)):
        log.step(chance)
        if log.token >= 0 and log.whole and chance.random() < 0.3:
            checked = len(log.entries) - 1
        elif not log.whole:
            break  # The query has stopped here, until somebody looks.
    for _ in range(chance.randrange(3)):
        log.step(chance)
    if log.token < 0:
        return
    newest = len(log.entries) - 1
    found = find_loss(lambda versions: [log.entries[each] for each in versions], "a", checked, newest)
    if checked is None:
        commits = [each for each in log.entries if "a" in each.tokens]
        start = next(each for each in reversed(commits) if each.is_mark or each is (commits[-2:][0]))
        if log.rows[start.version] != frozenset(range(start.tokens["a"] + 1)):
            return  # Its driver had looked, and could not have committed.
    assert (found is None) == log.whole, seed
    if found is not None and found.is_certain:
        assert log.rows[-1] == frozenset(range(0 if found.kept is None else found.kept + 1)), seed


def test_entries_that_say_little_are_read():
    assert parse_entry(3, b'{"txn":{"appId":"a","version":7}}\n\n') == LogEntry(version=3, tokens={"a": 7})
    info = json.dumps({"commitInfo": {"operation": "Restore", "operationParameters": {"version": "4"}, MARK: "set"}})
    assert parse_entry(5, info.encode()) == LogEntry(version=5, operation="RESTORE", restored=4, is_mark=True)
    assert parse_entry(1, b'{"commitInfo":null}') == LogEntry(version=1)
