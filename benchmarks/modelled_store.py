"""A store in the laboratory that is as far away as a real one: ``gs://`` on the loopback interface.

Each request waits for the first byte, moves its bytes at the rate of one connection, and one in so many stalls, before
or after its effect. It counts requests and bytes by kind. A process of its own serves, so that it shares no interpreter
with what is measured; real clients reach it from any process through the options of the store:

    with ModelledStore() as store:
        KeyedStream(events, "k", store.url("root"), root_options=store.options)
        store.model(stall_share=0.01)
        store.reset()
        print(store.counts())

By hand: ``python -m benchmarks.modelled_store --address 127.0.0.2``, which serves until its input ends.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kit.gcs_server import GcsServer
from tests.kit.loopback_http import Handler, Reply, Request

LATENCY_SECONDS, BYTES_PER_SECOND, STALL_SHARE, STALL_SECONDS = 0.030, 90e6, 0.0, 5.0

_CONTROL = "/model"


def kind_of(request: Request) -> str:
    """What a request is, in the words of stores."""
    if request.method == "DELETE":
        return "delete"
    if "/upload/" in request.path:
        return "create" if request.query.get("ifGenerationMatch") == "0" else "put"
    if request.method == "POST":
        return "compose" if request.path.endswith("/compose") else "copy"
    if request.query.get("alt") == "media":
        return "get"
    return "list" if request.path.endswith("/o") else "head"


class _Modelled(GcsServer):
    """The server, with the time that requests take."""

    def __init__(self, address: str, model: Mapping[str, float], seed: int) -> None:
        self._model = dict(model)
        self._random = random.Random(seed)
        self._counted = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        super().__init__(address=address)
        self._inner: Handler = self.handle
        self.handle = self._handle

    def _handle(self, request: Request) -> Reply | None:
        if request.path.startswith(_CONTROL):
            return self._control(request)
        model = self._model
        with self._counted:
            stalls = self._random.random() < model["stall_share"]
            before = stalls and self._random.random() < 0.5
            kind = kind_of(request)
            self._requests[kind] += 1
            self._requests["stalled"] += stalls
        time.sleep(model["stall_seconds"] if before else 0.0)
        reply = self._inner(request)
        with self._counted:
            self._bytes[kind] += len(request.body) + (len(reply.body) if reply is not None and kind == "get" else 0)
        late = model["stall_seconds"] if stalls else 0.0
        due = request.began_at + late + model["latency_seconds"] + len(request.body) / model["bytes_per_second"]
        time.sleep(max(due - time.monotonic(), 0.0))
        return None if reply is None else replace(reply, bytes_per_second=model["bytes_per_second"])

    def _control(self, request: Request) -> Reply:
        with self._counted:
            if request.path == f"{_CONTROL}/reset":
                self._requests.clear()
                self._bytes.clear()
            self._model.update(json.loads(request.body or b"{}"))
            told = {"requests": self._requests, "bytes": self._bytes, "model": self._model}
            return Reply(200, json.dumps(told).encode(), {"Content-Type": "application/json"})


class ModelledStore:
    """A server in a process of its own, which ends with this one. A context manager.

    Args:
        address: Of the loopback interface.
        seed: Of the stalls.
        model: ``latency_seconds``, ``bytes_per_second``, ``stall_share``, ``stall_seconds``.
    """

    def __init__(self, address: str = "127.0.0.1", seed: int = 1, **model: float) -> None:
        command = [sys.executable, "-m", "benchmarks.modelled_store", "--address", address, "--seed", str(seed)]
        folder = Path(__file__).parent.parent
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
        if self._process.stdout is None:
            raise RuntimeError("there is no way to hear where the server listens")
        self.endpoint = self._process.stdout.readline().strip()
        self.options = {"endpoint": self.endpoint, "anonymous": "true", "project": "benchmark"}
        self.model(**model)

    def url(self, folder: str) -> str:
        """The URL of a root."""
        return f"gs://bucket/{folder}"

    def model(self, **values: float) -> None:
        """Changes how far away it is."""
        self._ask("settings", values)

    def reset(self) -> None:
        """Counts from zero."""
        self._ask("reset")

    def counts(self) -> dict[str, dict[str, int]]:
        """Requests and bytes by kind, since the last reset; ``stalled`` among the requests."""
        told: dict[str, dict[str, int]] = self._ask("counts")
        return told

    def close(self) -> None:
        """Ends the server."""
        self._process.communicate()

    def _ask(self, path: str, values: Mapping[str, float] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.endpoint}{_CONTROL}/{path}", data=json.dumps(values or {}).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modelled_store", description=__doc__)
    parser.add_argument("--address", default="127.0.0.1", help="of the loopback interface")
    parser.add_argument("--latency-seconds", type=float, default=LATENCY_SECONDS, help="until the first byte")
    parser.add_argument("--bytes-per-second", type=float, default=BYTES_PER_SECOND, help="of one connection")
    parser.add_argument("--stall-share", type=float, default=STALL_SHARE, help="of requests that stall")
    parser.add_argument("--stall-seconds", type=float, default=STALL_SECONDS, help="how long they do")
    parser.add_argument("--seed", type=int, default=1, help="of the stalls")
    settings = vars(parser.parse_args(argv))
    with _Modelled(settings.pop("address"), seed=settings.pop("seed"), model=settings) as server:
        print(server.url, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
