"""A soak gives each suite its share of the time, and goes on where an earlier one ended."""

from __future__ import annotations

import random
from collections import Counter

from tests.soak.schedule import Schedule
from tests.soak.slices import KILLS, SHARES, SLICES, TABLE_KILLS, Slice
from tests.spark.moving import drawn_moves, kills_of


def slices(*names):
    return [Slice(suite, scenario, lambda number: {}) for suite, _, scenario in (name.partition("/") for name in names)]


def spend(schedule, seconds, minutes):
    """What runs in so many minutes, where a slice of a suite takes so many seconds."""
    ran, left = Counter(), minutes * 60
    while left > 0:
        number, chosen = schedule.next()
        assert number == ran[chosen.suite, chosen.scenario]
        ran[chosen.suite, chosen.scenario] += 1
        schedule.took(chosen, seconds[chosen.suite])
        left -= seconds[chosen.suite]
    return ran


def test_a_suite_has_its_share_of_the_time_whatever_its_slices_take():
    schedule = Schedule(slices("long/a", "short/a", "short/b", "short/c"), {"long": 0.6, "short": 0.4})
    ran = spend(schedule, {"long": 200, "short": 10}, 60)
    assert ran["long", "a"] in (10, 11, 12)
    in_turn = [ran["short", name] for name in "abc"]
    assert max(in_turn) - min(in_turn) <= 1
    assert min(in_turn) >= 45


def test_a_whole_soak_holds_a_hundred_kills_of_drivers_and_two_hundred_of_each_format():
    """Ten of drivers take three minutes and less, sixty of a table half a minute; the slowest sweeps take four."""
    seconds = {
        "spark": 200,
        "moves": 200,
        "scripts": 100,
        "zombies": 240,
        "seeds": 30,
        "powerloss": 60,
        "processes": 90,
        "batches": 120,
        "tables": 30,
        "readers": 60,
    }
    ran = spend(Schedule(SLICES, SHARES), seconds, 60)
    moved = sum(ran["moves", name] for name in ("folder", "union"))
    assert ran["spark", "driver kills"] * KILLS + moved * kills_of(drawn_moves(0, random.Random(0))) >= 100
    assert ran["moves", "folder"] >= 1
    assert ran["moves", "union"] >= 1
    assert ran["tables", "iceberg"] * 2 * TABLE_KILLS * 0.6 >= 200
    assert (ran["tables", "delta"] + ran["tables", "delta-upsert"]) * TABLE_KILLS * 0.6 >= 200
    assert {suite for suite, _ in ran} == set(SHARES)


def test_what_was_not_chosen_leaves_its_time_to_the_others():
    schedule = Schedule(slices("spark/kills", "seeds/a"), SHARES)
    assert spend(schedule, {"spark": 60, "seeds": 60}, 60)["spark", "kills"] > 45


def test_it_goes_on_with_the_numbers_after_those_of_the_report():
    schedule = Schedule(slices("seeds/a", "seeds/b"), SHARES)
    schedule.resume([{"suite": "seeds", "scenario": "a", "number": number} for number in (0, 1, 2)])
    schedule.resume([{"suite": "seeds", "scenario": "gone", "number": 9}])
    taken = []
    for _ in range(5):
        number, chosen = schedule.next()
        taken.append((chosen.scenario, number))
        schedule.took(chosen, 1.0)
    assert taken == [("b", 0), ("b", 1), ("b", 2), ("a", 3), ("b", 3)]


def test_every_slice_has_a_share():
    assert {each.suite for each in SLICES} == set(SHARES)
