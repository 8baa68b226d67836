"""Spark Connect: a server of the PySpark package, and programs that are its clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint
from tests.spark import every_operator, scripts
from tests.spark.connect_server import CLIENT_SECONDS_MAX, ConnectServer
from tests.spark.every_operator import time_of
from tests.spark.keyed_model import check, make_source, model, newest_id
from tests.spark.marked_processes import wait_for_end, wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """One for all tests here: a JVM takes seconds to start."""
    with ConnectServer(tmp_path_factory.mktemp("connect") / "server") as server:
        yield server


def count_rows(folder: Path) -> int:
    """The rows of Parquet files."""
    return int(ds.dataset(folder, format="parquet").count_rows())


# -- data sources -----------------------------------------------------------------------------------------------------


def test_files_of_streams_and_of_batches_hold_every_row_once(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=3, rows=40)
    answer = server.call("files_sink", tmp_path)
    assert answer == {"stream": 120, "batch": sum(range(100)), "pushdown": "true"}


def test_files_that_wait_for_their_time_are_finished_by_a_call(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=2, rows=40)
    assert server.call("open_files", tmp_path) == {"before": 0, "after": 80}


def test_a_relative_path_is_refused_at_every_place(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=1, rows=10)
    for name, said in server.call("relative_places", tmp_path).items():
        assert "must be an absolute path or a URL, got '" in said, f"{name}: {said}"
        assert "Write /folder/name" in said


def test_a_script_finds_its_rows_on_the_next_line(server: ConnectServer, tmp_path: Path) -> None:
    found = server.call("ends", tmp_path)
    assert found == {name: scripts.expected(name) for name in found}
    assert set(scripts.ON_CONNECT) < set(found)


def test_a_run_whose_place_is_taken_is_fenced(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=2, rows=40)
    assert server.call("taken_over", tmp_path) == "FencedError"


# -- keyed streams ----------------------------------------------------------------------------------------------------


def test_a_keyed_stream_goes_on_at_another_parallelism_and_its_state_is_a_table(
    server: ConnectServer, tmp_path: Path
) -> None:
    make_source(tmp_path, files=3, rows=40)
    later = (tmp_path / "source" / "002.parquet").rename(tmp_path / "later.parquet")
    assert server.call("keyed", tmp_path) == {"parallelism": 2, "active": False}, "as many as the server has cores"
    assert newest_id(tmp_path) == 1, "two batches, each with its files"
    later.rename(tmp_path / "source" / "002.parquet")
    assert server.call("keyed", tmp_path, parallelism=3)["parallelism"] == 3
    final = model(range(3), rows=40)[0]
    answer = server.call("state", tmp_path)
    assert answer["rows"] == sorted([key, *values] for key, values in final.items())
    assert answer["point"] == [final[3][0]]
    assert answer["inserted"] == len(final)
    assert count_rows(tmp_path / "out") == 3 * len(final)


def test_a_query_that_moves_reads_every_row_once(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=3, rows=40)
    later = (tmp_path / "source" / "002.parquet").rename(tmp_path / "later.parquet")
    assert server.call("moved", tmp_path, name="old") == {"rows": 80}
    saved = create_savepoint(CheckpointStore(f"{tmp_path}/old/state"), f"{tmp_path}/saved")
    later.rename(tmp_path / "source" / "002.parquet")
    assert server.call("moved", tmp_path, name="new", start_from=saved.url) == {"rows": 120}
    assert CheckpointStore(f"{tmp_path}/new/state").latest().batch_id == 2
    make_source(tmp_path / "other", files=1, rows=40)
    refused = server.call("moved", tmp_path / "other", name="new", start_from=saved.url)["refused"]
    assert "of a query that reads files in" in refused


def test_every_operator_makes_what_it_makes_in_a_classic_session(server: ConnectServer, tmp_path: Path) -> None:
    for name in ("classic", "connect"):
        make_source(tmp_path / name, files=3, rows=20)
        shutil.copytree(tmp_path / name / "source", tmp_path / name / "other")
    classic = server.client("operators", tmp_path / "classic", url="local[2]")
    server.call("operators", tmp_path / "connect")
    assert wait_for_end(classic, CLIENT_SECONDS_MAX, server.logs) == 0, server.logs()
    for name in (*every_operator.OUTPUTS, "rows", "frames", "looked-up"):
        expected = every_operator.rows_of(tmp_path / "classic", name)
        assert expected, name
        assert every_operator.rows_of(tmp_path / "connect", name) == expected, name


def test_a_function_is_handed_all_rows_also_those_of_the_end(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=2, rows=30)
    answer = server.call("delivered", tmp_path)
    found = [json.loads(path.read_text()) for path in (tmp_path / "delivered").iterdir()]
    assert len({delivery["key"] for delivery in found}) == len(found)
    assert all(delivery["key"].startswith(answer["query_id"]) for delivery in found)
    # The window that the last watermark has not passed stays for the next start.
    assert sum(n for delivery in found for _, n in delivery["rows"]) == sum(time_of(i) < 60 for i in range(60))


def test_a_batch_that_comes_again_is_found_decided_where_spark_keeps_state_in_front(
    server: ConnectServer, tmp_path: Path
) -> None:
    make_source(tmp_path, files=2, rows=40)
    server.call("distinct", tmp_path)
    rows = count_rows(tmp_path / "out")
    for name in ("1", ".1.crc"):  # As if the server had died between our record and Spark's commit.
        (tmp_path / "state" / "spark" / "commits" / name).unlink()
    server.call("distinct", tmp_path)
    assert (tmp_path / "state" / "spark" / "commits" / "1").exists()
    assert count_rows(tmp_path / "out") == rows


def test_files_are_finished_when_a_query_is_stopped(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=1, rows=40)
    assert server.call("stopped", tmp_path) == {"was_active": True, "active": False}
    assert count_rows(tmp_path / "out") == len(model([0], rows=40)[0])


def test_files_are_finished_by_time_while_no_rows_come(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=1, rows=40)
    server.call("quiet", tmp_path)
    assert count_rows(tmp_path / "out") == len(model([0], rows=40)[0])


def test_what_is_refused_is_refused_with_its_reason(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=1, rows=40)
    errors = server.call("refused", tmp_path)
    assert "InvalidInputError" in errors["metrics"]
    assert "metrics_log" in errors["metrics"]
    assert "InvalidInputError" in errors["other_program"]
    assert "InvalidInputError" in errors["other_checkpoint"]
    assert "unknown scheme 'nosuch'" in errors["unknown_store"]
    assert "UserCodeError" in errors["function"]
    assert "no good" in errors["function"]


# -- kills ------------------------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    make_source(tmp_path, files=12, rows=40)
    with ConnectServer(tmp_path / "server") as server:
        for target in (2, 5):
            client = server.client("keyed", tmp_path)
            wait_until(lambda: newest_id(tmp_path) >= target, 200, f"checkpoint {target}", server.logs)  # noqa: B023
            server.kill()
            server.start()
            # Until now the client has asked again and again.
            assert wait_for_end(client, CLIENT_SECONDS_MAX, server.logs) != 0, "its query died with the server"
        server.call("keyed", tmp_path, parallelism=3)
    check(tmp_path, files=12, rows=40)


def test_a_query_outlives_its_client_and_the_next_client_takes_it_over(server: ConnectServer, tmp_path: Path) -> None:
    make_source(tmp_path, files=12, rows=40)
    client = server.client("keyed", tmp_path, "--trigger", "0 seconds")
    wait_until(lambda: newest_id(tmp_path) >= 1, 200, "checkpoint 1", server.logs)
    os.kill(client.pid, signal.SIGKILL)
    client.wait(timeout=60)
    seen = newest_id(tmp_path)
    wait_until(lambda: newest_id(tmp_path) > seen, 200, "a checkpoint without a client", server.logs)
    server.call("keyed", tmp_path, parallelism=3)
    check(tmp_path, files=12, rows=40, is_taken_over=True)


def test_a_worker_that_is_killed_fails_its_query_and_the_next_start_goes_on(
    server: ConnectServer, tmp_path: Path
) -> None:
    make_source(tmp_path, files=12, rows=40)
    client = server.client("keyed", tmp_path)
    wait_until(lambda: newest_id(tmp_path) >= 2, 200, "checkpoint 2", server.logs)
    for pid in server.batch_workers():
        os.kill(pid, signal.SIGKILL)
    assert wait_for_end(client, CLIENT_SECONDS_MAX, server.logs) != 0
    assert CheckpointStore(open_store(f"{tmp_path}/state")).latest() is not None
    server.call("keyed", tmp_path)
    check(tmp_path, files=12, rows=40)
