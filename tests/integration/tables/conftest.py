"""One server for all tests of this folder; each test has a schema of its own."""

from __future__ import annotations

import itertools

import psycopg
import pytest

from tests.integration.tables.postgresql_server import PostgresqlServer

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server():
    """The server."""
    running = PostgresqlServer()
    yield running
    running.close()


@pytest.fixture
def uri(server):
    """A database of the test's own."""
    name = f"test_{next(_NUMBERS)}"
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server.uri.rpartition('/')[0]}/{name}"
