"""What a cloud store said to a request that did not succeed, whatever its SDK calls it.

An SDK repeats a request by itself. Whether one of its tries got no answer is noted for each request under way, whatever
thread runs it. What that means for a creation is decided in :mod:`stateline.blob.cloud`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from types import TracebackType
from typing import Final

from stateline.blob.translation import Translated
from stateline.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    UnavailableError,
)
from stateline.redaction import redacted

__all__ = [
    "Answer",
    "Asking",
    "Refusal",
    "answer_of_status",
    "try_unanswered",
    "typed_error",
]


class Answer(Enum):
    """What a store said to a request that did not succeed."""

    ABSENT = "absent"  # There is no such object.
    TAKEN = "taken"  # A precondition failed, or another request on that name is in progress.
    ENDED = "ended"  # The upload that the request belongs to was completed, aborted or forgotten.
    DENIED = "denied"  # Missing rights, or wrong, expired or no credentials.
    BUSY = "busy"  # It could not do it now, and said so.
    SILENT = "silent"  # No answer, however often the SDK asked.
    CUT = "cut"  # Half an answer: a body that ended early or fails its checksum. The SDK may not ask again.
    REFUSED = "refused"  # The request can never succeed as it is.


class Refusal(Exception):  # noqa: N818 - an answer, which never leaves the stores
    """A request that did not succeed, with what the service said. Turned into a typed error before a caller sees it.

    Attributes:
        answer: To the last try.
        error: Of the SDK.
        said: What the SDK says of it, in one line without secrets.
        unanswered: Whether this or an earlier try got no answer, and so may have had an effect or may have one yet.
    """

    def __init__(self, answer: Answer, error: BaseException, *, said: str = "", unanswered: bool = False) -> None:
        self.said = redacted(said or str(error)).partition("\n")[0]
        super().__init__(f"{answer.value}: {self.said}")
        self.answer = answer
        self.error = error
        self.unanswered = unanswered or answer in (Answer.SILENT, Answer.CUT)

    def meaning(self, answer: Answer) -> Refusal:
        """The same, as another answer."""
        return Refusal(answer, self.error, said=self.said)


class _Silence:
    __slots__ = ("occurred",)

    def __init__(self) -> None:
        self.occurred = False


_SILENCE: Final[ContextVar[_Silence | None]] = ContextVar("stateline_silence", default=None)


class Asking(Translated):
    """Around one request by an SDK.

    Args:
        translate: As that of :class:`Translated`; it is also given whether a try got no answer.
    """

    __slots__ = ("_silence", "_token")

    def __init__(self, translate: Callable[[Exception, bool], Exception | None]) -> None:
        self._silence = silence = _Silence()
        super().__init__(lambda error: translate(error, silence.occurred))

    def __enter__(self) -> None:
        """Listens."""
        self._token = _SILENCE.set(self._silence)

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _SILENCE.reset(self._token)
        super().__exit__(exc_type, error, trace)


def try_unanswered() -> None:
    """Notes that a try of the request under way, which the SDK may repeat, got no answer."""
    silence = _SILENCE.get()
    if silence is not None:
        silence.occurred = True


def answer_of_status(status: int) -> Answer:
    """What an HTTP status means for any of the stores."""
    if status in (401, 403, 407):
        return Answer.DENIED
    if status in (404, 410):
        return Answer.ABSENT
    if status in (409, 412):
        return Answer.TAKEN
    if status in (408, 425, 429) or status >= 500:
        return Answer.BUSY
    return Answer.REFUSED


def typed_error(refusal: Refusal, operation: str, subject: str) -> StatelineError:
    """The error that a caller sees."""
    if refusal.answer is Answer.ABSENT:
        return NotFoundError("there is no such object", operation=operation, subject=subject)
    kind: type[StatelineError]
    kind, hint = UnavailableError, "Try again later"
    message = f"the store answered {refusal.said!r}"
    if refusal.answer is Answer.DENIED:
        kind, hint = AccessDeniedError, "Check the credentials and the rights they give"
    elif refusal.answer is Answer.REFUSED:
        kind, hint = InvalidInputError, "Check the URL, the bucket and the options"
    elif refusal.answer in (Answer.SILENT, Answer.CUT):
        kind, hint = OutcomeUnknownError, "It may have happened, or may happen yet: repeat the call"
        message = f"no answer came ({refusal.said})"
    return kind(message, operation=operation, subject=subject, hint=hint)
