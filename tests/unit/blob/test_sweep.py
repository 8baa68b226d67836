"""What a sweep may delete: old and unreachable, both, by the store's own clock."""

import dataclasses
import uuid

import pytest

from stateline.blob import StoreDecorator
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.blob.sweep import reachable_names, sweep
from stateline.environment import Environment
from stateline.errors import InvalidInputError, NotFoundError, UnavailableError
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings

HOUR = 3600.0


class Clock:
    """A clock that tests move."""

    def __init__(self, at=1_000_000.0):
        self.at = at

    def now(self):
        return self.at

    def monotonic(self):
        return self.at

    def sleep(self, seconds):
        self.at += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(uuid.uuid4().hex, Environment(clock=clock))


def staged(store):
    return {info.name for info in store.list_staged()}


def test_only_what_is_old_and_unreachable_is_deleted(store, clock):
    old = [store.stage("f", b"12345") for _ in range(3)]
    clock.at += 2 * HOUR
    young = [store.stage("f", b"x") for _ in range(2)]
    seen = []
    result = sweep(
        store, {old[0].name, young[0].name}, min_age="1h", delete=True, on_leftover=lambda info: seen.append(info.name)
    )
    assert staged(store) == {old[0].name, *(part.name for part in young)}
    assert sorted(seen) == sorted(part.name for part in old[1:])
    assert (result.examined, result.reachable, result.young) == (5, 2, 1)
    assert (result.leftovers, result.leftover_bytes, result.deleted) == (2, 10, True)


def test_a_dry_run_is_the_default_and_changes_nothing(store, clock):
    part = store.stage("f", b"12345")
    clock.at += 30 * 24 * HOUR
    before = {info.name for info in store.list("")}
    result = sweep(store, (), environment=Environment(clock=clock))
    assert (result.leftovers, result.deleted) == (1, False)
    assert {info.name for info in store.list("")} == before == {part.name}


@pytest.mark.parametrize("wrong_by", [-365 * 24 * HOUR, 365 * 24 * HOUR])
def test_a_wrong_clock_here_deletes_nothing_young(store, clock, wrong_by):
    store.stage("f", b"young")
    old = store.stage("f", b"old")
    clock.at += 2 * HOUR
    young = store.stage("f", b"young")
    sweep(store, {old.name}, min_age="1h", delete=True, environment=Environment(clock=Clock(clock.at + wrong_by)))
    assert staged(store) == {old.name, young.name}


def test_any_number_of_leftovers_goes_in_batches(store, clock):
    class Counting(StoreDecorator):
        batches: list[int] = []  # noqa: RUF012

        def discard(self, parts):
            found = list(parts)
            self.batches.append(len(found))
            self.inner.discard(found)

    for index in range(2500):
        store.put(f".inprogress/{index:032x}", b"")
    clock.at += 2 * HOUR
    counting = Counting(store)
    assert sweep(counting, (), min_age=HOUR, delete=True).leftovers == 2500
    assert counting.batches == [1000, 1000, 500]
    assert staged(store) == set()
    assert sweep(counting, (), min_age=HOUR, delete=True).examined == 0


def test_visible_objects_are_never_looked_at(store, clock):
    store.put("output.csv", b"data")
    clock.at += 1000 * HOUR
    assert sweep(store, (), min_age=0, delete=True).examined == 0
    assert store.get("output.csv") == b"data"


def test_what_retained_points_need_survives_and_everything_else_goes(store, clock):
    writer = RecoverableWriter(store, RecoverableWriterSettings(chunk_size=1000, fold_size=500))
    stream, points = writer.open("file"), []
    for index in range(20):
        stream.write(bytes([index]) * 170)
        points.append(stream.persist())
    dead = writer.open("dead")
    dead.write(b"x" * 700)
    dead.persist()
    clock.at += 48 * HOUR
    retained = points[-3:]
    sweep(store, reachable_names(retained), min_age="1d", delete=True)
    assert staged(store) == {part.name for point in retained for part in point.parts}
    resumed = writer.recover(retained[0])
    resumed.write(b"end")
    resumed.close_for_commit().commit()
    assert store.get("file") == b"".join(bytes([index]) * 170 for index in range(18)) + b"end"


def test_a_bad_age_is_refused(store):
    with pytest.raises(InvalidInputError):
        sweep(store, (), min_age="soon", delete=True)


def test_the_result_is_a_value(store):
    result = sweep(store, ())
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.examined = 1


def test_local_leftovers(tmp_path):
    store = LocalStore(tmp_path / "root")
    part = store.stage("f", b"x")
    assert sweep(store, (), min_age="1h", delete=True).young == 1
    assert sweep(store, (), min_age=0, delete=True).leftovers == 1
    with pytest.raises(NotFoundError):
        store.get(part.name)


def test_a_store_whose_listings_lag_is_not_swept(store, clock):
    class Lagging(StoreDecorator):
        def list(self, prefix):
            return iter(())

    old = store.stage("f", b"12345")
    clock.at += 2 * HOUR
    with pytest.raises(UnavailableError, match="listing does not show"):
        sweep(Lagging(store), set(), min_age="1h", delete=True)
    assert staged(store) == {old.name}


@pytest.mark.parametrize("delete", [False, True])
def test_points_instead_of_names_are_refused_before_anything_is_deleted(delete):
    """They would match no piece, and so let every piece of theirs be deleted."""
    store = MemoryStore("points-instead-of-names")
    stream = RecoverableWriter(store).open("file")
    stream.write(b"rows")
    point = stream.persist()
    for reachable in ([point], "name"):
        with pytest.raises(InvalidInputError, match="reachable_names"):
            sweep(store, reachable, min_age=0, delete=delete)
    RecoverableWriter(store).recover_for_commit(point).commit()
    assert store.get("file") == b"rows"
    MemoryStore.forget("points-instead-of-names")


def test_a_file_cannot_be_opened_where_sweeps_delete():
    with pytest.raises(InvalidInputError, match="sweeps delete"):
        RecoverableWriter(MemoryStore("among-the-pieces")).open(".inprogress/file")


def test_objects_that_were_listed_before_go_by_name_and_what_is_as_young_as_the_newest_record_stays(store, clock):
    names = [f"job/changelog/{number:032x}" for number in range(4)]
    for name in names:
        clock.at += HOUR
        store.put(name, b"12345")
    piece = store.stage("f", b"x")
    listed, newest_at = list(store.list("job/")), clock.at - HOUR
    late = store.put("job/changelog/late", b"x").name
    clock.at += 100 * HOUR
    result = sweep(store, {names[0]}, listed=listed, newest_at=newest_at, min_age=0, delete=True)
    assert {info.name for info in store.list("job/")} == {names[0], *names[2:], late}
    assert staged(store) == {piece.name}
    assert (result.examined, result.reachable, result.young, result.leftovers) == (4, 1, 2, 1)
    assert result.swept_at == clock.at
