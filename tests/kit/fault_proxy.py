"""A proxy that fails as networks and services do, between a real SDK and a server that knows nothing of it.

Fault model: a request can be refused before it has an effect, answered with an error after it had one, answered not at
all after it had one, delivered twice, answered with half a body, or answered with status 200 and an error inside. Each
is a function ``(request, proceed) -> reply``; ``proceed()`` lets the request have its effect and returns the answer.

::

    with FaultProxy("http://127.0.0.1:5515") as proxy:
        proxy.faults.add(lose_answer, method="PUT", path="/bucket/object")     # the first such request
        ...                                                                    # a client that talks to proxy.url
        assert proxy.faults.fired == 1
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from tests.kit.loopback_http import LoopbackServer, Reply, Request

__all__ = [
    "Fault",
    "FaultPlan",
    "FaultProxy",
    "answer",
    "answer_after_effect",
    "cut_body",
    "deliver_twice",
    "lose_answer",
    "reset",
]

Fault = Callable[[Request, Callable[[], Reply]], Reply | None]

_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "content-length", "te"})


def reset(request: Request, proceed: Callable[[], Reply]) -> None:
    """The connection breaks before anything happened."""


def lose_answer(request: Request, proceed: Callable[[], Reply]) -> None:
    """It happened, and the connection breaks before the answer."""
    proceed()


def deliver_twice(request: Request, proceed: Callable[[], Reply]) -> Reply:
    """It happened twice; the second answer arrives."""
    proceed()
    return proceed()


def answer(status: int, body: bytes = b"", **headers: str) -> Fault:
    """Another answer, and nothing happened: ``answer(503)``, ``answer(429, Retry_After="0")``."""

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply:
        return Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return fault


def answer_after_effect(status: int, body: bytes = b"", **headers: str) -> Fault:
    """Another answer, although it happened: a gateway that gave up, or an error inside a 200."""

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        proceed()
        return answer(status, body, **headers)(request, proceed)

    return fault


def cut_body(length: int) -> Fault:
    """It happened, and the answer's body ends after ``length`` bytes, against its Content-Length."""

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply:
        reply = proceed()
        return Reply(reply.status, reply.body, reply.headers, cut_after=length)

    return fault


@dataclass(slots=True)
class _Planned:
    fault: Fault
    method: str
    target: re.Pattern[str]
    skip: int
    times: int


@dataclass(slots=True)
class FaultPlan:
    """Which requests fail, and how. Safe from any thread.

    Attributes:
        fired: How many faults happened so far.
        seen: Method and target of every request, in order.
        body_bytes: Bytes in the bodies of all requests and answers.
    """

    fired: int = 0
    seen: list[str] = field(default_factory=list)
    body_bytes: int = 0
    _planned: list[_Planned] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault, *, method: str = "", path: str = "", skip: int = 0, times: int = 1) -> None:
        """Plans a fault.

        Args:
            fault: What happens.
            method: Only to requests with this method; any by default.
            path: Only where this regular expression is found in path and query, as sent.
            skip: So many matching requests pass first.
            times: So many fail, then the rest pass.
        """
        with self._lock:
            self._planned.append(_Planned(fault, method, re.compile(path), skip, times))

    def clear(self) -> None:
        """Forgets every planned fault; the counts stay."""
        with self._lock:
            self._planned.clear()

    def intercept(self, request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        """The answer to a request: of the first planned fault that matches, or of the server."""
        fault = self._due(request)
        reply = proceed() if fault is None else fault(request, proceed)
        with self._lock:
            self.body_bytes += len(request.body) + (0 if reply is None else len(reply.body))
        return reply

    def _due(self, request: Request) -> Fault | None:
        with self._lock:
            self.seen.append(f"{request.method} {request.target}")
            for planned in self._planned:
                if planned.times == 0 or planned.method not in ("", request.method):
                    continue
                if planned.target.search(request.target) is None:
                    continue
                if planned.skip:
                    planned.skip -= 1
                    continue
                planned.times -= 1
                self.fired += 1
                return planned.fault
        return None


class FaultProxy(LoopbackServer):
    """Forwards to ``upstream`` what its plan lets through.

    Args:
        upstream: URL of the server, without a path.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self.faults = FaultPlan()
        super().__init__(lambda request: self.faults.intercept(request, lambda: self._forward(request)))

    def _forward(self, request: Request) -> Reply:
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            headers = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP}
            connection.request(request.method, request.target, request.body or None, headers)
            answered = connection.getresponse()
            body = answered.read()
            kept = {name: value for name, value in answered.getheaders() if name.lower() not in _HOP_BY_HOP}
            length = answered.getheader("Content-Length") if request.method == "HEAD" else None
            return Reply(answered.status, body, kept, length=None if length is None else int(length))
        finally:
            connection.close()
