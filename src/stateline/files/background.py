"""A sink that writes on a thread of its own, while the caller encodes.

Encoding a file costs a core, and so do checksums and copies into the page cache (or waiting for a store's answer). They
need not wait for each other.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from stateline.environment import Environment
from stateline.errors import UnavailableError
from stateline.files.formats.format import Sink

__all__ = ["BackgroundSink"]

_QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
_WRITE_BYTES: Final = 1024 * 1024
"""How much must wait before the thread is woken."""
_JOINED_BYTES: Final = 8 * 1024 * 1024
"""How much is joined for one write, so that memory is used again."""


class BackgroundSink:
    """Hands bytes on, in order. A context manager: leaving it waits until all are written.

    Args:
        sink: Where bytes go; called on one other thread only, or on the caller's where there is none.
        environment: Threads.
        max_bytes: How much may wait; whoever writes more waits too.
        in_memory: Bytes that come first and are held in memory anyway: they may wait beside the others.
    """

    def __init__(
        self, sink: Sink, environment: Environment, max_bytes: int = _QUEUE_BYTES_MAX, in_memory: int = 0
    ) -> None:
        self._sink = sink
        self._max_bytes = max_bytes + in_memory
        self._monitor = environment.executors.monitor()
        self._executor = environment.executors.executor("stateline-write", 1)
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._is_writing = False
        self._is_over = False
        self._error: BaseException | None = None

    def write(self, data: bytes) -> int:
        """Takes all of ``data``, or raises what the sink raised for earlier bytes.

        Once the context is left, ``data`` is dropped: an encoder that failed still writes its end.
        """
        with self._monitor:
            if self._is_over:
                return len(data)
            self._monitor.wait_for(lambda: self._error is not None or self._queued_bytes <= self._max_bytes)
            self._raise_error()
            self._queue.append(data)
            self._queued_bytes += len(data)
            if not self._is_writing and self._queued_bytes >= _WRITE_BYTES:
                self._start()
        return len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with self._monitor:
                self._is_over = True
                if exc_type is None and self._queue and not self._is_writing:
                    self._start()
                self._monitor.wait_for(lambda: not self._is_writing)
                if exc_type is None:
                    self._raise_error()
        finally:
            self._executor.close()

    def _start(self) -> None:
        self._is_writing = True
        try:
            self._executor.submit(self._drain)
        except UnavailableError:  # No thread is to be had: the system has none, or Python 3.12 is about to end.
            self._drain()
        except BaseException:
            self._is_writing = False  # Or whoever leaves would wait for it.
            raise

    def _drain(self) -> None:
        """Writes until nothing waits; many small pieces as one."""
        try:
            while True:
                with self._monitor:
                    pieces = self._next_pieces()
                    if not pieces:
                        self._is_writing = False
                        self._monitor.notify_all()
                        return
                data = b"".join(pieces)
                self._sink.write(data)
                with self._monitor:
                    self._queued_bytes -= len(data)
                    self._monitor.notify_all()
        except BaseException as error:  # noqa: BLE001 - whoever writes next, or leaves, raises it.
            with self._monitor:
                self._error = error
                self._is_writing = False
                self._monitor.notify_all()

    def _next_pieces(self) -> list[bytes]:
        count = size = 0
        while count < len(self._queue) and size < _JOINED_BYTES:
            size += len(self._queue[count])
            count += 1
        pieces, self._queue = self._queue[:count], self._queue[count:]
        return pieces

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
