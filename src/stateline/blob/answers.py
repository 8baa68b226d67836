"""What a cloud store said to a request that did not succeed, whatever its SDK calls it.

Owns the words that the cloud backends share, and keeps credentials out of them. Does not own what a lost answer means
for a creation (``cloud``).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from stateline.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    UnavailableError,
    chain_of,
)

__all__ = ["Answer", "PieceError", "Refusal", "answer_of_status", "safe_cause", "scrubbed", "typed_error"]

_SECRETS: Final = re.compile(
    r"((?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|access_token|accountkey)=)[^&\s'\";]+",
    re.IGNORECASE,
)


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


class Refusal(Exception):  # noqa: N818 - it is an answer, and never leaves the backends
    """A request that did not succeed, with what the store said. Turned into a typed error before a caller sees it.

    Attributes:
        answer: To the last try.
        error: Of the SDK.
        said: What the SDK says of it, in one line without secrets.
        unanswered: Whether this or an earlier try got no answer, and so may have had an effect or may have one yet.
    """

    def __init__(self, answer: Answer, error: BaseException, *, said: str = "", unanswered: bool = False) -> None:
        self.said = scrubbed(said or str(error)).partition("\n")[0]
        super().__init__(f"{answer.value}: {self.said}")
        self.answer = answer
        self.error = error
        self.unanswered = unanswered or answer in (Answer.SILENT, Answer.CUT)

    def meaning(self, answer: Answer) -> Refusal:
        """The same, as another answer."""
        return Refusal(answer, self.error, said=self.said)


class PieceError(Exception):
    """A publication met a piece that is gone or changed; what that means depends on the target."""

    def __init__(self, meaning: StatelineError) -> None:
        super().__init__(str(meaning))
        self.meaning = meaning


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


def scrubbed(text: str) -> str:
    """``text`` without the values of signatures, tokens and keys that URLs and connection strings carry."""
    return _SECRETS.sub(r"\1***", text)


def typed_error(refusal: Refusal, operation: str, subject: str) -> StatelineError:
    """The error that a caller sees."""
    message = f"the store answered {refusal.said!r}"
    if refusal.answer is Answer.ABSENT:
        return NotFoundError("there is no such object", operation=operation, subject=subject)
    if refusal.answer is Answer.DENIED:
        return AccessDeniedError(
            message, operation=operation, subject=subject, hint="Check the credentials and the rights they give"
        )
    if refusal.answer in (Answer.SILENT, Answer.CUT):
        return OutcomeUnknownError(
            f"no answer came ({refusal.said})",
            operation=operation,
            subject=subject,
            hint="It may have happened, or happen yet: repeat the call",
        )
    if refusal.answer is Answer.REFUSED:
        return InvalidInputError(
            message, operation=operation, subject=subject, hint="Check the URL, the bucket and the options"
        )
    return UnavailableError(message, operation=operation, subject=subject, hint="Try again later")


def safe_cause(error: BaseException) -> BaseException:
    """``error`` itself, or a stand-in for one whose text, or that of its causes, would show a secret."""
    if any(_SECRETS.search(str(link)) for link in chain_of(error)):
        return RuntimeError(f"{type(error).__name__}: {scrubbed(str(error))}")
    return error
