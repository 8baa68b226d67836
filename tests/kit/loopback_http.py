"""A small HTTP/1.1 server on the loopback interface: what the fakes and the fault proxy are made of.

A handler may also answer ``None``, which closes the connection without a word, or cut its reply short: the two ways in
which an answer is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from stateline.environment import SystemClock, system_environment

__all__ = ["Handler", "LoopbackServer", "Reply", "Request"]

_POLL_SECONDS: Final = 0.05
_PACED_BYTES: Final = 256 * 1024
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        method: Such as ``GET``.
        target: Path and query as sent, percent-encoded.
        headers: By lower-case name.
        body: All of it.
        began_at: When it came, by the monotonic clock: before its body did.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    began_at: float = 0.0

    @property
    def path(self) -> str:
        """The path as sent, percent-encoded."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """The parameters; the last of several with one name."""
        return {
            name: values[-1] for name, values in parse_qs(urlsplit(self.target).query, keep_blank_values=True).items()
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        status: HTTP status.
        body: All of it.
        headers: Besides ``Content-Length``.
        cut_after: So many bytes of the body are sent, then the connection is closed; ``None`` sends all.
        length: What ``Content-Length`` says, where it is not the length of the body (an answer to HEAD).
        bytes_per_second: How fast the body goes; ``None`` for as fast as it can.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    length: int | None = None
    bytes_per_second: float | None = None


Handler = Callable[[Request], Reply | None]


class LoopbackServer:
    """Serves until closed, every connection on a thread of its own. A context manager.

    Args:
        handle: Answers requests.
        address: Of the loopback interface.

    Attributes:
        url: Where it listens: ``http://address:port``.
        handle: Answers requests; may be replaced while it serves.
    """

    def __init__(self, handle: Handler, address: str = "127.0.0.1") -> None:
        self.handle = handle
        self._server = _Server((address, 0), _Connection)
        self._server.owner = self
        self.url = f"http://{address}:{self._server.server_address[1]}"
        self._executor = system_environment().executors.executor("loopback-http", 1)
        self._executor.submit(self._server.serve_forever, _POLL_SECONDS)

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    owner: LoopbackServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the game."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def _serve(self) -> None:
        began_at = _CLOCK.monotonic()
        request = Request(
            method=self.command,
            target=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=b"".join(self._body()),
            began_at=began_at,
        )
        reply = self.server.owner.handle(request)
        if reply is None:
            self.close_connection = True
            return
        self._send(request, reply)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the base class

    def handle_expect_100(self) -> bool:
        """Lets the client send its body at once; it would wait a second for a word that stays in the buffer."""
        answered = super().handle_expect_100()
        self.wfile.flush()
        return answered

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while length := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(length)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        elif "Content-Length" in self.headers:
            yield self.rfile.read(int(self.headers["Content-Length"]))

    def _send(self, request: Request, reply: Reply) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
        self.end_headers()
        if request.method != "HEAD":
            self._write(
                reply.body if reply.cut_after is None else reply.body[: reply.cut_after], reply.bytes_per_second
            )
        self.close_connection = self.close_connection or reply.cut_after is not None
        with contextlib.suppress(OSError):
            self.wfile.flush()

    def _write(self, body: bytes, bytes_per_second: float | None) -> None:
        if bytes_per_second is None:
            self.wfile.write(body)
            return
        began = _CLOCK.monotonic()
        view = memoryview(body)
        for start in range(0, len(body), _PACED_BYTES):
            end = min(start + _PACED_BYTES, len(body))
            _CLOCK.sleep(began + end / bytes_per_second - _CLOCK.monotonic())
            self.wfile.write(view[start:end])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: a test shows what matters."""
