"""A PostgreSQL server of the tests' own, in a folder of its own: Debian's package, or any on PATH.

It refuses to run as root, so there it runs as ``postgres``, or ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

MISSING = "PostgreSQL is not installed: its tests need `apt-get install postgresql`"


class PostgresqlServer:
    """A running server. Every command that it starts has ended when :meth:`close` returns."""

    def __init__(self) -> None:
        self._commands = _commands()
        self._user = _user()
        # Not in a folder of pytest's: those are closed to the user that the server runs as.
        self._folder = Path(tempfile.mkdtemp(prefix="stateline-postgresql-"))
        self._data = self._folder / "data"
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.uri = f"postgresql://tester@127.0.0.1:{port}/postgres"
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "tester", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self._folder / "log", "-o", options, "start")

    def close(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "stop")
        shutil.rmtree(self._folder)

    def _run(self, command: str, *arguments: Any) -> None:
        subprocess.run(
            [self._commands / command, *map(str, arguments)],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
            cwd="/",
        )


def _commands() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = shutil.which("initdb")
    if path is not None:
        found.append(Path(path))
    if not found:
        pytest.fail(MISSING)
    return found[-1].parent


def _user() -> str | None:
    if os.getuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
