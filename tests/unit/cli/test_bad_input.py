"""Every stored format, damaged, cut off, too new or hostile, through the commands: one message and exit code 1."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from stateline.blob import open_store
from stateline.blob.checksum import crc32c
from stateline.blob.memory import MemoryStore
from stateline.changelog import ChangelogStorage
from stateline.checkpoint import CheckpointStore, create_savepoint
from stateline.cli.commands import stateline
from stateline.key_groups import KeyGroupRange
from stateline.state import KeyedStateBackend, StateSchema
from stateline.state.run_store import process_open_runs

NAME = "bad-input"
URL = f"memory://{NAME}"
SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.string())]))


class Formats:
    """One object of each stored format, and the commands that read it."""

    def __init__(self) -> None:
        self.store = open_store(URL)
        with KeyedStateBackend.open(self.store) as backend:
            backend.state("o", SCHEMA).put(pa.table({"k": range(100), "v": ["x"] * 100}))
            [run] = backend.checkpoint().operators[0].subtasks[0].runs
        self.run = run.name
        kept = open_store(f"{URL}-kept")
        self.savepoint = create_savepoint(CheckpointStore(self.store), kept)
        whole = open_store(f"{URL}-savepoint")
        for info in kept.list(""):
            whole.put(info.name.removeprefix(f"{self.savepoint.folder}/"), kept.get(info.name))
        with ChangelogStorage.open(f"{URL}-log") as storage:
            writer = storage.create_writer("o", KeyGroupRange(0, 9))
            for number in range(20):
                writer.append(number % 10, b"value")
            writer.persist(writer.initial_sequence_number(), 1).result()
        [log] = [info.name for info in open_store(f"{URL}-log").list("")]
        self.objects = {
            "record": (URL, "chk-0/_metadata", [["checkpoint", "show", URL], ["state", "ls", URL]]),
            "run": (URL, self.run, [["checkpoint", "verify", URL], ["state", "get", URL, "7"]]),
            "savepoint": (f"{URL}-savepoint", "_metadata", [["checkpoint", "verify", f"{URL}-savepoint"]]),
            "changelog": (
                f"{URL}-log",
                log,
                [["changelog", "verify", f"{URL}-log"], ["changelog", "cat", f"{URL}-log"]],
            ),
        }


@pytest.fixture
def formats() -> Iterator[Formats]:
    yield Formats()
    for end in ("", "-kept", "-savepoint", "-log"):
        MemoryStore.forget(NAME + end)


def run(*arguments: str) -> Result:
    process_open_runs().clear()
    answer = CliRunner().invoke(stateline, list(arguments))
    assert "Traceback" not in answer.output
    assert answer.exception is None or isinstance(answer.exception, SystemExit), repr(answer.exception)
    return answer


@pytest.mark.parametrize("kind", ["record", "run", "savepoint", "changelog"])
def test_no_byte_can_be_wrong_or_missing_unnoticed(formats: Formats, kind: str) -> None:
    url, name, commands = formats.objects[kind]
    store = open_store(url)
    data = store.get(name)
    for command in commands:
        assert run(*command).exit_code == 0, command
    dice = random.Random(1)
    places = {0, 1, len(data) // 2, len(data) - 1, *(dice.randrange(len(data)) for _ in range(12))}
    damaged = [data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :] for at in sorted(places)]
    damaged += [data[: dice.randrange(len(data))] for _ in range(5)] + [b"", data + b"x", b"\x00" * len(data)]
    for bad in damaged:
        store.put(name, bad)
        answer = run(*commands[0])
        assert answer.exit_code == 1
        assert name in answer.output
        assert re.search(r"byte|CRC32C", answer.output), answer.output
        for command in commands[1:]:
            other = run(*command)
            if command[1] == "get" and other.exit_code == 0:
                # A look at one key may miss damage elsewhere, but never shows what was not written.
                assert [line.split() for line in other.output.splitlines()[1:]] == [["k", "7"], ["v", "x"]]
            else:
                assert other.exit_code == 1


def resealed(data: bytes) -> bytes:
    """A document that was changed by somebody who knows the format."""
    body = data[: data.rindex(b',\n  "crc32c"')]
    return body + b',\n  "crc32c": "%08x"\n}\n' % crc32c(body)


@pytest.mark.parametrize("kind", ["record", "savepoint"])
@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "shared/../../x", "chk-0/_metadata", "floor/0", "a\\b"])
def test_names_that_leave_the_root_or_coordinate_are_refused(formats: Formats, kind: str, name: str) -> None:
    url, record, commands = formats.objects[kind]
    store = open_store(url)
    data = store.get(record)
    [stored] = set(re.findall(rb'"name":"(shared/[^"]+)"', data))
    hostile = name.encode().replace(b"\\", b"\\\\")
    store.put(record, resealed(data.replace(stored, hostile)))
    for command in commands:
        answer = run(*command)
        assert answer.exit_code == 1
        assert record in answer.output


@pytest.mark.parametrize("kind", ["record", "savepoint"])
def test_a_newer_version_asks_for_an_upgrade(formats: Formats, kind: str) -> None:
    url, record, commands = formats.objects[kind]
    store = open_store(url)
    store.put(record, resealed(store.get(record).replace(b'"version": 1', b'"version": 2')))
    answer = run(*commands[0])
    assert answer.exit_code == 1
    assert "format version 2" in answer.output
    assert "Upgrade" in answer.output


def test_a_pointer_that_leaves_the_store_is_refused() -> None:
    for pointer in ("", "/", "memory://", f"{URL}/../x"):
        assert run("checkpoint", "show", pointer).exit_code in (1, 2)
