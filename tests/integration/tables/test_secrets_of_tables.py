"""Commits into each kind of table succeed and fail: nothing that they leave or say has a secret of its options."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import closing, suppress
from urllib.parse import quote

import pytest

from stateline.checkpoint import CheckpointStore
from stateline.dashboard.roots import RootFollower
from stateline.dashboard.server import TABS, dashboard_app
from stateline.errors import StatelineError
from stateline.tables import open_table
from tests.kit.canaries import CANARY, Witness
from tests.unit.pipeline.test_table_commits import FilesQuery, RowsQuery
from tests.unit.tables.table_kit import SCHEMA, PostgresqlPlace, places

NOWHERE = "127.0.0.1:9"
SECRETS = {
    "delta": {"storage.AWS_SECRET_ACCESS_KEY": CANARY, "storage.AWS_SESSION_TOKEN": CANARY},
    "iceberg": {"catalog.s3.secret-access-key": CANARY, "catalog.token": CANARY, "catalog.password": CANARY},
    "postgresql": {},
}
BROKEN = {
    "delta": {"storage.no_such_secret": CANARY, "secret_access_key": CANARY},
    "iceberg": {"catalog.uri": f"postgresql+psycopg2://user:{quote(CANARY, safe='')}@{NOWHERE}/db"},
    "postgresql": {"uri": f"postgrsql://user:{CANARY}@{NOWHERE}/db"},
}
"""What makes the table unreachable, or is refused by us or by a library."""

KINDS = ("delta", "delta-upsert", "iceberg", "postgresql", "postgresql-upsert")


def place_of(kind, folder, request):
    if not kind.startswith("postgresql"):
        return places(folder)[kind]
    uri = request.getfixturevalue("uri").replace("tester@", f"tester:{quote(CANARY, safe='')}@")
    return PostgresqlPlace(folder, "upsert" if kind.endswith("upsert") else "append", uri=uri)


def with_options(place, options):
    """The place, whose table has more options."""
    target = place.target()
    place.target = lambda: dataclasses.replace(target, options={**target.options, **options})
    return place


def see_commands(witness, query, options):
    given = [part for name, text in options.items() for part in ("--table-option", f"{name}={text}")]
    for arguments in (
        ["table", "status", query.root.url, *given],
        ["table", "rewrite", query.root.url, *given],
        ["checkpoint", "verify", query.root.url, "--tables", *given],
        ["checkpoint", "show", query.root.url],
    ):
        for form in ([], ["--json"]):
            witness.command(*arguments, *form)
    with closing(RootFollower(query.root.url)) as follower:
        client = dashboard_app([follower], token=None).test_client()
        for tab in dict(TABS):
            witness.see("page", tab, client.get(f"/r/0/{tab}").data)


@pytest.mark.filterwarnings("ignore")  # Of drivers of catalogs, on connections that were refused.
@pytest.mark.parametrize("kind", KINDS)
def test_commits_that_succeed_and_fail_show_no_secret(kind, tmp_path, request, caplog):
    caplog.set_level(logging.DEBUG, logger="stateline")
    witness = Witness(CANARY)
    form = kind.partition("-")[0]
    place = with_options(place_of(kind, tmp_path, request), SECRETS[form])
    query = (FilesQuery if place.target().takes_files else RowsQuery)(place)
    query.run(0, 1, 2)
    query.run(1, 2, 3)
    query.start()
    target = query.table
    with closing(open_table(target, schema=SCHEMA, store=place.store())) as table:
        witness.see_objects(target, table, CheckpointStore(query.root), query.newest())
        witness.see("object", "name", table.name)
        with suppress(StatelineError):
            witness.see_objects(table.look("app"))
    see_commands(witness, query, target.options)
    query.table = dataclasses.replace(target, options={**target.options, **BROKEN[form]})
    assert isinstance(witness.failing(lambda: query.run(2, 4)), StatelineError)
    see_commands(witness, query, query.table.options)
    query.table = target
    place.drop()
    witness.failing(lambda: [query.run(2, 4), query.run(3, 5)])
    see_commands(witness, query, target.options)
    witness.see_store(query.root)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            witness.see("file", file.name, file.read_bytes())
    witness.see_logs(caplog.records)
    place.close()
    assert witness.found == []
    assert witness.looked["error"] == 2
    assert witness.looked["bytes"] > 2
