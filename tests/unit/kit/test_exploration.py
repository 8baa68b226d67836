"""The drivers on a scenario small enough to count by hand, and on one with a bug."""

import pytest

from stateline.blob.memory import MemoryStore
from stateline.errors import AlreadyExistsError, InvalidInputError, OutcomeUnknownError
from stateline.testing import Fault, FaultKind
from stateline.testing.faults import NoFaults, ScriptedFaults
from tests.kit.backends import FactoryBackend
from tests.kit.explore import Setting, fault_pairs, single_faults, zombie_sweep
from tests.kit.invariants import InvariantViolation, require
from tests.kit.scenario import Scenario, opened, restart
from tests.kit.simulation import replay, run_seed, shrink, simulate
from tests.kit.world import World


class Claim(Scenario):
    """Each process claims one slot, then writes what it did with it under its own name, then says so.

    ``bug``: the claim is a plain put after a look.
    """

    name = "claim"

    def __init__(self, bug=False):
        self.bug = bug

    def start(self, world, incarnation):
        process = world.process(f"claimer-{incarnation}")
        process.spawn(lambda: self.claim(process))
        return process

    def claim(self, process):
        store, world = process.store(), process.world
        mine = process.name.encode()
        try:
            if self.bug:
                if any(True for _ in store.list("slot")):
                    return
                store.put("slot", mine)
            else:
                store.put_if_absent("slot", mine)
        except (AlreadyExistsError, OutcomeUnknownError):
            if store.get("slot") != mine:
                return
        store.put(f"work/{process.name}", b"done")
        world.acknowledge(("worked", process.name))

    def check(self, world):
        worked = [fact.key[1] for fact in world.facts if fact.key[0] == "worked"]
        require(len(worked) <= 1, "A1", f"{worked} worked")


# -- counting ---------------------------------------------------------------------------------------------------------


def test_every_point_of_a_small_scenario_is_tried_once():
    """Two puts: each with 4 refusals and unknowns (once, twice, for ever), 3 late kinds (3 delays), 2 crashes."""
    kinds = {
        FaultKind.UNAVAILABLE, FaultKind.STORAGE_FULL, FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST,
        FaultKind.LANDS_LATER, FaultKind.DELIVERED_TWICE, FaultKind.CRASH_IN_FLIGHT,
        FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.TRUNCATED,
    }  # fmt: skip
    result = single_faults(Claim(), kinds=kinds)
    assert result.failures == []
    assert result.points == 2 * (4 * 3 + 3 * 3 + 2)
    assert result.activations["put", FaultKind.CRASH_AFTER] == 1
    assert result.activations["put_if_absent", FaultKind.LANDS_LATER] == 3
    assert "put_if_absent" in result.table()


def test_the_zombie_sweep_tries_each_interleaving_once():
    result = zombie_sweep(Claim(), runs=(1, None))
    # k = 0: B works (2 operations), so j = 0, 1, 2; k = 1, 2: B finds the slot taken (2 operations), j = 0, 1, 2.
    assert result.points == 3 * 3 * 2 * 2
    assert result.failures == []


def test_pairs_strike_the_recovery_too():
    result = fault_pairs(Claim(), kinds=(FaultKind.CRASH_AFTER,))
    assert result.failures == []
    assert result.points == 2 * 2


def test_samples_are_smaller_and_depend_on_the_seed():
    sizes = [zombie_sweep(Claim(), Setting(seed=seed), sample=10).points for seed in range(6)]
    assert all(size < 36 for size in sizes)
    assert len(set(sizes)) > 1
    assert single_faults(Claim(), sample=7).points == 7


# -- finding ----------------------------------------------------------------------------------------------------------


def test_the_zombie_sweep_finds_a_check_that_is_not_atomic():
    (failure,) = zombie_sweep(Claim(bug=True)).failures
    assert failure.invariant in ("A1", "A5")
    assert "believed dead after" in failure.recipe
    assert "claimer-0" in failure.trace
    assert failure.scenario in failure.render()


def test_crash_points_alone_are_blind_to_it():
    crashes = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)
    assert fault_pairs(Claim(bug=True), kinds=crashes).failures == []


def test_simulation_finds_it_and_shrinks_the_script():
    result = simulate(Claim(bug=True), range(300))
    (failure,) = result.failures
    assert failure.invariant in ("A1", "A5")
    outcome = run_seed(Claim(bug=True), failure.seed)
    shortest = shrink(Claim(bug=True), outcome)
    assert len(shortest.script.decisions) + len(shortest.script.faults) <= 3
    assert shortest.violation.invariant == outcome.violation.invariant
    assert str(failure.seed) in failure.recipe


def test_a_run_that_holds_is_not_shrunk():
    outcome = run_seed(Claim(), 0)
    assert shrink(Claim(), outcome) is outcome


@pytest.mark.parametrize("seed", range(25))
def test_a_script_replays_to_the_same_trace(seed):
    first = run_seed(Claim(), seed)
    assert run_seed(Claim(), seed).trace.digest() == first.trace.digest()
    assert replay(Claim(), first.script).trace.digest() == first.trace.digest()


class Untyped(Claim):
    def claim(self, process):
        process.store().put("x", b"1")
        raise KeyError("not ours")


def test_an_error_that_is_not_typed_is_a_failure():
    (failure,) = single_faults(Untyped()).failures
    assert failure.invariant == "H4"
    assert "KeyError" in failure.message
    assert failure.recipe == "nothing was injected"


class Hanging(Claim):
    def claim(self, process):
        process.world.scheduler.wait(lambda: False)


def test_a_process_that_waits_for_ever_is_a_failure():
    (failure,) = zombie_sweep(Hanging()).failures
    assert failure.invariant == "H1"
    assert "waiting" in failure.message


class Swallowing(Claim):
    """Overwrites an object, and swallows whatever is raised."""

    def claim(self, process):
        store = process.store()
        for data in (b"1", b"2"):
            try:
                store.put("same", data)
            except Exception:
                continue


def test_what_a_watcher_sees_cannot_be_swallowed():
    (failure,) = single_faults(Swallowing()).failures
    assert failure.invariant == "A5"


class Unpromised(Claim):
    def claim(self, process):
        process.store().head("x" * 300)


def test_what_a_store_may_raise_is_checked(monkeypatch):
    from stateline.errors import NotFoundError

    def wrong(self, name, data):
        raise NotFoundError("gone", operation="put", subject=name)

    monkeypatch.setattr(MemoryStore, "put", wrong)
    (failure,) = single_faults(Claim()).failures
    assert "which it does not promise" in failure.message


# -- worlds -----------------------------------------------------------------------------------------------------------


def test_damage_that_lasts_must_be_told():
    class Publishing(Claim):
        def claim(self, process):
            store = process.store()
            if process.world.acknowledged(("part",)) is None:
                process.world.acknowledge(("part",), store.stage("t", b"x"))
            store.publish("t", [process.world.acknowledged(("part",))], "n")

        def check(self, world):
            assert world.objects().get("t") == b"x"

    plan = ScriptedFaults([Fault(kind=FaultKind.PARTS_EXPIRED)])
    with opened(Publishing(), faults=plan) as world:
        Publishing().start(world, 0)
        world.scheduler.run()
        assert restart(Publishing(), world, 1) is False
    assert single_faults(Publishing()).failures == []


def test_tasks_are_run_again_when_they_fail_or_die():
    attempts: list[str] = []

    class Tasks(Claim):
        def claim(self, process):
            assert process.run_tasks([task, task]) == ["done", "done"]
            process.world.acknowledge(("worked", "all"))

    def task(process):
        attempts.append(process.name)
        process.store().put(f"task/{process.name}", b"1")
        return "done"

    for kind in (FaultKind.UNAVAILABLE, FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER):
        attempts.clear()
        with opened(Tasks(), faults=ScriptedFaults([Fault(kind=kind)])) as world:
            process = Tasks().start(world, 0)
            world.scheduler.run()
            assert process.succeeded
        assert len(attempts) == len(set(attempts)) == 3


def test_a_task_that_always_fails_fails_the_driver():
    class Tasks(Claim):
        def claim(self, process):
            process.run_tasks([lambda task: task.store().get("missing")], max_failures=3)

    with opened(Tasks(), faults=NoFaults()) as world:
        process = Tasks().start(world, 0)
        world.scheduler.run()
        assert "missing" in str(process.error)
        assert len(world.processes) == 4


def test_speculation_runs_a_task_twice_and_takes_one_result():
    class Tasks(Claim):
        def claim(self, process):
            assert process.run_tasks([lambda task: task.store().put("t" + task.name, b"") and "done"]) == ["done"]

    with opened(Tasks(), faults=NoFaults(), speculation=1.0) as world:
        process = Tasks().start(world, 0)
        world.scheduler.run()
        assert process.succeeded
        assert len(world.processes) == 3
        assert len(list(world.objects().list(""))) == 2


def test_facts_are_found_by_key_newest_first():
    with World() as world:
        world.acknowledge(("a",), 1)
        world.acknowledge(("a",), 2)
        assert world.acknowledged(("a",)) == 2
        assert world.acknowledged(("b",)) is None


def test_a_third_party_brings_its_own_store():
    opened_by: list[str] = []

    def factory(name, environment):
        opened_by.append(name)
        return MemoryStore(f"third-party-{name}", environment)

    backend = FactoryBackend(factory, lambda: MemoryStore.forget("third-party-root"))
    result = zombie_sweep(Claim(), Setting(backend=lambda: backend))
    assert result.points > 0
    assert result.failures == []
    assert set(opened_by) == {"root"}


def test_dead_knobs_are_named():
    result = single_faults(Claim(), kinds={FaultKind.UNAVAILABLE, FaultKind.STORAGE_FULL})
    assert result.dead_knobs([FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.STALE_LIST]) == [
        FaultKind.LOST_ANSWER
    ]


def test_results_render_as_json():
    document = zombie_sweep(Claim(bug=True)).to_dict()
    assert document["failures"][0]["invariant"] in ("A1", "A5")
    assert document["operations"]["list"] > 0


def test_unknown_names_are_refused():
    from tests.kit.planted.bugs import BUGS, planted, register_bug
    from tests.kit.scenarios import SCENARIOS, register, scenario

    with pytest.raises(InvalidInputError, match="Known"):
        scenario("nope")
    with pytest.raises(InvalidInputError, match="taken"):
        register(SCENARIOS["create_race"])
    with pytest.raises(InvalidInputError), planted("nope"):
        pass
    import tests.kit.planted.store  # noqa: F401

    with pytest.raises(InvalidInputError, match="taken"):
        register_bug(BUGS["trust_existence"])


def test_a_violation_outside_is_told_with_the_trace():
    with World() as world:
        world.process("p").spawn(lambda: require(False, "C1", "x"))
        with pytest.raises(InvariantViolation):
            world.scheduler.run()
