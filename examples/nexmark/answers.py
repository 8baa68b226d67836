"""What each query must give: the same question in SQL, asked by DuckDB over all events at once.

No Stateline code, no streaming, no state. The tables are ``persons``, ``auctions``, ``bids`` and ``side``; ``closed()``
is the watermark after the last event. A stream shows a window or a session when the watermark has passed its end, so
those that end after ``closed()`` are left out here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ANSWERS", "VIEWS", "Answer"]


@dataclass(frozen=True)
class Answer:
    """One query, as a question to the whole input.

    Attributes:
        title: What is asked, in a line.
        sql: The rows, by the names of the columns of the pipeline's output. Where ``has_ties``, every row that could be
            one of them.
        key: Columns that tell rows apart. Where it is given, the pipeline updates its output: of all rows of a key,
            those of its newest checkpoint hold.
        rank: The column of the key that numbers the rows of what is ranked; these come and go together.
        has_ties: Whether the query leaves open which of several rows it takes: there is exactly one of them for
            each key, and no row is taken twice.
        reading: How the output is read. ``written`` are all rows of its files; ``latest`` leaves those that hold.
    """

    title: str
    sql: str
    key: tuple[str, ...] = ()
    rank: str | None = None
    has_ties: bool = False
    reading: str = "FROM written {latest}"


VIEWS: Final = """
    SET TimeZone = 'UTC';
    CREATE VIEW persons AS SELECT * FROM read_parquet('{source}/persons/*.parquet');
    CREATE VIEW auctions AS SELECT * FROM read_parquet('{source}/auctions/*.parquet');
    CREATE VIEW bids AS SELECT * FROM read_parquet('{source}/bids/*.parquet');
    CREATE VIEW side AS SELECT * FROM read_parquet('{source}/side/*.parquet');
    CREATE MACRO closed() AS (SELECT max(dateTime) - INTERVAL 4 SECONDS FROM bids);
    CREATE MACRO window_of(moment) AS time_bucket(INTERVAL 10 SECONDS, moment, TIMESTAMPTZ '1970-01-01 00:00:00Z');
    CREATE VIEW valid_bids AS
        SELECT auctions.*, bidder, price, bids.dateTime AS dateTime_right, bids.extra AS extra_right
        FROM auctions JOIN bids ON id = auction AND bids.dateTime BETWEEN auctions.dateTime AND expires;
"""

_CLASSES: Final = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _by_class(figure: str, name: str) -> str:
    """A figure of all bids, and of those in each of three classes of price."""
    parts = [f"{figure} AS total_{name}"]
    parts += [f"{figure} FILTER ({test}) AS rank{place}_{name}" for place, test in enumerate(_CLASSES, start=1)]
    return ", ".join(parts)


_DISTINCT_FIGURES: Final = ", ".join(
    [
        _by_class("count(*)", "bids"),
        _by_class("count(DISTINCT bidder)", "bidders"),
        _by_class("count(DISTINCT auction)", "auctions"),
    ]
)

ANSWERS: Final[Mapping[str, Answer]] = {
    "q0": Answer("every bid as it is", "SELECT auction, bidder, price, dateTime, extra FROM bids"),
    "q1": Answer(
        "prices in another currency",
        "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bids",
    ),
    "q2": Answer("bids for some auctions", "SELECT auction, price FROM bids WHERE auction % 123 = 0"),
    "q3": Answer(
        "who sells in category 10 in three states",
        """SELECT name, city, state, auctions.id AS auction FROM auctions JOIN persons ON seller = persons.id
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
    ),
    "q4": Answer(
        "the average of the highest bids of each category",
        """SELECT category, sum(final)::BIGINT // count(*) AS average
        FROM (SELECT id, category, max(price) AS final FROM valid_bids GROUP BY ALL) GROUP BY category""",
        key=("category",),
    ),
    "q5": Answer(
        "the auctions with most bids, in sliding windows",
        """WITH counts AS (
            SELECT auction, window_end, count(*) AS bids FROM (
                SELECT auction, time_bucket(INTERVAL 2 SECONDS, dateTime) + INTERVAL 2 SECONDS * step AS window_end
                FROM bids, range(1, 6) AS steps(step))
            GROUP BY ALL)
        SELECT * FROM counts WHERE window_end <= closed()
        QUALIFY bids = max(bids) OVER (PARTITION BY window_end)""",
        key=("window_end",),
    ),
    "q7": Answer(
        "the highest bids of each window",
        """WITH highest AS (
            SELECT window_of(dateTime) + INTERVAL 10 SECONDS AS window_end, max(price) AS price FROM bids GROUP BY ALL)
        SELECT auction, price, bidder, dateTime, extra FROM bids JOIN highest USING (price)
        WHERE dateTime BETWEEN window_end - INTERVAL 10 SECONDS AND window_end AND window_end <= closed()""",
    ),
    "q8": Answer(
        "people who sold something in the window in which they came",
        """SELECT DISTINCT persons.id, name, window_of(persons.dateTime) AS window_start FROM persons
        JOIN auctions ON persons.id = seller AND window_of(persons.dateTime) = window_of(auctions.dateTime)""",
    ),
    "q9": Answer(
        "the winning bid of each auction",
        "FROM valid_bids QUALIFY rank() OVER (PARTITION BY id ORDER BY price DESC, dateTime_right) = 1",
        key=("id",),
        has_ties=True,
    ),
    "q10": Answer(
        "every bid, in folders by minute",
        """SELECT auction, bidder, price, dateTime, extra,
        strftime(dateTime, '%Y-%m-%d') AS day, strftime(dateTime, '%H:%M') AS minute FROM bids""",
    ),
    "q11": Answer(
        "bids of each session of a bidder",
        """WITH marked AS (
            SELECT bidder, dateTime, coalesce(dateTime > INTERVAL 10 SECONDS + lag(dateTime) OVER times, true) AS begins
            FROM bids WINDOW times AS (PARTITION BY bidder ORDER BY dateTime)),
        numbered AS (
            SELECT *, count(*) FILTER (begins) OVER (
                PARTITION BY bidder ORDER BY dateTime
                RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS session
            FROM marked)
        SELECT bidder, count(*) AS bids, min(dateTime) AS window_start,
        max(dateTime) + INTERVAL 10 SECONDS AS window_end
        FROM numbered GROUP BY bidder, session HAVING window_end <= closed()""",
    ),
    "q12": Answer(
        "bids of each bidder, by the clock on the wall",
        "SELECT bidder, count(*) AS bids FROM bids GROUP BY ALL",
        key=("bidder", "window_start"),
        reading="SELECT bidder, CAST(sum(bids) AS BIGINT) AS bids FROM (FROM written {latest}) GROUP BY bidder",
    ),
    "q13": Answer(
        "every bid with a value from another table",
        "SELECT auction, bidder, price, dateTime, value FROM bids JOIN side ON auction % 10000 = key",
    ),
    "q14": Answer(
        "bids of a range of prices, by the time of the day",
        """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
        CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
             WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time_of_day,
        dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bids WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    ),
    "q15": Answer(
        "bids, bidders and auctions of each day",
        f"SELECT strftime(dateTime, '%Y-%m-%d') AS day, {_DISTINCT_FIGURES} FROM bids GROUP BY ALL",
        key=("day",),
    ),
    "q16": Answer(
        "bids, bidders and auctions of each channel and day",
        f"""SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day, max(strftime(dateTime, '%H:%M')) AS minute,
        {_DISTINCT_FIGURES} FROM bids GROUP BY channel, day""",
        key=("channel", "day"),
    ),
    "q17": Answer(
        "figures of each auction and day",
        f"""SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, {_by_class("count(*)", "bids")},
        min(price) AS min_price, max(price) AS max_price, sum(price)::BIGINT // count(*) AS avg_price,
        sum(price)::BIGINT AS sum_price FROM bids GROUP BY auction, day""",
        key=("auction", "day"),
    ),
    "q18": Answer(
        "the last bid of each bidder for each auction",
        "FROM bids QUALIFY rank() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1",
        key=("bidder", "auction"),
        has_ties=True,
    ),
    "q19": Answer(
        "the ten highest bids for each auction",
        """WITH ranked AS (
            SELECT *, rank() OVER prices AS first, count(*) OVER (PARTITION BY auction, price) AS equal
            FROM bids WINDOW prices AS (PARTITION BY auction ORDER BY price DESC))
        SELECT * EXCLUDE (first, equal), CAST(unnest(range(first, least(first + equal, 11))) AS INTEGER) AS rank
        FROM ranked WHERE first <= 10""",
        key=("auction", "rank"),
        rank="rank",
        has_ties=True,
    ),
    "q20": Answer(
        "every bid with its auction, of category 10",
        """SELECT bids.*, itemName, description, initialBid, reserve, auctions.dateTime AS dateTime_right, expires,
        seller, category, auctions.extra AS extra_right FROM bids JOIN auctions ON auction = id WHERE category = 10""",
    ),
    "q21": Answer(
        "the number of each bid's channel",
        """SELECT auction, bidder, price, channel, channel_id FROM (
            SELECT *, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')
                END AS channel_id
            FROM bids) WHERE channel_id IS NOT NULL""",
    ),
    "q22": Answer(
        "the folders in the address of each bid",
        """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bids""",
    ),
}
