"""``stateline table status`` and ``checkpoint verify --tables``: what a table has, beside what it should have."""

from __future__ import annotations

import dataclasses
import json
import sqlite3

import pytest
from click.testing import CliRunner

from stateline.blob import open_store
from stateline.checkpoint.table_records import TableRecord
from stateline.cli.commands import stateline
from stateline.pipeline import table_commits
from stateline.pipeline.table_status import Verdict, verdict_of
from stateline.tables import TableState
from tests.unit.pipeline.test_table_commits import FilesQuery, RowsQuery
from tests.unit.tables.table_kit import places


def ask(*arguments):
    answer = CliRunner().invoke(stateline, list(map(str, arguments)))
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.output
    return answer


@pytest.fixture
def sqlite_query(tmp_path):
    query = RowsQuery(places(tmp_path)["sqlite"])
    query.root = open_store((tmp_path / "root").as_uri())
    query.run(0, 1, 2)
    query.run(1, 2)
    return query


def status(query):
    uri = query.table.options["uri"]
    answer = ask("table", "status", query.root.url, "--json", "--table-option", f"uri={uri}")
    (facts,) = map(json.loads, answer.output.splitlines())
    return answer.exit_code, facts


def test_a_table_in_step(sqlite_query):
    code, facts = status(sqlite_query)
    assert (code, facts["state"], facts["due"], facts["committed"]) == (0, "in step", 1, 1)
    text = ask("table", "status", sqlite_query.root.url, "--table-option", f"uri={sqlite_query.table.options['uri']}")
    assert "sqlite flights" in text.output
    assert "in step" in text.output


def test_a_commit_that_is_pending(sqlite_query, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(table_commits, "commit_once", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sqlite_query.run(2, 3)
    code, facts = status(sqlite_query)
    assert (code, facts["state"], facts["due"], facts["committed"]) == (0, "pending", 2, 1)
    sqlite_query.start()
    assert status(sqlite_query)[1]["state"] == "in step"


def test_a_table_that_has_lost_rows(sqlite_query):
    connection = sqlite3.connect(sqlite_query.place.folder / "t.db", isolation_level=None)
    connection.execute("UPDATE stateline_commits SET checkpoint_id = 0")
    connection.close()
    code, facts = status(sqlite_query)
    assert (code, facts["state"]) == (1, "BEHIND")
    uri = f"uri={sqlite_query.table.options['uri']}"
    plain = ask("checkpoint", "verify", sqlite_query.root.url)
    assert plain.exit_code == 0
    verified = ask("checkpoint", "verify", sqlite_query.root.url, "--tables", "--table-option", uri)
    assert verified.exit_code == 1
    assert "BEHIND" in verified.output
    sqlite_query.place.drop()
    assert status(sqlite_query)[1]["state"] == "GONE"


def test_a_delta_table_needs_no_options(tmp_path):
    query = FilesQuery(places(tmp_path)["delta"])
    query.root = open_store((tmp_path / "root").as_uri())
    query.run(0, 1)
    query.run(1, 2)
    answer = ask("table", "status", query.root.url, "--json")
    facts = json.loads(answer.output)
    assert (answer.exit_code, facts["state"], facts["version"]) == (0, "in step", "2")
    query.place.drop()
    query.place.open().create()
    answer = ask("table", "status", query.root.url)
    assert answer.exit_code == 1
    assert "ANOTHER TABLE" in answer.output


def test_a_table_that_cannot_be_reached(sqlite_query):
    wrong = dataclasses.replace(sqlite_query.table, options={"uri": str(sqlite_query.place.folder)})
    sqlite_query.table = wrong
    code, facts = status(sqlite_query)
    assert code == 1
    assert facts["state"].startswith("not reached: ")


@pytest.mark.parametrize(
    ("found", "identity", "known", "due", "published", "verdict"),
    [
        (5, "t", 4, 5, True, Verdict.IN_STEP),
        (4, "t", 4, 5, False, Verdict.PENDING),
        (4, "t", 4, 5, True, Verdict.BEHIND),
        (3, "t", 4, 5, False, Verdict.BEHIND),
        (6, "t", 4, 5, True, Verdict.AHEAD),
        (None, "t", None, 0, False, Verdict.PENDING),
        (None, None, None, 0, False, Verdict.PENDING),
        (None, None, 4, 5, False, Verdict.GONE),
        (5, "other", 4, 5, True, Verdict.ANOTHER),
        (None, "t", None, None, True, Verdict.IN_STEP),
    ],
)
def test_the_rule_of_a_verdict(found, identity, known, due, published, verdict):
    record = TableRecord(format="delta", target="", app="a", committed=known, identity="t")
    state = TableState(identity=identity, committed=found)
    assert verdict_of(state, record, due, is_published=published) is verdict


def test_a_table_that_lost_rows_is_repaired_by_one_of_two_commands(tmp_path):
    query = FilesQuery(places(tmp_path)["delta"])
    query.root = open_store((tmp_path / "root").as_uri())
    for number in range(3):
        query.run(number, number)
    table = query.place.table()
    for way, said, count in (("rewrite", "committed again: 1, 2", 3), ("accept", "up to checkpoint 2", 1)):
        table.update_incremental()
        table.restore(1)
        assert "ROLLED BACK: version" in ask("table", "status", query.root.url).output
        dry = ask("table", way, query.root.url)
        assert (dry.exit_code, len(query.place.rows())) == (0, 1)
        assert "Nothing was changed: add --apply" in dry.output
        (facts,) = map(json.loads, ask("table", way, query.root.url, "--json").output.splitlines())
        assert (facts["due"], facts["kept"], facts["applied"]) == (2, 0, False)
        assert said in ask("table", way, query.root.url, "--apply", "--operator", "files").output
        assert len(query.place.rows()) == count
        assert "in step" in ask("table", "status", query.root.url).output
        assert "no rows are missing" in ask("table", way, query.root.url, "--apply").output
    wrong = ask("table", "accept", query.root.url, "--operator", "others")
    assert (wrong.exit_code, "expected an operator with a table" in wrong.output) == (1, True)
