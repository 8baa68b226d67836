"""Benchmarks: ``python -m benchmarks NAME``. Each prints ratios from one run and writes every figure as JSON."""
