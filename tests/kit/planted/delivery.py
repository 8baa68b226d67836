"""Bugs of rows that are handed over, planted in the real code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from stateline.checkpoint import Checkpoint
from stateline.pipeline import coordinator as coordinator_module
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.delivery import Delivery, deliveries_of
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.

_ATTEMPTS: Final = itertools.count()


def _bug(name: str, description: str, owner: Any, attribute: str, wrong: Any, *suites: str) -> None:
    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=f"{getattr(owner, '__module__', owner.__name__)}.{getattr(owner, '__qualname__', '')}.{attribute}",
            plant=lambda: replaced(owner, attribute, wrong),
            scenarios=("delivery",),
            suites=suites,
        )
    )


def _first_subtask_alone(record: Checkpoint) -> Sequence[Delivery]:
    return [replace(delivery, rows=delivery.rows[:1]) for delivery in deliveries_of(record)]


def _keyed_by_attempt(record: Checkpoint) -> Sequence[Delivery]:
    return [
        replace(delivery, key=replace(delivery.key, operator=f"attempt{next(_ATTEMPTS)}"))
        for delivery in deliveries_of(record)
    ]


_publish = MicroBatchCoordinator._publish
_commit = MicroBatchCoordinator._commit


def _marked_first(self: MicroBatchCoordinator[Any], record: Checkpoint) -> None:
    self._checkpoints.mark_published(record.checkpoint_id)
    _publish(self, record)


def _handed_over_first(self: MicroBatchCoordinator[Any], record: Checkpoint) -> dict[str, float]:
    for delivery in deliveries_of(record):
        if self._deliver is not None:
            self._deliver(delivery)
    return _commit(self, record)


_bug(
    "delivery_of_one_subtask",
    "of a checkpoint the rows of the first subtask are handed over",
    coordinator_module,
    "deliveries_of",
    _first_subtask_alone,
    "single",
)
_bug(
    "delivery_keyed_by_attempt",
    "who hands over once more does so under another key",
    coordinator_module,
    "deliveries_of",
    _keyed_by_attempt,
    "single",
)
_bug(
    "delivery_marked_first",
    "a checkpoint counts as published before its rows are handed over",
    MicroBatchCoordinator,
    "_publish",
    _marked_first,
    "single",
)
_bug(
    "delivery_before_the_record",
    "rows are handed over before the record that decides them",
    MicroBatchCoordinator,
    "_commit",
    _handed_over_first,
    "single",
)
