"""``python -m tests.kit``: runs the suites from the command line.

Exit status: 0 if every invariant held (for ``planted``: if every bug was caught), 1 if not, 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from stateline.environment import SystemClock
from stateline.errors import InvalidInputError, StatelineError
from tests.kit.commit_model import Variant, commit_model
from tests.kit.explore import Setting, fault_pairs, single_faults, zombie_sweep
from tests.kit.model_checker import check_model
from tests.kit.planted import bugs as planted
from tests.kit.power_failure import power_losses
from tests.kit.results import Exploration
from tests.kit.scenarios import SCENARIOS, ScenarioEntry, scenario
from tests.kit.simulation import replay, run_seed, simulate

__all__ = ["main"]

_MODULES: Final = (
    "tests.kit.planted.store",
    "tests.kit.planted.protocol",
    "tests.kit.planted.pipeline",
    "tests.kit.planted.components",
    "tests.kit.planted.beside",
    "tests.kit.planted.sections",
    "tests.kit.planted.sink",
    "tests.kit.planted.cloud",
    "tests.kit.planted.late",
    "tests.kit.planted.delivery",
    "tests.kit.planted.tables",
)
_SUITES: Final = ("single", "pairs", "zombies", "sim", "powerloss")
_USAGE: Final = """\
examples:
  python -m tests.kit single --scenario store_publish
  python -m tests.kit zombies --sample 20000
  python -m tests.kit sim --scenario micro_batch_reference --seeds 0:1000
  python -m tests.kit sim --scenario micro_batch_reference --seed 267 --trace
  python -m tests.kit powerloss --scenario store_publish_local --json
  python -m tests.kit planted --bug no_floor_check
  python -m tests.kit model
  python -m tests.kit single --load my_package.my_scenarios --scenario mine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        for module in _MODULES:
            importlib.import_module(module)
        for module in options.load:
            _load(module)
        _check(options)
        if options.suite == "list":
            return _list(options)
        if options.suite == "planted":
            return _planted(options)
        if options.suite == "model":
            return _model(options)
        return _explore(options)
    except (StatelineError, ModuleNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _load(module: str) -> None:
    """Imports a module of the caller's. Whatever stops it, nothing was tried: that is not a violated invariant."""
    try:
        importlib.import_module(module)
    except Exception as error:
        raise InvalidInputError(
            f"it cannot be imported ({type(error).__name__}: {error})",
            subject=f"--load {module}",
            hint="Give the dotted name of a module on the path; python -c 'import ...' shows the whole error",
        ) from error


def _check(options: argparse.Namespace) -> None:
    """Refuses what would be ignored."""
    if options.scenario and options.suite in ("planted", "model", "list"):
        raise InvalidInputError(f"cannot be used with {options.suite}", subject="--scenario", hint="Leave it out")
    if (options.bug or options.by) and options.suite != "planted":
        raise InvalidInputError(
            f"cannot be used with {options.suite}", subject="--bug and --by", hint="Use them with planted"
        )
    if options.trace and options.suite != "model":
        if options.suite != "sim" or options.seed is None:
            raise InvalidInputError("must come with sim and one seed", subject="--trace", hint="Add --seed N")
        if options.json:
            raise InvalidInputError("cannot be printed as JSON", subject="--trace", hint="Leave out --json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kit",
        description="Explores what faults, zombies and power loss do to a scenario.",
        epilog=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite", choices=(*_SUITES, "planted", "model", "list"), help="what to run; list names the scenarios"
    )
    parser.add_argument("--scenario", action="append", default=[], help="which one; may be repeated; default: all")
    parser.add_argument("--seed", type=int, default=None, help="the seed; for sim: only this one")
    parser.add_argument("--seeds", type=_seeds, default=range(200), help="for sim: how many, or FIRST:END")
    parser.add_argument("--sample", type=_sample, default=None, help="at most about so many points (states per run)")
    parser.add_argument("--bug", action="append", default=[], help="for planted: which; default: all")
    parser.add_argument("--by", action="append", default=[], choices=_SUITES, help="for planted: by which suites")
    parser.add_argument("--load", action="append", default=[], help="a module that registers scenarios or bugs")
    parser.add_argument("--trace", action="store_true", help="for sim with --seed: print everything that happened")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end)) if colon else range(int(first))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor FIRST:END") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} names no seed, and a suite that tries nothing proves nothing")
    return seeds


def _sample(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def _list(options: argparse.Namespace) -> int:
    if options.json:
        names = [{"scenario": name, "summary": entry.summary} for name, entry in sorted(SCENARIOS.items())]
        sys.stdout.write(json.dumps(names, indent=2) + "\n")
        return 0
    for name, entry in sorted(SCENARIOS.items()):
        sys.stdout.write(f"{name:<26} {entry.summary}\n")
    return 0


def _explore(options: argparse.Namespace) -> int:
    names = options.scenario or [name for name in sorted(SCENARIOS) if _suits(options.suite, SCENARIOS[name])]
    clock = SystemClock()
    results = []
    for name in names:
        entry = scenario(name)
        if not _suits(options.suite, entry):
            raise InvalidInputError("must run on local disk", subject=f"scenario {name}", hint="Choose a local one")
        began = clock.monotonic()
        result = _RUNNERS[options.suite](entry, options).named(name)
        results.append(result)
        if not options.json:
            _show(result, clock.monotonic() - began)
        if options.trace:
            _show_trace(entry, options.seed)
    if options.json:
        sys.stdout.write(json.dumps([result.to_dict() for result in results], indent=2) + "\n")
    return 1 if any(result.failures for result in results) else 0


def _suits(suite: str, entry: ScenarioEntry) -> bool:
    return suite != "powerloss" or entry.loses_power


def _show(result: Exploration, seconds: float) -> None:
    rate = result.points / max(seconds, 1e-9) * 60
    sys.stdout.write(f"{result.table()}\n  {seconds:.1f} s, {rate:,.0f} runs a minute\n")
    for failure in result.failures:
        sys.stdout.write(f"\n{failure.render()}\n")


def _show_trace(entry: ScenarioEntry, seed: int) -> None:
    setting = Setting(backend=entry.backend)
    outcome = run_seed(entry.large(), seed, setting, kinds=entry.kinds)
    again = replay(entry.large(), outcome.script, setting)
    same = "equal" if again.trace.digest() == outcome.trace.digest() else "DIFFERENT"
    sys.stdout.write(f"{outcome.script}\n{outcome.trace.render()}\ndigest {outcome.trace.digest()}, replayed: {same}\n")


def _planted(options: argparse.Namespace) -> int:
    caught: dict[str, bool] = {}
    rows: list[dict[str, Any]] = []
    for catch in _catches(options):
        caught[catch.bug] = caught.get(catch.bug, False) or bool(catch.invariant)
        rows.append({name: getattr(catch, name) for name in planted.Catch.__slots__})
        if not options.json:
            verdict = f"{catch.invariant} seed {catch.seed} after {catch.points:,}" if catch.invariant else "-"
            sys.stdout.write(f"{catch.bug:<30} {catch.suite:<10} {catch.scenario:<24} {verdict}\n")
            sys.stdout.flush()
    missed = sorted(name for name, seen in caught.items() if not seen)
    if options.json:
        sys.stdout.write(json.dumps({"catches": rows, "missed": missed}, indent=2) + "\n")
    else:
        names = f": missed {', '.join(missed)}" if missed else ""
        sys.stdout.write(f"{len(caught) - len(missed)} of {len(caught)} planted bugs caught{names}\n")
    return 1 if missed else 0


def _catches(options: argparse.Namespace) -> Iterator[planted.Catch]:
    """By the given suites, or for each bug by those that must catch it."""
    for name in options.bug or sorted(planted.BUGS):
        if name not in planted.BUGS:
            raise InvalidInputError("unknown bug", subject=repr(name), hint=f"Known: {', '.join(sorted(planted.BUGS))}")
        yield from planted.matrix([name], options.by or planted.BUGS[name].suites)


def _model(options: argparse.Namespace) -> int:
    """The commit protocol must hold, and each broken form of it must not."""
    rows: list[dict[str, Any]] = []
    for variant in (None, *Variant):
        verdict = check_model(commit_model(variant))
        good = bool(verdict.invariant) == (variant is not None)
        rows.append({"variant": variant or "the protocol", "as_expected": good, **asdict(verdict)})
        if not options.json:
            found = f"{verdict.invariant}: {verdict.message}" if verdict.invariant else "every invariant holds"
            sys.stdout.write(f"{variant or 'the protocol':<28} {verdict.states:>9,} states  {found}\n")
            if options.trace or not good:
                sys.stdout.writelines(f"    {step}\n" for step in verdict.steps)
            sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["as_expected"] for row in rows) else 1


def _setting(entry: ScenarioEntry, options: argparse.Namespace) -> Setting:
    return Setting(seed=options.seed or 0, backend=entry.backend)


def _single(entry: ScenarioEntry, options: argparse.Namespace) -> Exploration:
    return single_faults(entry.small(), _setting(entry, options), kinds=entry.kinds, sample=options.sample)


def _pairs(entry: ScenarioEntry, options: argparse.Namespace) -> Exploration:
    return fault_pairs(entry.small(), _setting(entry, options), sample=options.sample)


def _zombies(entry: ScenarioEntry, options: argparse.Namespace) -> Exploration:
    return zombie_sweep(entry.small(), _setting(entry, options), sample=options.sample)


def _sim(entry: ScenarioEntry, options: argparse.Namespace) -> Exploration:
    seeds = options.seeds if options.seed is None else [options.seed]
    return simulate(entry.large(), seeds, _setting(entry, options), kinds=entry.kinds)


def _powerloss(entry: ScenarioEntry, options: argparse.Namespace) -> Exploration:
    return power_losses(entry.small(), options.seed or 0, max_states=options.sample)


_RUNNERS: Final[dict[str, Callable[[ScenarioEntry, argparse.Namespace], Exploration]]] = {
    "single": _single,
    "pairs": _pairs,
    "zombies": _zombies,
    "sim": _sim,
    "powerloss": _powerloss,
}


if __name__ == "__main__":
    sys.exit(main())
