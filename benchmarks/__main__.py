"""Runs one benchmark by name: ``python -m benchmarks stateful``."""

import importlib
import pkgutil
import sys

import benchmarks

NO_BENCHMARKS = ("harness", "modelled_store", "nexmark_flink", "nexmark_flink_job", "nexmark_spark")


def main() -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[0] != "_")
    known = [name for name in known if name not in NO_BENCHMARKS]
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        print(f"usage: python -m benchmarks NAME [options]\n\nNAME is one of: {', '.join(known)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:]) or 0


if __name__ == "__main__":
    sys.exit(main())
