"""Bugs of requests that are raced, planted in the real code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from stateline.blob.api import Buffer
from stateline.changelog.racing import RacingStore
from stateline.changelog.upload_table import Attempts, Event
from stateline.errors import OutcomeUnknownError, UnavailableError
from stateline.handles import Part
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.

_CREATIONS: Final = ("create_race_late",)
_CREATIONS_ALONE: Final = ("create_only_late",)
_FILES: Final = ("store_publish_late",)

_request_step = Attempts._request_step


def _bug(name: str, description: str, owner: Any, attribute: str, wrong: Any, scenarios: tuple[str, ...]) -> None:
    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=f"{owner.__module__}.{owner.__name__}.{attribute}",
            plant=lambda: replaced(owner, attribute, wrong),
            scenarios=scenarios,
            suites=("sim",),
        )
    )


def _first_error_is_told(self: Any, event: Event, attempt: int, error: BaseException) -> Event | None:
    judged = _request_step(self, event, attempt, error)
    if event == "late":
        return judged
    self.error = error
    return "spent"


def _last_error_is_told(self: Any, event: Event, attempt: int, error: BaseException) -> Event | None:
    judged = _request_step(self, event, attempt, error)
    self.error = error
    return judged


def _late_is_not_done(self: Any, event: Event, attempt: int, error: BaseException) -> Event | None:
    if event != "late":
        return _request_step(self, event, attempt, error)
    self.error = UnavailableError("it is late", operation="request")
    return "spent"


def _unknown_is_not_done(self: RacingStore, name: str, data: Buffer) -> Any:
    try:
        return self._race(lambda: self.inner.put_if_absent(name, data))
    except OutcomeUnknownError as error:
        raise UnavailableError(error.message, operation="put_if_absent", subject=name) from error


def _loser_discards_all(self: RacingStore, target: str, data: Buffer) -> Part:
    made: list[Part] = []

    def stage() -> Part:
        made.append(self.inner.stage(target, data))
        return made[-1]

    return self._race(stage, lambda _lost: self.inner.discard(made))


def _deletion_is_not_waited_for(self: RacingStore, names: Iterable[str]) -> None:
    own = list(names)
    self._track.executor.submit(self.inner.delete, own)


_bug(
    "racing_first_error_is_told",
    "a request has failed when its first attempt has, while another one is under way",
    Attempts,
    "_request_step",
    _first_error_is_told,
    _CREATIONS,
)
_bug(
    "racing_last_error_is_told",
    "what the last attempt says counts, though the effect of an earlier one is unknown",
    Attempts,
    "_request_step",
    _last_error_is_told,
    _CREATIONS_ALONE,
)
_bug(
    "racing_late_is_not_done",
    "a late request counts as not done",
    Attempts,
    "_request_step",
    _late_is_not_done,
    _CREATIONS,
)
_bug(
    "racing_unknown_is_not_done",
    "an unknown outcome of a creation is told as a failure",
    RacingStore,
    "put_if_absent",
    _unknown_is_not_done,
    _CREATIONS_ALONE,
)
_bug(
    "racing_deletion_is_not_waited_for",
    "a deletion is told as done when it was sent",
    RacingStore,
    "delete",
    _deletion_is_not_waited_for,
    _CREATIONS,
)
_bug(
    "racing_loser_discards_all",
    "the attempt that lost discards the piece of the one that won, too",
    RacingStore,
    "stage",
    _loser_discards_all,
    _FILES,
)
