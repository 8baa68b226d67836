"""Calls that run at the same moment, on threads or in other processes, for the conformance suites.

Owns the pool of fresh interpreters. Does not own what is called: functions that processes run must be importable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

from stateline.environment import system_environment

__all__ = ["Call", "at_once", "elsewhere"]

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def at_once(calls: Sequence[Call]) -> list[Any]:
    """Runs calls on threads of this process, at the same time; their results in order."""
    executor = system_environment().executors.executor("conformance", len(calls))
    try:
        return [future.result() for future in [executor.submit(function, *args) for function, args in calls]]
    finally:
        executor.close()


def elsewhere(calls: Sequence[Call]) -> list[Any]:
    """Runs calls in other processes, two at a time; their results in order."""
    environment = dict(os.environ)
    futures = [_processes().submit(_in_environment, environment, function, args) for function, args in calls]
    return [future.result() for future in futures]


@cache
def _processes() -> ProcessPoolExecutor:
    """Two fresh interpreters, kept for the whole test run: starting one costs half a second."""
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def _in_environment(environment: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ.update(environment)
    return function(*args)
