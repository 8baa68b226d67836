"""The demo without Spark: a stand-in that makes the same files is killed, restarted and interrupted."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from examples.demo import __main__ as demo
from examples.demo import verification
from examples.demo.display import LiveDisplay, PlainDisplay, make_display
from examples.demo.flights import SCHEMA, write_source
from examples.demo.progress import Progress, RecordProgress
from examples.demo.supervisor import (
    DemoError,
    KillPoint,
    Situation,
    Supervisor,
    kill_session,
    plan_kills,
    session_members,
)

FAKE_DRIVER = Path(__file__).with_name("fake_driver.py")


def make_flights(count: int = 2000, weeks: int = 12) -> pd.DataFrame:
    """A small year."""
    rng = np.random.default_rng(5)
    minutes = np.sort(rng.integers(0, weeks * 7 * 24 * 60, count))
    frame = pd.DataFrame(
        {
            "ts": pd.Timestamp("2013-01-01", tz="UTC") + pd.to_timedelta(minutes, unit="min"),
            "carrier": rng.choice(["UA", "AA"], count),
            "flight": rng.integers(1, 5000, count),
            "tailnum": rng.choice(["N1", "N2", "N3", None], count),
            "origin": rng.choice(["EWR", "JFK", "LGA"], count),
            "dest": rng.choice(["IAH", "MIA", "BQN", "ATL"], count),
            "dep_delay": np.where(rng.random(count) < 0.1, np.nan, rng.integers(-20, 300, count)),
            "distance": rng.integers(100, 3000, count),
        }
    )
    return frame[SCHEMA.names]


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.seen: list[Progress] = []

    def show(self, situation: Situation) -> None:
        self.seen.append(situation.progress)

    def say(self, message: str) -> None:
        self.messages.append(message)


@pytest.fixture
def run(tmp_path: Path) -> demo.Run:
    file_events = write_source(make_flights(), tmp_path / "source")
    return demo.Run(tmp_path, seed=1, kills=3, parallelism=2, last_parallelism=3, file_events=tuple(file_events))


def fake_command(run: demo.Run, *options: str) -> list[str]:
    paths = [
        f"--source={run.source}",
        f"--root={run.root}",
        f"--output={run.output}",
        f"--spark-checkpoint={run.spark_checkpoint}",
    ]
    return [sys.executable, "-m", "tests.demo.fake_driver", *paths, *options]


def make_supervisor(run: demo.Run, display: Recorder, *options: str, **settings: object) -> Supervisor:
    defaults: dict[str, object] = {
        "command": lambda parallelism: [*fake_command(run, *options), f"--parallelism={parallelism}"],
        "read_progress": RecordProgress(run.root, run.spark_checkpoint, run.file_events),
        "display": display,
        "total_events": run.total_events,
        "kills": [KillPoint(fraction, 0.02) for fraction in (0.1, 0.4, 0.7)],
        "parallelism": run.parallelism,
        "last_parallelism": run.last_parallelism,
        "logs": run.folder / "logs",
        "poll_seconds": 0.01,
    }
    return Supervisor(**{**defaults, **settings})  # type: ignore[arg-type]


def test_a_driver_that_is_killed_three_times_ends_with_equal_results(run: demo.Run) -> None:
    display = Recorder()
    situation = make_supervisor(run, display).run()
    assert (situation.kills, situation.starts, situation.parallelism) == (3, 4, 3)
    assert situation.progress.events == run.total_events
    starts = [message for message in display.messages if "started" in message]
    assert [message.partition("parallelism ")[2][0] for message in starts] == ["2", "2", "2", "3"]
    checkpoints = [int(message.rpartition(" ")[2]) for message in starts]
    assert checkpoints[0] == -1
    assert checkpoints == sorted(set(checkpoints)), "progress between any two kills"
    events = [progress.events for progress in display.seen]
    assert events == sorted(events)
    assert len(list((run.folder / "logs").iterdir())) == 4
    comparisons = verification.verify(run.source, run.spark_checkpoint, run.root, run.output)
    assert [comparison.differences for comparison in comparisons] == [()] * 5
    assert all(comparison.rows > 0 for comparison in comparisons)


def test_a_kill_reaches_the_whole_session() -> None:
    program = textwrap.dedent("""\
        import subprocess, time
        print(subprocess.Popen(["sleep", "600"], process_group=0).pid, flush=True)
        time.sleep(600)
        """)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.stdout.close()
    assert set(session_members(process.pid)) == {process.pid, child}
    assert kill_session(process) == 2
    assert process.returncode == -signal.SIGKILL
    assert session_members(process.pid) == []
    assert kill_session(process) == 0


def test_a_driver_that_fails_is_an_error_with_the_end_of_its_log(run: demo.Run) -> None:
    with pytest.raises(DemoError, match=r"exit code 1; see .*driver-01.log\n(?s:.*)no such luck"):
        make_supervisor(run, Recorder(), "--fail-at=2", kills=[]).run()


def test_a_driver_that_stalls_is_given_up_and_gone(run: demo.Run) -> None:
    with pytest.raises(DemoError, match="no progress for 1 s"):
        make_supervisor(run, Recorder(), "--stall-at=2", stall_seconds=1.0).run()


def test_a_driver_that_ends_before_its_kill_is_an_error(run: demo.Run) -> None:
    with pytest.raises(DemoError, match="before it could be killed"):
        make_supervisor(run, Recorder(), kills=[KillPoint(0.5, 600, 2.0)]).run()


def test_a_run_that_goes_on_skips_the_kills_behind_it(run: demo.Run) -> None:
    with pytest.raises(DemoError):
        make_supervisor(run, Recorder(), "--fail-at=6", kills=[]).run()
    situation = make_supervisor(run, Recorder()).run()
    assert (situation.kills, situation.starts) == (1, 2)
    assert situation.progress.events == run.total_events


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_the_moments_of_the_kills_are_ordered_spread_and_repeatable(count: int) -> None:
    for seed in range(50):
        points = plan_kills(count, seed)
        fractions = [share for point in points for share in (point.fraction, point.latest_fraction)]
        assert len(points) == count
        assert fractions == sorted(fractions)
        assert all(0 < point.fraction < point.latest_fraction < 1 for point in points)
        assert points == plan_kills(count, seed)
    assert count == 0 or plan_kills(count, 1) != plan_kills(count, 2)


def test_progress_is_that_of_the_newest_whole_record(tmp_path: Path) -> None:
    read = RecordProgress(tmp_path / "root", tmp_path / "spark", [10, 20, 30])
    assert read() == Progress()
    for name in ("chk-1", "chk-2", "chk-10", "chk-x", "other"):
        (tmp_path / "root" / name).mkdir(parents=True)
    assert read() == Progress()
    run = '{"name": "a", "offset": 64, "length": 5}'
    other = '{"name": "b", "offset": 0, "length": 7}'
    record = (
        '{"format": "stateline.checkpoint", "checkpoint_id": 2, "batch_id": 1, "outputs": [{"open": [{}]}],'
        f'"operators": [{{"subtasks": [{{"runs": [{run}, {run}]}}, {{"runs": [{other}]}}]}}]}}'
    )
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    (tmp_path / "spark" / "offsets" / "0").write_text('v1\n{}\n{"logOffset":0}')
    (tmp_path / "spark" / "offsets" / "1").write_text('v1\n{}\n{"logOffset":2}')
    (tmp_path / "root" / "chk-2" / "_metadata").write_text(record)
    (tmp_path / "root" / "chk-1" / "_metadata").write_text('{"format": "stateline.retired"}')
    assert read() == Progress(events=60, checkpoint_id=2, state_bytes=12, open_files=1)


PROGRAM = textwrap.dedent("""\
    import sys
    from examples.demo import __main__ as demo
    from tests.demo import test_supervisor as tests

    demo.load_flights = tests.make_flights
    demo.describe_java = lambda: "no Java at all"
    options = sys.argv.pop(1).split()
    demo.Run.command = lambda run, parallelism: tests.fake_command(run, *options)
    sys.exit(demo.main(sys.argv[1:]))
    """)


def start_demo(fake_options: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, fake_options, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path, interrupt: signal.Signals) -> None:
    with start_demo("--stall-at=4", "--kills=1", "--seed=3", f"--folder={tmp_path}") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "checkpoint   3" in line:
                process.send_signal(interrupt)
                break
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
    assert "--resume" in rest
    [folder] = tmp_path.iterdir()
    assert folder.name in rest
    assert os.listdir(folder / "state" / "chk-3") == ["_metadata"]
    with start_demo("", f"--resume={folder}") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "Every row is there, once, and equal." in output


def test_the_demo_says_what_happened_and_keeps_earlier_runs(tmp_path: Path) -> None:
    for _ in range(2):
        with start_demo("", f"--folder={tmp_path}", "--kills=2") as process:
            output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert output.count("SIGKILL") == 2
        for expected in ("2,000 flights", "no Java at all", "seed", "state: routes", "2 kills", "make demo ARGS="):
            assert expected in output
    assert len(list(tmp_path.iterdir())) == 2


def test_a_wrong_result_fails_loudly(run: demo.Run) -> None:
    make_supervisor(run, Recorder(), "--pace-seconds=0", kills=[]).run()
    [lost, *_] = verification.output_files(run.output / "routes")
    lost.unlink()
    console = Console(file=io.StringIO(), width=200)
    assert not demo.report(run, Situation(), 1.0, console)
    assert "files: routes: missing: origin=" in console.file.getvalue()  # type: ignore[attr-defined]


def test_resuming_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main([f"--resume={tmp_path}"]) == 1
    assert "no run of the demo" in capsys.readouterr().out


def test_a_terminal_gets_a_bar_and_a_log_gets_lines() -> None:
    situation = Situation(Progress(1234, 5, 6_000_000, 1), kills=1, starts=2, parallelism=2)
    for is_terminal, kind in ((True, LiveDisplay), (False, PlainDisplay)):
        console = Console(file=io.StringIO(), width=120, force_terminal=is_terminal)
        with make_display(console, 5000, 3) as display:
            assert isinstance(display, kind)
            display.show(situation)
            display.say("something happened")
        text = console.file.getvalue()  # type: ignore[attr-defined]
        for expected in ("1,234/5,000", "checkpoint   5", "6.0 MB", "kills 1/3", "something happened"):
            assert expected in text
