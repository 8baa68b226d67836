"""How long a large record takes: 1,000 subtasks with 20 runs each, encoded and decoded.

``python -m benchmarks metadata [--subtasks N] [--runs N] [--rounds N]``

Encoding includes the CRC, every rule, and reading the result back (nothing is published that no reader would take);
decoding includes the CRC, the strict parse and every rule. The plain cost of JSON, with no layout, CRC or rule, stands
beside both, measured in turn in the same process. The bound is 100 ms each.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.harness import median, table, write_results
from stateline.checkpoint import Checkpoint, OperatorState, SubtaskState
from stateline.checkpoint.metadata import decode_record, encode_checkpoint
from stateline.environment import SystemIds
from stateline.handles import RunHandle

BOUND_SECONDS = 0.1


def large_checkpoint(num_subtasks: int, num_runs: int) -> Checkpoint:
    """One operator whose every subtask has a full stack of runs."""
    ids = SystemIds()

    def run(subtask: int, age: int) -> RunHandle:
        return RunHandle(
            name=f"shared/{ids.new_id()}.arrow",
            offset=0,
            length=1_234_567 + age,
            crc32c=(subtask * 2_654_435_761 + age) % 2**32,
            rows=50_000,
            tombstones=age,
            first_key_group=subtask,
            last_key_group=subtask,
            checkpoint_id=1_000_000 + age,
        )

    subtasks = tuple(
        SubtaskState(
            first_key_group=subtask, last_key_group=subtask, runs=tuple(run(subtask, age) for age in range(num_runs))
        )
        for subtask in range(num_subtasks)
    )
    return Checkpoint(
        checkpoint_id=1_000_000 + num_runs,
        batch_id=1_000_000,
        query_id=ids.new_id(),
        offsets_digest=ids.new_id(),
        max_parallelism=num_subtasks,
        parallelism=num_subtasks,
        nonce=ids.new_id(),
        created_at=1_700_000_000.0,
        operators=(OperatorState(name="operator", schema="schema", definition="definition", subtasks=subtasks),),
    )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks metadata", description=__doc__)
    parser.add_argument("--subtasks", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(argv)
    checkpoint = large_checkpoint(options.subtasks, options.runs)
    data = encode_checkpoint(checkpoint)
    plain = msgspec.json.encode(checkpoint)
    steps: dict[str, Callable[[], object]] = {
        "encode": lambda: encode_checkpoint(checkpoint),
        "decode": lambda: decode_record(data, "benchmark"),
        "plain JSON encode": lambda: msgspec.json.encode(checkpoint),
        "plain JSON decode": lambda: msgspec.json.decode(plain, type=Checkpoint),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - began)
    rows = [
        (name, f"{median(times) * 1e3:.1f}", f"{min(times) * 1e3:.1f} .. {max(times) * 1e3:.1f}")
        for name, times in seconds.items()
    ]
    print(f"{options.subtasks} subtasks x {options.runs} runs: {len(data):,} bytes, {options.rounds} rounds\n")
    print(table(("step", "median ms", "range"), rows))
    within = all(median(seconds[name]) <= BOUND_SECONDS for name in ("encode", "decode"))
    path = write_results("metadata", {"bytes": len(data), "seconds": seconds, "within_bound": within})
    print(f"\n{'within' if within else 'OVER'} the bound of {BOUND_SECONDS * 1e3:.0f} ms each; figures in {path}")
    return 0 if within else 1
