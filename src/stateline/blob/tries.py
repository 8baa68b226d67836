"""Whether a try of a request that an SDK makes, and repeats, by itself got no answer.

Noted for each request under way, whatever thread runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Final

from stateline.blob.translation import Translated

__all__ = ["Asking", "try_unanswered"]


class _Silence:
    __slots__ = ("occurred",)

    def __init__(self) -> None:
        self.occurred = False


_SILENCE: Final[ContextVar[_Silence | None]] = ContextVar("stateline_silence", default=None)


def try_unanswered() -> None:
    """Notes that a try of the request under way, which the SDK may repeat, got no answer."""
    silence = _SILENCE.get()
    if silence is not None:
        silence.occurred = True


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
