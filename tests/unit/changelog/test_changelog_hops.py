"""How many functions hand a batch of changes on, from ``append_batch`` to the request that makes it durable."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from stateline.blob.memory import MemoryStore
from stateline.changelog import ChangelogSettings, ChangelogStorage
from stateline.changelog import changes as changes_module
from stateline.environment import ThreadedExecutor
from stateline.key_groups import KeyGroupRange

HOPS_MAX = 15
"""Calls one inside the other, of all threads, and those that encode."""


def hops() -> list[str]:
    """The functions of the changelog that are being called, by name, outermost first."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("stateline.changelog"):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return [name for name in reversed(found) if "<" not in name]


def test_a_batch_is_handed_on_by_few(monkeypatch) -> None:
    store, ways = MemoryStore("hops"), {}

    def seen(owner: object, name: str, way: str) -> None:
        inner = getattr(owner, name)

        def call(*args: object, **named: object) -> object:
            ways.setdefault(way, hops())
            return inner(*args, **named)

        monkeypatch.setattr(owner, name, call)

    seen(ThreadedExecutor, "submit", "owner")
    seen(changes_module, "encode_block", "encoding")
    seen(store, "put_all_if_absent", "request")
    settings = ChangelogSettings(preemptive_persist_threshold="10KB", persist_size_threshold="50KB", persist_delay=10)
    with ChangelogStorage.open(store, settings) as storage:
        writer = storage.create_writer("op", KeyGroupRange(0, 127))
        writer.append_batch(np.zeros(1000, np.int16), pa.array([b"x" * 100] * 1000))
        writer.persist(writer.initial_sequence_number(), 1).result()
    MemoryStore.forget("hops")
    assert ways["owner"][0] == "ChangelogWriter.append_batch"
    assert ways["request"][-1] == "BlobUploader.write"
    encoding = [name for name in ways["encoding"] if name not in ways["request"]]
    whole = [*ways["owner"], *ways["request"], *encoding, "encode_block", "encode_segment"]
    assert len(whole) <= HOPS_MAX, "\n".join(whole)
