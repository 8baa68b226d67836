"""Each fault kind does what the table says, where it applies, when the plan says."""

import pytest

from stateline.blob.memory import MemoryStore
from stateline.environment import Environment
from stateline.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    StorageFullError,
    UnavailableError,
)
from stateline.testing import ActorKilled, Fault, FaultKind, FaultyStore, RandomFaults, ResolvingStore, ScriptedFaults
from stateline.testing.faults import APPLIES_TO, STORE_OPERATIONS, NoFaults
from stateline.testing.ids import SeededIds
from tests.kit.scenario import REQUEST_FAULTS, SYSTEM_CALL_FAULTS

STORE_KINDS = sorted(set(FaultKind) - SYSTEM_CALL_FAULTS - REQUEST_FAULTS)


@pytest.fixture
def inner():
    store = MemoryStore("faulty", Environment(ids=SeededIds()))
    store.put("old", b"old bytes")
    store.put("other", b"something else")
    yield store
    MemoryStore.forget("faulty")


def faulty(inner, *faults):
    return FaultyStore(inner, ScriptedFaults(faults))


def call(store, operation, parts):
    calls = {
        "put": lambda: store.put("new", b"1"),
        "put_if_absent": lambda: store.put_if_absent("new", b"1"),
        "get": lambda: store.get("old"),
        "get_range": lambda: store.get_range("old", 0, 8),
        "head": lambda: store.head("old"),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete(["old", "other"]),
        "stage": lambda: store.stage("t", b"1"),
        "publish": lambda: store.publish("new", parts, "n"),
        "discard": lambda: store.discard(parts),
    }
    return calls[operation]()


def contents(store):
    return {info.name: store.get(info.name) for info in store.list("")}


POINTS = [(kind, operation) for kind in STORE_KINDS for operation in sorted(APPLIES_TO[kind] & STORE_OPERATIONS)]
SILENT = {
    FaultKind.DELIVERED_TWICE, FaultKind.UNORDERED_LIST, FaultKind.STALE_LIST, FaultKind.TRUNCATED,
    FaultKind.FLIPPED_BIT, FaultKind.SWAPPED,
}  # fmt: skip
EXPECTED = {
    FaultKind.UNAVAILABLE: UnavailableError,
    FaultKind.ACCESS_DENIED: AccessDeniedError,
    FaultKind.STORAGE_FULL: StorageFullError,
    FaultKind.LOST_REQUEST: OutcomeUnknownError,
    FaultKind.LOST_ANSWER: OutcomeUnknownError,
    FaultKind.PARTIAL: OutcomeUnknownError,
    FaultKind.LANDS_LATER: OutcomeUnknownError,
    FaultKind.PARTS_EXPIRED: DataLossError,
    FaultKind.DAMAGED_PART: CorruptDataError,
    FaultKind.MISSING: NotFoundError,
    FaultKind.BROKEN_OFF: UnavailableError,
}


@pytest.mark.parametrize(("kind", "operation"), POINTS)
def test_every_kind_fires_once_wherever_it_applies(inner, kind, operation):
    parts = [inner.stage("t", b"1"), inner.stage("t", b"2")]
    store = faulty(inner, Fault(kind=kind, delay=None))
    before = contents(inner)
    if kind.is_crash:
        with pytest.raises(ActorKilled):
            call(store, operation, parts)
        store.revive()
    elif kind in SILENT:
        call(store, operation, parts)
    else:
        with pytest.raises(EXPECTED[kind]):
            call(store, operation, parts)
    assert store.plan.activations == {(operation, kind): 1}
    assert store.plan.struck == [Fault(kind=kind, at=0, delay=None)]
    if operation in {"put", "put_if_absent", "stage", "publish", "delete", "discard"}:
        acted = contents(inner) != before
        assert acted is (
            kind
            in {
                FaultKind.LOST_ANSWER, FaultKind.PARTIAL, FaultKind.CRASH_AFTER, FaultKind.CRASH_INSIDE,
                FaultKind.DELIVERED_TWICE, FaultKind.PARTS_EXPIRED, FaultKind.DAMAGED_PART,
            }
        )  # fmt: skip
    store.plan.heal()
    call(store, "list", parts)


@pytest.mark.parametrize("kind", [FaultKind.LANDS_LATER, FaultKind.CRASH_IN_FLIGHT])
def test_a_delayed_request_lands_after_other_calls(inner, kind):
    store = faulty(inner, Fault(kind=kind, delay=2))
    with pytest.raises((OutcomeUnknownError, ActorKilled)):
        store.put_if_absent("slot", b"late")
    store.revive()
    assert store.plan.under_way == 1
    for _ in range(2):
        store.head("old")
        assert "slot" not in contents(inner)
    store.head("old")
    assert inner.get("slot") == b"late"
    assert store.plan.under_way == 0


def test_a_delayed_request_that_comes_too_late_has_no_effect(inner):
    store = faulty(inner, Fault(kind=FaultKind.LANDS_LATER, delay=None))
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("slot", b"late")
    store.put_if_absent("slot", b"early")
    store.plan.land_all()
    assert inner.get("slot") == b"early"


def test_a_request_delivered_twice_acts_twice(inner):
    store = faulty(inner, Fault(kind=FaultKind.DELIVERED_TWICE, delay=1))
    store.delete(["old"])
    store.put("old", b"made again")
    assert inner.get("old") == b"made again"
    store.head("other")
    assert "old" not in contents(inner)


def test_partial_deletes_act_on_the_first_half(inner):
    store = faulty(inner, Fault(kind=FaultKind.PARTIAL))
    with pytest.raises(OutcomeUnknownError):
        store.delete(["old", "other"])
    assert set(contents(inner)) == {"other"}


def test_reads_give_other_bytes(inner):
    store = faulty(inner, Fault(kind=FaultKind.TRUNCATED), Fault(kind=FaultKind.FLIPPED_BIT, at=1))
    store.put("x", b"xxxxxxxx")
    assert store.get("old") == b"old "
    flipped = store.get("old")
    assert len(flipped) == 9
    assert sum((a ^ b).bit_count() for a, b in zip(flipped, b"old bytes", strict=True)) == 1
    swapped = faulty(inner, Fault(kind=FaultKind.SWAPPED, at=1))
    swapped.put("x", b"xxxxxxxx")
    assert swapped.get("old") == b"xxxxxxxx"


def test_listings_are_stale_shuffled_or_broken_off(inner):
    store = faulty(
        inner,
        Fault(kind=FaultKind.STALE_LIST, operation="list"),
        Fault(kind=FaultKind.BROKEN_OFF, operation="list", at=1),
        Fault(kind=FaultKind.UNORDERED_LIST, operation="list", at=2),
    )
    store.put("new", b"1")
    store.put("gone", b"1")
    store.delete(["gone"])
    assert {info.name for info in store.list("")} == {"old", "other"}
    seen = []
    with pytest.raises(UnavailableError):
        seen.extend(info.name for info in store.list(""))
    assert len(list(store.list(""))) == 3


def test_a_crash_lasts_until_another_process_comes(inner):
    store = faulty(inner, Fault(kind=FaultKind.CRASH_BEFORE))
    for _ in range(2):
        with pytest.raises(ActorKilled):
            store.get("old")
    store.revive()
    assert store.get("old") == b"old bytes"


# -- plans ------------------------------------------------------------------------------------------------------------


def outcomes(store, count, operation="head"):
    result = ""
    for _ in range(count):
        try:
            call(store, operation, [])
            result += "."
        except StatelineError:
            result += "x"
    return result


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(kind=FaultKind.UNAVAILABLE), "x....."),
        (Fault(kind=FaultKind.UNAVAILABLE, at=2), "..x..."),
        (Fault(kind=FaultKind.UNAVAILABLE, at=2, times=3), "..xxx."),
        (Fault(kind=FaultKind.UNAVAILABLE, at=2, times=None), "..xxxx"),
        (Fault(kind=FaultKind.UNAVAILABLE, operation="get"), "......"),
        (Fault(kind=FaultKind.STORAGE_FULL), "......"),
    ],
)
def test_faults_strike_once_a_while_or_for_ever(inner, fault, expected):
    assert outcomes(faulty(inner, fault), 6) == expected


def test_a_healed_plan_strikes_no_more(inner):
    store = faulty(inner, Fault(kind=FaultKind.UNAVAILABLE, times=None))
    assert outcomes(store, 2) == "xx"
    store.plan.heal()
    assert outcomes(store, 2) == ".."


def test_a_fault_can_wait_for_one_operation_or_one_actor(inner):
    plan = ScriptedFaults(
        [Fault(kind=FaultKind.UNAVAILABLE, operation="get", at=1), Fault(kind=FaultKind.ACCESS_DENIED, actor="b")]
    )
    a, b = (FaultyStore(inner, plan, name) for name in "ab")
    assert outcomes(a, 3) == "..."
    with pytest.raises(AccessDeniedError):
        b.head("old")
    a.get("old")
    with pytest.raises(UnavailableError):
        a.get("old")


def test_a_kind_waits_for_an_operation_that_it_applies_to(inner):
    store = faulty(inner, Fault(kind=FaultKind.STORAGE_FULL, at=1))
    store.head("old")
    store.head("old")
    with pytest.raises(StorageFullError):
        store.put("x", b"1")


def test_a_suspended_plan_neither_strikes_nor_counts(inner):
    store = faulty(inner, Fault(kind=FaultKind.UNAVAILABLE))
    store.plan.suspended = True
    store.head("old")
    store.plan.suspended = False
    assert store.plan.total == 0
    with pytest.raises(UnavailableError):
        store.head("old")


def test_what_struck_at_random_can_be_scripted(inner):
    operations = ["put", "get", "list", "delete", "stage"] * 40
    random = RandomFaults(5, STORE_KINDS)
    chosen = [random.strike(operation) for operation in operations]
    scripted = ScriptedFaults(random.struck)
    again = [scripted.strike(operation) for operation in operations]
    kinds = [fault and fault.kind for fault in chosen]
    assert [fault and fault.kind for fault in again] == kinds
    assert any(kinds)
    assert [RandomFaults(5, STORE_KINDS).strike(operation) for operation in operations][:1] == chosen[:1]


def test_every_kind_fires_in_a_fair_share_of_seeds():
    """No dead knob, over a long enough mix of operations."""
    fired = dict.fromkeys(STORE_KINDS, 0)
    for seed in range(200):
        plan = RandomFaults(seed, STORE_KINDS)
        for _ in range(40):
            for operation in sorted(STORE_OPERATIONS):
                plan.strike(operation)
        for kind in {kind for _, kind in plan.activations}:
            fired[kind] += 1
    assert {kind: count for kind, count in fired.items() if count < 40} == {}


def test_a_kind_whose_operation_occurs_once_fires_there_in_a_fair_share_of_seeds():
    fired = sum(
        RandomFaults(seed, {FaultKind.LOST_ANSWER}, expected={"put": 1}).strike("put") is not None
        for seed in range(200)
    )
    assert fired > 80


def test_a_plan_without_faults_notes_the_operations():
    plan = NoFaults()
    assert [plan.strike(name) for name in ("put", "get")] == [None, None]
    assert plan.sequence == ["put", "get"]


# -- the model of a backend -------------------------------------------------------------------------------------------


def resolving(inner, *faults):
    return ResolvingStore(faulty(inner, *faults))


def test_a_lost_answer_is_resolved_by_reading_back(inner):
    store = resolving(inner, Fault(kind=FaultKind.LOST_ANSWER, times=2))
    assert store.put_if_absent("new", b"1").size == 1
    parts = [inner.stage("t", b"1")]
    assert store.publish("t", parts, "n").size == 1


def test_a_lost_request_stays_unknown(inner):
    store = resolving(inner, Fault(kind=FaultKind.LOST_REQUEST, times=2))
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("new", b"1")
    with pytest.raises(OutcomeUnknownError):
        store.publish("t", [inner.stage("t", b"1")], "n")


def test_somebody_elses_object_is_a_conflict(inner):
    store = resolving(inner, Fault(kind=FaultKind.LOST_REQUEST, times=2))
    inner.put("t", b"x")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("old", b"1")
    with pytest.raises(ConflictError):
        store.publish("t", [inner.stage("t", b"1")], "n")


def test_a_read_back_that_fails_proves_nothing(inner):
    store = resolving(inner, Fault(kind=FaultKind.LOST_ANSWER), Fault(kind=FaultKind.UNAVAILABLE, at=1))
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("new", b"1")
