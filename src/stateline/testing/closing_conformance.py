"""What ``BlobStore.close`` promises, as tests: a part of ``BlobStoreConformance``."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest

from stateline.blob import BlobStore
from stateline.errors import ClosedError
from stateline.handles import Part

__all__ = ["ClosingConformance"]


class ClosingConformance:
    """One test per promise; the stores come from ``BlobStoreConformance``."""

    def another(self, store: BlobStore) -> BlobStore:
        """A second store on the same root."""
        return copy.copy(store)

    def test_a_closed_store_refuses_every_call_and_names_itself(self, store: BlobStore) -> None:
        store.put("object", b"x")
        part = store.stage("target", b"piece")
        for _ in range(2):
            store.close()
        for call in _every_call(store, part):
            with pytest.raises(ClosedError, match=re.escape(store.url)):
                call()
        with self.another(store) as opened:
            assert opened.get("object") == b"x"
            assert opened.publish("target", [part], "nonce").size == len(b"piece")
            assert list(opened.list("new")) == []

    def test_closing_one_store_leaves_others_of_the_root_open(self, store: BlobStore) -> None:
        with self.another(store) as opened:
            opened.put("object", b"x")
        with pytest.raises(ClosedError):
            opened.get("object")
        assert store.get("object") == b"x"


def _every_call(store: BlobStore, part: Part) -> list[Callable[[], object]]:
    return [
        lambda: store.put("object", b"y"),
        lambda: store.put_if_absent("new", b"y"),
        lambda: store.put_all_if_absent("new", [b"y"]),
        lambda: store.get("object"),
        lambda: store.get_range("object", 0, 1),
        lambda: store.get_ranges("object", [(0, 1), (0, 1)]),
        lambda: store.head("object"),
        lambda: list(store.list("")),
        lambda: store.delete(["object"]),
        lambda: store.copy("object", "new"),
        lambda: store.stage("target", b"z"),
        lambda: store.publish("target", [part], "nonce"),
        lambda: store.discard([part]),
        lambda: store.read_staged(part),
        lambda: list(store.list_staged()),
    ]
