"""Bytes that are handed to their sink on another thread."""

from __future__ import annotations

import threading

import pytest

from stateline.environment import system_environment
from stateline.files.background import BackgroundSink


class Slow:
    """A sink that takes nothing until it is let."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.data = bytearray()
        self.threads: set[int] = set()

    def write(self, data: bytes) -> int:
        if not self.may.wait(30):
            raise TimeoutError
        self.threads.add(threading.get_ident())
        self.data += data
        return len(data)


class Broken:
    def __init__(self) -> None:
        self.calls = 0

    def write(self, data: bytes) -> int:
        self.calls += 1
        raise OSError("the disk is full")


def test_everything_arrives_in_order_on_one_other_thread() -> None:
    slow = Slow()
    pieces = [bytes([number % 256]) * (number * 997 % 300_000) for number in range(50)]
    with BackgroundSink(slow, system_environment()) as sink:
        for piece in pieces:
            assert sink.write(piece) == len(piece)
            slow.may.set()
    assert bytes(slow.data) == b"".join(pieces)
    assert len(slow.threads) == 1
    assert threading.get_ident() not in slow.threads


def test_whoever_is_faster_than_the_sink_waits() -> None:
    slow, passed = Slow(), threading.Semaphore(0)

    def produce() -> None:
        with BackgroundSink(slow, system_environment(), max_bytes=2_000_000) as sink:
            for _ in range(5):
                sink.write(b"x" * 1_000_000)
                passed.release()

    producer = threading.Thread(target=produce)
    producer.start()
    for _ in range(3):
        assert passed.acquire(timeout=30)
    assert not passed.acquire(timeout=0.05)
    slow.may.set()
    producer.join(30)
    assert len(slow.data) == 5_000_000


def test_an_error_of_the_sink_is_raised_and_nothing_more_is_written() -> None:
    broken = Broken()

    def produce() -> None:
        with BackgroundSink(broken, system_environment()) as sink:
            for _ in range(100):
                sink.write(b"x" * 1_000_000)

    with pytest.raises(OSError, match="the disk is full"):
        produce()
    assert broken.calls == 1


def test_an_error_at_the_very_end_is_raised_too() -> None:
    with pytest.raises(OSError, match="the disk is full"), BackgroundSink(Broken(), system_environment()) as sink:
        sink.write(b"x")


def test_what_is_written_after_the_end_is_dropped() -> None:
    slow = Slow()
    slow.may.set()
    with pytest.raises(KeyError), BackgroundSink(slow, system_environment()) as sink:
        raise KeyError("the encoder failed")
    assert sink.write(b"y" * 2_000_000) == 2_000_000
    assert not slow.data


def test_without_a_thread_the_writer_itself_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    open_sink = Slow()
    open_sink.may.set()
    with BackgroundSink(open_sink, system_environment()) as sink:
        sink.write(bytes(2_000_000))
        sink.write(b"the rest")
    assert bytes(open_sink.data) == bytes(2_000_000) + b"the rest"
    with pytest.raises(OSError, match="the disk is full"), BackgroundSink(Broken(), system_environment()) as sink:
        sink.write(bytes(2_000_000))
