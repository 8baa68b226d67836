"""The network between a cloud store's client and its service, simulated: every request is a switch point and may fail.

Facts:
- An SDK repeats a request that got no answer or a 5xx, also a conditional one that took effect. Each try is a request
  of its own, and each may be lost, answered late, or delivered twice.
- A request that lands later has its effect then; nobody hears the answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Final, Protocol, TypeVar, runtime_checkable

from stateline.blob.answers import try_unanswered
from stateline.testing.faults import Fault, FaultKind
from stateline.testing.system_calls import Gate

__all__ = ["CutBody", "Network", "NoAnswer", "Refused", "RequestGate", "ServiceClock"]

T = TypeVar("T")

_EPOCH: Final = 1_700_000_000.0


@runtime_checkable
class RequestGate(Gate, Protocol):
    """What stands before each request of a cloud store's client."""

    def strike(self, operation: str, subject: str) -> Fault | None:
        """As :meth:`Gate.enter`, with the whole fault."""
        ...

    def postpone(self, fault: Fault, request: Callable[[], None]) -> None:
        """Keeps a request that reaches the service later."""
        ...


class Refused(Exception):  # noqa: N818 - an answer of the service
    """An answer other than success.

    Attributes:
        status: The HTTP status.
        code: The service's own word for it.
    """

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


class NoAnswer(Exception):  # noqa: N818 - what a client sees of a lost request or a lost answer
    """The connection ended, or nothing came."""


class CutBody(Exception):  # noqa: N818 - what a client sees of half a body
    """A body that had begun and ended early."""


_REFUSALS: Final = {
    FaultKind.UNAVAILABLE: Refused(503, "ServiceUnavailable"),
    FaultKind.ACCESS_DENIED: Refused(403, "AccessDenied"),
    FaultKind.ERROR_IN_BODY: Refused(200, "InternalError"),
    FaultKind.IN_PROGRESS: Refused(409, "ConditionalRequestConflict"),
}


class ServiceClock:
    """The times of objects: they only grow, whatever the clocks of processes say."""

    def __init__(self) -> None:
        self._made = count()

    def now(self) -> datetime:
        """The present; a second later each time."""
        return datetime.fromtimestamp(_EPOCH + next(self._made), UTC)


class Network:
    """Sends requests.

    Args:
        gate: Asked before each request.
        attempts: How often an SDK sends one in all.
    """

    def __init__(self, gate: RequestGate, attempts: int = 3) -> None:
        self._gate = gate
        self._attempts = attempts

    def call(
        self, operation: str, subject: str, effect: Callable[[], T], *, expire: Callable[[], object] | None = None
    ) -> T:
        """One call of an SDK: the request, again while there is no answer or a 5xx.

        Args:
            operation: One of :data:`~stateline.testing.faults.REQUEST_OPERATIONS`.
            subject: For the trace.
            effect: What the service does; raises :class:`Refused`.
            expire: Lets the service lose what the request needs.

        Raises:
            Refused: The last answer.
            NoAnswer: There was none.
            CutBody: A body ended early, which no SDK repeats.
        """
        for _ in range(self._attempts - 1):
            try:
                return self._send(operation, subject, effect, expire)
            except NoAnswer:
                try_unanswered()
            except Refused as refused:
                if refused.status < 500 and refused.status != 200:
                    raise
        return self._send(operation, subject, effect, expire)

    def _send(self, operation: str, subject: str, effect: Callable[[], T], expire: Callable[[], object] | None) -> T:
        fault = self._gate.strike(operation, subject)
        if fault is None:
            return effect()
        kind = fault.kind
        if kind in _REFUSALS:
            raise Refused(_REFUSALS[kind].status, _REFUSALS[kind].code)
        if kind is FaultKind.LOST_REQUEST:
            raise NoAnswer
        if kind in (FaultKind.LANDS_LATER, FaultKind.CRASH_IN_FLIGHT):
            return self._late(fault, effect)
        if kind is FaultKind.PARTS_EXPIRED and expire is not None:
            expire()
        made = effect()
        if kind is FaultKind.CRASH_AFTER:
            self._gate.crash()
        if kind is FaultKind.LOST_ANSWER:
            raise NoAnswer
        if kind is FaultKind.TRUNCATED:
            raise CutBody
        if kind is FaultKind.DELIVERED_TWICE:
            self._gate.postpone(fault, lambda: _quietly(effect))
        return made

    def _late(self, fault: Fault, effect: Callable[[], T]) -> T:
        self._gate.postpone(fault, lambda: _quietly(effect))
        if fault.kind is FaultKind.CRASH_IN_FLIGHT:
            self._gate.crash()
        raise NoAnswer


def _quietly(effect: Callable[[], object]) -> None:
    """An answer that nobody hears."""
    with contextlib.suppress(Refused):
        effect()
