"""The queries of Nexmark in Flink SQL, as a program for an environment that has PyFlink and nothing of this repository.

    python nexmark_flink_job.py REQUEST

The request is JSON: folders of events, a folder for checkpoints, and the parallelism. Each line of the standard input
names a query. It runs over the few events of ``warm_up`` twice and over all events once, into a sink that forgets; a
line of JSON says how long the last two jobs took.
"""

import json
import sys
import time

TABLES = {
    "persons": """id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING,
        `dateTime` TIMESTAMP(3), extra STRING""",
    "auctions": """id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT,
        `dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING""",
    "bids": """auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` TIMESTAMP(3),
        extra STRING, now AS PROCTIME()""",
}

TUMBLING = "TABLE(TUMBLE(TABLE {table}, DESCRIPTOR({time}), INTERVAL '10' SECOND))"
BID_COLUMNS = "auction, bidder, price, channel, url, `dateTime`, extra"
AUCTION_COLUMNS = "itemName, description, initialBid, reserve, expires, seller, category"
VALID_BIDS = "auctions A JOIN bids B ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires"
COUNTS = """SELECT auction, window_start, window_end, COUNT(*) AS bids
    FROM TABLE(HOP(TABLE bids, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""


def by_class(figure: str, name: str) -> str:
    classes = ["price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"]
    parts = [f"{figure} AS total_{name}"]
    parts += [f"{figure} FILTER (WHERE {test}) AS rank{place}_{name}" for place, test in enumerate(classes, start=1)]
    return ", ".join(parts)


DISTINCT = ", ".join(
    [
        by_class("COUNT(*)", "bids"),
        by_class("COUNT(DISTINCT bidder)", "bidders"),
        by_class("COUNT(DISTINCT auction)", "auctions"),
    ]
)
DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"

QUERIES = {
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auctions A JOIN persons P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, AVG(final) AS average
        FROM (SELECT A.category, MAX(B.price) AS final FROM {VALID_BIDS} GROUP BY A.id, A.category)
        GROUP BY category""",
    "q5": f"""SELECT C.auction, C.bids FROM ({COUNTS}) C
        JOIN (SELECT MAX(bids) AS greatest, window_start, window_end FROM ({COUNTS})
            GROUP BY window_start, window_end) M
        ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.bids = M.greatest""",
    "q7": f"""SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra FROM bids B
        JOIN (SELECT MAX(price) AS price, window_end FROM {TUMBLING.format(table="bids", time="`dateTime`")}
            GROUP BY window_start, window_end) M
        ON B.price = M.price AND B.`dateTime` BETWEEN M.window_end - INTERVAL '10' SECOND AND M.window_end""",
    "q8": f"""SELECT P.id, P.name, P.window_start FROM (
            SELECT id, name, window_start, window_end FROM {TUMBLING.format(table="persons", time="`dateTime`")}
            GROUP BY id, name, window_start, window_end) P
        JOIN (SELECT seller, window_start, window_end FROM {TUMBLING.format(table="auctions", time="`dateTime`")}
            GROUP BY seller, window_start, window_end) A
        ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end""",
    "q9": f"""SELECT id, {AUCTION_COLUMNS}, bidder, price, bid_time FROM (
        SELECT A.*, B.bidder, B.price, B.`dateTime` AS bid_time, B.extra AS bid_extra,
            ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS place FROM {VALID_BIDS})
        WHERE place <= 1""",
    "q11": """SELECT bidder, COUNT(*) AS bids, window_start, window_end
        FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q12": f"""SELECT bidder, COUNT(*) AS bids, window_start, window_end
        FROM {TUMBLING.format(table="bids", time="now")} GROUP BY bidder, window_start, window_end""",
    "q15": f"SELECT {DAY} AS `day`, {DISTINCT} FROM bids GROUP BY {DAY}",
    "q16": f"""SELECT channel, {DAY} AS `day`, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`, {DISTINCT}
        FROM bids GROUP BY channel, {DAY}""",
    "q17": f"""SELECT auction, {DAY} AS `day`, {by_class("COUNT(*)", "bids")}, MIN(price) AS min_price,
        MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price FROM bids GROUP BY auction, {DAY}""",
    "q18": f"""SELECT {BID_COLUMNS} FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bids)
        WHERE place <= 1""",
    "q19": f"""SELECT {BID_COLUMNS}, place FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bids) WHERE place <= 10""",
    "q20": f"""SELECT auction, bidder, price, channel, url, B.`dateTime` AS bid_time, B.extra AS bid_extra,
        {AUCTION_COLUMNS}, A.`dateTime` AS auction_time, A.extra AS auction_extra
        FROM bids B JOIN auctions A ON B.auction = A.id WHERE A.category = 10""",
}


def make_environment(parallelism: int, checkpoints: str):
    from pyflink.table import EnvironmentSettings, TableEnvironment

    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    options = {
        "parallelism.default": str(parallelism),
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{checkpoints}",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.distinct-agg.split.enabled": "true",
        "taskmanager.memory.managed.size": "2 g",
        "taskmanager.memory.network.min": "256 mb",
        "taskmanager.memory.network.max": "256 mb",
    }
    for name, value in options.items():
        environment.get_config().set(name, value)
    return environment


def create_tables(environment, source: str) -> None:
    for name, columns in TABLES.items():
        environment.execute_sql(f"DROP TABLE IF EXISTS {name}")
        environment.execute_sql(
            f"CREATE TABLE {name} ({columns}, WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND) "
            f"WITH ('connector' = 'filesystem', 'path' = 'file://{source}/{name}', 'format' = 'csv')"
        )


def run(environment, name: str) -> float:
    """Seconds from the submission of a query to its end."""
    sink = f"sink_{name}"
    environment.execute_sql(f"DROP TABLE IF EXISTS {sink}")
    began = time.perf_counter()
    environment.execute_sql(f"CREATE TABLE {sink} WITH ('connector' = 'blackhole') AS {QUERIES[name]}").wait()
    return time.perf_counter() - began


def main() -> None:
    request = json.loads(sys.argv[1])
    environment = make_environment(request["parallelism"], request["checkpoints"])
    for line in sys.stdin:
        name = line.strip()
        create_tables(environment, request["warm_up"])
        run(environment, name)
        warm_up_seconds = run(environment, name)
        create_tables(environment, request["source"])
        seconds = run(environment, name)
        print(json.dumps({"query": name, "warm_up_seconds": warm_up_seconds, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
