"""``stateline ui``, ``report`` and ``watch``."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.checkpoint.history import with_summaries
from stateline.cli.commands import stateline
from stateline.environment import system_environment
from tests.unit.dashboard.dashboard_kit import LONG_NAME, damaged, long_root, record, state_root, summary


def run(*arguments: str) -> Result:
    return CliRunner().invoke(stateline, list(arguments))


@pytest.fixture
def url() -> str:
    url = f"memory://{system_environment().ids.new_id()}"
    long_root(open_store(url), 130)
    return url


def test_a_report_is_written_and_replaced(url, tmp_path):
    file = tmp_path / "report.html"
    file.write_text("old")
    result = run("report", url, "--html", str(file))
    assert result.exit_code == 0
    assert "130 checkpoints" in result.output
    assert LONG_NAME in file.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_report_of_what_is_no_root_is_an_error_and_no_file(tmp_path):
    result = run("report", "nowhere://x", "--html", str(tmp_path / "x.html"))
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_watch_shows_a_root_once_where_nobody_follows(url):
    result = run("watch", url)
    assert result.exit_code == 0
    for wanted in ("#129", "flights", "to be merged", "fencings: 1", "checkpoint", "rows that wait"):
        assert wanted in result.output


def test_watch_of_an_empty_root_and_of_one_without_a_history():
    empty = run("watch", f"memory://{system_environment().ids.new_id()}")
    assert (empty.exit_code, "no checkpoint yet" in empty.output) == (0, True)
    assert run("watch", state_root().url).exit_code == 0


def test_watch_tells_of_damage(url):
    damaged(open_store(url), "history/0")
    result = run("watch", url)
    assert "history/0" in result.output.replace("\n", "")


def test_watch_follows_on_a_terminal_until_it_is_interrupted(tmp_path):
    root = root_on_disk(tmp_path)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "stateline.cli", "watch", root, "--interval", "0.1"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        assert wait_for(ours, b"#69")
        store = open_store(root, {"fsync": "false"})
        next_one = with_summaries(record(70), [summary(number, of=70) for number in range(64, 71)])
        CheckpointStore(store).publish(next_one)
        assert wait_for(ours, b"#70")
        process.send_signal(signal.SIGINT)
        assert wait_for(ours, b"Interrupted")
        assert process.wait(60) == 130
    os.close(ours)


def wait_for(terminal: int, text: bytes) -> bool:
    """Reads what a terminal shows until some text is there; fails at the end of the process."""
    seen = b""
    while text not in seen:
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # The process has ended.
            return False
    return True


def test_watch_prints_the_history_for_programs(url):
    lines = [json.loads(line) for line in run("watch", url, "--json", "--once").output.splitlines()]
    assert [line["checkpoint_id"] for line in lines] == list(range(130))
    assert lines[-1]["rows"] > 0


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stateline.cli", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
    )


def root_on_disk(folder: Path) -> str:
    url = f"file://{folder}/root"
    long_root(open_store(url, {"fsync": "false"}), 70)
    return url


def test_the_page_is_served_until_it_is_interrupted(tmp_path):
    with start("ui", root_on_disk(tmp_path), "--port", "0") as process:
        try:
            place = process.stdout.readline().strip()
            assert place.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(f"{place}r/0/checkpoints", timeout=60) as answer:
                assert "#69" in answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_on_another_address_a_token_is_demanded(tmp_path):
    with start("ui", root_on_disk(tmp_path), "--port", "0", "--host", "0.0.0.0", STATELINE_UI_TOKEN="word") as process:
        try:
            place = process.stdout.readline().strip()
            assert place.endswith("/?token=word")
            port = place.split(":")[2].partition("/")[0]
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/r/0/checkpoints", timeout=60)
            refused.value.close()
        finally:
            process.send_signal(signal.SIGINT)


def test_a_missing_package_is_named(monkeypatch, url):
    monkeypatch.setitem(sys.modules, "flask", None)
    monkeypatch.delitem(sys.modules, "stateline.dashboard.server", raising=False)
    result = run("ui", url)
    assert result.exit_code == 2
    assert "pip install 'stateline[ui]'" in result.output
