"""``make soak``: looks for trouble for as long as ``SOAK_MINUTES`` says.

New seeds, zombies and power losses in the simulator; real processes killed at their system calls; a real Spark driver
killed at every step of the protocol and at random times, also while its query is saved and moved; drivers of every kind
of table killed, stopped and woken, some in each second; scripts of users that are killed and run again, or that end
with their stream; many micro-batches of one driver; drawn tables, read by their libraries and by Spark. Each has its
share of the time; ``SOAK_SUITES`` picks some of them by name, separated by commas, which then share it all.

Slices of even numbers run with the sizes of production, those of odd numbers with tiny ones, so that few rows take the
ways of large state.

Each slice appends one line of JSON to the report, so that a soak can be stopped and resumed: it goes on with the seeds
after those of the report. Exit status 1 at the first violation, whose line has the whole story.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.soak.schedule import Schedule
from tests.soak.slices import SHARES, SLICES

REPORT = Path(os.environ.get("SOAK_REPORT", "soak-report.jsonl"))
MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
CHOSEN = os.environ.get("SOAK_SUITES", ",".join(SHARES)).split(",")


def main() -> int:
    if unknown := set(CHOSEN) - set(SHARES):
        sys.stderr.write(f"SOAK_SUITES names {', '.join(sorted(unknown))}; there are {', '.join(SHARES)}\n")
        return 2
    schedule = Schedule([each for each in SLICES if each.suite in CHOSEN], SHARES)
    if REPORT.exists():
        schedule.resume(map(json.loads, REPORT.read_text().splitlines()))
    ends_at = time.monotonic() + MINUTES * 60
    with REPORT.open("a") as report:
        while time.monotonic() < ends_at:
            number, chosen = schedule.next()
            began = time.monotonic()
            found = chosen.run(number)
            seconds = round(time.monotonic() - began, 1)
            schedule.took(chosen, seconds)
            line = {"number": number, "suite": chosen.suite, "scenario": chosen.scenario, "seconds": seconds, **found}
            report.write(json.dumps(line) + "\n")
            report.flush()
            sys.stdout.write(f"{chosen.suite:<10} {chosen.scenario:<24} {line['points']:>7,} {seconds:>7} s\n")
            sys.stdout.flush()
            if line["failures"]:
                sys.stdout.write(f"{json.dumps(line['failures'], indent=2)}\n")
                return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write(f"Stopped. The next soak goes on with the seeds after those of {REPORT}.\n")
        sys.exit(130)
