"""A store on Amazon S3 and on services that speak its protocol.

Owns the requests. Does not own the rule for lost answers (``cloud``) or the cutting of uploads (``s3_parts``).

Facts (Amazon S3 API reference):
- ``If-None-Match: *`` makes PutObject and CompleteMultipartUpload create-if-absent: 412 if the key exists, 409 if
  another conditional request on it is in progress. After a 409 an upload must be started anew.
- CompleteMultipartUpload may answer 200 with an error in its body. The SDK turns that into an error.
- Repeating a CompleteMultipartUpload that took effect gives 404 NoSuchUpload, or 200 on some services.
- An upload lives until it is completed or aborted. So it exists only during one ``publish``, which aborts its own.
- With checksum type FULL_OBJECT the service compares the CRC32C of the whole object before it creates it.

Layout: pieces are whole objects, ``.inprogress/<uuid>`` below the root; ``publish`` lets the service copy them
together. The nonce and the CRC32C of an object are kept as its metadata.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self

import boto3
import botocore.loaders
import botocore.session
from botocore import exceptions as sdk
from botocore.config import Config

from stateline.blob.answers import Answer, PieceError, Refusal, answer_of_status
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.checksum import crc32c, crc32c_of_parts
from stateline.blob.cloud import (
    CloudSettings,
    CloudStore,
    as_bytes,
    parse_endpoint,
    parse_secret,
    split_cloud_url,
    try_unanswered,
)
from stateline.blob.names import STAGING_PREFIX, check_name, check_prefix
from stateline.blob.outcome import check_range, damaged_part, too_short
from stateline.blob.s3_parts import PARTS_MAX, Segment, plan_parts
from stateline.environment import Environment
from stateline.errors import AccessDeniedError, OutcomeUnknownError
from stateline.handles import Part
from stateline.options import Secret, parse_bool, setting, settings_from_options

__all__ = ["S3Store", "S3StoreSettings"]

_NONCE: Final = "stateline-nonce"
_CHECKSUM: Final = "stateline-crc32c"
_DELETE_KEYS_MAX: Final = 1000
_GATHERED_BYTES_MAX: Final = 5 * 1024**3
"""The longest part that can be copied, and so the longest object that pieces are gathered in."""

_DENIED_CODES: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})
_BUSY_CODES: Final = frozenset({"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "Throttling"})
_REFUSED_CODES: Final = frozenset({"NoSuchBucket", "InvalidBucketName", "PermanentRedirect"})
_CREDENTIAL_ERRORS: Final = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
    sdk.UnauthorizedSSOTokenError,
    sdk.SSOError,
)
_CUT_ERRORS: Final = (sdk.IncompleteReadError, sdk.ResponseStreamingError, sdk.FlexibleChecksumError)
_THROTTLED_DELAY_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class S3StoreSettings(CloudSettings):
    """Options of an ``s3:`` store.

    Attributes:
        endpoint: URL of a service that speaks the S3 protocol; Amazon's own by default.
        region: Region to sign for; from the SDK's chain by default.
        path_style: Whether the bucket is part of the path and not of the host name.
        checksums: Whether the service is asked to compare CRC32C sums; off only for services that refuse them.
        access_key_id: Key id, where the SDK's own chain (environment, profile, role) is not to be used.
        secret_access_key: The key itself. A store that holds it cannot be sent to another process.
        session_token: Token of temporary credentials.
    """

    endpoint: str = setting("", parse_endpoint, help="URL of an S3-compatible service")
    region: str = setting("", lambda value, _: str(value), help="Region to sign for")
    path_style: bool = setting(False, parse_bool, help="Bucket in the path, not in the host name")
    checksums: bool = setting(True, parse_bool, help="Let the service compare CRC32C sums")
    access_key_id: Secret | None = setting(None, parse_secret, help="Key id, instead of the SDK's chain")  # noqa: RUF009
    secret_access_key: Secret | None = setting(None, parse_secret, help="Key, instead of the SDK's chain")  # noqa: RUF009
    session_token: Secret | None = setting(None, parse_secret, help="Token of temporary credentials")  # noqa: RUF009


class S3Store(CloudStore[Any, S3StoreSettings]):
    """Objects in a bucket, below a prefix. See the module docstring for the facts it is built on."""

    @classmethod
    def open(cls, url: str, options: Mapping[str, str], environment: Environment | None) -> Self:
        """Opens ``s3://bucket/prefix``; see :func:`stateline.blob.open_store`."""
        bucket, prefix = split_cloud_url(url)
        return cls(bucket, prefix, settings_from_options(S3StoreSettings, options), environment)

    @property
    def url(self) -> str:
        """See :attr:`BlobStore.url`."""
        return f"s3://{self._container}/{self._prefix}".rstrip("/")

    # -- whole objects --------------------------------------------------------------------------------------------

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        """See :meth:`BlobStore.put`."""
        check_name(name)
        checksum = crc32c(data)
        with self._telling("put", name):
            return self._put_settled(name, lambda: self._send(name, data, checksum, ""), data, checksum)

    def get(self, name: str) -> bytes:
        """See :meth:`BlobStore.get`."""
        key = self._key(name)
        return self._reading("get", name, lambda: self._read_key(key))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """See :meth:`BlobStore.get_range`."""
        check_range(name, start, end)
        if start == end:
            size = self.head(name).size
            if end > size:
                raise too_short(name, end, size)
            return b""
        key = self._key(name)
        return self._reading("get_range", name, lambda: self._read_range(name, key, start, end))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See :meth:`BlobStore.get_ranges`."""
        return self._each(lambda bounds: self.get_range(name, *bounds), ranges)

    def head(self, name: str) -> ObjectInfo:
        """See :meth:`BlobStore.head`."""
        key = self._key(name)
        arguments = {"Bucket": self._container, "Key": key, **self._checked(ChecksumMode="ENABLED")}
        return _info(name, self._reading("head", name, lambda: self._client.head_object(**arguments)))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See :meth:`BlobStore.list`. Nonces and checksums are not listed."""
        check_prefix(prefix)
        root = f"{self._prefix}/" if self._prefix else ""
        arguments: dict[str, Any] = {"Prefix": root + prefix, "MaxKeys": self._settings.page_size}
        while True:
            page = self._reading(
                "list", prefix, lambda: self._client.list_objects_v2(Bucket=self._container, **arguments)
            )
            for found in page.get("Contents", ()):
                name = self._name_of(found["Key"])
                if name is not None:
                    yield ObjectInfo(
                        name=name,
                        size=found["Size"],
                        modified_at=found["LastModified"].timestamp(),
                        version=found["ETag"],
                    )
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, names: Iterable[str]) -> None:
        """See :meth:`BlobStore.delete`."""
        self._delete_keys([self._key(name) for name in names])

    # -- staging --------------------------------------------------------------------------------------------------

    def stage(self, target: str, data: Buffer) -> Part:
        """See :meth:`BlobStore.stage`."""
        check_name(target)
        name = STAGING_PREFIX + self._environment.ids.new_id()
        checksum = crc32c(data)
        with self._telling("stage", name):
            made = self._put_settled(name, lambda: self._send(name, data, checksum, ""), data, checksum)
        return Part(name=name, length=len(data), crc32c=checksum, version=made.version)

    def discard(self, parts: Iterable[Part]) -> None:
        """See :meth:`BlobStore.discard`."""
        self._delete_keys([self._staged_key(part) for part in parts])

    def _create(self, name: str, data: Buffer, checksum: int, nonce: str) -> ObjectInfo:
        return self._send(name, data, checksum, nonce, IfNoneMatch="*")

    def _assemble(self, target: str, parts: Sequence[Part], length: int, checksum: int, nonce: str) -> ObjectInfo:
        plan = plan_parts([part.length for part in parts])
        if not plan or (len(plan) == 1 and len(plan[0]) > 1):
            return self._create(target, self._joined(target, parts, plan), checksum, nonce)
        if len(plan) <= PARTS_MAX:
            return self._upload(target, target, parts, plan, checksum, nonce)
        gathered = self._gathered(target, parts)
        try:
            return self._assemble(target, gathered, length, checksum, nonce)
        finally:
            with contextlib.suppress(OutcomeUnknownError, AccessDeniedError):
                self.discard(gathered)

    def _gathered(self, target: str, parts: Sequence[Part]) -> Sequence[Part]:
        """Fewer and longer pieces with the same bytes, for a file of more pieces than an upload may have parts."""
        groups: list[list[Part]] = [[]]
        size = 0
        for part in parts:
            if groups[-1] and (len(groups[-1]) == PARTS_MAX or size + part.length > _GATHERED_BYTES_MAX):
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.length
        return [self._gather(target, group) for group in groups]

    def _gather(self, target: str, parts: Sequence[Part]) -> Part:
        name = STAGING_PREFIX + self._environment.ids.new_id()
        checksum = crc32c_of_parts(parts)
        made = self._upload(target, name, parts, plan_parts([part.length for part in parts]), checksum, "")
        return Part(name=name, length=made.size, crc32c=checksum, version=made.version)

    # -- multipart uploads ----------------------------------------------------------------------------------------

    def _upload(
        self,
        target: str,
        name: str,
        parts: Sequence[Part],
        plan: Sequence[Sequence[Segment]],
        checksum: int,
        nonce: str,
    ) -> ObjectInfo:
        """Creates ``name`` through one multipart upload of its own, which is aborted if anything fails."""
        key = self._key(name)
        with self._asking():
            upload = self._client.create_multipart_upload(
                Bucket=self._container,
                Key=key,
                Metadata=_metadata(checksum, nonce),
                **self._checked(ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"),
            )
        place = {"Bucket": self._container, "Key": key, "UploadId": upload["UploadId"]}
        try:
            made = self._each(
                lambda number: self._upload_part(target, parts, plan[number], {**place, "PartNumber": number + 1}),
                range(len(plan)),
            )
            return self._complete(name, place, made, upload.get("ChecksumType"), checksum, sum(p.length for p in parts))
        except BaseException as error:
            aborted = self._abort(place)
            if isinstance(error, Refusal) and error.answer is Answer.SILENT and aborted:
                # The service has forgotten the upload, so a late completion can have no effect.
                raise Refusal(Answer.BUSY, error.error) from error
            raise

    def _upload_part(
        self, target: str, parts: Sequence[Part], segments: Sequence[Segment], place: Mapping[str, Any]
    ) -> dict[str, Any]:
        if len(segments) == 1:
            return self._copy_part(target, parts[segments[0].piece], segments[0], place)
        data = b"".join(self._segment(target, parts[segment.piece], segment) for segment in segments)
        with self._asking():
            made = self._client.upload_part(Body=data, **place, **self._checked(ChecksumCRC32C=_encoded(crc32c(data))))
        return _part_made(place, made)

    def _copy_part(self, target: str, part: Part, segment: Segment, place: Mapping[str, Any]) -> dict[str, Any]:
        source = {"Bucket": self._container, "Key": self._staged_key(part)}
        whole = (segment.start, segment.end) == (0, part.length)
        extent = {} if whole else {"CopySourceRange": f"bytes={segment.start}-{segment.end - 1}"}
        with self._meeting(target, part), self._asking():
            answer = self._client.upload_part_copy(CopySource=source, CopySourceIfMatch=part.version, **extent, **place)
            made = answer["CopyPartResult"]
            if "ChecksumCRC32C" not in made:
                found = self._client.head_object(**source)
                if (found["ContentLength"], found["ETag"]) != (part.length, part.version):
                    raise PieceError(damaged_part(target, part))
            elif whole and made["ChecksumCRC32C"] != _encoded(part.crc32c):
                raise PieceError(damaged_part(target, part))
        return _part_made(place, made)

    def _complete(
        self,
        name: str,
        place: Mapping[str, Any],
        made: Sequence[Mapping[str, Any]],
        checksum_type: str | None,
        checksum: int,
        length: int,
    ) -> ObjectInfo:
        whole = {}
        if checksum_type == "FULL_OBJECT":
            whole = self._checked(ChecksumCRC32C=_encoded(checksum), ChecksumType="FULL_OBJECT", MpuObjectSize=length)
        try:
            with self._asking():
                answer = self._client.complete_multipart_upload(
                    MultipartUpload={"Parts": list(made)}, IfNoneMatch="*", **whole, **place
                )
        except Refusal as refusal:
            if refusal.answer is Answer.ABSENT:
                # NoSuchUpload: an earlier try took effect, or somebody aborted the upload. Reading back tells which.
                raise Refusal(Answer.TAKEN, refusal.error) from refusal
            raise
        return self._made(name, length, checksum, answer["ETag"], "")

    def _abort(self, place: Mapping[str, Any]) -> bool:
        """Gives a failed upload up; whether the service confirmed it. Lifecycle rules remove one that stays."""
        try:
            with self._asking():
                self._client.abort_multipart_upload(**place)
        except Refusal:
            return False
        return True

    def _joined(self, target: str, parts: Sequence[Part], plan: Sequence[Sequence[Segment]]) -> bytes:
        """The bytes of a file that is too short for an upload."""
        segments = [segment for planned in plan for segment in planned]
        return b"".join(self._each(lambda segment: self._segment(target, parts[segment.piece], segment), segments))

    def _segment(self, target: str, part: Part, segment: Segment) -> bytes:
        """Some bytes of a piece, checked against it."""
        key = self._staged_key(part)
        with self._meeting(target, part):
            if (segment.start, segment.end) != (0, part.length):
                bounds = (segment.start, segment.end)
                return self._read_whole(lambda: self._read_range(part.name, key, *bounds, IfMatch=part.version))
            data = self._read_whole(lambda: self._read_key(key))
        return self._check_piece(target, part, data)

    # -- requests -------------------------------------------------------------------------------------------------

    def _send(self, name: str, data: Buffer, checksum: int, nonce: str, **condition: str) -> ObjectInfo:
        with self._asking():
            answer = self._client.put_object(
                Bucket=self._container,
                Key=self._key(name),
                Body=as_bytes(data),
                Metadata=_metadata(checksum, nonce),
                **self._checked(ChecksumCRC32C=_encoded(checksum)),
                **condition,
            )
        return self._made(name, len(data), checksum, answer["ETag"], nonce)

    def _read_key(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket=self._container, Key=key)["Body"].read()
        return data

    def _read_range(self, name: str, key: str, start: int, end: int, **pin: str) -> bytes:
        try:
            answer = self._client.get_object(Bucket=self._container, Key=key, Range=f"bytes={start}-{end - 1}", **pin)
        except sdk.ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 416:
                raise too_short(name, end, start) from error
            raise
        data: bytes = answer["Body"].read()
        if len(data) != end - start:
            raise too_short(name, end, start + len(data))
        return data

    def _delete_keys(self, keys: Sequence[str]) -> None:
        with self._telling("delete", ""):
            self._each(
                self._delete_page,
                [keys[at : at + _DELETE_KEYS_MAX] for at in range(0, len(keys), _DELETE_KEYS_MAX)],
            )

    def _delete_page(self, keys: Sequence[str]) -> None:
        with self._asking():
            answer = self._client.delete_objects(
                Bucket=self._container, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
        for failure in answer.get("Errors", ()):
            if failure["Code"] == "NoSuchKey":
                continue
            kind = AccessDeniedError if failure["Code"] == "AccessDenied" else OutcomeUnknownError
            raise kind(
                f"the store answered {failure['Code']}",
                operation="delete",
                subject=f"s3://{self._container}/{failure['Key']}",
                hint="Check the right to delete, then repeat the call",
            )

    def _checked(self, **arguments: Any) -> dict[str, Any]:
        """Arguments that only services with checksums understand."""
        return arguments if self._settings.checksums else {}

    def _made(self, name: str, size: int, checksum: int, version: str, nonce: str) -> ObjectInfo:
        now = self._environment.clock.now()
        return ObjectInfo(name=name, size=size, modified_at=now, crc32c=checksum, version=version, nonce=nonce)

    # -- the SDK --------------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        settings = self._settings
        when = "when_supported" if settings.checksums else "when_required"
        keys = (settings.access_key_id, settings.secret_access_key, settings.session_token)
        session = botocore.session.get_session()
        session.register_component("data_loader", _loader())
        client = boto3.session.Session(botocore_session=session).client(
            "s3",
            endpoint_url=settings.endpoint or None,
            region_name=settings.region or None,
            **dict(
                zip(
                    ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
                    (key and key.reveal() for key in keys),
                    strict=True,
                )
            ),
            config=Config(
                connect_timeout=settings.connect_timeout,
                read_timeout=settings.read_timeout,
                retries={"total_max_attempts": settings.attempts, "mode": "standard"},
                max_pool_connections=max(10, settings.parallelism),
                s3={"addressing_style": "path" if settings.path_style else "auto"},
                request_checksum_calculation=when,
                response_checksum_validation=when,
            ),
        )

        client.meta.events.register("needs-retry.s3", self._after_429)
        return client

    def _after_429(self, response: Any, attempts: int, **_: object) -> float | None:
        """Seconds until the next try after 429 Too Many Requests, which the SDK knows only from its error codes."""
        if response is None:
            try_unanswered()
        if response is None or response[0].status_code != 429 or attempts >= self._settings.attempts:
            return None
        return _THROTTLED_DELAY_SECONDS * float(2 ** (attempts - 1))

    def _disconnect(self, client: Any) -> None:
        client.close()

    def _answer(self, error: BaseException) -> Answer | None:
        if isinstance(error, sdk.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            if code in _REFUSED_CODES:
                return Answer.REFUSED
            if code in _DENIED_CODES:
                return Answer.DENIED
            if code in _BUSY_CODES:
                return Answer.BUSY
            return answer_of_status(error.response["ResponseMetadata"]["HTTPStatusCode"])
        if isinstance(error, _CREDENTIAL_ERRORS):
            return Answer.DENIED
        if isinstance(error, _CUT_ERRORS):
            return Answer.CUT
        if isinstance(error, sdk.HTTPClientError):
            return Answer.SILENT
        return Answer.REFUSED if isinstance(error, sdk.BotoCoreError) else None


@cache
def _loader() -> Any:
    """The SDK's description of the service, parsed once per process: it is most of the cost of a client."""
    return botocore.loaders.create_loader()


def _info(name: str, found: Mapping[str, Any]) -> ObjectInfo:
    metadata = found.get("Metadata", {})
    checksum = None
    if found.get("ChecksumType") == "FULL_OBJECT" and "ChecksumCRC32C" in found:
        checksum = int.from_bytes(base64.b64decode(found["ChecksumCRC32C"]), "big")
    elif _CHECKSUM in metadata:
        checksum = int(metadata[_CHECKSUM], 16)
    return ObjectInfo(
        name=name,
        size=found["ContentLength"],
        modified_at=found["LastModified"].timestamp(),
        crc32c=checksum,
        version=found["ETag"],
        nonce=metadata.get(_NONCE, ""),
    )


def _metadata(checksum: int, nonce: str) -> dict[str, str]:
    return {_CHECKSUM: f"{checksum:08x}", **({_NONCE: nonce} if nonce else {})}


def _encoded(checksum: int) -> str:
    return base64.b64encode(checksum.to_bytes(4, "big")).decode("ascii")


def _part_made(place: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """What CompleteMultipartUpload wants to hear about one part."""
    checksum = {"ChecksumCRC32C": made["ChecksumCRC32C"]} if "ChecksumCRC32C" in made else {}
    return {"PartNumber": place["PartNumber"], "ETag": made["ETag"], **checksum}
