"""Every error that Stateline raises, grouped by what a handler would do about it.

::

    StatelineError                     message, operation, subject, hint, kind
    ├── NotFoundError                  (FileNotFoundError)   the name is not there: check the name
    ├── AlreadyExistsError             (FileExistsError)     the name is taken: choose another
    ├── AccessDeniedError              (PermissionError)     mend rights or credentials, then try again
    ├── StorageFullError               (OSError)             make room, then try again
    ├── TooManyOpenFilesError          (OSError)             close stores or raise the limit, then try again
    ├── ConflictError                  (OSError)             somebody else's bytes are there: re-read, decide
    │   └── FencedError                                      a successor took over: stop, never retry
    ├── UnavailableError               (OSError)             passing trouble: retry with a delay
    ├── OutcomeUnknownError            (OSError)             it may have happened: read back before anything else
    ├── DataLossError                  (OSError)             what a record names is gone: restore, never go on
    ├── CorruptDataError               (OSError)             the bytes are not what was written
    │   └── UnsupportedVersionError                          a newer Stateline wrote it: upgrade
    ├── InvalidInputError              (ValueError)          fix the call, the option or the program
    ├── ClosedError                    (ValueError)          you closed it
    ├── NotInstalledError              (ImportError)         install the named extra
    ├── UserCodeError                  (RuntimeError)        the program's own function raised
    └── InternalError                  (RuntimeError)        an invariant of Stateline broke: report it

A class exists only where a handler would act differently; finer causes are values of :class:`ErrorKind`, which is
append-only. Everything that is I/O also inherits from :class:`OSError`, so that code written against files keeps
working. An error always carries the operation that failed and the name of the object it failed on, and says what to do.
No error shows a secret (:mod:`stateline.redaction`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, ClassVar

from stateline.redaction import clean, redacted

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "ClosedError",
    "ConflictError",
    "CorruptDataError",
    "DataLossError",
    "ErrorKind",
    "FencedError",
    "InternalError",
    "InvalidInputError",
    "NotFoundError",
    "NotInstalledError",
    "OutcomeUnknownError",
    "StatelineError",
    "StorageFullError",
    "TooManyOpenFilesError",
    "UnavailableError",
    "UnsupportedVersionError",
    "UserCodeError",
    "chain_of",
]


class ErrorKind(StrEnum):
    """The cause of an error, finer than its class. Append-only: a released value never changes its meaning."""

    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    ACCESS_DENIED = "access_denied"
    STORAGE_FULL = "storage_full"
    CONFLICT = "conflict"
    FENCED = "fenced"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    OUTCOME_UNKNOWN = "outcome_unknown"
    DATA_LOSS = "data_loss"
    CORRUPT_DATA = "corrupt_data"
    UNSUPPORTED_VERSION = "unsupported_version"
    INVALID_INPUT = "invalid_input"
    UNKNOWN_OPTION = "unknown_option"
    SCHEMA_MISMATCH = "schema_mismatch"
    FOREIGN_ROOT = "foreign_root"
    CLOSED = "closed"
    NOT_INSTALLED = "not_installed"
    USER_CODE = "user_code"
    INTERNAL = "internal"
    ARITHMETIC_OVERFLOW = "arithmetic_overflow"
    TOO_MANY_OPEN_FILES = "too_many_open_files"


class StatelineError(Exception):
    """The root of the tree. ``str(error)`` reads: operation, subject, what happened, what to do.

    Attributes:
        message: What happened, one sentence without the subject.
        operation: The call that failed, such as ``"publish"``; ``None`` where there is no single one.
        subject: The object it failed on: a blob name, a URL, an option, a column.
        hint: What the reader should do next.
        kind: The cause, finer than the class.
    """

    default_kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        operation: str | None = None,
        subject: str | None = None,
        hint: str | None = None,
        kind: ErrorKind | None = None,
    ) -> None:
        clean(sys.exception())  # What this error is being raised from.
        self.message = redacted(message)
        self.operation = operation
        self.subject = subject and redacted(subject)
        self.hint = hint and redacted(hint)
        self.kind = kind or self.default_kind
        super().__init__(self._render())

    def _render(self) -> str:
        where = " ".join(part for part in (self.operation, self.subject) if part)
        text = f"{where}: {self.message}" if where else self.message
        return redacted(f"{text}. {self.hint}" if self.hint else text)

    def __str__(self) -> str:
        return self._render()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.operation, self.subject, self.hint, self.kind.value)


def _rebuild(
    cls: type[StatelineError], message: str, operation: str | None, subject: str | None, hint: str | None, kind: str
) -> StatelineError:
    """Unpickles an error: keyword-only arguments cannot go through ``Exception.args``."""
    return cls(message, operation=operation, subject=subject, hint=hint, kind=ErrorKind(kind))


class NotFoundError(StatelineError, FileNotFoundError):
    """The named object does not exist, and nothing that should exist is missing because of it."""

    default_kind = ErrorKind.NOT_FOUND


class AlreadyExistsError(StatelineError, FileExistsError):
    """Create-if-absent found the name taken by other bytes."""

    default_kind = ErrorKind.ALREADY_EXISTS


class AccessDeniedError(StatelineError, PermissionError):
    """The store refused the caller: missing rights, expired or wrong credentials, a read-only file system."""

    default_kind = ErrorKind.ACCESS_DENIED


class StorageFullError(StatelineError, OSError):
    """No space, quota or inode is left. What was being written is not visible."""

    default_kind = ErrorKind.STORAGE_FULL


class TooManyOpenFilesError(StatelineError, OSError):
    """This process, or the whole machine, may open no more files. The call had no effect, and no disk is full."""

    default_kind = ErrorKind.TOO_MANY_OPEN_FILES


class ConflictError(StatelineError, OSError):
    """The name holds something that is provably not ours. Nothing was overwritten."""

    default_kind = ErrorKind.CONFLICT


class FencedError(ConflictError):
    """A successor has decided what this process wanted to decide. Stop; a retry can never succeed."""

    default_kind = ErrorKind.FENCED


class UnavailableError(StatelineError, OSError):
    """The store could not be reached or asked to slow down, and the call had no effect. Retry with a delay."""

    default_kind = ErrorKind.UNAVAILABLE


class OutcomeUnknownError(StatelineError, OSError):
    """The call may or may not have taken effect, and reading back could not tell. Read back before going on."""

    default_kind = ErrorKind.OUTCOME_UNKNOWN


class DataLossError(StatelineError, OSError):
    """An object that a durable record or handle names is gone."""

    default_kind = ErrorKind.DATA_LOSS


class CorruptDataError(StatelineError, OSError):
    """Stored bytes fail their checksum, their framing or their bounds. They are never returned."""

    default_kind = ErrorKind.CORRUPT_DATA


class UnsupportedVersionError(CorruptDataError):
    """The bytes were written by a newer format version than this program can read."""

    default_kind = ErrorKind.UNSUPPORTED_VERSION


class InvalidInputError(StatelineError, ValueError):
    """An argument, option, column or program is wrong. Nothing was done."""

    default_kind = ErrorKind.INVALID_INPUT


class ClosedError(StatelineError, ValueError):
    """The object was closed by its owner and cannot be used any more."""

    default_kind = ErrorKind.CLOSED


class NotInstalledError(StatelineError, ImportError):
    """An optional dependency is missing; the hint names the ``pip install`` that brings it."""

    default_kind = ErrorKind.NOT_INSTALLED


class UserCodeError(StatelineError, RuntimeError):
    """A function of the user's program raised; its own traceback is chained or quoted."""

    default_kind = ErrorKind.USER_CODE

    causes: ClassVar[tuple[type[BaseException], ...]] = (Exception, SystemExit)
    """What becomes one: ``sys.exit()``, too, or it would end a worker, or the thread that answers Spark, silently."""

    @staticmethod
    def described(error: BaseException) -> str:
        """Class and text of what the function raised, also where its ``__str__`` raises in turn."""
        try:
            text = str(error)
        except UserCodeError.causes as failure:
            text = f"(its __str__ raised {type(failure).__name__})"
        return f"{type(error).__name__}: {text}" if text else type(error).__name__


class InternalError(StatelineError, RuntimeError):
    """An invariant of Stateline is broken. This should never happen; please report it."""

    default_kind = ErrorKind.INTERNAL


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on: each once, also where one was raised from itself."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
