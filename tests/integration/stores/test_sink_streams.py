"""Streams of the file sink into each cloud, killed again and again: whoever lists an output sees each row once."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import random
import subprocess
import sys
import time
import uuid

import pyarrow.parquet as pq
import pytest
from test_azure_conformance import CONTAINER, connection_string, make_container
from test_s3_conformance import BUCKET, make_bucket

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import CheckpointStore, sweep_root
from stateline.recoverable.sweep import sweep as sweep_staged
from stateline.testing.gcs_server import GcsServer
from tests.spark.cluster import wait_for_end, wait_until
from tests.spark.keyed_model import make_source
from tests.spark.killing import ROOT, kill

FILES, ROWS, KILLS = 24, 40, 2
RECORDS = ".stateline/stream"
ROLLING = {"roll_bytes": "2500B"}
"""Two or three micro-batches, so that a kill finds files of any age, and some that have just been decided."""


@pytest.fixture
def streams(ministack_endpoint, azurite_endpoint, monkeypatch):
    """The sink's options for each stream; secrets are where the chain of each SDK finds them."""
    make_bucket(ministack_endpoint)
    make_container(azurite_endpoint)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(azurite_endpoint))
    place = uuid.uuid4().hex
    with GcsServer() as gcs:
        options = {
            "s3": {"path": f"s3://{BUCKET}/{place}", "store.endpoint": ministack_endpoint, "store.path_style": "true"},
            "gcs": {"path": f"gs://bucket/{place}", "store.endpoint": gcs.url, "store.anonymous": "true"},
            "azure": {"path": f"az://{CONTAINER}/{place}"},
        }
        formats = {"s3": "parquet", "gcs": "jsonl", "azure": "parquet"}
        yield {name: {**ROLLING, "format": formats[name], **options[name]} for name in options}


def opened(options, below="") -> contextlib.closing[BlobStore]:
    settings = {name.removeprefix("store."): value for name, value in options.items() if name.startswith("store.")}
    return contextlib.closing(open_store(f"{options['path']}{below}", settings))


def start(folder, *options):
    with (folder / "driver.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", str(folder), *options],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def newest_record(options):
    with opened(options, f"/{RECORDS}") as root:
        newest = CheckpointStore(root).latest()
    return -1 if newest is None else newest.checkpoint_id


def visible_ids(store, form):
    """The rows of all objects that a reader of the folder takes for files, each as often as it is there."""
    found = collections.Counter()
    for name in [info.name for info in store.list("") if not info.name.startswith(".")]:
        data = store.get(name)
        rows = pq.read_table(io.BytesIO(data)).to_pylist() if form == "parquet" else map(json.loads, data.splitlines())
        found.update(row["id"] for row in rows)
    return found


@pytest.mark.timeout(600)  # Several sessions, each with a JVM of its own.
def test_killed_streams_into_clouds_show_each_row_once(tmp_path, streams):
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    make_source(tmp_path, files=FILES, rows=ROWS)
    (tmp_path / "streams.json").write_text(json.dumps(streams))
    log = tmp_path / "driver.log"
    whole = collections.Counter(range(FILES * ROWS))
    for _ in range(KILLS):
        watched = dice.choice(list(streams.values()))
        target = newest_record(watched) + dice.randint(1, 4)
        process = start(tmp_path)
        wait_until(
            lambda watched=watched, target=target, process=process: (
                newest_record(watched) >= target or process.poll() is not None
            ),
            200,
            f"record {target} of {watched['path']} (seed {seed})",
            log.read_text,
        )
        time.sleep(dice.random() * 0.3)
        assert process.poll() is None, f"seed {seed}\n{log.read_text()[-3000:]}"
        kill(process, log)
        for name, options in streams.items():
            with opened(options) as store:
                found = visible_ids(store, options["format"])
            assert found <= whole, f"{name} shows rows twice (seed {seed})"
    process = start(tmp_path, "--to-the-end")
    assert wait_for_end(process, 250, log.read_text) == 0, f"seed {seed}\n{log.read_text()[-3000:]}"
    for name, options in streams.items():
        with opened(options) as store, opened(options, f"/{RECORDS}") as root:
            assert visible_ids(store, options["format"]) == whole, f"{name} (seed {seed})"
            records = CheckpointStore(root)
            sweep_root(records, min_age=0.0, delete=True)
            sweep_staged(store, frozenset(), min_age=0.0, delete=True)
            assert list(store.list_staged()) == [], f"{name} (seed {seed})"
            assert visible_ids(store, options["format"]) == whole, f"{name}: a sweep takes what is decided"
