"""What people see: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo.supervisor import Situation

RATE_WINDOW_SECONDS = 8.0
PLAIN_INTERVAL_SECONDS = 5.0


class Rate:
    """Events per second over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, events: int) -> float:
        self._samples.append((now, events))
        while now - self._samples[0][0] > RATE_WINDOW_SECONDS:
            self._samples.popleft()
        first_time, first_events = self._samples[0]
        return (events - first_events) / (now - first_time) if now > first_time else 0.0


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def figures(situation: Situation, rate: float, planned_kills: int) -> str:
    progress = situation.progress
    checkpoint = "-" if progress.checkpoint_id < 0 else str(progress.checkpoint_id)
    return (
        f"{rate:>7,.0f} events/s  checkpoint {checkpoint:>3}  state {megabytes(progress.state_bytes):>7}  "
        f"kills {situation.kills}/{planned_kills}"
    )


class LiveDisplay:
    """A bar that stays at the bottom of the terminal while messages scroll above it."""

    def __init__(self, console: Console, total_events: int, planned_kills: int) -> None:
        self._planned_kills = planned_kills
        self._rate = Rate()
        self._bar = Progress(
            TextColumn("{task.completed:>7,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("flights", total=total_events, figures="starting")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, situation: Situation) -> None:
        rate = self._rate.add(time.monotonic(), situation.progress.events)
        text = figures(situation, rate, self._planned_kills)
        self._bar.update(self._task, completed=situation.progress.events, figures=text)

    def say(self, message: str) -> None:
        self._bar.console.print(message, highlight=False)


class PlainDisplay:
    """A line for each message, and every few seconds if anything has changed, for logs."""

    def __init__(self, console: Console, total_events: int, planned_kills: int) -> None:
        self._console = console
        self._total_events = total_events
        self._planned_kills = planned_kills
        self._rate = Rate()
        self._shown_at = float("-inf")
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, situation: Situation) -> None:
        now = time.monotonic()
        rate = self._rate.add(now, situation.progress.events)
        if now - self._shown_at >= PLAIN_INTERVAL_SECONDS:
            self._shown_at = now
            line = f"{situation.progress.events:>7,}/{self._total_events:,}  "
            line += figures(situation, rate, self._planned_kills)
            if line != self._shown:
                self._shown = line
                self.say(line)

    def say(self, message: str) -> None:
        self._console.print(message, highlight=False, soft_wrap=True)


def make_display(console: Console, total_events: int, planned_kills: int) -> LiveDisplay | PlainDisplay:
    """The live bar on a terminal that is wide enough, plain lines elsewhere."""
    kind = LiveDisplay if console.is_terminal and console.width >= 100 else PlainDisplay
    return kind(console, total_events, planned_kills)
