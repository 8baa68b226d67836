"""The events of Nexmark: people who sell and bid, auctions, and bids, drawn with a seed, column by column.

Event ``e``, counted from 2, has an epoch ``e // 50`` and a place ``e % 50`` in it. Place 0 is a person, 1 to 3 are
auctions, 4 to 49 are bids. People and auctions are numbered in order, and so are their ids, from 1000. What an event
names, it draws from those of its time: half of all bids go to the hot auction, the newest whose number is a multiple of
100; three of four sellers and bidders are the hot ones of the newest hundred people. The others are among the last 100
auctions and 1,000 people, and sometimes just ahead of them: a bid may come before its auction. The time of an event
follows from its number alone, so events are in order.

Facts of the suite that are kept because queries see them:
- Person 1000 and auction 1000 are named by others, but do not exist.
- Ids of bidders have the 1000 added twice, so that they begin at 2000.
- Prices are log-uniform from 100 to 100,000,000.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from examples.nexmark.text import channels, choices, credit_cards, letters, padding, sentences

__all__ = ["SCHEMAS", "EventSettings", "Kind", "blocks"]

Kind = Literal["persons", "auctions", "bids"]
Numbers = npt.NDArray[np.int64]

_TIME: Final = pa.timestamp("us", "UTC")
SCHEMAS: Final[Mapping[Kind, pa.Schema]] = {
    "persons": pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("emailAddress", pa.string()),
            ("creditCard", pa.string()),
            ("city", pa.string()),
            ("state", pa.string()),
            ("dateTime", _TIME),
            ("extra", pa.string()),
        ]
    ),
    "auctions": pa.schema(
        [
            ("id", pa.int64()),
            ("itemName", pa.string()),
            ("description", pa.string()),
            ("initialBid", pa.int64()),
            ("reserve", pa.int64()),
            ("dateTime", _TIME),
            ("expires", _TIME),
            ("seller", pa.int64()),
            ("category", pa.int64()),
            ("extra", pa.string()),
        ]
    ),
    "bids": pa.schema(
        [
            ("auction", pa.int64()),
            ("bidder", pa.int64()),
            ("price", pa.int64()),
            ("channel", pa.string()),
            ("url", pa.string()),
            ("dateTime", _TIME),
            ("extra", pa.string()),
        ]
    ),
}

_FIRST_EVENT: Final = 2
_EPOCH: Final = 50
_AUCTIONS_OF_EPOCH: Final = 3
_FIRST_ID: Final = 1000
_HOT: Final = 100
_OPEN_AUCTIONS: Final = 100
_ACTIVE_PEOPLE: Final = 1000
_AHEAD: Final = 10
"""So many people and auctions that do not exist yet may be named."""
_FIRST_CATEGORY: Final = 10
_CATEGORIES: Final = 5
_LIFE_EVENTS: Final = 1_666
"""Events until, on average, an auction ends."""
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = (
    "Tucson",
    "Mesa",
    "Oakland",
    "Fresno",
    "Nampa",
    "Salem",
    "Eugene",
    "Tacoma",
    "Spokane",
    "Laramie",
)
_FIRST_NAMES: Final = ("Ada", "Bela", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Kurt")
_LAST_NAMES: Final = ("Archer", "Baker", "Cooper", "Dyer", "Fisher", "Mason", "Potter", "Smith", "Weaver")
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, kw_only=True)
class EventSettings:
    """Which events there are: equal settings make equal events.

    Attributes:
        events: How many, of all three kinds.
        rate: Events in a second of event time.
        seed: Of everything that is drawn.
        block: Events that are drawn together, and written into one file of each kind.
        start: When event 0 would have been.
    """

    events: int = 1_000_000
    rate: int = 10_000
    seed: int = 1
    block: int = 100_000
    start: dt.datetime = dt.datetime(2026, 1, 1, 19, 59, 30, tzinfo=dt.UTC)

    @property
    def longest_auction(self) -> dt.timedelta:
        """No auction is open for longer than this."""
        return dt.timedelta(milliseconds=2 * (_LIFE_EVENTS * 1000 // self.rate + 1) + 1)

    @property
    def last_time(self) -> dt.datetime:
        """The time of the last event."""
        return self.start + dt.timedelta(milliseconds=(self.events + _FIRST_EVENT - 1) * 1000 // self.rate)


def blocks(settings: EventSettings) -> Iterator[dict[Kind, pa.Table]]:
    """All events in order, block by block."""
    end = _FIRST_EVENT + settings.events
    for number, first in enumerate(range(_FIRST_EVENT, end, settings.block)):
        random = np.random.default_rng([settings.seed, number])
        events = np.arange(first, min(first + settings.block, end))
        place = events % _EPOCH
        is_auction = (place > 0) & (place <= _AUCTIONS_OF_EPOCH)
        yield {
            "persons": _persons(events[place == 0], settings, random),
            "auctions": _auctions(events[is_auction], settings, random),
            "bids": _bids(events[place > _AUCTIONS_OF_EPOCH], settings, random),
        }


def _persons(events: Numbers, settings: EventSettings, random: np.random.Generator) -> pa.Table:
    rows = len(events)
    first, last = choices(random, _FIRST_NAMES, rows), choices(random, _LAST_NAMES, rows)
    user, host = letters(random, random.integers(3, 8, rows)), letters(random, random.integers(3, 6, rows))
    texts = {
        "name": pc.binary_join_element_wise(first, last, " "),
        "emailAddress": pc.binary_join_element_wise(user, "@", host, ".com", ""),
        "creditCard": credit_cards(random, rows),
        "city": choices(random, _CITIES, rows),
        "state": choices(random, _STATES, rows),
    }
    columns = {
        "id": _last_person(events) + _FIRST_ID,
        **texts,
        "dateTime": _times(events, settings),
        "extra": padding(random, 200, 2 * _NUMBER_BYTES + _bytes_of(*texts.values()), rows),
    }
    return pa.table(columns, schema=SCHEMAS["persons"])


def _auctions(events: Numbers, settings: EventSettings, random: np.random.Generator) -> pa.Table:
    rows = len(events)
    item, description = sentences(random, rows, 19), sentences(random, rows, 99)
    first_price = _prices(random, rows)
    columns = {
        "id": _last_auction(events) + _FIRST_ID,
        "itemName": item,
        "description": description,
        "initialBid": first_price,
        "reserve": first_price + _prices(random, rows),
        "dateTime": _times(events, settings),
        "expires": _ends(events, settings, random),
        "seller": _people(events, 0, random),
        "category": _FIRST_CATEGORY + random.integers(0, _CATEGORIES, rows),
        "extra": padding(random, 500, 7 * _NUMBER_BYTES + _bytes_of(item, description), rows),
    }
    return pa.table(columns, schema=SCHEMAS["auctions"])


def _bids(events: Numbers, settings: EventSettings, random: np.random.Generator) -> pa.Table:
    rows = len(events)
    newest = _last_auction(events)
    oldest = np.maximum(newest - _OPEN_AUCTIONS, 0)
    auction = random.integers(oldest, newest + _AHEAD + 1)
    auction = np.where(random.integers(0, 2, rows) == 0, auction, newest // _HOT * _HOT)
    channel, url = channels(random, rows)
    columns = {
        "auction": auction + _FIRST_ID,
        "bidder": _people(events, 1, random) + _FIRST_ID,  # The second 1000: bidders begin at 2000.
        "price": _prices(random, rows),
        "channel": channel,
        "url": url,
        "dateTime": _times(events, settings),
        "extra": padding(random, 100, 4 * _NUMBER_BYTES, rows),
    }
    return pa.table(columns, schema=SCHEMAS["bids"])


def _last_person(events: Numbers) -> Numbers:
    """The number of the newest person at each event."""
    return events // _EPOCH


def _last_auction(events: Numbers) -> Numbers:
    """The number of the newest auction at each event; at an auction it is its own."""
    return events // _EPOCH * _AUCTIONS_OF_EPOCH + np.clip(events % _EPOCH, 0, _AUCTIONS_OF_EPOCH) - 1


def _people(events: Numbers, hot: int, random: np.random.Generator) -> Numbers:
    """Ids of people: three of four have the number ``hot`` in the newest hundred, the others are active ones."""
    newest = _last_person(events)
    active = np.minimum(newest + 1, _ACTIVE_PEOPLE)
    cold = newest + 1 - active + random.integers(0, active + _AHEAD)
    return np.where(random.integers(0, 4, len(events)) == 0, cold, newest // _HOT * _HOT + hot) + _FIRST_ID


def _prices(random: np.random.Generator, rows: int) -> Numbers:
    return np.rint(100 * 10 ** (6 * random.random(rows))).astype(np.int64)


def _milliseconds(events: Numbers, settings: EventSettings) -> Numbers:
    return round(settings.start.timestamp() * 1000) + events * 1000 // settings.rate


def _times(events: Numbers, settings: EventSettings) -> pa.Array:
    return pa.array(_milliseconds(events, settings) * 1000).cast(_TIME)


def _ends(events: Numbers, settings: EventSettings, random: np.random.Generator) -> pa.Array:
    """An auction ends at least 1 ms after it began, on average when 1,666 more events have happened."""
    now = _milliseconds(events, settings)
    mean = _milliseconds(events + _LIFE_EVENTS, settings) - now
    return pa.array((now + 1 + random.integers(0, np.maximum(2 * mean, 1))) * 1000).cast(_TIME)


def _bytes_of(*columns: pa.Array) -> Numbers:
    """Bytes of several strings, row by row."""
    return np.sum([pc.binary_length(column).to_numpy() for column in columns], axis=0)
