"""Processing time through Spark and through Stateline: time to live, timers, and what time processors see."""

from __future__ import annotations

import datetime as dt

import processor_samples as samples
import pytest
from processor_kit import check_same


def told(spark, folder, batches, **fire):
    """Runs what keys are told at each time; returns what they saw last in each batch, by key."""
    schema, output = "k string, v long, do string", "k string, at long, now long, did string, saw string"
    rows = [[(key, number, do) for number, (key, do) in enumerate(batch)] for batch in batches.values()]
    options = {"times": list(batches), "time_mode": "ProcessingTime"}
    _, expected = check_same(spark, folder, samples.Told(fire), rows, schema, "k", output, **options)
    return dict(zip(batches, expected, strict=True))


def saw(rows, key, did=samples.KEPT):
    """What a key saw when it did something."""
    return [eval(row[4]) for row in rows if row[0] == key and row[3] == did]


def kept(rows, key):
    """The value, the list and the map that expire, of a key that had rows."""
    ((value, items, entries, *_),) = saw(rows, key)
    return value and value[0], [n for (n,) in items], {e: n for (e,), (n,) in entries}


def test_deduplication_with_a_time_to_live(spark, tmp_path):
    times = [100.0, 105.0, 109.999, 110.0, 120.0, 125.0]
    batches = [[("a", 1)], [("a", 2), ("b", 1)], [("a", 3)], [("a", 4)], [("a", 5)], []]
    schema, output = "k string, v long", "k string, last array<long>, values array<long>"
    options = {"times": times, "time_mode": "ProcessingTime"}
    _, put_out = check_same(spark, tmp_path, samples.Seen(), batches, schema, "k", output, **options)
    assert put_out == [
        [("a", [1], [1])],
        [("b", [1], [1])],
        [],
        [("a", [1, 2, 3, 4], [2, 3, 4])],  # the value expired, and entry 1
        [("a", [2, 3, 4, 5], [5])],  # element 1 expired too
        [],
    ]


def test_state_lives_as_long_as_its_time_to_live_and_what_renews_it(spark, tmp_path):
    write = [
        "value.update((1,))",
        "items.appendList([(1,), (2,)])",
        "entries.updateValue((1,), (10,))",
        "entries.updateValue((2,), (20,))",
        "forever.update((1,))",
        "history.appendValue((1,))",
        "index.updateValue((1,), (1,))",
    ]
    renew = ["value.update((1,))", "items.appendValue((3,))", "entries.updateValue((2,), (20,))"]
    put = ["items.put([(1,), (2,)])", "value.get()", "entries.containsKey((3,))"]
    again = ["value.clear()", "items.appendValue((4,))", "entries.removeKey((1,))", "entries.updateValue((1,), (11,))"]
    update = ["entries.updateValue((1,), (1,))", "value.update((1,))"]
    read = ["entries.getValue((1,))", "entries.containsKey((1,))", "entries.keys()", "entries.values()"]

    def every(key, expressions):
        return [(key, do) for do in expressions]

    batches = {
        100.0: [*every("still", write), *every("renewed", write), *every("put", write), *every("again", write)],
        102.0: [*every("renewed", renew), *every("put", put), ("other", "value.update((9,))")],
        103.999: [("still", "now"), ("renewed", "now")],
        104.0: [("still", "now"), ("renewed", "now")],
        105.0: [*every("still", read), *every("renewed", read)],
        106.0: [
            ("still", "now"),
            *every("renewed", ["items.appendValue((4,))"]),
            ("put", "now"),
            *every("again", again),
        ],
        108.0: [("renewed", "now"), ("put", "now"), ("again", "now")],
        109.0: [("put", "items.clear()"), ("again", "entries.clear()"), ("renewed", "items.clear()")],
        111.0: [("renewed", "value.exists()"), *every("ends", ["items.appendValue((1,))", *update])],
        114.0: every("ends", ["items.appendValue((2,))", "entries.updateValue((2,), (2,))", "value.update((2,))"]),
        117.0: [],
    }
    seen = told(spark, tmp_path, batches)
    assert kept(seen[103.999], "still") == (1, [1, 2], {1: 10, 2: 20})
    assert kept(seen[104.0], "still") == (None, [1, 2], {1: 10, 2: 20}), "to the millisecond"
    assert kept(seen[105.0], "still") == (None, [1, 2], {})
    assert kept(seen[106.0], "still") == (None, [], {})
    assert kept(seen[105.0], "renewed") == (1, [1, 2, 3], {2: 20}), "an entry is renewed by itself"
    assert kept(seen[106.0], "renewed") == (None, [3, 4], {2: 20}), "an append renews no element before it"
    assert kept(seen[106.0], "put") == (None, [1, 2], {}), "put renews all, also what stays as it is"
    assert kept(seen[108.0], "again") == (None, [4], {1: 11})
    assert saw(seen[111.0], "renewed")[0][3:6] == [(1,), [(1,)], [((1,), (1,))]], "without a time to live, for ever"


def test_timers_by_processing_time(spark, tmp_path):
    def at(*seconds):
        return "[handle.registerTimer(now + n) for n in (" + ", ".join(f"{s}" for s in seconds) + ",)]"

    batches = {
        100.0: [
            ("due", at(1_000, 2_000, 2_000, 2_001)),
            ("chain", at(1_000)),
            ("past", at(-1, -50_000, 0)),
            ("long past", "handle.registerTimer(-5)"),
            ("dropped", at(1_000, 5_000)),
            ("drops", at(900, 1_000, 1_400)),
            ("again", at(1_000)),
            ("expires", at(4_000)),
            ("expires", "value.update((1,))"),
            ("expires", "items.appendValue((1,))"),
        ],
        100.5: [("dropped", "handle.deleteTimer(now + 500)"), ("dropped", "handle.deleteTimer(now + 77)")],
        101.0: [],
        101.5: [("due", "handle.listTimers()"), ("drops", "now")],
        102.0: [],
        103.0: [("dropped", "handle.deleteTimer(105_000)"), ("dropped", "handle.registerTimer(105_000)")],
        104.0: [("due", "now")],
        106.0: [],
        107.0: [("chain", "handle.listTimers()")],
    }
    fire = {
        "chain": "handle.registerTimer(at + 1_000)",
        "drops": "[handle.deleteTimer(at + n) for n in (100, 500)]",
        "again": "handle.registerTimer(at)",
        "expires": "value.get(), list(items.get()), items.appendValue((2,))",
    }
    seen = told(spark, tmp_path, batches, **fire)
    fired = {time: sorted({(row[0], row[1]) for row in rows if row[1] is not None}) for time, rows in seen.items()}
    assert fired == {
        100.0: [("long past", -5), ("past", 50_000), ("past", 99_999), ("past", 100_000)],
        100.5: [],
        101.0: [("again", 101_000), ("chain", 101_000), ("drops", 100_900), ("drops", 101_000), ("due", 101_000)],
        101.5: [],
        102.0: [("chain", 102_000), ("due", 102_000)],
        103.0: [("chain", 103_000), ("due", 102_001)],
        104.0: [("chain", 104_000), ("expires", 104_000)],
        106.0: [("chain", 105_000), ("dropped", 105_000)],
        107.0: [("chain", 106_000)],
    }
    assert saw(seen[104.0], "expires", fire["expires"]) == [(None, [(1,)], None)], (
        "the value expires as the timer comes"
    )


@pytest.mark.parametrize(
    ("time_mode", "watermark"),
    [("None", False), ("None", True), ("ProcessingTime", False), ("ProcessingTime", True), ("EventTime", True)],
)
def test_what_time_processors_see(spark, tmp_path, time_mode, watermark):
    def row(key, timer, seconds):
        when = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)
        return (key, 0 if time_mode == "None" else timer, *([when] if watermark else []))

    batches = [
        [row("a", 0, 10.5), row("b", 5_000, 3)],
        [row("a", 1_003_000, 20.25), row("c", 20_250, 12)],
        [row("a", 0, 1_004), row("late", 0, 1), row("b", -1, 15)],
        [row("a", 0, 1_005)],
    ]
    schema = "k string, v long" + (", at timestamp" if watermark else "")
    times = [1_000.0, 1_001.5, 1_002.0, 1_003.0]
    options = {"times": times, "time_mode": time_mode, "initial": ("k string, n long", [("a", 1), ("z", 2)])}
    _, expected = check_same(
        spark, tmp_path, samples.Times(), batches, schema, "k", "k string, saw array<string>", **options
    )
    now, bound = (-1, -1) if time_mode == "None" else (1_003_000, 1_004_000 if watermark else 0)
    assert ("a", [f"initial {min(now, 1_000_000)} {min(bound, 0)}", f"rows {now} {bound}"]) in expected[3]
    timer = [f"timer {now} {bound}", "1003000"]
    assert (("a", timer) in expected[3]) == (time_mode != "None")
