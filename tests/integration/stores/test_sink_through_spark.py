"""``stateline_files`` through Spark into each cloud, while the driver is killed: every row once, and no garbage.

Nothing is planted in the driver. The server in front of the store kills: it sees each request, so a driver dies between
any two of them, before one has reached the store, or after it took effect and before its answer.
"""

from __future__ import annotations

import io
import json
import random
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from urllib.parse import unquote, urlsplit

import boto3
import pyarrow.parquet as pq
import pytest
from azure.storage.blob import ContainerClient
from click.testing import CliRunner
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, verify_root
from stateline.cli.commands import stateline
from tests.spark.files_driver import FOLDERS, FORMATS
from tests.spark.keyed_model import KEYS, make_source
from tests.spark.killing import kill_with_workers, start_program
from tests.spark.marked_processes import is_alive, wait_for_end, wait_until

FILES, ROWS = 7, 40

WRITE = r"^(?:PUT|POST /upload)\b.*"

UNDECIDED = {
    "rows": rf"{WRITE}/shared/",
    "piece": rf"{WRITE}\.inprogress/",
    "record": rf"{WRITE}/_metadata",
}
"""Requests up to the one that decides."""

DECIDED = {
    "s3": {"publish": r"^POST .*\?uploadId=", "discard": r"^POST .*\?delete .*\.inprogress/"},
    "gcs": {"publish": r"^POST .*/compose", "discard": r"^DELETE .*\.inprogress/"},
    "azure": {"publish": r"^PUT .*comp=blocklist", "discard": r"^DELETE .*\.inprogress/"},
}
"""Requests that make visible what is decided; ``mark`` follows them everywhere."""

MARK = rf"{WRITE}/_published"


class Killer:
    """A fault that kills a driver at one request.

    Args:
        pattern: Found in method, target and beginning of a POST's body, where Cloud Storage and S3 have names.
        number: Which of the matching requests, from 1.
        when: ``before``: it does not reach the store; ``after``: it takes effect, and nobody hears of it.
    """

    def __init__(self, pattern: str, number: int, when: str) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)
        self._left = number
        self._when = when
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.family: list[int] | None = None

    def __call__(self, request, proceed):
        body = request.body[:2000].decode(errors="replace") if request.method == "POST" else ""
        with self._lock:
            if self._pattern.search(f"{request.method} {unquote(request.target)} {body}"):
                self._left -= 1
            due = self._left == 0 and self.family is None
            if due and self._when == "after":
                proceed()
            if due:
                self.family = kill_with_workers(self.process)
        return None if due else proceed()


def draw_kills(world, dice: random.Random) -> list[tuple[str, str, int, str]]:
    """One death on the way to a decision or anywhere, and one after a decision; in any order, each time others."""
    anywhere = {**UNDECIDED, "any request": ""}
    decided = {**DECIDED[world.name], "mark": MARK}
    kills = []
    for steps in (anywhere, decided):
        name = dice.choice(list(steps))
        number = dice.randint(1, 30) if name == "any request" else dice.randint(1, 2)
        kills.append((name, steps[name], number, dice.choice(["before", "after"])))
    dice.shuffle(kills)
    return kills


def start(world, folder) -> subprocess.Popen[bytes]:
    options = [part for name, value in world.options.items() for part in ("--store", f"{name}={value}")]
    return start_program(folder / "driver.log", "tests.spark.files_driver", str(folder), world.store.url, *options)


def die(world, folder, killer: Killer) -> None:
    """A driver that goes on from where the one before died, until it dies itself."""
    log = folder / "driver.log"
    killer.process = start(world, folder)
    world.faults.add(killer, times=1_000_000)
    try:
        wait_for_end(killer.process, 200, log.read_text)
    finally:
        if killer.family is None:
            killer.family = kill_with_workers(killer.process)
            killer.process.wait(timeout=60)
    wait_until(lambda: not any(is_alive(pid) for pid in killer.family), 60, "the end of the workers", log.read_text)
    world.faults.clear()
    assert killer.process.returncode == -signal.SIGKILL, log.read_text()[-3000:]


def objects(world) -> dict[str, bytes]:
    """All that the service itself lists, without any code of ours, by the name below the world's URL."""
    place = urlsplit(world.store.url)
    bucket, prefix = place.netloc, place.path.strip("/") + "/"
    if world.name == "s3":
        client = boto3.client("s3", endpoint_url=world.options["endpoint"])
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        names = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        found = {name: client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names}
        client.close()
    elif world.name == "gcs":
        options = {"api_endpoint": world.options["endpoint"]}
        client = Client(project="tests", credentials=AnonymousCredentials(), client_options=options)
        # The whole bucket, which is the test's own: pieces lie at its root.
        found = {blob.name: blob.download_as_bytes() for blob in client.list_blobs(bucket)}
        client.close()
    else:
        with ContainerClient.from_connection_string(world.connection_string, bucket) as client:
            names = [blob.name for blob in client.list_blobs(name_starts_with=prefix)]
            found = {name: client.download_blob(name).readall() for name in names}
    return {name.removeprefix(prefix): data for name, data in found.items()}


def is_visible(name: str) -> bool:
    """Whether a reader of folders looks at it: Spark, Hive, Trino and pyarrow skip what begins so."""
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def visible_rows(listed: dict[str, bytes], form: str) -> Counter:
    """Every row that a listing of the output shows, with its folder."""
    found: Counter = Counter()
    for name, data in listed.items():
        if name.startswith(f"{form}/") and is_visible(name):
            folder, leaf = name.split("/")[1:]
            assert leaf.endswith(f".{form}")
            if form == "parquet":
                rows = pq.read_table(io.BytesIO(data)).to_pylist()
            else:
                rows = [json.loads(line) for line in data.decode().splitlines()]
            found.update((row["id"], row["key"], row["value"], folder) for row in rows)
    return found


def all_rows() -> Counter:
    keys = [(i, i * i % KEYS, i * 7 % 101) for i in range(FILES * ROWS)]
    return Counter((i, key, value, f"part={key % FOLDERS}") for i, key, value in keys)


def sweep(world) -> None:
    """What an operator calls, for both streams at once."""
    options = [f"{name}={value}" for name, value in world.options.items()]
    arguments = [f"{world.store.url}/{form}/.stateline/stream" for form in FORMATS]
    arguments += ["--outputs", "--delete", "--min-age", "0s"]
    arguments += [part for option in options for part in ("--option", option, "--output-option", option)]
    answer = CliRunner().invoke(stateline, ["sweep", *arguments])
    assert answer.exit_code == 0, answer.output


def garbage(world, listed: Iterable[str], form: str) -> set[str]:
    """What lies there besides files that readers see, records, and what records that are kept still name."""
    root = f"{form}/.stateline/stream"
    records = CheckpointStore(open_store(f"{world.store.url}/{root}", world.options))
    reached = {name for record in records.list() for name in record.object_names()}
    kept = re.compile(r"chk-\d+/(_metadata|_published)")
    return {
        name
        for name in listed
        if f"{form}/" in name
        and not is_visible(name)
        and not ((below := name.removeprefix(f"{root}/")) in reached or kept.fullmatch(below))
    }


@pytest.fixture
def seed() -> int:
    """Where and when drivers die. Every failure shows it; return it here to have the same deaths again."""
    return random.SystemRandom().randrange(2**32)


@pytest.mark.timeout(600)  # Three sessions, each with a JVM of its own.
def test_a_driver_that_is_killed_on_its_way_into_a_store_leaves_every_row_once(world, seed, tmp_path, monkeypatch):
    """Spark's checkpoint is on the local disk, everything of the sink in the bucket."""
    monkeypatch.setattr(import_module("stateline.cli.sweep"), "_SLACK_SECONDS", 0.0)  # It would spare the last minute.
    kills = draw_kills(world, random.Random(seed))
    story = f"{world.name}, seed {seed}: {kills}"
    make_source(tmp_path, files=FILES, rows=ROWS)
    for _, pattern, number, when in kills:
        die(world, tmp_path, Killer(pattern, number, when))
        listed = objects(world)
        for form in FORMATS:
            assert not visible_rows(listed, form) - all_rows(), f"{form}: a row twice, or a strange one, {story}"
    log = tmp_path / "driver.log"
    assert wait_for_end(start(world, tmp_path), 200, log.read_text) == 0, log.read_text()[-3000:]
    listed = objects(world)
    for form in FORMATS:
        assert visible_rows(listed, form) == all_rows(), f"{form}, {story}"
    sweep(world)
    swept = objects(world)
    for form in FORMATS:
        assert visible_rows(swept, form) == all_rows(), f"{form}: the sweep took or brought rows, {story}"
        assert garbage(world, swept, form) == set(), f"{form}, {story}"
        root = CheckpointStore(open_store(f"{world.store.url}/{form}/.stateline/stream", world.options))
        assert verify_root(root).is_sound, f"{form}, {story}"
