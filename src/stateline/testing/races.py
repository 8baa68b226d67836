"""Calls that run at the same moment, on threads or in other processes, for the conformance suites."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

from stateline.blob import BlobStore
from stateline.environment import system_environment
from stateline.errors import StatelineError
from stateline.handles import Part

__all__ = ["Call", "at_once", "copy_once", "create_once", "elsewhere", "publish_once", "stage_once"]

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


# -- calls on stores ---------------------------------------------------------------------------------------------------


def stage_once(store: BlobStore, target: str, data: bytes) -> Part:
    """``store.stage``, as a function that another process can be asked to run."""
    return store.stage(target, data)


def publish_once(store: BlobStore, target: str, parts: Sequence[Part], nonce: str) -> str:
    """``store.publish``; returns the name of the error's class, or ``"done"``."""
    return _outcome(lambda: store.publish(target, parts, nonce))


def create_once(store: BlobStore, name: str, data: bytes) -> str:
    """``store.put_if_absent``; returns the name of the error's class, or ``"done"``."""
    return _outcome(lambda: store.put_if_absent(name, data))


def copy_once(store: BlobStore, source: str, target: str) -> str:
    """``store.copy``; returns the name of the error's class, or ``"done"``."""
    return _outcome(lambda: store.copy(source, target))


def _outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except StatelineError as error:
        return type(error).__name__
    return "done"
