"""What people look at: metrics, Prometheus, the storage's options, the command line, the documents."""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from docs.changelog import generate
from stateline.blob.local import LocalStore
from stateline.changelog import ChangelogMetrics, ChangelogSettings, ChangelogStorage, SequenceNumber
from stateline.changelog.inspection import inspect_segment
from stateline.changelog.metrics import DEFINITIONS
from stateline.cli.commands import stateline
from stateline.errors import ClosedError, InvalidInputError, NotInstalledError
from stateline.key_groups import KeyGroupRange
from stateline.metrics import Metrics
from stateline.prometheus import MetricsCollector
from tests.pages import placed, run_page
from tests.unit.changelog.worlds import ManualWorld, memory_store, open_storage

DOCS = Path(generate.__file__).parent


# -- storage ---------------------------------------------------------------------------------------------------------


def test_a_storage_is_opened_from_strings(tmp_path: Path) -> None:
    options = {"base_path": f"file://{tmp_path}", "persist_delay": "0", "compression": "lz4"}
    with ChangelogStorage.from_options(options, job_id="job") as storage:
        assert storage.settings.compression == "lz4"
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x")
        [segment] = writer.persist(SequenceNumber(0), 1).result().remote.segments
        assert segment.name.startswith("job/changelog/")
        assert (tmp_path / segment.name).is_file()
    with pytest.raises(ClosedError):
        storage.create_writer("operator", KeyGroupRange(0, 9))
    with pytest.raises(ClosedError):
        storage.create_reader()
    storage.close()


def test_a_storage_in_memory_needs_no_place() -> None:
    with ChangelogStorage.from_options({"storage": "Memory"}) as storage:
        assert storage.store.url.startswith("memory://")


@pytest.mark.parametrize(
    "options",
    [{}, {"storage": "bookkeeper"}, {"base_path": "/x", "surprise": "1"}, {"base_path": "/x", "compression": "snappy"}],
)
def test_wrong_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        ChangelogStorage.from_options(options)


def test_a_job_id_is_one_plain_segment() -> None:
    for bad in ("a/b", "..", "a\\b", "\0"):
        with pytest.raises(InvalidInputError):
            ChangelogStorage.open("memory://x", job_id=bad)


def test_the_write_path_makes_no_other_request() -> None:
    world = ManualWorld()
    store = memory_store(world)
    storage = open_storage(world, store)
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    for checkpoint in range(5):
        writer.append(1, b"x")
        end = writer.next_sequence_number()
        writer.persist(SequenceNumber(0), checkpoint).result()
        writer.confirm(SequenceNumber(0), end, checkpoint)
    assert {operation for operation, _ in store.calls} == {"put_if_absent"}
    assert store.count("put_if_absent") == 5


def test_unconfirmed_objects_are_counted_when_the_storage_is_closed() -> None:
    world = ManualWorld()
    storage = open_storage(world, memory_store(world))
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    writer.append(1, b"x")
    writer.persist(SequenceNumber(0), 1).result()
    storage.close()
    assert storage.metrics.snapshot()["orphaned_objects"] == 1


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_every_metric_exists_from_the_start() -> None:
    metrics = ChangelogMetrics()
    assert set(metrics.snapshot()) == {definition.name for definition in DEFINITIONS}
    assert metrics.kinds() == {definition.name: definition.kind.__name__.lower() for definition in DEFINITIONS}


def test_prometheus_sees_every_kind() -> None:
    prometheus = importlib.import_module("prometheus_client")
    metrics = Metrics()
    metrics.counter("uploads").increment(3)
    metrics.gauge("queue").set(2.5)
    for value in (1, 2, 3):
        metrics.histogram("latency_seconds").record(value)
    metrics.histogram("empty")
    registry = prometheus.CollectorRegistry()
    registry.register(MetricsCollector("stateline_test", metrics, {"job": 'a"b'}))
    text = prometheus.generate_latest(registry).decode()
    labels = '{job="a\\"b"}'
    for line in (
        f"stateline_test_uploads_total{labels} 3.0",
        f"stateline_test_queue{labels} 2.5",
        f"stateline_test_latency_seconds_count{labels} 3.0",
        f"stateline_test_latency_seconds_sum{labels} 6.0",
        f"stateline_test_latency_seconds_p50{labels} 2.0",
        f"stateline_test_latency_seconds_max{labels} 3.0",
        f"stateline_test_empty_count{labels} 0.0",
    ):
        assert line in text.splitlines()
    assert "empty_p50" not in text
    metrics.counter("uploads").increment()
    assert f"stateline_test_uploads_total{labels} 4.0" in prometheus.generate_latest(registry).decode()


def test_prometheus_takes_the_metrics_of_a_changelog() -> None:
    prometheus = importlib.import_module("prometheus_client")
    registry = prometheus.CollectorRegistry()
    registry.register(MetricsCollector("stateline_changelog", ChangelogMetrics()))
    text = prometheus.generate_latest(registry).decode()
    for definition in DEFINITIONS:
        assert f"stateline_changelog_{definition.name}" in text


def test_prometheus_refuses_names_that_it_could_not_export() -> None:
    for prefix, labels in (("a-b", {}), ("", {}), ("ok", {"1x": "y"})):
        with pytest.raises(InvalidInputError):
            MetricsCollector(prefix, Metrics(), labels)


def test_a_missing_prometheus_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(NotInstalledError, match=r"pip install 'stateline\[metrics\]'"):
        MetricsCollector("x", Metrics())


# -- command line ----------------------------------------------------------------------------------------------------


class Folder:
    """Two objects in a folder."""

    def __init__(self, path: Path) -> None:
        self.url = f"file://{path}"
        self.store = LocalStore(path)
        with ChangelogStorage.open(self.store, ChangelogSettings(persist_delay=0), job_id="job") as storage:
            writer = storage.create_writer("operator", KeyGroupRange(0, 127))
            writer.append_meta(b"schema")
            writer.append(5, b"apple\n\x1b[31m")
            writer.append(90, b"pear")
            self.first = writer.persist(SequenceNumber(0), 1).result().remote.segments[0].name
            writer.append(7, b"fig")
            self.second = writer.persist(SequenceNumber(1), 2).result().remote.segments[0].name

    def damage(self, name: str, position: int) -> None:
        data = bytearray(self.store.get(name))
        data[position] ^= 1
        self.store.put(name, bytes(data))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(stateline, ["changelog", *arguments])


def test_ls_shows_the_sections_of_an_object_or_a_folder(folder: Folder) -> None:
    whole, one = run("ls", folder.url), run("ls", f"{folder.url}/{folder.second}")
    assert whole.exit_code == one.exit_code == 0
    assert folder.first in whole.output
    assert folder.second in whole.output
    assert re.search(r"meta 5\.\.90 +3 +21 +none +2", whole.output)
    assert "7..7" in one.output
    assert "5..90" not in one.output


def test_ls_as_json(folder: Folder) -> None:
    answer = run("ls", folder.url, "--json")
    objects = {facts["name"]: facts for facts in map(json.loads, answer.output.splitlines())}
    [section] = objects[folder.first]["sections"]
    assert (section["kind"], section["number"], section["rows"], section["change_bytes"]) == ("changes", 0, 3, 21)
    assert (section["first_key_group"], section["last_key_group"], section["offset"]) == (-1, 90, 0)
    assert objects[folder.second]["problems"] == []


def test_cat_prints_changes_and_lets_nothing_steer_the_terminal(folder: Folder) -> None:
    answer = run("cat", f"{folder.url}/{folder.first}")
    assert answer.output.splitlines() == ["-1\tschema", "5\tapple\\n\\x1b[31m", "90\tpear"]
    assert run("cat", f"{folder.url}/{folder.first}", "--key-groups", "63-0").exit_code == 2
    some = run("cat", f"{folder.url}/{folder.first}", "--key-groups", "0-63")
    assert some.output.splitlines() == ["-1\tschema", "5\tapple\\n\\x1b[31m"]
    assert len(run("cat", folder.url).output.splitlines()) == 4
    assert run("cat", folder.url, "--limit", "2").output.count("\n") == 2


def test_cat_as_json(folder: Folder) -> None:
    lines = [json.loads(line) for line in run("cat", f"{folder.url}/{folder.second}", "--json").output.splitlines()]
    assert [(line["key_group"], base64.b64decode(line["value"])) for line in lines] == [(7, b"fig")]
    assert lines[0]["object"] == folder.second.rpartition("/")[2]
    assert lines[0]["sequence_number"] == 1


def test_verify_says_that_all_is_well(folder: Folder) -> None:
    answer = run("verify", folder.url)
    assert answer.exit_code == 0
    assert answer.output.count("intact") == 2
    facts = [json.loads(line) for line in run("verify", folder.url, "--json").output.splitlines()]
    assert all(one["intact"] and one["problems"] == [] and one["sections"] == 1 for one in facts)


def test_damage_is_reported_with_its_offset_and_exit_code_1(folder: Folder) -> None:
    size = folder.store.head(folder.first).size
    (section,) = inspect_segment(folder.store, folder.first).sections
    table = section.entry.length - section.entry.head_length
    for position, name in ((100, "stream"), (300, "block"), (table + 20, "table"), (size - 30, "directory")):
        folder.damage(folder.first, position)
        answer = run("verify", folder.url)
        assert answer.exit_code == 1, name
        assert re.search(r"at byte \d+: ", answer.output), name
        assert answer.output.count("DAMAGED") == 1
        assert run("verify", folder.url, "--json").exit_code == 1
        folder.damage(folder.first, position)
    folder.damage(folder.first, table + 20)
    listed = run("ls", folder.url)
    assert listed.exit_code == 1
    assert f"DAMAGED at byte {table}" in listed.output
    shown = run("cat", f"{folder.url}/{folder.first}")
    assert shown.exit_code == 1
    assert f"at byte {table}" in shown.output


def test_a_damaged_block_stops_cat_with_its_offset(folder: Folder) -> None:
    (section,) = inspect_segment(folder.store, folder.first).sections
    folder.damage(folder.first, section.table.blocks[1].offset + 10)
    answer = run("cat", f"{folder.url}/{folder.first}")
    assert answer.exit_code == 1
    assert re.search(r"at byte \d+", answer.output)


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["ls", "nowhere://x/y"],
        ["cat", "x", "--key-groups", "a-b"],
        ["cat", "{}", "--key-groups", "6-5"],
        ["verify", "{}"],
    ],
)
def test_wrong_calls_are_explained(arguments: list[str], tmp_path: Path) -> None:
    answer = run(*[argument.replace("{}", f"file://{tmp_path}/nothing") for argument in arguments])
    assert answer.exit_code in (1, 2)
    assert "Traceback" not in answer.output
    assert "Error" in answer.output


def test_every_command_has_help() -> None:
    for command in ([], ["ls"], ["cat"], ["verify"]):
        answer = run(*command, "--help")
        assert answer.exit_code == 0
        assert len(answer.output) > 200


def test_the_module_runs_as_the_command(folder: Folder) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-m", "stateline.cli", "changelog", "verify", folder.url],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("intact") == 2


# -- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == generate.PAGES[name]()


def test_every_option_and_every_metric_is_in_its_table() -> None:
    options, metrics = (DOCS / "options.md").read_text(), (DOCS / "metrics.md").read_text()
    import dataclasses

    for field in dataclasses.fields(ChangelogSettings):
        assert f"| `{field.name}` |" in options
    for definition in DEFINITIONS:
        assert f"| `{definition.name}` |" in metrics
    assert set(generate.FLINK_OPTIONS) <= {field.name for field in dataclasses.fields(ChangelogSettings)}
    assert set(generate.FLINK_METRICS) <= {definition.name for definition in DEFINITIONS}


def test_every_stateline_name_in_the_table_of_names_exists() -> None:
    package = importlib.import_module("stateline.changelog")
    writer = package.ChangelogWriter
    for _, ours, _ in generate.NAMES:
        for name in re.findall(r"[A-Za-z_]+", re.sub(r"\(.*\)| with .*", "", ours.replace("ChangelogWriter.", ""))):
            assert hasattr(package, name) or hasattr(writer, name) or hasattr(package.ChangelogStorage, name), name


def test_the_guide_runs(tmp_path: Path) -> None:
    text = (DOCS / "guide.md").read_text()
    assert text.count("\nassert ") >= 10
    run_page(DOCS / "guide.md", tmp_path)
    commands = re.findall(r"^stateline changelog (.*)$", text, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        arguments = [placed(argument, tmp_path) for argument in command.split()]
        if arguments[0] != "ls|cat|verify":
            assert run(*arguments).exit_code == 0, command
