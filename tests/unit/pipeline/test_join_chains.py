"""Joins behind other operators, and operators behind joins, in one checkpoint."""

from __future__ import annotations

import collections
import math
import random

import pyarrow as pa
import pytest

from stateline.blob.memory import MemoryStore
from stateline.errors import InvalidInputError
from stateline.state.aggregate import count, sum
from stateline.testing import KeyedStreamHarness

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
TIME = pa.timestamp("us", tz="UTC")
VIEWS = pa.schema([("page", pa.string()), ("at", TIME)])
CLICKS = pa.schema([("on", pa.string()), ("then", TIME), ("worth", pa.int64())])


def streams():
    views = KeyedStreamHarness(VIEWS, "page", watermark=("at", "4 seconds"), name="views")
    clicks = KeyedStreamHarness(CLICKS, "on", watermark=("then", "4 seconds"), name="clicks")
    return views, clicks


class Traffic:
    """Batches of both streams, whose times are never late."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.views, self.clicks = [], []

    def batch(self, second, rows=12, pages="abc"):
        views = [{"page": self.random.choice(pages), "at": self.moment(second)} for _ in range(rows)]
        clicks = [
            {"on": self.random.choice(pages), "then": self.moment(second), "worth": self.random.randint(1, 9)}
            for _ in range(rows)
        ]
        self.views += views
        self.clicks += clicks
        return views, clicks

    def moment(self, second):
        return START + (second + self.random.randint(-3, 0)) * SECOND


def micros(moment):
    return round(moment.timestamp() * SECOND)


def window_end(time):
    return (time // (10 * SECOND) + 1) * 10 * SECOND


def run(harness, traffic, batches=12):
    """All rows that come out; the last batch lies far ahead, so that everything before it is closed."""
    found = []
    for number in range(batches):
        if number in (4, 8):
            harness.restart(parallelism={4: 3, 8: 1}[number])
        found += harness.run_batch(*traffic.batch(number * 4))
    seen = len(traffic.views)
    found += harness.run_batch(*traffic.batch(1000, rows=1))
    found += harness.finish()
    del traffic.views[seen:], traffic.clicks[seen:]
    return found


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_windows_of_two_streams_are_joined_when_both_are_closed(how):
    views, clicks = streams()
    viewed = views.window("at", "10 seconds").aggregate("append", views=count())
    clicked = clicks.window("then", "10 seconds").aggregate("append", worth=sum("worth"))
    joined = viewed.key_by(["page", "window_end"]).join(clicked.key_by(["on", "window_end"], name="clicked"), how)
    traffic = Traffic(how)
    found = collections.Counter(
        (row["page"], micros(row["window_end"]), row["views"], row["worth"]) for row in run(joined, traffic)
    )
    counts = collections.Counter((row["page"], window_end(row["at"])) for row in traffic.views)
    worths = collections.Counter()
    for row in traffic.clicks:
        worths[row["on"], window_end(row["then"])] += row["worth"]
    wanted = {"inner": counts.keys() & worths.keys(), "left": counts.keys(), "full": counts.keys() | worths.keys()}[how]
    assert found == collections.Counter((*key, counts.get(key), worths.get(key)) for key in wanted)
    assert len(found) > 5


def test_windows_over_what_was_joined_close_when_no_pair_can_come():
    views, clicks = streams()
    joined = views.join(clicks, "left", within=("0 seconds", "6 seconds"))
    totals = joined.key_by("page").window("at", "10 seconds").aggregate("append", rows=count(), worth=sum("worth"))
    traffic = Traffic("windows over pairs")
    found = collections.Counter(
        (row["page"], micros(row["window_end"]), row["rows"], row["worth"]) for row in run(totals, traffic)
    )
    rows, worths = collections.Counter(), collections.Counter()
    for view in traffic.views:
        key = view["page"], window_end(view["at"])
        met = [
            click["worth"]
            for click in traffic.clicks
            if click["on"] == view["page"] and 0 <= click["then"] - view["at"] <= 6 * SECOND
        ]
        rows[key] += max(len(met), 1)
        worths[key] += math.fsum(met)
    assert found == collections.Counter((*key, rows[key], worths[key] or None) for key in rows)
    assert len(found) > 5


def test_a_stream_is_joined_with_what_was_made_of_it():
    views, _ = streams()
    totals = views.window("at", "10 seconds").aggregate("append", views=count())
    pages = totals.key_by("page", name="totals")
    joined = pages.join(views, "inner", within=("-20 seconds", "0 seconds"))
    rows = [{"page": "a", "at": START + second * SECOND} for second in (1, 2, 11)]
    found = joined.run_batch(rows)
    found += joined.run_batch([{"page": "b", "at": START + 40 * SECOND}])
    found += joined.finish()
    met = {(micros(row["window_end"]) - START, row["views"], micros(row["at"]) - START) for row in found}
    assert met == {
        (end * SECOND, number, at * SECOND)
        for end, number in ((10, 2), (20, 1))
        for at in (1, 2, 11)
        if end - 20 <= at <= end
    }


def test_rows_that_are_replaced_are_not_joined():
    views, clicks = streams()
    replaced = clicks.aggregate(n=count()).key_by("on")
    with pytest.raises(InvalidInputError, match="replaces rows"):
        views.join(replaced)


def test_a_stream_may_get_a_column_later_and_nothing_else_may_change():
    def joined(views_schema=VIEWS, how="inner", upper="10 seconds"):
        views = KeyedStreamHarness(views_schema, "page", watermark=("at", "4 seconds"), root=store)
        clicks = KeyedStreamHarness(CLICKS, "on", watermark=("then", "4 seconds"))
        return views.join(clicks, how, within=("0 seconds", upper))

    store = MemoryStore("root")
    assert joined().run_batch([{"page": "a", "at": START}], []) == []
    with pytest.raises(InvalidInputError):
        joined(how="left").run_batch([], [])
    with pytest.raises(InvalidInputError):
        joined(upper="20 seconds").run_batch([], [])
    later = joined(VIEWS.append(pa.field("device", pa.string())))
    new = {"page": "a", "at": START + SECOND, "device": "phone"}
    found = later.run_batch([new], [{"on": "a", "then": START + 2 * SECOND, "worth": 1}])
    assert {(row["device"], row["worth"]) for row in found} == {(None, 1), ("phone", 1)}
