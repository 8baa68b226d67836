"""The oracle below the faults: what counts as an overwrite, and what is only a late answer."""

from __future__ import annotations

import pytest

from stateline.blob import ObjectInfo, StoreDecorator
from stateline.blob.api import Buffer
from stateline.blob.memory import MemoryStore
from tests.kit.effects import Contents, ObservedStore
from tests.kit.invariants import InvariantViolation


def observed(inner: object, contents: Contents) -> ObservedStore:
    return ObservedStore(inner, "root", contents, lambda _: None, lambda _, data: bytes(data) == b"retired")


class Slow(StoreDecorator):
    """Creates, and answers only after somebody else has replaced what it created."""

    other: ObservedStore

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        made = self.inner.put_if_absent(name, data)
        self.other.put(name, b"retired")
        return made


@pytest.fixture
def memory():
    yield MemoryStore("observed")
    MemoryStore.forget("observed")


def test_an_answer_that_comes_after_an_allowed_overwrite_is_no_violation(memory):
    contents = Contents()
    slow = Slow(memory)
    slow.other = observed(memory, contents)
    assert observed(slow, contents).put_if_absent("record", b"first").size == 5


def test_creating_anew_what_was_replaced_before_is_one(memory):
    contents = Contents()
    store = observed(memory, contents)
    store.put_if_absent("record", b"first")
    store.put("record", b"retired")
    memory.delete(["record"])
    with pytest.raises(InvariantViolation, match="A1"):
        store.put_if_absent("record", b"second")
