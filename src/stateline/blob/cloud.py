"""What the cloud stores share: names, clients, retries, and the rule for a creation whose answer is lost.

Each store translates the exceptions of its own SDK into an :class:`~stateline.blob.answers.Answer`.

Facts:
- Every SDK retries by itself, also a conditional creation whose first try succeeded without an answer. Its last
  error is then "already there" for one's own success. So after any failure but a clear refusal the store is asked what
  is there (:meth:`CloudStore._created`), and length, CRC32C and nonce decide.
- A request without an answer may still be under way and land later. If nothing is there yet, the outcome stays unknown.
- What the SDK says at the end is the answer to its last try. Where an earlier try had none, a refusal proves nothing:
  each store tells of such tries (:func:`~stateline.blob.answers.try_unanswered`), and the outcome of a change is then
  unknown.
- SDK clients hold sockets and locks that do not survive ``fork`` or pickling: each process builds its own.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from stateline.blob.answers import Answer, Asking, Refusal, typed_error
from stateline.blob.api import BlobStore, Buffer, ObjectInfo, closed_store
from stateline.blob.arguments import check_range, checked_parts, own_bytes
from stateline.blob.checksum import crc32c
from stateline.blob.cloud_settings import CloudSettings
from stateline.blob.names import STAGING_PREFIX, check_name, check_prefix, check_staged_name
from stateline.blob.outcome import Fingerprint, PieceError, already_exists, damaged_part, parts_missing, too_short
from stateline.blob.translation import Translated
from stateline.blob.urls import split_cloud_url
from stateline.environment import Environment, Executor, system_environment
from stateline.errors import InvalidInputError, NotFoundError, OutcomeUnknownError, StatelineError
from stateline.handles import Part
from stateline.options import settings_from_options
from stateline.redaction import safe_error
from stateline.threads import new_lock

__all__ = ["CloudStore"]

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

    Attributes:
        scheme: Of its URLs.
        settings_type: What its options are parsed as.

    Args:
        container: The bucket or container.
        prefix: Folder inside it that is the root, without slashes at its ends; empty for the whole container.
        settings: Options of the store.
        environment: Clock, ids and threads.
    """

    scheme: ClassVar[str]
    settings_type: ClassVar[type[CloudSettings]]

    def __init__(self, container: str, prefix: str, settings: S, environment: Environment | None = None) -> None:
        self._container = container
        self._prefix = check_name(prefix) if prefix else ""
        self._folder = f"{prefix}/" if prefix else ""
        self._settings = settings
        self._environment = environment or system_environment()
        self._lock = new_lock()
        self._owner = 0
        self._held: tuple[C, Executor] | None = None
        self._closed = False

    @classmethod
    def open(cls, url: str, options: Mapping[str, str], environment: Environment | None) -> Self:
        """Opens ``scheme://container/prefix``; see :func:`stateline.blob.open_store`."""
        container, prefix = split_cloud_url(url)
        settings: Any = settings_from_options(cls.settings_type, options)
        return cls(container, prefix, settings, environment)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self._container}/{self._prefix}".rstrip("/")

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

    # -- what each store provides ---------------------------------------------------------------------------------

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
    def _put(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
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
    def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """One request for a page of a listing: objects by key, and the token of the next page, if there is one.

        After an error, the iterator of an SDK may end as if the listing were complete. So each page is asked for by
        itself.
        """

    @abstractmethod
    def _is_beyond_end(self, error: Exception) -> bool:
        """Whether an exception of the SDK says that a range begins where the object has ended."""

    @abstractmethod
    def _create(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        """One conditional request that creates an object from bytes; raises :class:`Refusal`."""

    @abstractmethod
    def _assemble(self, target: str, parts: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        """Creates ``target`` from pieces, if absent; raises :class:`Refusal` or :class:`PieceError`."""

    # -- what they share ------------------------------------------------------------------------------------------

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        data = own_bytes(data, "put", check_name(name))
        with self._telling("put", name):
            return self._put_settled(name, data)

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
        ours = Fingerprint.of_bytes(data)
        with self._telling("put_if_absent", name):
            return self._created(
                ours, lambda: self._create(name, data, ours), lambda: self.head(name), lambda _: already_exists(name)
            )

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        check_name(target)
        parts = checked_parts(parts, "publish")
        ours = Fingerprint.of_parts(parts, nonce)
        with self._telling("publish", target):
            try:
                return self._created(
                    ours,
                    lambda: self._assemble(target, parts, ours),
                    lambda: self.head(target),
                    lambda found: ours.conflict(target, found),
                )
            except PieceError as error:
                found = self._present(lambda: self.head(target), Refusal(Answer.ABSENT, error))
                if found is None:
                    raise error.meaning from error
                if not _is_ours(found, ours):
                    raise ours.conflict(target, found) from error
                return found

    @property
    def rests_on_conditions(self) -> bool:
        return True

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
        return self._folder + check_name(name)

    def _name_of(self, key: str) -> str | None:
        """The name of a key, or ``None`` for a key that no name leads to (somebody else's folder marker)."""
        try:
            return check_name(key.removeprefix(self._folder))
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

    def _if_there(self, remove: Callable[[], object], *gone: Answer) -> None:
        """Runs a deletion of what may be gone already, as the answers ``gone`` say."""
        try:
            with self._asking():
                remove()
        except Refusal as refusal:
            if refusal.answer not in gone:
                raise

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
            made.__cause__ = safe_error(error.error)
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

    def _made(self, name: str, ours: Fingerprint, version: str) -> ObjectInfo:
        """An object that was just written, whose time the service did not tell."""
        now = self._environment.clock.now()
        return ObjectInfo(
            name=name, size=ours.length, modified_at=now, crc32c=ours.crc32c, version=version, nonce=ours.nonce
        )

    def _pause(self, attempt: int) -> None:
        """Waits before try ``attempt + 1``: 50 ms, doubled each time."""
        self._environment.clock.sleep(_FIRST_DELAY_SECONDS * 2 ** (attempt - 1))

    # -- creations ------------------------------------------------------------------------------------------------

    def _created(
        self,
        ours: Fingerprint,
        create: Callable[[], ObjectInfo],
        look: Callable[[], ObjectInfo],
        taken: Callable[[ObjectInfo], StatelineError],
    ) -> ObjectInfo:
        """Runs a conditional creation and decides what its answer means.

        Args:
            ours: What is created. Without a nonce, equal bytes are as good as ours.
            create: The request; raises :class:`Refusal`.
            look: Tells what is under the name now; raises :class:`NotFoundError` and other typed errors.
            taken: The error for a name that holds something else.
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
            if found is not None and found.crc32c is None and not ours.nonce and found.size == ours.length:
                # Somebody else made it, without keeping a checksum.
                found = replace(found, crc32c=crc32c(self.get(found.name)))
            if found is not None:
                if _is_ours(found, ours):
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

    def _stage_object(self, data: bytes) -> ObjectInfo:
        """Stages a piece as an object of its own, below the root."""
        name = STAGING_PREFIX + self._environment.ids.new_id()
        with self._telling("stage", name):
            return self._put_settled(name, data)

    def _put_settled(self, name: str, data: bytes) -> ObjectInfo:
        """Puts an object and, if that failed without a clear refusal, finds out whether it took effect."""
        ours = Fingerprint.of_bytes(data)
        try:
            return self._put(name, data, ours)
        except Refusal as refusal:
            if refusal.answer not in (Answer.BUSY, Answer.SILENT, Answer.CUT):
                raise
            found = self._present(lambda: self.head(name), refusal)
            if found is None or not ours.matches(found):
                raise
            return found

    # -- listings -------------------------------------------------------------------------------------------------

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        for page in self._pages(partial(self._page, self._folder + prefix), prefix):
            for found in page:
                name = self._name_of(found.name)
                if name is not None:
                    yield replace(found, name=name, container="")

    def _pages(self, read: Callable[[str | None], tuple[R, str | None]], name: str, url: str = "") -> Iterator[R]:
        """The pages of a listing; ``read`` is given the token of each."""
        token: str | None = None
        while True:
            page, token = self._reading("list", name, partial(read, token), url)
            yield page
            if not token:
                return


def _is_ours(found: ObjectInfo, ours: Fingerprint) -> bool:
    """As :meth:`Fingerprint.matches`, but where a nonce is given it must be there: every cloud keeps one."""
    return ours.matches(found) and (not ours.nonce or found.nonce == ours.nonce)
