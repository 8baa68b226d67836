"""Processors that tests run: each shows one thing that a processor may do."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import datetime as dt
import decimal
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot find this module.


class Counter(StatefulProcessor):
    """A running count and sum, for a key of any columns."""

    def init(self, handle):
        self.totals = handle.getValueState("totals", "n long, total long")

    def handleInputRows(self, key, rows, timerValues):
        n, total = self.totals.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.v
        self.totals.update((n, total))
        yield Row(k="/".join(map(str, key)), n=n, total=total)

    def close(self):
        pass


class FrameCounter(StatefulProcessor):
    """The same in pandas."""

    def init(self, handle):
        self.totals = handle.getValueState("totals", "n long, total long, newest timestamp")

    def handleInputRows(self, key, rows: Iterator[pd.DataFrame], timerValues):
        n, total, newest = self.totals.get() or (0, 0, None)
        for frame in rows:
            assert frame.index[0] == 0
            n += len(frame)
            total += frame["v"].sum()
            newest = frame["at"].max().to_pydatetime()
            frame["written"] = frame["v"] * 2
        self.totals.update((n, total, newest))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total], "newest": [frame["at"].max()]})

    def close(self):
        pass


class Sessions(StatefulProcessor):
    """A session ends five seconds of event time after its last row. Timers are listed, deleted, and set anew."""

    def init(self, handle):
        self.handle = handle
        self.rows = handle.getListState("rows", "v long")

    def handleInputRows(self, key, rows, timerValues):
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        seen = sorted(rows, key=lambda row: row.v)
        self.rows.appendList([(row.v,) for row in seen])
        end = max(row.at for row in seen).timestamp() + 5
        self.handle.registerTimer(int(end * 1000))
        yield Row(k=key[0], what="open", at=timerValues.getCurrentWatermarkInMs(), v=[row.v for row in seen])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], what="closed", at=at, v=sorted(v for (v,) in self.rows.get()))
        self.rows.clear()

    def close(self):
        pass


class Chained(StatefulProcessor):
    """Every rule of timers: in the past, chained, set anew while it fires, deleted while it is due."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.handle.registerTimer(row.v * 1000)
        yield Row(k=key[0], what="in", at=timerValues.getCurrentWatermarkInMs(), v=sorted(self.handle.listTimers()))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at = expiredTimerInfo.getExpiryTimeInMs()
        if key.k == "chain":
            self.handle.registerTimer(at + 1000)
        if key.k == "again":
            self.handle.registerTimer(at)
        if key.k == "drop":
            self.handle.deleteTimer(at + 1000)
        yield Row(k=key[0], what="fired", at=at, v=sorted(self.handle.listTimers()))

    def close(self):
        pass


class FrameTimers(StatefulProcessor):
    """Frames, timers that initial states and rows set, and several frames for one key."""

    def init(self, handle):
        self.handle = handle
        self.kept = handle.getListState("kept", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        self._keep(initialState["n"])

    def handleInputRows(self, key, rows: Iterator[pd.DataFrame], timerValues):
        for frame in rows:
            self._keep(frame["v"])
        if len(list(self.kept.get())) > 1:
            yield pd.DataFrame({"k": [key[0]], "o": ["one"]})
            yield pd.DataFrame({"o": ["two", "three"], "k": [key[0]] * 2})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at = expiredTimerInfo.getExpiryTimeInMs()
        self.handle.deleteTimer(at + 1000)
        seen = (type(key).__name__, at, sorted(self.kept.get()), sorted(self.handle.listTimers()))
        yield pd.DataFrame({"k": [key[0]], "o": [repr(seen)]})

    def close(self):
        pass

    def _keep(self, numbers):
        self.kept.appendList([(int(n),) for n in numbers])
        for n in numbers:
            self.handle.registerTimer(int(n) * 1000)


class Stock(StatefulProcessor):
    """An inventory in a map, and the three highest quantities ever seen in a list."""

    def init(self, handle):
        self.items = handle.getMapState("items", "item string", "quantity long")
        self.top = handle.getListState("top", "quantity long")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda row: (row.at, row.v)):
            item = (f"i{row.v % 3}",)
            if row.v < 0:
                self.items.removeKey(item)
            elif self.items.containsKey(item):
                self.items.updateValue(item, (self.items.getValue(item)[0] + row.v,))
            else:
                self.items.updateValue(item, (row.v,))
            self.top.put(sorted([*self.top.get(), (row.v,)], reverse=True)[:3])
        listed = sorted(f"{item}={quantity}" for (item,), (quantity,) in self.items.iterator())
        assert sorted(self.items.keys()) == sorted(item for item, _ in self.items.iterator())
        yield Row(k=key[0], items=",".join(listed), top=[quantity for (quantity,) in self.top.get()])
        if len(listed) == 3:
            self.items.clear()

    def close(self):
        pass


class Sets(StatefulProcessor):
    """State without fields: a set is a map of keys alone, a value a mark, a list a count."""

    def init(self, handle):
        self.seen = handle.getMapState("seen", "v long", StructType([]))
        self.mark = handle.getValueState("mark", StructType([]))
        self.count = handle.getListState("count", StructType([]))

    def handleInputRows(self, key, rows, timerValues):
        known = [self.mark.exists(), self.mark.get(), len(list(self.count.get()))]
        for row in rows:
            self.count.appendValue(())
            if self.seen.containsKey((row.v,)):
                self.seen.removeKey((row.v,))
            else:
                self.seen.updateValue((row.v,), ())
        (self.mark.clear if self.mark.exists() else lambda: self.mark.update(()))()
        yield Row(k=key[0], seen=repr([*known, sorted(self.seen.iterator()), self.seen.exists(), self.mark.get()]))

    def close(self):
        pass


class GivenBack(StatefulProcessor):
    """What state gives back in the batch that wrote it, and entries of a map that are found by other objects."""

    def init(self, handle):
        self.value = handle.getValueState("value", GIVEN_BACK)
        self.entries = handle.getMapState("entries", "at timestamp, de decimal(10,2), b binary, da date", "seen long")
        self.floats = handle.getMapState("floats", "x double", "seen long")

    def handleInputRows(self, key, rows, timerValues):
        seen = []
        for row in rows:
            entry = (row.at, decimal.Decimal("1.5"), bytearray(b"b"), dt.datetime(2024, 1, 1))
            for state, name in ((self.entries, entry), (self.floats, (float("nan"),))):
                before = state.getValue(name)
                state.updateValue(name, (np.int64(before.seen if before else 0) + 1,))
                seen.append(repr([state.containsKey(name), state.getValue(name), *state.iterator()]))
            kept = ([(row.at, np.int64(row.v))], {"k": (1, None)}, np.float32(0.1), np.int32(2**31 - 1))
            self.value.update((row.at, *kept, decimal.Decimal("1.005"), dt.datetime(2024, 1, 1), Row(x=row.at, y=1)))
            (at, *others), (i, *_) = self.value.get(), self.value.get()[4:]
            seen.append(f"{row.at.replace(tzinfo=None) - at} {others!r} {i + 1}")
        yield Row(k=key[0], seen="\n".join(seen))

    def close(self):
        pass


GIVEN_BACK = (
    "at timestamp, ast array<struct<x:timestamp,y:long>>, m map<string,array<int>>, f float, i int, "
    "de decimal(10,2), da date, st struct<x:timestamp,y:int>"
)


class Clock(StatefulProcessor):
    """What the clock shows in rows and grouping keys; and rows put out as they came in."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            yield row
            yield Row(k=f"{key!r} {row!r}", t=row.t, n=row.n, m=row.m, st=row.st)

    def close(self):
        pass


class FrameClock(Clock):
    """The same in pandas."""

    def handleInputRows(self, key, rows: Iterator[pd.DataFrame], timerValues):
        for frame in rows:
            yield pd.DataFrame({"k": [f"{key!r} {frame['t'].tolist()!r}"], "t": frame["t"][:1]})


class FrameInside(Clock):
    """What is inside the values of data frames."""

    def handleInputRows(self, key, rows: Iterator[pd.DataFrame], timerValues):
        for frame in rows:
            seen = [[repr(list(array)), repr(st), repr(m)] for array, st, m in frame[["a", "st", "m"]].to_numpy()]
            yield pd.DataFrame({"k": [f"{key!r} {seen!r}"]})


class Seen(StatefulProcessor):
    """Lets a key through once in a while: deduplication with a time to live."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", "v long", 10_000)
        self.last = handle.getListState("last", "v long", 20_000)
        self.by_value = handle.getMapState("by_value", "v long", "n long", 10_000)

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        self.last.appendValue((rows[0].v,))
        if not self.by_value.containsKey((rows[0].v,)):
            self.by_value.updateValue((rows[0].v,), (1,))
        if not self.seen.exists():
            self.seen.update((rows[0].v,))
            kept = [v for (v,) in self.last.get()]
            values = sorted(v for (v,), _ in self.by_value.iterator())
            yield Row(k=key[0], last=kept, values=values)

    def close(self):
        pass


class Seeded(Counter):
    """A running count that begins with an initial state."""

    def handleInitialState(self, key, initialState, timerValues):
        self.totals.update((initialState.n, initialState.n * 100))


class Types(StatefulProcessor):
    """What values of every type look like: in rows, in state, in output."""

    def init(self, handle):
        self.value = handle.getValueState("value", TYPES)
        self.list = handle.getListState("list", TYPES)
        self.map = handle.getMapState("map", "k string, n int", TYPES)

    def handleInputRows(self, key, rows, timerValues):
        (row,) = rows
        seen = "nothing"
        if self.value.exists():
            (listed,) = self.list.get()
            ((entry, mapped),) = self.map.iterator()
            fetched = self.map.getValue(entry)
            assert listed == mapped == tuple(fetched) == self.value.get()
            seen = f"{self.value.get()!r} {entry!r}"
        naive = row.ts.replace(tzinfo=None)
        nested = Row(x=row.i, y=naive)
        kept = (
            *(row.by, row.sh, row.i, row.v, row.f, row.d, row.s, row.b, row.bo, row.da, naive, row.ntz, row.de),
            *(row.a, dict(row.m), nested, [nested], {"k": nested}, None),
        )
        self.value.update(kept)
        self.list.put([kept])
        self.map.updateValue(("a", 1), kept)
        yield Row(k=key[0], seen=seen, row=repr(tuple(row)[:13]), ts=row.ts, nested=nested, m=dict(row.m), a=row.a)

    def close(self):
        pass


class RowsInside(StatefulProcessor):
    """Puts out rows of rows whose fields are in another order, or not all there."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        for inside in (Row(y=2, x=1), Row(x=5), {"y": 2, "x": 1}, None):
            yield Row(k=key[0], st=inside, a=[inside, None], m={"q": inside})

    def close(self):
        pass


SCALARS = (
    "by byte, sh short, i int, v long, f float, d double, s string, b binary, bo boolean, da date, ts timestamp, "
    "ntz timestamp_ntz, de decimal(10,2)"
)
TYPES = (
    f"{SCALARS}, a array<int>, m map<string,int>, st struct<x:int,y:timestamp>, ast array<struct<x:int,y:timestamp>>, "
    "mst map<string,struct<x:int,y:timestamp>>, nothing string"
)
TYPES_INPUT = f"{SCALARS}, k string, a array<int>, m map<string,int>"
TYPES_OUTPUT = (
    "k string, seen string, row string, ts timestamp, nested struct<x:int,y:timestamp>, m map<string,int>, a array<int>"
)


class Told(StatefulProcessor):
    """Does what rows tell it to, in Python, and puts out what came of it; then all that it keeps.

    What a timer does is told by its key: ``fire`` has it.
    """

    def __init__(self, fire=None):
        self.fire = fire or {}

    def init(self, handle):
        self.names = {
            "handle": handle,
            "value": handle.getValueState("value", "n long", 4_000),
            "items": handle.getListState("items", "n long", 6_000),
            "entries": handle.getMapState("entries", "e long", "n long", 5_000),
            "forever": handle.getValueState("forever", "n long"),
            "history": handle.getListState("history", "n long"),
            "index": handle.getMapState("index", "e long", "n long", 0),
        }

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda row: row.v):
            yield self._do(key, row.do, timerValues)
        yield self._do(key, KEPT, timerValues)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield self._do(key, self.fire.get(key.k, "at"), timerValues, at)
        yield self._do(key, KEPT, timerValues, at)

    def close(self):
        pass

    def _do(self, key, do, timerValues, at=None):
        now = timerValues.getCurrentProcessingTimeInMs()
        saw = eval(do, {**self.names, "now": now, "at": at})
        return Row(k=key[0], at=at, now=now, did=do, saw=repr(sorted(saw) if isinstance(saw, Iterator) else saw))


KEPT = (
    "[value.get(), list(items.get()), sorted(entries.iterator()), forever.get(), list(history.get()), "
    "sorted(index.iterator()), value.exists(), items.exists(), entries.exists(), sorted(handle.listTimers())]"
)
"""All that ``Told`` keeps for a key."""


class Times(StatefulProcessor):
    """What time it is, in each of the handlers."""

    def init(self, handle):
        self.handle, self.seen = handle, handle.getListState("seen", "what string")

    def handleInitialState(self, key, initialState, timerValues):
        self.seen.appendValue((self._look("initial", timerValues),))

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.v:
                self.handle.registerTimer(row.v)
        yield Row(k=key[0], saw=[*(what for (what,) in self.seen.get()), self._look("rows", timerValues)])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k=key[0], saw=[self._look("timer", timerValues), str(expiredTimerInfo.getExpiryTimeInMs())])

    def close(self):
        pass

    def _look(self, where, timerValues):
        return f"{where} {timerValues.getCurrentProcessingTimeInMs()} {timerValues.getCurrentWatermarkInMs()}"


class Fragile(StatefulProcessor):
    """Changes everything that it keeps, puts something out, and then raises at one number: in rows, or as a timer."""

    def __init__(self, breaks_in=None, breaks_at=None):
        self.breaks = (breaks_in, breaks_at)

    def init(self, handle):
        self.handle = handle
        self.value = handle.getValueState("value", "n long")
        self.items = handle.getListState("items", "n long")
        self.entries = handle.getMapState("entries", "e long", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda row: row.v):
            yield from self._do("rows", key, row.v)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield from self._do("timer", key, expiredTimerInfo.getExpiryTimeInMs())

    def close(self):
        pass

    def _do(self, where, key, number):
        (before,) = self.value.get() or (0,)
        self.value.update((before + number,))
        self.items.appendValue((number,))
        self.entries.updateValue((number % 3,), (number,))
        self.handle.registerTimer(number + 10_000)
        yield Row(k=key[0], where=where, number=number, total=before + number, kept=len(list(self.items.get())))
        if self.breaks == (where, number):
            raise ValueError("half way")
