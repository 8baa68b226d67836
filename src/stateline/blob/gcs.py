"""A store on Google Cloud Storage.

Facts (Cloud Storage documentation):
- ``ifGenerationMatch=0`` makes any write create-if-absent: 412 if the object exists. With it a write may be retried.
- Compose joins at most 32 objects of one bucket by reference, all or nothing. A source can be pinned to a generation;
  one that is gone is 404. A composite object has a CRC32C, and no MD5.
- Rewrite copies an object to another bucket by itself, in as many calls as it asks for.
- One object name takes about one write a second. So no name is ever written twice here.

Layout: a piece of ``gs://bucket/root/name`` is ``.inprogress/bucket/root/name/<uuid>`` at the root of the bucket, or of
the temporary bucket, as other writers of recoverable files on Cloud Storage name it. With ``entropy`` two hexadecimal
digits follow the first segment, which spreads names over the servers and still lets a listing of ``.inprogress/`` find
them. The metadata of a piece says which root staged it. A part says bucket, name and generation, so options may change.

The publication of a prepared file is one request with pinned sources: once they are gone, nobody can repeat it. Only an
empty file has no source, so a publication of it that comes very late creates it once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final

import requests
import urllib3
from google.api_core import exceptions as api
from google.api_core.client_options import ClientOptions
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY
from msgspec import structs

from stateline.blob.answers import Answer, Refusal, answer_of_status, try_unanswered
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.arguments import checked_names, checked_parts, own_bytes
from stateline.blob.checksum import encoded_checksum
from stateline.blob.cloud_copies import CopyingStore
from stateline.blob.cloud_settings import CloudSettings, parse_endpoint
from stateline.blob.gcs_compose import Step, compose_steps
from stateline.blob.gcs_names import check_staged, is_entropy_folder, staging_key
from stateline.blob.gcs_replies import NONCE, object_info, part_of, text_of, url_of
from stateline.blob.gcs_uploads import DirectClient
from stateline.blob.names import STAGING_PREFIX
from stateline.blob.outcome import Fingerprint, PieceError, parts_missing
from stateline.errors import CorruptDataError, InternalError, InvalidInputError, StatelineError
from stateline.handles import Part
from stateline.options import parse_bool, parse_duration, parse_size, setting

__all__ = ["GcsStore", "GcsStoreSettings"]

_ROOT: Final = "stateline-root"
_CHUNK_STEP: Final = 256 * 1024


def _parse_chunk_size(value: int | str, name: str) -> int:
    size = parse_size(value, name)
    if size % _CHUNK_STEP:
        raise InvalidInputError(f"must be a multiple of 256KiB, not {value!r}", subject=name, hint="0 is the default")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsStoreSettings(CloudSettings):
    """Options of a ``gs:`` store. Endpoint, project and credentials come from the SDK's own chain by default.

    The temporary bucket has the location and storage class of the target's, which it is by default.
    """

    endpoint: str = setting("", parse_endpoint, help="URL of the service")
    project: str = setting("", lambda value, _: str(value), help="Project to bill")
    anonymous: bool = setting(False, parse_bool, help="Send no credentials")
    credentials_file: str = setting("", lambda value, _: str(value), help="Key file of a service account")
    temporary_bucket: str = setting("", lambda value, _: str(value), help="Bucket for pieces")
    entropy: bool = setting(False, parse_bool, help="Spread the names of pieces")
    upload_chunk_size: int = setting(
        0,
        _parse_chunk_size,
        help="Bytes per request of what is longer than this, and than 8MiB; 0: one request up to 64MiB",
    )
    retry_deadline: float = setting("2min", parse_duration, help="No more tries after this")


class GcsStore(CopyingStore[storage.Client, GcsStoreSettings]):
    """Objects in a bucket, below a prefix."""

    scheme = "gs"
    settings_type = GcsStoreSettings

    # -- whole objects --------------------------------------------------------------------------------------------

    def head(self, name: str) -> ObjectInfo:
        return replace(self._head_key(self._container, self._key(name)), name=name, container="")

    def delete(self, names: Iterable[str]) -> None:
        self._delete([(self._container, self._key(name), "") for name in checked_names(names)])

    # -- staging --------------------------------------------------------------------------------------------------

    def stage(self, target: str, data: Buffer) -> Part:
        container = self._settings.temporary_bucket or self._container
        key = self._staging_key(self._key(target), str(self._environment.ids.new_uuid()))
        data = own_bytes(data, "stage", target)
        ours = Fingerprint.of_bytes(data)
        with self._telling("stage", "", url_of(container, key)):
            wanted = Part(name=key, length=ours.length, crc32c=ours.crc32c, container=container)
            return self._make(wanted, lambda: self._send(container, key, data, ours, self._mark(), 0))

    def read_staged(self, part: Part) -> bytes:
        check_staged([part], self._own)
        place = part.container, part.name
        return self._reading("read_staged", "", lambda: self._download(*place, part.version), url_of(*place))

    def list_staged(self) -> Iterator[ObjectInfo]:
        """Pieces that this root staged. Names are those in :attr:`ObjectInfo.container`, not below the root."""
        for container in sorted({self._container, self._settings.temporary_bucket} - {""}):
            folders = self._pages(partial(self._page_of_folders, container), "", url_of(container, STAGING_PREFIX))
            for folder in (STAGING_PREFIX, *sorted({folder for page in folders for folder in page})):
                prefix = folder + self._own
                for page in self._pages(
                    partial(self._page_of_pieces, container, prefix), "", url_of(container, prefix)
                ):
                    yield from page

    def staged_part(self, container: str, name: str) -> Part:
        """The part for a staged object that another program made, with its length, checksum and generation.

        Raises:
            NotFoundError: There is no such object.
        """
        return part_of(self._head_key(container, name))

    def discard(self, parts: Iterable[Part]) -> None:
        staged = checked_parts(parts, "discard")
        check_staged(staged, self._own)
        self._delete([(part.container, part.name, part.version) for part in staged])

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:
        """Joins pieces until one request can join the rest."""
        check_staged(parts, self._own, self._key(target))
        sources = [part for part in parts if part.length]
        with self._telling("prepare", target):
            try:
                few, made = self._joined(target, sources, nonce) if sources else ((), ())
            except PieceError as error:
                raise error.meaning from error
        if not made:
            return tuple(parts)
        beneath = [part for part in (*parts, *made) if part not in few]
        return (*few, *(structs.replace(part, length=0, crc32c=0) for part in beneath))

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        check_staged(parts, self._own, self._key(target))
        made = super().publish(target, parts, nonce)
        leftovers = [part for part in self._intermediates(target, parts, nonce) if part not in parts]
        self._delete([(part.container, part.name, "") for part in leftovers])
        return made

    def _create(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        made = self._send(self._container, self._key(name), data, ours, _metadata(ours), 0)
        return replace(made, name=name, container="")

    def _assemble(self, target: str, parts: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        sources = [part for part in parts if part.length]
        if not sources:
            return self._create(target, b"", ours)
        return self._published(target, self._joined(target, sources, ours.nonce)[0], ours)

    def _duplicate(self, target: str, source: Part) -> ObjectInfo:
        return self._published(target, [source], Fingerprint.of_parts([source]))

    def _joined(self, target: str, sources: Sequence[Part], nonce: str) -> tuple[Sequence[Part], Sequence[Part]]:
        """What one last request makes the target of, and what was made on the way."""
        made: dict[str, Part] = {}
        for step in self._steps(target, sources, nonce):
            wanted = [made.get(source.name, source) for source in step.sources]
            if step.result is None:
                return wanted, list(made.values())
            made[step.result.name] = self._make(
                step.result, partial(self._join, target, wanted, step.result, self._mark())
            )
        raise InternalError("a publication has no last step", operation="publish", subject=target)

    # -- composing ------------------------------------------------------------------------------------------------

    def _steps(self, target: str, sources: Sequence[Part], nonce: str) -> Iterator[Step]:
        return compose_steps(sources, self._container, lambda *made: self._result(target, nonce, *made))

    def _result(self, target: str, nonce: str, place: str, sources: Sequence[Part], container: str) -> Part:
        """The intermediate object of some sources. Its name follows from them, so that every attempt makes the same."""
        made = Fingerprint.of_parts(sources)
        name = self._staging_key(self._key(target), f"{nonce}-{place}-{made.length:x}-{made.crc32c:08x}")
        return Part(name=name, length=made.length, crc32c=made.crc32c, container=container)

    def _intermediates(self, target: str, parts: Sequence[Part], nonce: str) -> Sequence[Part]:
        sources = [part for part in parts if part.length]
        return [step.result for step in self._steps(target, sources, nonce) if step.result] if sources else []

    def _published(self, target: str, sources: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        key = self._key(target)
        wanted = Part(name=key, length=ours.length, crc32c=ours.crc32c, container=self._container)
        made = self._join(target, sources, wanted, _metadata(ours))
        if (made.size, made.crc32c) != (ours.length, ours.crc32c):
            with contextlib.suppress(StatelineError):
                self._delete([(self._container, key, made.version)])
            raise _wrong_result(target)
        return replace(made, name=target, container="")

    def _join(self, target: str, sources: Sequence[Part], result: Part, metadata: Mapping[str, str]) -> ObjectInfo:
        """Creates one object from sources of one bucket, if it is absent."""
        blob = self._blob(result.container, result.name)
        blob.metadata, blob.content_type = dict(metadata), "application/octet-stream"
        pinned = [self._blob(source.container, source.name, source.version) for source in sources]
        try:
            with self._asking():
                if sources[0].container == result.container:
                    blob.compose(pinned, if_generation_match=0, **self._patience())
                else:
                    self._rewrite(blob, pinned[0])
                return object_info(blob)
        except Refusal as refusal:
            if refusal.answer is Answer.ABSENT:
                raise PieceError(parts_missing(target, self._first_missing(sources))) from refusal
            raise

    def _rewrite(self, blob: Any, source: Any) -> None:
        token = None
        while True:
            token, _, _ = blob.rewrite(source, token=token, if_generation_match=0, **self._patience())
            if token is None:
                return

    def _first_missing(self, sources: Sequence[Part]) -> str:
        for source in sources:
            try:
                with self._asking():
                    self._blob(source.container, source.name, source.version).reload(**self._patience())
            except Refusal as refusal:
                if refusal.answer is Answer.ABSENT:
                    return source.name
        return sources[0].name

    def _make(self, wanted: Part, create: Callable[[], ObjectInfo]) -> Part:
        """Creates a staged object whose name only its bytes can have, and compares what the service made of it."""
        made = self._created(
            Fingerprint.of_parts([wanted]),
            create,
            lambda: self._head_key(wanted.container, wanted.name),
            lambda _: _wrong_result(wanted.name),
        )
        if (made.size, made.crc32c) != (wanted.length, wanted.crc32c):
            raise _wrong_result(wanted.name)
        return part_of(made)

    # -- names of pieces ------------------------------------------------------------------------------------------

    def _staging_key(self, key: str, leaf: str) -> str:
        return staging_key(self._container, self._prefix, key, leaf, entropy=self._settings.entropy)

    @property
    def _own(self) -> str:
        return f"{self._container}/{self._folder}"

    def _mark(self) -> dict[str, str]:
        """Metadata that tells our pieces from those of a store with another root."""
        return {_ROOT: f"/{self._prefix}"}

    # -- requests -------------------------------------------------------------------------------------------------

    def _send(
        self,
        container: str,
        key: str,
        data: bytes,
        ours: Fingerprint,
        metadata: Mapping[str, str],
        if_generation_match: int | None = None,
    ) -> ObjectInfo:
        blob = self._blob(container, key)
        blob.metadata, blob.crc32c = dict(metadata), encoded_checksum(ours.crc32c)
        with self._asking():
            blob.upload_from_string(
                data,
                content_type="application/octet-stream",
                if_generation_match=if_generation_match,
                checksum="crc32c",
                **self._patience(),
            )
            return object_info(blob)

    def _put(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        return replace(self._send(self._container, self._key(name), data, ours, {}), name=name, container="")

    def _read(self, key: str, bounds: tuple[int, int] | None = None, **pin: str) -> bytes:  # noqa: ARG002 - nothing pins
        if bounds is None:
            return self._download(self._container, key)
        data: bytes = self._blob(self._container, key).download_as_bytes(
            start=bounds[0], end=bounds[1] - 1, raw_download=True, checksum=None, **self._patience()
        )
        return data

    def _is_beyond_end(self, error: Exception) -> bool:
        return isinstance(error, api.RequestRangeNotSatisfiable)

    def _download(self, container: str, key: str, version: str = "") -> bytes:
        data: bytes = self._blob(container, key, version).download_as_bytes(
            raw_download=True, checksum="crc32c", **self._patience()
        )
        return data

    def _head_key(self, container: str, key: str) -> ObjectInfo:
        blob = self._blob(container, key)
        return self._reading(
            "head", "", lambda: (blob.reload(**self._patience()), object_info(blob))[1], url_of(container, key)
        )

    def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        page, following = self._blobs(self._container, prefix, token)
        return [object_info(blob) for blob in page], following

    def _page_of_pieces(
        self, container: str, prefix: str, token: str | None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """Pieces that this root staged."""
        page, following = self._blobs(container, prefix, token)
        ours = f"/{self._prefix}"
        return [object_info(blob) for blob in page if (blob.metadata or {}).get(_ROOT) == ours], following

    def _page_of_folders(self, container: str, token: str | None) -> tuple[Sequence[str], str | None]:
        page, following = self._blobs(container, STAGING_PREFIX, token, delimiter="/")
        return [folder for folder in page.prefixes if is_entropy_folder(folder)], following

    def _blobs(self, container: str, prefix: str, token: str | None, **extent: str) -> tuple[Any, str | None]:
        listing = self._client.list_blobs(
            container,
            prefix=prefix,
            page_size=self._settings.page_size,
            page_token=token,
            **extent,
            **self._patience(),
        )
        return next(listing.pages), listing.next_page_token

    def _delete(self, objects: Sequence[tuple[str, str, str]]) -> None:
        with self._telling("delete", ""):
            self._each(lambda place: self._delete_one(*place), objects)

    def _delete_one(self, container: str, key: str, version: str) -> None:
        pin = {"if_generation_match": int(version)} if version else {}
        # It may be gone, or replaced by something that is not ours to delete.
        self._if_there(
            lambda: self._blob(container, key).delete(**pin, **self._patience()), Answer.ABSENT, Answer.TAKEN
        )

    def _blob(self, container: str, key: str, version: str = "") -> Any:
        bucket = self._client.bucket(container)
        chunk = self._settings.upload_chunk_size or None
        return bucket.blob(key, chunk_size=chunk, generation=int(version) if version else None)

    def _patience(self) -> dict[str, Any]:
        """The retry budget of one call. Every request here is idempotent or conditional, so each may be retried."""
        settings, tries = self._settings, count(1)
        retryable = DEFAULT_RETRY._predicate  # noqa: SLF001 - the SDK's own judgement, which it offers no name for

        def again(error: Exception) -> bool:
            if self._answer(error) is Answer.SILENT:
                try_unanswered()
            return next(tries) < settings.attempts and retryable(error)

        retry = Retry(predicate=again, initial=0.2, maximum=8.0, multiplier=2.0, timeout=settings.retry_deadline)
        return {"retry": retry, "timeout": (settings.connect_timeout, settings.read_timeout)}

    # -- the SDK --------------------------------------------------------------------------------------------------

    def _connect(self) -> storage.Client:
        settings = self._settings
        options: dict[str, Any] = {"project": settings.project or None}
        if settings.endpoint:
            options["client_options"] = ClientOptions(api_endpoint=settings.endpoint)
        if settings.anonymous:
            options |= {"project": settings.project or "none", "credentials": AnonymousCredentials()}
        make: Callable[..., storage.Client] = DirectClient
        if settings.credentials_file:
            make = partial(DirectClient.from_service_account_json, settings.credentials_file)
        client = make(**options)
        # For the traces of a process that may have none, a thread of the SDK asks for the bucket's settings, which
        # takes a request and a right that nothing here needs.
        client._bucket_metadata_cache = None  # noqa: SLF001 - it has no other switch for one client
        return client

    def _disconnect(self, client: storage.Client) -> None:
        client.close()

    def _said(self, error: BaseException) -> str:
        """What the service said; the SDK repeats the status and tells the request instead of it."""
        if isinstance(error, api.RetryError) and error.cause is not None:
            return self._said(error.cause)
        if isinstance(error, api.GoogleAPICallError) and error.response is not None:
            return text_of(error.response)
        return str(error)

    def _answer(self, error: BaseException) -> Answer | None:
        if isinstance(error, api.RetryError) and error.cause is not None:
            return self._answer(error.cause)
        if isinstance(error, api.GoogleAPICallError):
            if error.code == 404 and "bucket does not exist" in str(error):
                return Answer.REFUSED
            return answer_of_status(int(error.code or 500))
        if isinstance(error, InvalidResponse):
            return answer_of_status(error.response.status_code)
        if isinstance(error, auth.TransportError):
            return Answer.SILENT
        if isinstance(error, auth.GoogleAuthError):
            return Answer.DENIED
        if isinstance(error, urllib3.exceptions.TimeoutError):
            return Answer.SILENT
        if isinstance(error, requests.exceptions.ChunkedEncodingError | DataCorruption | urllib3.exceptions.HTTPError):
            return Answer.CUT
        if isinstance(error, requests.RequestException | ConnectionError | TimeoutError):
            return Answer.SILENT
        return None


def _metadata(ours: Fingerprint) -> dict[str, str]:
    return {NONCE: ours.nonce} if ours.nonce else {}


def _wrong_result(name: str) -> CorruptDataError:
    return CorruptDataError(
        "the service made another object than it was told to",
        operation="publish",
        subject=name,
        hint="A piece was damaged. Nothing was published: go back to a checkpoint whose pieces are intact",
    )
