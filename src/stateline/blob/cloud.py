"""What the three cloud stores share: names, clients, and the rule for a creation whose answer is lost.

Owns that rule, the retry budget and the per-process clients. Does not own any SDK: each backend translates its own
exceptions into an :class:`~stateline.blob.answers.Answer`.

Facts:
- Every SDK retries by itself, also a conditional creation whose first try succeeded without an answer. Its last
  error is then "already there" for one's own success. So after any failure but a clear refusal the store is asked what
  is there (:meth:`CloudStore._created`), and ``judge`` decides by length, CRC32C and nonce.
- A request without an answer may still be under way and land later. If nothing is there yet, the outcome stays unknown.
- What the SDK says at the end is the answer to its last try. Where an earlier try had none, a refusal proves nothing:
  each backend tells of such tries (``tries``), and the outcome of a change is then unknown.
- SDK clients hold sockets and locks that do not survive ``fork`` or pickling: each process builds its own.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Generic, TypeVar

from stateline.blob.answers import Answer, PieceError, Refusal, safe_cause, typed_error
from stateline.blob.api import BlobStore, Buffer, ObjectInfo, closed_store
from stateline.blob.arguments import checked_parts, own_bytes
from stateline.blob.checksum import crc32c, crc32c_of_parts
from stateline.blob.cloud_settings import CloudSettings
from stateline.blob.names import check_name, check_staged_name
from stateline.blob.outcome import (
    Verdict,
    already_exists,
    check_range,
    conflict,
    damaged_part,
    judge,
    parts_missing,
    too_short,
)
from stateline.blob.translation import Translated
from stateline.blob.tries import Asking
from stateline.environment import Environment, Executor, system_environment
from stateline.errors import (
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
)
from stateline.handles import Part
from stateline.threads import new_lock

__all__ = [
    "CloudStore",
]

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound="CloudSettings")

CREATION_ROUNDS: Final = 6
"""How often a creation that met another one in progress is tried again."""

_FIRST_DELAY_SECONDS: Final = 0.05

_NOT_UNDERSTOOD: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What SDKs raise on an answer that lacks what every answer has, such as that of a proxy that says 200 by itself."""


class CloudStore(BlobStore, Generic[C, S]):
    """A store over an SDK client of type ``C`` with settings of type ``S``.

    Args:
        container: The bucket or container.
        prefix: Folder inside it that is the root, without slashes at its ends; empty for the whole container.
        settings: Options of the store.
        environment: Clock, ids and threads.
    """

    def __init__(self, container: str, prefix: str, settings: S, environment: Environment | None = None) -> None:
        self._container = container
        self._prefix = check_name(prefix) if prefix else ""
        self._settings = settings
        self._environment = environment or system_environment()
        self._lock = new_lock()
        self._owner = 0
        self._held: tuple[C, Executor] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._container, self._prefix, self._settings, self._environment)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            held, self._held = self._held, None
            owner, self._owner = self._owner, 0
        if held is not None and owner == os.getpid():
            client, executor = held
            executor.close()
            self._disconnect(client)

    # -- what a backend provides ----------------------------------------------------------------------------------

    @abstractmethod
    def _connect(self) -> C:
        """A new client. Must not do I/O beyond finding credentials."""

    @abstractmethod
    def _disconnect(self, client: C) -> None:
        """Gives the sockets of a client back."""

    @abstractmethod
    def _answer(self, error: BaseException) -> Answer | None:
        """What an exception of the SDK means; ``None`` for one that is not the SDK's."""

    def _said(self, error: BaseException) -> str:
        """What an exception of the SDK says, for people."""
        return str(error)

    @abstractmethod
    def _put(self, name: str, data: bytes, checksum: int) -> ObjectInfo:
        """One request that writes an object, whatever is under the name; raises :class:`Refusal`."""

    @abstractmethod
    def _read(self, key: str, bounds: tuple[int, int] | None = None, **pin: str) -> bytes:
        """One request for the bytes of an object, or of a half-open range of it. Raises what the SDK raises.

        Args:
            key: The key in the container.
            bounds: Start and end of the range; all bytes if ``None``.
            pin: Conditions that a service has of its own.
        """

    @abstractmethod
    def _is_beyond_end(self, error: Exception) -> bool:
        """Whether an exception of the SDK says that a range begins where the object has ended."""

    @abstractmethod
    def _create(self, name: str, data: bytes, checksum: int, nonce: str) -> ObjectInfo:
        """One conditional request that creates an object from bytes; raises :class:`Refusal`."""

    @abstractmethod
    def _assemble(self, target: str, parts: Sequence[Part], length: int, checksum: int, nonce: str) -> ObjectInfo:
        """Creates ``target`` from pieces, if absent; raises :class:`Refusal` or :class:`PieceError`."""

    # -- what they share ------------------------------------------------------------------------------------------

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        data = own_bytes(data, "put", check_name(name))
        checksum = crc32c(data)
        with self._telling("put", name):
            return self._put_settled(name, lambda: self._put(name, data, checksum), data, checksum)

    def get(self, name: str) -> bytes:
        key = self._key(name)
        return self._reading("get", name, lambda: self._read(key))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        check_range(name, start, end)
        if start == end:
            size = self.head(name).size
            if end > size:
                raise too_short(name, end, size)
            return b""
        key = self._key(name)
        return self._reading("get_range", name, lambda: self._read_range(name, key, start, end))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._each(lambda bounds: self.get_range(name, *bounds), ranges)

    def _read_range(self, name: str, key: str, start: int, end: int, **pin: str) -> bytes:
        """The bytes of a half-open range, all of them."""
        try:
            data = self._read(key, (start, end), **pin)
        except Exception as error:
            if self._is_beyond_end(error):
                raise too_short(name, end, start) from error
            raise
        if len(data) != end - start:
            raise too_short(name, end, start + len(data))
        return data

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        data = own_bytes(data, "put_if_absent", check_name(name))
        checksum = crc32c(data)
        with self._telling("put_if_absent", name):
            return self._created(
                lambda: self._create(name, data, checksum, ""),
                lambda: self.head(name),
                lambda _: already_exists(name),
                length=len(data),
                checksum=checksum,
            )

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        check_name(target)
        parts = checked_parts(parts, "publish")
        length, checksum = sum(part.length for part in parts), crc32c_of_parts(parts)

        def taken(found: ObjectInfo) -> StatelineError:
            return conflict(target, found, length=length, crc32c=checksum)

        with self._telling("publish", target):
            try:
                return self._created(
                    lambda: self._assemble(target, parts, length, checksum, nonce),
                    lambda: self.head(target),
                    taken,
                    length=length,
                    checksum=checksum,
                    nonce=nonce,
                )
            except PieceError as error:
                found = self._present(lambda: self.head(target), Refusal(Answer.ABSENT, error))
                if found is None:
                    raise error.meaning from error
                if not _is_ours(found, length, checksum, nonce):
                    raise taken(found) from error
                return found

    # -- clients and threads --------------------------------------------------------------------------------------

    @property
    def _client(self) -> C:
        return self._connected()[0]

    def _check_open(self) -> None:
        if self._closed:
            raise closed_store(self.url)

    def _connected(self) -> tuple[C, Executor]:
        with self._lock:
            self._check_open()
            if self._held is None or self._owner != os.getpid():
                client = self._reading("connect", "", self._connect)
                executor = self._environment.executors.executor("stateline-blob", self._settings.parallelism)
                self._held, self._owner = (client, executor), os.getpid()
            return self._held

    def _each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """``function`` of every item, several at a time; the results in order.

        Every call has ended when this returns or raises; of several errors the first in order is raised.
        """
        work = list(items)
        if len(work) < 2:
            return [function(item) for item in work]
        _, executor = self._connected()
        futures: list[Future[R]] = []
        results: list[R] = []
        first_error: BaseException | None = None
        try:
            futures.extend(executor.submit(function, item) for item in work)
        except RuntimeError as refused:
            first_error = closed_store(self.url) if self._closed else refused
        for future in futures:
            try:
                error = future.exception()
            except CancelledError:
                error = closed_store(self.url)
            if error is None:
                results.append(future.result())
            first_error = first_error or error
        if first_error is not None:
            raise first_error
        return results

    # -- names ----------------------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        """The object's key in the container."""
        check_name(name)
        return f"{self._prefix}/{name}" if self._prefix else name

    def _name_of(self, key: str) -> str | None:
        """The name of a key, or ``None`` for a key that no name leads to (somebody else's folder marker)."""
        name = key.removeprefix(f"{self._prefix}/") if self._prefix else key
        try:
            return check_name(name)
        except InvalidInputError:
            return None

    def _staged_key(self, part: Part) -> str:
        """The key of a piece in the store's own container; refuses what staging did not make."""
        return self._key(check_staged_name(part.name))

    # -- answers --------------------------------------------------------------------------------------------------

    def _asking(self, *, changes: bool = True) -> Asking:
        """Around one use of the SDK: its exceptions leave as :class:`Refusal`.

        Args:
            changes: Whether the request changes anything, so that a try without an answer leaves its outcome open.
        """

        def refused(error: Exception, silent: bool) -> Refusal | None:
            if isinstance(error, StatelineError | Refusal):
                return None
            answer, said = self._answer(error), self._said(error)
            if answer is None and isinstance(error, _NOT_UNDERSTOOD):
                answer, said = Answer.CUT, f"what is not understood ({type(error).__name__}: {error})"
            if answer is None:
                return None
            if changes and silent and answer in (Answer.BUSY, Answer.DENIED):
                answer = Answer.SILENT
            return Refusal(answer, error, said=said, unanswered=silent)

        return Asking(refused)

    def _telling(self, operation: str, name: str, url: str = "") -> Translated:
        """Around one public call: a :class:`Refusal` leaves as a typed error.

        Args:
            operation: Of the caller.
            name: What it is called on, below the root; empty for the root.
            url: What it is called on, where that has no name below the root.
        """
        self._check_open()

        def typed(error: Exception) -> StatelineError | None:
            if not isinstance(error, Refusal):
                return None
            made = typed_error(error, operation, url or (f"{self.url}/{name}" if name else self.url))
            made.__cause__ = safe_cause(error.error)
            return made

        return Translated(typed)

    def _reading(self, operation: str, name: str, read: Callable[[], R], url: str = "") -> R:
        """Runs one public read; see :meth:`_telling` and :meth:`_read_whole`."""
        with self._telling(operation, name, url):
            return self._read_whole(read)

    def _read_whole(self, read: Callable[[], R]) -> R:
        """Runs a read, again if its body was cut short: SDKs retry a request, but not a body that has begun.

        Raises:
            Refusal: :attr:`Answer.BUSY` where no answer came: a read has no effect, so none can be unknown.
        """
        attempt = 1
        while True:
            try:
                with self._asking(changes=False):
                    return read()
            except Refusal as refusal:
                if refusal.answer is Answer.SILENT or (
                    refusal.answer is Answer.CUT and attempt == self._settings.attempts
                ):
                    raise refusal.meaning(Answer.BUSY) from refusal
                if refusal.answer is not Answer.CUT:
                    raise
            self._pause(attempt)
            attempt += 1

    def _meeting(self, target: str, part: Part) -> Translated:
        """Around one use of a piece: one that is gone or changed leaves as :class:`PieceError`."""

        def wrong(error: Exception) -> PieceError | None:
            answer = error.answer if isinstance(error, Refusal) else None
            if answer is Answer.ABSENT:
                return PieceError(parts_missing(target, part.name))
            return PieceError(damaged_part(target, part)) if answer is Answer.TAKEN else None

        return Translated(wrong)

    def _check_piece(self, target: str, part: Part, data: bytes) -> bytes:
        """``data`` if it is what the piece should be."""
        if len(data) != part.length or crc32c(data) != part.crc32c:
            raise PieceError(damaged_part(target, part))
        return data

    def _made(self, name: str, size: int, checksum: int, version: str, nonce: str) -> ObjectInfo:
        """An object that was just written, whose time the service did not tell."""
        now = self._environment.clock.now()
        return ObjectInfo(name=name, size=size, modified_at=now, crc32c=checksum, version=version, nonce=nonce)

    def _pause(self, attempt: int) -> None:
        """Waits before try ``attempt + 1``: 50 ms, doubled each time."""
        self._environment.clock.sleep(_FIRST_DELAY_SECONDS * 2 ** (attempt - 1))

    # -- creations ------------------------------------------------------------------------------------------------

    def _created(
        self,
        create: Callable[[], ObjectInfo],
        look: Callable[[], ObjectInfo],
        taken: Callable[[ObjectInfo], StatelineError],
        *,
        length: int,
        checksum: int,
        nonce: str = "",
    ) -> ObjectInfo:
        """Runs a conditional creation and decides what its answer means.

        Args:
            create: The request; raises :class:`Refusal`.
            look: Tells what is under the name now; raises :class:`NotFoundError` and other typed errors.
            taken: The error for a name that holds something else.
            length: Bytes that we create.
            checksum: CRC32C of them.
            nonce: Our nonce; empty where equal bytes are as good as ours.
        """
        unanswered = False
        for attempt in range(1, CREATION_ROUNDS + 1):
            try:
                return create()
            except Refusal as refusal:
                unanswered = unanswered or refusal.unanswered
                if refusal.answer in (Answer.DENIED, Answer.REFUSED, Answer.ABSENT) and not unanswered:
                    raise
                last = refusal.meaning(Answer.SILENT if unanswered else Answer.BUSY)
                again = refusal.answer in (Answer.TAKEN, Answer.ENDED)
            found = self._present(look, last)
            if found is not None and found.crc32c is None and not nonce and found.size == length:
                found = self._with_checksum(found)
            if found is not None:
                if _is_ours(found, length, checksum, nonce):
                    return found
                raise taken(found)
            if not again:
                break
            self._pause(attempt)
        raise last

    def _present(self, look: Callable[[], ObjectInfo], after: Refusal) -> ObjectInfo | None:
        """What is under a name, asked to resolve a lost answer; ``None`` for nothing."""
        try:
            return look()
        except NotFoundError:
            return None
        except StatelineError as error:
            raise OutcomeUnknownError(
                f"the answer was lost ({after}), and reading back failed ({error.message})",
                operation="read back",
                subject=error.subject,
                hint="It may or may not have happened: repeat the call",
            ) from error

    def _with_checksum(self, found: ObjectInfo) -> ObjectInfo:
        """An object of somebody else's making, with the checksum of its bytes."""
        data = self.get(found.name)
        return ObjectInfo(
            name=found.name,
            size=len(data),
            modified_at=found.modified_at,
            crc32c=crc32c(data),
            version=found.version,
            nonce=found.nonce,
        )

    def _put_settled(self, name: str, put: Callable[[], ObjectInfo], data: bytes, checksum: int) -> ObjectInfo:
        """Runs an unconditional put and, if it failed without a clear refusal, finds out whether it took effect."""
        try:
            return put()
        except Refusal as refusal:
            if refusal.answer not in (Answer.BUSY, Answer.SILENT, Answer.CUT):
                raise
            found = self._present(lambda: self.head(name), refusal)
            if found is None or judge(found, length=len(data), crc32c=checksum) is not Verdict.OURS:
                raise
            return found


def _is_ours(found: ObjectInfo, length: int, checksum: int, nonce: str) -> bool:
    """As ``judge``, but where a nonce is given it must be there: every cloud keeps one."""
    return judge(found, length=length, crc32c=checksum) is Verdict.OURS and (not nonce or found.nonce == nonce)
