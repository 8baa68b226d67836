"""The generator of Nexmark against what is known of the suite's: what is fixed, exactly; what is drawn, by share."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from examples.nexmark import source
from examples.nexmark.events import SCHEMAS, EventSettings, blocks
from examples.nexmark.text import CHANNELS, HOT_CHANNELS

NUMBERS = {
    "persons": ["id", "dateTime", "city", "state"],
    "auctions": ["id", "initialBid", "reserve", "dateTime", "expires", "seller", "category"],
    "bids": ["auction", "bidder", "price", "dateTime", "channel"],
}


@pytest.fixture(scope="module")
def million() -> dict[str, pa.Table]:
    """A million events, without the long texts."""
    made = list(blocks(EventSettings(seed=7)))
    return {kind: pa.concat_tables([block[kind].select(NUMBERS[kind]) for block in made]) for kind in SCHEMAS}


@pytest.fixture(scope="module")
def few() -> dict[str, pa.Table]:
    """20,000 events with all columns."""
    [made] = blocks(EventSettings(events=20_000, seed=3))
    return made


def share(mask: np.ndarray) -> float:
    return float(np.mean(mask))


def test_kinds_ids_and_times_follow_from_the_number_of_an_event() -> None:
    settings = EventSettings(events=5_000, rate=7, block=777)
    expected: dict[str, list[tuple]] = {"persons": [], "auctions": [], "bids": []}
    persons = auctions = 0
    for event in range(2 + settings.events):
        time = settings.start + dt.timedelta(milliseconds=event * 1000 // 7)
        place = event % 50
        kind = "persons" if place == 0 else "auctions" if place <= 3 else "bids"
        number = persons if kind == "persons" else auctions
        persons, auctions = persons + (kind == "persons"), auctions + (kind == "auctions")
        if event >= 2:
            expected[kind].append((time,) if kind == "bids" else (1000 + number, time))
    made = list(blocks(settings))
    assert [sum(table.num_rows for table in block.values()) for block in made[:-1]] == [777] * (len(made) - 1)
    for kind, rows in expected.items():
        table = pa.concat_tables([block[kind] for block in made])
        columns = ["dateTime"] if kind == "bids" else ["id", "dateTime"]
        assert list(zip(*(table[column].to_pylist() for column in columns), strict=True)) == rows
    assert max(rows[-1][-1] for rows in expected.values()) == settings.last_time


def test_equal_settings_make_equal_events_and_another_seed_others() -> None:
    settings = EventSettings(events=3_000, block=1_000)
    for one, same, other in zip(
        blocks(settings), blocks(settings), blocks(EventSettings(events=3_000, block=1_000, seed=2)), strict=True
    ):
        assert one == same
        assert one["bids"] != other["bids"]


def test_bids_are_for_the_hot_auction_or_for_open_ones(million: dict[str, pa.Table]) -> None:
    bids = million["bids"]
    event = np.arange(2, 1_000_002)
    event = event[event % 50 > 3]
    newest = event // 50 * 3 + 2
    auction = bids["auction"].to_numpy() - 1000
    is_hot = auction == newest // 100 * 100
    assert share(is_hot) == pytest.approx(0.5 + 0.5 / 111, abs=0.003)
    cold = auction[~is_hot] - newest[~is_hot]
    assert (cold.min(), cold.max()) == (-100, 10)
    assert share(auction > newest) == pytest.approx(0.045, abs=0.001)
    counts = np.unique(auction, return_counts=True)[1]
    assert counts.max() == pytest.approx(830, rel=0.05)
    assert share(auction % 123 == (123 - 1000 % 123) % 123) == pytest.approx(0.0074, abs=0.0005)  # What q2 takes.


def test_bidders_and_sellers_are_hot_ones_or_active_people(million: dict[str, pa.Table]) -> None:
    event = np.arange(2, 1_000_002)
    for kind, column, hot, first in (("auctions", "seller", 0, 1000), ("bids", "bidder", 1, 2000)):
        place = event % 50
        newest = event[(place > 3) if kind == "bids" else (place > 0) & (place <= 3)] // 50
        people = million[kind][column].to_numpy() - first
        is_hot = people == newest // 100 * 100 + hot
        assert share(is_hot) == pytest.approx(0.75, abs=0.01)
        distance = people[~is_hot] - newest[~is_hot]
        assert distance.max() == 10
        assert distance.min() == -999
        assert people.min() >= 0
    counts = np.unique(million["bids"]["bidder"].to_numpy(), return_counts=True)[1]
    assert len(counts) == pytest.approx(19_900, rel=0.01)
    assert counts.max() == pytest.approx(3_540, rel=0.05)


def test_prices_are_log_uniform(million: dict[str, pa.Table]) -> None:
    price = million["bids"]["price"].to_numpy()
    assert (price.min(), price.max()) == (100, pytest.approx(10**8, rel=0.001))
    assert share(price < 10_000) == pytest.approx(1 / 3, abs=0.003)
    assert share(price < 1_000_000) == pytest.approx(2 / 3, abs=0.003)
    assert np.median(price) == pytest.approx(1e5, rel=0.02)
    assert price.mean() == pytest.approx(7.2e6, rel=0.01)
    assert share((0.908 * price > 1e6) & (0.908 * price < 5e7)) == pytest.approx(
        np.log10(50) / 6, abs=0.003
    )  # What q14 takes.
    first, reserve = (million["auctions"][name].to_numpy() for name in ("initialBid", "reserve"))
    assert ((reserve - first) >= 100).all()
    assert np.median(reserve - first) == pytest.approx(1e5, rel=0.1)


def test_auctions_end_when_on_average_1666_events_have_happened(million: dict[str, pa.Table]) -> None:
    began, ends = (million["auctions"][name].cast(pa.int64()).to_numpy() for name in ("dateTime", "expires"))
    lengths = (ends - began) // 1000
    assert lengths.min() == 1
    assert lengths.mean() == pytest.approx(167, abs=1)
    assert lengths.max() <= EventSettings().longest_auction / dt.timedelta(milliseconds=1)
    assert set(million["auctions"]["category"].unique().to_pylist()) == {10, 11, 12, 13, 14}
    counts = np.unique(million["auctions"]["category"].to_numpy(), return_counts=True)[1]
    assert counts / 60_000 == pytest.approx([0.2] * 5, abs=0.01)


def test_no_auction_is_longer_than_the_settings_say_at_any_rate() -> None:
    for rate in (1, 3, 200, 1_666, 100_000, 10_000_000):
        settings = EventSettings(events=20_000, rate=rate)
        for block in blocks(settings):
            lengths = pc.subtract(
                block["auctions"]["expires"].cast(pa.int64()), block["auctions"]["dateTime"].cast(pa.int64())
            )
            assert pc.max(lengths).as_py() / 1e6 <= settings.longest_auction.total_seconds()
            assert pc.min(lengths).as_py() >= 1000


def test_texts_have_their_lengths_and_letters(few: dict[str, pa.Table]) -> None:
    auctions, persons, bids = few["auctions"], few["persons"], few["bids"]
    for column, longest in (("itemName", 19), ("description", 99)):
        lengths = pc.utf8_length(auctions[column]).to_numpy()
        assert lengths.max() <= longest
        assert pc.all(pc.equal(auctions[column], pc.utf8_trim_whitespace(auctions[column]))).as_py()
    text = "".join(auctions["description"].to_pylist())
    assert text.count(" ") / len(text) == pytest.approx(1 / 13, abs=0.006)
    assert set(text) == set(" abcdefghijklmnopqrstuvwxyz")
    assert set("".join(bids["extra"].to_pylist())) == set("abcdefghijklmnopqrstuvwxyz")
    assert pc.all(pc.match_substring_regex(persons["creditCard"], r"^\d{4} \d{4} \d{4} \d{4}$")).as_py()
    assert pc.count_distinct(persons["name"]).as_py() in (97, 98, 99)
    assert pc.count_distinct(persons["city"]).as_py() == 10
    assert set(persons["state"].unique().to_pylist()) == {"AZ", "CA", "ID", "OR", "WA", "WY"}


def test_rows_have_their_sizes(few: dict[str, pa.Table]) -> None:
    for kind, size, uncounted in (("persons", 200, []), ("auctions", 500, []), ("bids", 100, ["channel", "url"])):
        counted = few[kind].drop_columns(uncounted)
        texts = [pc.binary_length(column) for column in counted.columns if column.type == pa.string()]
        numbers = 8 * (counted.num_columns - len(texts))
        lengths = np.sum([length.to_numpy() for length in texts], axis=0) + numbers
        assert lengths.mean() == pytest.approx(size, rel=0.02)
        assert lengths.min() >= 0.8 * size - 1
        assert lengths.max() <= 1.2 * size + 1


def test_channels_have_fixed_addresses(million: dict[str, pa.Table], few: dict[str, pa.Table]) -> None:
    channel = million["bids"]["channel"]
    assert share(pc.is_in(channel, pa.array(HOT_CHANNELS)).to_numpy()) == pytest.approx(0.5, abs=0.003)
    assert pc.count_distinct(channel).as_py() == CHANNELS + len(HOT_CHANNELS)
    [other] = blocks(EventSettings(events=20_000, seed=4))
    pairs = pa.concat_tables([table["bids"].select(["channel", "url"]) for table in (few, other)])
    assert pairs.group_by(["channel", "url"]).aggregate([]).num_rows == pc.count_distinct(pairs["channel"]).as_py()
    known = dict(zip(*(pairs[name].to_pylist() for name in ("channel", "url")), strict=True))
    numbers = {name: url.partition("&channel_id=")[2] for name, url in known.items() if "-" in name}
    assert share(np.array([number != "" for number in numbers.values()])) == pytest.approx(0.9, abs=0.02)
    for name, number in numbers.items():
        reversed_ = int(f"{int(name.partition('-')[2]):032b}"[::-1], 2)
        assert number in ("", str(min(reversed_, 2**32 - reversed_)))
    pattern = r"https://www\.nexmark\.com/[a-z_]{3,4}/[a-z_]{3,4}/[a-z_]{3,4}/item\.htm\?query=1(&channel_id=\d+)?"
    assert pc.all(pc.match_substring_regex(pairs["url"], f"^{pattern}$")).as_py()


def test_files_are_found_again_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EventSettings(events=5_000, block=2_000)
    folder = source.prepare(settings, tmp_path)
    names = ["00000.parquet", "00001.parquet", "00002.parquet"]
    for kind in SCHEMAS:
        paths = sorted((folder / kind).iterdir(), key=lambda path: path.stat().st_mtime)
        assert [path.name for path in paths] == names
        made = pa.concat_tables([block[kind] for block in blocks(settings)])
        assert pa.concat_tables([pq.read_table(path) for path in paths]).equals(made)
    monkeypatch.setattr(source, "blocks", lambda _: pytest.fail("they are there"))
    assert source.prepare(settings, tmp_path) == folder


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(settings: EventSettings):
        yield next(blocks(settings))
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.prepare(EventSettings(events=5_000, block=2_000), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_other_events_is_replaced(tmp_path: Path) -> None:
    settings = EventSettings(events=1_000)
    folder = source.prepare(settings, tmp_path)
    (folder / "events.json").write_text("{}")
    (folder / "bids" / "old.parquet").touch()
    assert source.prepare(settings, tmp_path) == folder
    assert [path.name for path in (folder / "bids").iterdir()] == ["00000.parquet"]
