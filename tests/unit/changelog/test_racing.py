"""Late requests are raced: the first answer counts, and what loses does no harm whenever it lands. On virtual time."""

from __future__ import annotations

import pickle

import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.changelog.racing import RacingStore, raced
from stateline.changelog.upload_table import RetryPolicy
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint.layout import FLOOR_BLOCK, floor_name, record_name
from stateline.environment import system_environment
from stateline.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ClosedError,
    CorruptDataError,
    FencedError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from tests.kit.environment import SimulatedEnvironment
from tests.kit.scenarios.late_requests import StallingStore

TIMEOUT = 0.5
HOUR = 3600.0
POLICY = RetryPolicy.fixed(3, TIMEOUT, 0)
AT_ONCE = (0.0, 0.0)


class Remote:
    """A store elsewhere, whose requests are late, or fail, in the order of ``script``."""

    def __init__(self, policy=POLICY):
        self.environment = SimulatedEnvironment(seed=1)
        self.beneath = InstrumentedStore(MemoryStore(system_environment().ids.new_id()))
        self.script = []
        self.stalling = StallingStore(self.beneath, self.environment.clock, self.stall)
        self.store = RacingStore(self.stalling, policy, self.environment)

    def stall(self, operation):
        step = self.script.pop(0) if self.script else AT_ONCE
        if isinstance(step, Exception):
            raise step
        if isinstance(step, list):
            delay, error = step
            self.environment.clock.sleep(delay)
            raise error
        return step

    def seconds(self, call):
        """How long a call took; an error it raises is returned, too."""
        began = self.environment.clock.monotonic()
        try:
            result = call()
        except OSError as error:
            result = error
        return result, self.environment.clock.monotonic() - began

    def later(self):
        """Everything that is under way lands."""
        self.environment.clock.sleep(10 * HOUR)


@pytest.fixture
def remote():
    made = Remote()
    yield made
    made.environment.scheduler.close()


def record(checkpoint_id, nonce):
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        batch_id=checkpoint_id,
        query_id="q",
        offsets_digest=f"{checkpoint_id:064}",
        max_parallelism=1,
        parallelism=1,
        nonce=nonce,
        created_at=1.0,
        operators=(),
        outputs=(),
    )


# -- reads --------------------------------------------------------------------------------------------------------


def test_a_store_that_answers_in_time_is_asked_once(remote):
    remote.beneath.put("a", b"bytes")
    remote.script = [(0.2, 0.2)]
    assert remote.store.get("a") == b"bytes"
    assert remote.beneath.calls["get"] == 1


@pytest.mark.parametrize("call", ["get", "get_range", "get_ranges", "head", "list"])
def test_a_late_read_costs_its_timeout(remote, call):
    remote.beneath.put("a", b"bytes")
    arguments = {"get_range": ("a", 1, 3), "get_ranges": ("a", [(0, 2)]), "list": ("",)}.get(call, ("a",))
    remote.script = [(HOUR, 0.0)]
    read = getattr(remote.store, call)
    found, seconds = remote.seconds(lambda: list(read(*arguments)) if call == "list" else read(*arguments))
    assert not isinstance(found, Exception)
    assert seconds == pytest.approx(TIMEOUT)


def test_the_first_answer_counts_also_that_of_the_late_one(remote):
    remote.beneath.put("a", b"bytes")
    remote.script = [(TIMEOUT + 0.1, 0.0), (HOUR, 0.0), (HOUR, 0.0)]
    found, seconds = remote.seconds(lambda: remote.store.get("a"))
    assert found == b"bytes"
    assert seconds == pytest.approx(TIMEOUT + 0.1)


def test_a_late_request_is_raced_while_nobody_waits_for_it(remote):
    remote.beneath.put("a", b"bytes")
    remote.script = [(HOUR, 0.0)]
    answer = remote.store.begin(lambda: remote.stalling.get("a"), name="get")
    remote.environment.clock.sleep(10 * TIMEOUT)
    found, seconds = remote.seconds(answer)
    assert found == b"bytes"
    assert seconds == 0


def test_a_slow_store_is_waited_for_and_never_asked_more_often_than_allowed(remote):
    remote.beneath.put("a", b"bytes")
    remote.script = [(HOUR, 0.0)] * 3
    found, seconds = remote.seconds(lambda: remote.store.get("a"))
    assert found == b"bytes"
    assert seconds == pytest.approx(HOUR)
    remote.later()
    assert remote.beneath.calls["get"] == 3


def test_a_store_that_is_always_slow_is_soon_asked_once(remote):
    """A link that needs two timeouts for everything would carry all of it three times."""
    remote.beneath.put("a", b"bytes")
    slow, learned = (2 * TIMEOUT, 0.0), 3
    asked = []
    for _ in range(learned + 2):
        before = remote.beneath.calls["get"]
        remote.script = [slow] * 3
        assert remote.store.get("a") == b"bytes"
        remote.later()
        asked.append(remote.beneath.calls["get"] - before)
    assert asked == [2, 2, 2, 1, 1]
    remote.script = [(HOUR, 0.0)]
    found, seconds = remote.seconds(lambda: remote.store.get("a"))
    assert found == b"bytes"
    assert seconds == pytest.approx(6 * TIMEOUT)


def test_other_kinds_of_requests_and_stalls_do_not_make_one_late_later(remote):
    small, large = b"bytes", bytes(300_000)
    remote.beneath.put("a", small)
    for number in range(9):
        remote.script = [(2 * TIMEOUT, 0.0)] * 3
        remote.store.put(f"large-{number}", large)
        remote.later()
        remote.script = [(HOUR, 0.0)]
        found, seconds = remote.seconds(lambda: remote.store.get("a"))
        assert found == small
        assert seconds == pytest.approx(TIMEOUT)
        remote.later()


def test_what_moves_more_bytes_is_late_later(remote):
    large = bytes(20 * 1024 * 1024)
    remote.beneath.put("a", large)
    remote.script = [(2.4 * TIMEOUT, 0.0), (HOUR, 0.0)]
    assert remote.store.get_range("a", 0, len(large)) == large
    assert remote.beneath.calls["get_range"] == 1
    found, seconds = remote.seconds(lambda: remote.store.get_range("a", 0, len(large)))
    assert (found, seconds) == (large, pytest.approx(2.5 * TIMEOUT))
    remote.later()


def test_each_of_several_ranges_races_by_itself(remote):
    remote.beneath.put("a", bytes(range(100)))
    remote.script = [AT_ONCE, (HOUR, 0.0), AT_ONCE, (HOUR, 0.0)]
    ranges = [(start, start + 5) for start in range(0, 100, 5)]
    found, seconds = remote.seconds(lambda: remote.store.get_ranges("a", ranges))
    assert found == [bytes(range(start, end)) for start, end in ranges]
    assert seconds == pytest.approx(TIMEOUT)
    remote.later()
    assert remote.beneath.calls["get_range"] == len(ranges) + 2


def test_that_there_is_nothing_is_an_answer(remote):
    remote.script = [(HOUR, 0.0)]
    error, seconds = remote.seconds(lambda: remote.store.get("a"))
    assert isinstance(error, NotFoundError)
    assert seconds == pytest.approx(TIMEOUT)


def test_an_answer_is_of_the_time_of_the_call_whatever_a_late_read_finds_afterwards(remote):
    remote.script = [(HOUR, 0.0)]
    with pytest.raises(NotFoundError):
        remote.store.get("a")
    remote.store.put("a", b"new")
    remote.later()
    assert remote.store.get("a") == b"new"


def test_damaged_bytes_are_told_only_when_no_attempt_gets_them_whole(remote):
    remote.beneath.put("a", b"bytes")
    remote.script = [(2.0, 0.0), CorruptDataError("damaged")]
    assert remote.store.get("a") == b"bytes"
    remote.script = [(2.0, 0.0), CorruptDataError("damaged"), CorruptDataError("damaged")]
    assert remote.store.get("a") == b"bytes"
    remote.script = [CorruptDataError("damaged")]
    with pytest.raises(CorruptDataError):
        remote.store.get("a")


# -- three outcomes ---------------------------------------------------------------------------------------------------


def test_a_failure_is_told_when_nothing_is_under_way_any_more(remote):
    remote.script = [(5.0, 0.0), UnavailableError("no"), UnavailableError("no")]
    remote.store.put("a", b"bytes")
    assert remote.beneath.get("a") == b"bytes", "the first attempt was waited for, and succeeded"


def test_not_done_is_told_only_if_each_attempt_said_so(remote):
    remote.script = [[5.0, UnavailableError("no")], AccessDeniedError("no"), UnavailableError("no")]
    error, seconds = remote.seconds(lambda: remote.store.put("a", b"bytes"))
    assert isinstance(error, UnavailableError | AccessDeniedError)
    assert seconds == pytest.approx(5.0)
    remote.script = [[5.0, OutcomeUnknownError("perhaps")], UnavailableError("no"), UnavailableError("no")]
    error, _ = remote.seconds(lambda: remote.store.put("a", b"bytes"))
    assert isinstance(error, OutcomeUnknownError)


def test_a_plain_error_of_a_foreign_store_tells_nothing(remote):
    remote.script = [[2.0, OSError("?")], UnavailableError("no"), UnavailableError("no")]
    error, _ = remote.seconds(lambda: remote.store.put_if_absent("a", b"bytes"))
    assert type(error) is OSError


def test_errors_in_time_are_told_at_once_and_not_repeated(remote):
    remote.script = [UnavailableError("no")]
    error, seconds = remote.seconds(lambda: remote.store.get("a"))
    assert isinstance(error, UnavailableError)
    assert seconds == 0
    assert remote.beneath.calls["get"] == 0


# -- writes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stall", [(HOUR, 0.0), (0.0, HOUR)])
def test_a_creation_of_equal_bytes_finds_its_own(remote, stall):
    remote.script = [stall]
    _, seconds = remote.seconds(lambda: remote.store.put_if_absent("a", b"mine"))
    assert seconds == pytest.approx(TIMEOUT)
    remote.later()
    assert remote.beneath.get("a") == b"mine"


def test_a_creation_that_lost_is_told_so_and_stays_lost(remote):
    remote.beneath.put("a", b"theirs")
    remote.script = [(HOUR, 0.0)]
    with pytest.raises(AlreadyExistsError):
        remote.store.put_if_absent("a", b"mine")
    remote.later()
    assert remote.beneath.get("a") == b"theirs"


@pytest.mark.parametrize("call", ["put", "put_if_absent", "stage"])
def test_a_late_loser_writes_what_was_given_and_not_what_became_of_the_buffer(remote, call):
    buffer = bytearray(b"before")
    if call == "put":
        remote.script = [(HOUR, 0.0)]
        remote.store.put("a", buffer)
        buffer[:] = b"after!"
        remote.later()
        assert remote.beneath.get("a") == b"before"
        return
    written = []
    remote.stalling.put_if_absent = lambda name, data: written.append(data)
    remote.stalling.stage = lambda target, data: written.append(data)
    getattr(remote.store, call)("a", buffer)
    buffer[:] = b"after!"
    assert written == [b"before"]


def test_a_late_deletion_hits_only_what_was_named(remote):
    remote.beneath.put("old", b"bytes")
    remote.script = [(HOUR, 0.0)]
    names = ["old"]
    remote.store.delete(names)
    names.append("new")
    remote.store.put("new", b"bytes")
    remote.later()
    assert remote.beneath.get("new") == b"bytes"
    with pytest.raises(NotFoundError):
        remote.beneath.get("old")


def test_the_piece_of_a_loser_is_discarded_and_that_of_the_winner_stays(remote):
    remote.script = [(HOUR, 0.0)]
    part = remote.store.stage("out/a", b"bytes")
    remote.later()
    assert [info.name for info in remote.beneath.list_staged()] == [part.name]
    assert remote.store.publish("out/a", [part], "n").size == 5


def test_a_late_publication_finds_the_file_or_nothing_to_make_it_from(remote):
    part = remote.store.stage("out/a", b"bytes")
    remote.script = [(HOUR, 0.0)]
    remote.store.publish("out/a", [part], "n")
    remote.store.discard([part])
    remote.store.delete(["out/a"])  # A consumer has moved it away.
    remote.later()
    assert not list(remote.beneath.list("out/"))


def test_large_uploads_race_under_fresh_names_and_not_here(remote):
    remote.script = [(HOUR, 0.0)]
    remote.store.put_all_if_absent("a", [b"by", b"tes"])
    assert remote.beneath.calls["put_if_absent"] == 1


# -- the record ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stall", [(HOUR, 0.0), (0.0, HOUR)])
def test_a_stalled_creation_of_a_record_costs_its_timeout_and_stays_a_fence(remote, stall):
    mine, rival = CheckpointStore(remote.store), CheckpointStore(remote.beneath)
    remote.script = [stall]
    _, seconds = remote.seconds(lambda: mine.publish(record(0, "mine")))
    assert seconds == pytest.approx(TIMEOUT)
    with pytest.raises(FencedError):
        rival.publish(record(0, "rival"))
    remote.later()
    assert rival.latest().nonce == "mine"


def test_a_rival_that_was_first_fences_a_stalled_creation_and_its_loser_changes_nothing(remote):
    mine, rival = CheckpointStore(remote.store), CheckpointStore(remote.beneath)
    rival.publish(record(0, "rival"))
    remote.script = [(HOUR, 0.0)]
    with pytest.raises(FencedError):
        mine.publish(record(0, "mine"))
    remote.later()
    assert rival.latest().nonce == "rival"


def test_a_rival_between_two_attempts_wins_or_loses_but_both_agree(remote):
    mine, rival = CheckpointStore(remote.store), CheckpointStore(remote.beneath)
    remote.script = [(HOUR, 0.0), (0.3, 0.0)]
    remote.environment.executors.executor("rival", 1).call_later(
        TIMEOUT + 0.1, lambda: rival.publish(record(0, "rival"))
    )
    with pytest.raises(FencedError):
        mine.publish(record(0, "mine"))
    remote.later()
    assert rival.latest().nonce == "rival"


def test_a_creation_that_lands_after_retention_freed_its_slot_is_no_checkpoint(remote):
    mine = CheckpointStore(remote.store)
    remote.script = [(5 * HOUR, 0.0)]
    mine.publish(record(0, "mine"))
    for number in range(1, FLOOR_BLOCK + 3):
        mine.publish(record(number, f"n{number}"))
        mine.retain(2)
    assert remote.beneath.get(floor_name(0))
    with pytest.raises(NotFoundError):
        remote.beneath.get(record_name(0))
    remote.later()
    assert remote.beneath.get(record_name(0)), "the loser has landed in the free slot"
    found = CheckpointStore(remote.beneath)
    assert found.latest().checkpoint_id == FLOOR_BLOCK + 2
    assert [one.checkpoint_id for one in found.list()] == [FLOOR_BLOCK + 1, FLOOR_BLOCK + 2]
    with pytest.raises(FencedError):
        found.check_undecided(0)


def test_a_tombstone_that_lands_late_does_no_harm(remote):
    mine = CheckpointStore(remote.store)
    for number in range(3):
        mine.publish(record(number, f"n{number}"))
    mine.retain(3)
    mine.publish(record(3, "n3"))
    remote.script = [(HOUR, 0.0)]
    mine.retain(2)
    for number in range(4, FLOOR_BLOCK + 3):
        mine.publish(record(number, f"n{number}"))
        mine.retain(2)
    remote.later()
    assert [one.checkpoint_id for one in CheckpointStore(remote.beneath).list()] == [FLOOR_BLOCK + 1, FLOOR_BLOCK + 2]


# -- around it ------------------------------------------------------------------------------------------------------


class Elsewhere(MemoryStore):
    """A store whose URL is none of this host's."""

    @property
    def url(self):
        return "gs://bucket/root"


def test_stores_of_this_host_are_not_wrapped(tmp_path):
    from stateline.blob import open_store

    environment = system_environment()
    for store in (open_store(str(tmp_path)), MemoryStore("m")):
        assert raced(store, POLICY, environment) is store
    elsewhere = Elsewhere("m")
    assert isinstance(raced(elsewhere, POLICY, environment), RacingStore)
    for never in (RetryPolicy.none(), RetryPolicy.fixed(3, 0, 0), RetryPolicy.fixed(1, 1, 0)):
        assert raced(elsewhere, never, environment) is elsewhere


def test_real_threads_give_answers_and_errors_and_a_copy_opens_its_own():
    store = RacingStore(MemoryStore(system_environment().ids.new_id()), POLICY)
    store.put("a", b"bytes")
    assert store.get("a") == b"bytes"
    with pytest.raises(NotFoundError):
        store.head("b")
    copied = pickle.loads(pickle.dumps(store))
    assert copied.get("a") == b"bytes"
    store.close()
    with pytest.raises(ClosedError):
        store.get("a")
    assert copied.get("a") == b"bytes"
