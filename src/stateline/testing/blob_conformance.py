"""The promises of ``stateline.blob.api`` as tests that every backend runs, third-party ones too.

Subclass in a test module, and override the hooks where the backend differs::

    class TestMyStore(BlobStoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)

What a backend makes of lost answers is not asked here: a test of the backend's own must lose them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import pytest

from stateline.blob import BlobStore, ObjectInfo
from stateline.blob.checksum import crc32c, crc32c_of_parts
from stateline.blob.names import MAX_NAME_BYTES, MAX_SEGMENT_BYTES, STAGING_PREFIX
from stateline.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    InvalidInputError,
    NotFoundError,
)
from stateline.handles import Part
from stateline.testing.closing_conformance import ClosingConformance
from stateline.testing.races import Call, at_once, copy_once, create_once, elsewhere, publish_once, stage_once

__all__ = [
    "BlobStoreConformance",
    "bytes_of",
    "part_of",
    "visible",
]

BAD_NAMES = ("", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\\b", "a\0b", "a\nb", "a" * 256, "é" * 128)
ODD_NAMES = (
    "a b/c+d%20e",
    "origin=São Paulo/part-0.parquet",
    "quote'\"&?#[]{}*~^`|<>@:;,$!()",
    "日本語/😀",
    ".hidden/_x",
    "n" * MAX_SEGMENT_BYTES,
    "/".join(["s" * 149] * 6),
)


def bytes_of(length: int, seed: int = 0) -> bytes:
    """``length`` bytes that differ from those of another seed and do not repeat every few bytes."""
    period = bytes((index * 31 + seed * 17 + (index >> 3)) % 251 for index in range(1021))
    return (period * (length // len(period) + 1))[:length]


def visible(store: BlobStore) -> list[str]:
    """The names that a reader of the root sees, sorted."""
    return sorted(info.name for info in store.list("") if not info.name.startswith(STAGING_PREFIX))


class BlobStoreConformance(ClosingConformance):
    """One test per promise. Override :meth:`store`; the other hooks have defaults.

    Attributes:
        seen_by_other_processes: Whether a pickled copy in another process sees the same objects.
        keeps_nonces: Whether equal bytes under another nonce are told apart.
        natural_piece_bytes: A piece of the length that the store likes best.
        foreign_writes_keep_pieces: Whether pieces outlive a foreign object at their target.
        list_count: How many objects to list; more than one page, where the store has pages.
    """

    seen_by_other_processes: ClassVar[bool] = True
    keeps_nonces: ClassVar[bool] = True
    natural_piece_bytes: ClassVar[int] = 256 * 1024
    foreign_writes_keep_pieces: ClassVar[bool] = True
    list_count: ClassVar[int] = 25

    @pytest.fixture
    def store(self) -> BlobStore:
        """A store over an empty root of its own."""
        raise InvalidInputError("a subclass must override it", subject="store", hint="Let the fixture give a new store")

    def lose(self, store: BlobStore, part: Part) -> Part:
        """Makes a piece disappear, and returns the part that names it."""
        store.discard([part])
        return part

    def damage(self, store: BlobStore, part: Part) -> Part:
        """Changes a byte of a piece behind the store's back, and returns the part that names it."""
        data = bytearray(store.get(part.name))
        data[len(data) // 2] ^= 1
        store.put(part.name, data)
        return part

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Runs calls in parallel, in other processes where they can see the store."""
        return elsewhere(calls) if self.seen_by_other_processes else at_once(calls)

    # -- objects --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("length", [0, 1, 4096, 300_000])
    def test_what_was_put_is_what_is_read(self, store: BlobStore, length: int) -> None:
        data = bytes_of(length)
        info = store.put("folder/object", data)
        assert (info.name, info.size) == ("folder/object", length)
        assert store.get("folder/object") == data
        assert store.head("folder/object").size == length

    def test_put_replaces_and_may_be_repeated(self, store: BlobStore) -> None:
        store.put("object", b"old")
        store.put("object", b"new!")
        store.put("object", b"new!")
        assert store.get("object") == b"new!"

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_every_kind_of_buffer_is_taken_and_copied(self, store: BlobStore, kind: Callable[[bytes], Any]) -> None:
        given = bytearray(b"0123456789")
        data = memoryview(given)[2:7] if kind is memoryview else kind(bytes(given[2:7]))
        store.put("put", data)
        store.put_if_absent("absent", data)
        part = store.stage("staged", data)
        given[:] = b"x" * 10
        store.publish("staged", [part], "nonce")
        assert {store.get("put"), store.get("absent"), store.get("staged")} == {b"23456"}

    def test_bytes_are_counted_and_nothing_else_is_taken_for_them(self, store: BlobStore) -> None:
        wide = memoryview(b"abcdef").cast("H")
        part = store.stage("staged", wide)
        assert (store.put("put", wide).size, store.put_if_absent("absent", wide).size, part.length) == (6, 6, 6)
        assert store.publish("staged", [part], "nonce").size == 6
        wrong: Any
        for wrong in (None, 5, "text", [1]):
            for call in (store.put, store.put_if_absent, store.stage):
                with pytest.raises(InvalidInputError, match="is not contiguous bytes"):
                    call("wrong", wrong)
        for wrong in (None, "put", [None]):
            for remove in (store.delete, store.discard):
                with pytest.raises(InvalidInputError, match="expected a collection of"):
                    remove(wrong)
        assert visible(store) == ["absent", "put", "staged"]

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names_are_kept_exactly(self, store: BlobStore, name: str) -> None:
        store.put_if_absent(name, b"odd")
        assert store.get(name) == b"odd"
        assert [info.name for info in store.list(name)] == [name]
        target = f"p/{name}"[:MAX_NAME_BYTES]
        store.publish(target, [store.stage(target, b"staged")], "nonce")
        assert store.get(target) == b"staged"

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_what_is_no_name_is_refused_before_anything_happens(self, store: BlobStore, name: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.put(name, b""),
            lambda: store.put_if_absent(name, b""),
            lambda: store.get(name),
            lambda: store.get_range(name, 0, 0),
            lambda: store.head(name),
            lambda: store.delete([name]),
            lambda: store.stage(name, b""),
            lambda: store.publish(name, [], "nonce"),
        ]
        for call in calls:
            with pytest.raises(InvalidInputError):
                call()
        assert list(store.list("")) == []

    def test_what_is_not_there_is_not_found(self, store: BlobStore) -> None:
        store.put("a/b", b"x")
        calls: list[Callable[[], object]] = [
            lambda: store.get("a/missing"),
            lambda: store.get_range("missing", 0, 1),
            lambda: store.head("missing"),
            lambda: store.head("a"),
        ]
        for call in calls:
            with pytest.raises((NotFoundError, InvalidInputError)) as caught:
                call()
            assert caught.value.operation

    def test_ranges_are_half_open_and_exact(self, store: BlobStore) -> None:
        data = bytes_of(1000)
        store.put("object", data)
        for start, end in [(0, 1), (0, 1000), (999, 1000), (17, 17), (1000, 1000), (250, 750)]:
            assert store.get_range("object", start, end) == data[start:end]
        assert store.get_ranges("object", [(5, 9), (0, 2), (5, 9)]) == [data[5:9], data[:2], data[5:9]]

    @pytest.mark.parametrize("bounds", [(0, 11), (10, 11), (11, 11), (500, 600)])
    def test_a_range_past_the_end_is_corrupt_data(self, store: BlobStore, bounds: tuple[int, int]) -> None:
        store.put("object", b"0123456789")
        with pytest.raises(CorruptDataError):
            store.get_range("object", *bounds)

    @pytest.mark.parametrize("bounds", [(-1, 3), (3, 2)])
    def test_what_is_no_range_is_refused(self, store: BlobStore, bounds: tuple[int, int]) -> None:
        store.put("object", b"0123456789")
        with pytest.raises(InvalidInputError):
            store.get_range("object", *bounds)

    def test_list_compares_the_prefix_as_text(self, store: BlobStore) -> None:
        for name in ("chk-1/x", "chk-12/x", "chk-1/y/z", "other"):
            store.put(name, name.encode())
        found = {prefix: sorted(info.name for info in store.list(prefix)) for prefix in ("chk-1", "chk-1/", "chk-1/y")}
        assert found == {
            "chk-1": ["chk-1/x", "chk-1/y/z", "chk-12/x"],
            "chk-1/": ["chk-1/x", "chk-1/y/z"],
            "chk-1/y": ["chk-1/y/z"],
        }
        assert list(store.list("nothing/")) == []
        assert {info.name: info.size for info in store.list("o")} == {"other": 5}

    def test_list_gives_every_object_once_over_all_pages(self, store: BlobStore) -> None:
        names = [f"many/{index % 3}/{index:05d}" for index in range(self.list_count)]
        at_once([(_put_all, (store, names[index::4])) for index in range(4)])
        assert sorted(info.name for info in store.list("many/")) == sorted(names)
        ages = [info.modified_at for info in store.list("many/")]
        assert max(ages) - min(ages) < 3600
        assert max(ages) < 1e11  # Seconds, not milliseconds.

    def test_delete_takes_exact_names_and_may_be_repeated(self, store: BlobStore) -> None:
        names = [f"d/{index:05d}" for index in range(self.list_count)]
        at_once([(_put_all, (store, names[index::4])) for index in range(4)])
        kept = ["d/00", "d/00000x", "d/missing-not", "never/was/this"]  # Names are not prefixes, and not patterns.
        for name in kept:
            store.put(name, b"kept")
        for _ in range(2):
            store.delete([*names, "d/missing", "never/was", "d/0_", "d/%", "d/*"])
            assert visible(store) == kept
        store.delete([])

    # -- create-if-absent -----------------------------------------------------------------------------------------

    def test_put_if_absent_keeps_the_first(self, store: BlobStore) -> None:
        store.put_all_if_absent("object", [b"fi", bytearray(b"r"), b"", memoryview(b"st")])
        for create in (store.put_if_absent, lambda name, data: store.put_all_if_absent(name, [data])):
            with pytest.raises(AlreadyExistsError) as caught:
                create("object", b"other")
            assert isinstance(caught.value, FileExistsError)
            assert store.get("object") == b"first"

    def test_put_if_absent_of_equal_bytes_succeeds_again(self, store: BlobStore) -> None:
        for _ in range(2):
            assert store.put_if_absent("object", b"same").size == 4

    def test_put_if_absent_works_again_once_the_name_is_free(self, store: BlobStore) -> None:
        store.put_if_absent("object", b"first")
        store.delete(["object"])
        store.put_if_absent("object", b"second")
        assert store.get("object") == b"second"

    def test_a_copy_has_a_life_of_its_own_and_overwrites_nothing(self, store: BlobStore) -> None:
        store.put("d/source", bytes_of(10_000))
        assert [store.copy("d/source", "e/target").size for _ in range(2)] == [10_000, 10_000]
        store.put("d/source", b"other")
        for source, error in (("d/source", AlreadyExistsError), ("missing", NotFoundError)):
            with pytest.raises(error):
                store.copy(source, "e/target")
        assert (visible(store), store.get("e/target")) == (["d/source", "e/target"], bytes_of(10_000))

    def test_a_creation_race_of_threads_has_one_winner(self, store: BlobStore) -> None:
        for round_ in range(3):
            name, candidates = f"race/{round_}", [f"candidate {index}".encode() for index in range(8)]
            outcomes = at_once([(create_once, (store, name, data)) for data in candidates])
            assert sorted(outcomes) == ["AlreadyExistsError"] * 7 + ["done"]
            assert store.get(name) == candidates[outcomes.index("done")]

    def test_a_creation_race_of_processes_has_one_winner(self, store: BlobStore) -> None:
        for round_ in range(3):
            name, candidates = f"race/{round_}", [bytes_of(50_000, index) for index in range(4)]
            outcomes = self.run([(create_once, (store, name, data)) for data in candidates])
            assert sorted(outcomes) == ["AlreadyExistsError"] * 3 + ["done"]
            assert store.get(name) == candidates[outcomes.index("done")]

    def test_a_race_of_copies_has_one_winner(self, store: BlobStore) -> None:
        sources = [f"source/{index}" for index in range(4)]
        for index, source in enumerate(sources):
            store.put(source, bytes_of(50_000, index))
        for target in ("race/0", "race/1"):
            outcomes = at_once([(copy_once, (store, source, target)) for source in sources])
            assert sorted(outcomes) == ["AlreadyExistsError"] * 3 + ["done"]
            assert store.get(target) == bytes_of(50_000, outcomes.index("done"))

    def test_no_reader_sees_part_of_an_object(self, store: BlobStore) -> None:
        versions = [bytes([value]) * 200_000 for value in range(4)]
        store.put("object", versions[0])
        seen = at_once([(_read_many, (store, "object", 8)), *[(store.put, ("object", data)) for data in versions]])[0]
        assert set(seen) <= set(versions)

    # -- copies ---------------------------------------------------------------------------------------------------

    def test_a_pickled_copy_in_another_process_sees_the_same_objects(self, store: BlobStore) -> None:
        store.put("object", b"from here")
        (part,) = self.run([(stage_once, (store, "target", b"from there"))])
        store.publish("target", [part], "nonce")
        assert self.run([(store.get, ("object",)), (store.get, ("target",))]) == [b"from here", b"from there"]

    # -- staging --------------------------------------------------------------------------------------------------

    def test_a_piece_tells_its_length_and_checksum(self, store: BlobStore) -> None:
        for data in (b"", b"123456789", bytes_of(70_000)):
            part = store.stage("target", data)
            assert (part.length, part.crc32c) == (len(data), crc32c(data))

    def test_pieces_are_invisible_and_have_names_of_their_own(self, store: BlobStore) -> None:
        parts = [store.stage("out/target", b"same") for _ in range(4)]
        assert len({part.name for part in parts}) == 4
        assert visible(store) == []
        with pytest.raises(NotFoundError):
            store.head("out/target")

    def test_a_piece_can_be_read_back_where_the_store_can(self, store: BlobStore) -> None:
        part = store.stage("target", b"piece")
        assert store.read_staged(part) in (b"piece", None)

    def test_pieces_are_listed_until_they_are_discarded(self, store: BlobStore) -> None:
        parts = [store.stage("out/target", bytes_of(100, index)) for index in range(3)]
        listed = {info.name: info for info in store.list_staged()}
        readable = {part.name for part in parts if store.read_staged(part) is not None}  # Others vanish by themselves.
        assert readable <= listed.keys() <= {part.name for part in parts}
        for info in listed.values():
            assert info.size == 100
        store.discard([part_of(info) for info in listed.values()])
        assert list(store.list_staged()) == []

    def test_publish_joins_pieces_in_order(self, store: BlobStore) -> None:
        data = [bytes_of(length, length) for length in (10, 0, 5000, 1, 70_000)]
        parts = [store.stage("out/target", piece) for piece in data]
        info = store.publish("out/target", parts, "nonce")
        assert info.size == sum(map(len, data))
        assert store.get("out/target") == b"".join(data)
        assert visible(store) == ["out/target"]

    @pytest.mark.parametrize("pieces", [[], [b""], [b"", b""], [b"one"]])
    def test_publish_of_few_or_empty_pieces(self, store: BlobStore, pieces: list[bytes]) -> None:
        store.publish("target", [store.stage("target", piece) for piece in pieces], "nonce")
        assert store.get("target") == b"".join(pieces)

    def test_publish_joins_any_number_of_pieces(self, store: BlobStore) -> None:
        parts = _flat(at_once([(_stage_all, (store, "target", range(start, start + 18))) for start in (0, 18, 36, 54)]))
        store.publish("target", parts, "nonce")
        assert store.get("target") == b"".join(_numbered(index) for index in range(72))
        store.discard(parts)
        assert list(store.list_staged()) == []

    def test_publish_joins_large_and_small_pieces(self, store: BlobStore) -> None:
        lengths = (self.natural_piece_bytes, 1000, 0, 2000, self.natural_piece_bytes + 1, self.natural_piece_bytes, 7)
        data = [bytes_of(length, seed) for seed, length in enumerate(lengths)]
        parts = [store.stage("target", piece) for piece in data]
        info = store.publish("target", parts, "nonce")
        assert info.size == sum(lengths)
        assert crc32c(store.get("target")) == crc32c(b"".join(data))

    def test_publish_may_be_repeated_also_after_the_pieces_are_gone(self, store: BlobStore) -> None:
        parts = [store.stage("target", bytes_of(100, index)) for index in range(3)]
        for _ in range(2):
            assert store.publish("target", parts, "nonce").size == 300
        for _ in range(2):
            store.discard(parts)
            assert store.publish("target", parts, "nonce").size == 300
        assert list(store.list_staged()) == []

    @pytest.mark.parametrize("lengths", [(), (10,), (10, 0, 5000, 1), (100,) * 40])
    def test_a_prepared_file_is_published_by_whoever_comes_and_not_again_once_it_was_moved(
        self, store: BlobStore, lengths: tuple[int, ...]
    ) -> None:
        data = [bytes_of(length, seed) for seed, length in enumerate(lengths)]
        parts = store.prepare("target", [store.stage("target", piece) for piece in data], "nonce")
        assert visible(store) == []
        assert (sum(part.length for part in parts), crc32c_of_parts(parts)) == (sum(lengths), crc32c(b"".join(data)))
        publish = (publish_once, (store, "target", parts, "nonce"))
        assert self.run([publish] * 3) == ["done"] * 3
        for _ in range(2):
            store.discard(parts)
            assert list(store.list_staged()) == []
            assert publish_once(store, "target", parts, "nonce") == "done"
        assert store.get("target") == b"".join(data)
        store.delete(["target"])
        if data:  # A file without bytes may have nothing whose loss could tell that it was there.
            assert publish_once(store, "target", parts, "nonce") != "done"
            assert visible(store) == []

    def test_the_same_pieces_can_be_published_twice_under_two_names(self, store: BlobStore) -> None:
        """Publishing does not use pieces up, where they are objects: a failed attempt leaves them as they were."""
        parts = [store.stage("one", b"abc")]
        store.publish("one", parts, "nonce")
        assert store.publish("one", parts, "nonce").size == 3

    @pytest.mark.parametrize("foreign", [b"", b"abcdeX", b"abcde", b"much longer than that"])
    def test_a_foreign_target_is_a_conflict_and_stays(self, store: BlobStore, foreign: bytes) -> None:
        store.put("target", foreign)
        parts = [store.stage("target", b"abc"), store.stage("target", b"def")]
        with pytest.raises(ConflictError):
            store.publish("target", parts, "nonce")
        assert store.get("target") == foreign
        store.delete(["target"])
        if self.foreign_writes_keep_pieces:
            store.publish("target", parts, "nonce")
            assert store.get("target") == b"abcdef"
        else:
            assert publish_once(store, "target", parts, "nonce") == "DataLossError"

    def test_equal_bytes_of_another_writer_are_a_conflict(self, store: BlobStore) -> None:
        if not self.keeps_nonces:
            assert store.head(store.publish("t", [store.stage("t", b"x")], "n").name).nonce == ""
            return
        store.publish("target", [store.stage("target", b"abc")], "theirs")
        with pytest.raises(ConflictError):
            store.publish("target", [store.stage("target", b"abc")], "ours")

    def test_a_missing_piece_is_data_loss_and_publishes_nothing(self, store: BlobStore) -> None:
        for lost in range(3):
            parts = [store.stage("target", bytes_of(100, index)) for index in range(3)]
            parts[lost] = self.lose(store, parts[lost])
            with pytest.raises(DataLossError):
                store.publish("target", parts, "nonce")
            assert visible(store) == []
        with pytest.raises(DataLossError):
            store.publish("target", [self.lose(store, store.stage("target", b"only"))], "nonce")

    def test_a_damaged_piece_publishes_nothing(self, store: BlobStore) -> None:
        parts = [store.stage("target", bytes_of(100, index)) for index in range(3)]
        parts[1] = self.damage(store, parts[1])
        with pytest.raises((CorruptDataError, DataLossError)):
            store.publish("target", parts, "nonce")
        assert visible(store) == []

    def test_concurrent_publications_of_the_same_pieces_all_succeed(self, store: BlobStore) -> None:
        for pieces in (1, 3):
            target = f"target-{pieces}"
            parts = [store.stage(target, bytes_of(10_000, index)) for index in range(pieces)]
            outcomes = self.run([(publish_once, (store, target, parts, "nonce"))] * 4)
            assert outcomes == ["done"] * 4
            assert store.get(target) == b"".join(bytes_of(10_000, index) for index in range(pieces))

    def test_concurrent_publications_of_different_pieces_have_one_winner(self, store: BlobStore) -> None:
        sets = [[store.stage("target", bytes_of(500, 10 * who + index)) for index in range(2)] for who in range(4)]
        outcomes = self.run(
            [(publish_once, (store, "target", parts, f"writer {who}")) for who, parts in enumerate(sets)]
        )
        assert sorted(outcomes) == ["ConflictError"] * 3 + ["done"]
        winner = outcomes.index("done")
        assert store.get("target") == bytes_of(500, 10 * winner) + bytes_of(500, 10 * winner + 1)

    def test_a_zombie_that_stages_for_a_published_target_changes_nothing(self, store: BlobStore) -> None:
        parts = [store.stage("target", b"winner")]
        late = [store.stage("target", b"zombie")]
        store.publish("target", parts, "nonce")
        later = [store.stage("target", b"zombie, still alive")]
        for theirs in (late, later):
            with pytest.raises((ConflictError, DataLossError)):
                store.publish("target", theirs, "zombie")
        assert store.get("target") == b"winner"
        assert store.publish("target", parts, "nonce").size == 6

    def test_discard_takes_exact_names_and_may_be_repeated(self, store: BlobStore) -> None:
        parts = [store.stage("target", bytes_of(10, index)) for index in range(3)]
        others = store.stage("target", b"other")
        for _ in range(2):
            store.discard(parts)
        assert {info.name for info in store.list_staged()} <= {others.name}
        store.publish("target", [others], "nonce")
        assert store.get("target") == b"other"


def part_of(info: ObjectInfo) -> Part:
    """The part that names a listed leftover, for :meth:`BlobStore.discard`."""
    return Part(name=info.name, length=info.size, crc32c=0, version=info.version, container=info.container)


def _put_all(store: BlobStore, names: Iterable[str]) -> None:
    for name in names:
        store.put(name, b"x")


def _stage_all(store: BlobStore, target: str, indexes: Iterable[int]) -> list[Part]:
    return [store.stage(target, _numbered(index)) for index in indexes]


def _numbered(index: int) -> bytes:
    return f"piece {index}, ".encode()


def _read_many(store: BlobStore, name: str, times: int) -> list[bytes]:
    return [store.get(name) for _ in range(times)]


def _flat(lists: Iterable[list[Part]]) -> list[Part]:
    return [part for parts in lists for part in parts]
