"""A store on Amazon S3 and on services that speak its protocol.

Here: whole objects, the SDK's client and the meaning of its errors. :mod:`stateline.blob.s3_uploads` makes objects out
of pieces.

Facts (Amazon S3 API reference):
- ``If-None-Match: *`` makes PutObject create-if-absent: 412 if the key exists, 409 if another conditional request on
  it is in progress.

Layout: pieces are whole objects, ``.inprogress/<uuid>`` below the root; ``publish`` lets the service copy them
together. The nonce and the CRC32C of an object are kept as its metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import boto3
import botocore.loaders
import botocore.session
from botocore import exceptions as sdk
from botocore.config import Config

from stateline.blob.answers import Answer, answer_of_status, try_unanswered
from stateline.blob.api import ObjectInfo
from stateline.blob.arguments import checked_names
from stateline.blob.s3_requests import S3StoreSettings, object_info
from stateline.blob.s3_uploads import S3Uploads

__all__ = ["S3Store", "S3StoreSettings"]

_DENIED_CODES: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})
_BUSY_CODES: Final = frozenset({"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "Throttling"})
_REFUSED_CODES: Final = frozenset({"NoSuchBucket", "InvalidBucketName", "PermanentRedirect"})
_ANSWERS_OF_CODES: Final = {
    **dict.fromkeys(_REFUSED_CODES, Answer.REFUSED),
    **dict.fromkeys(_DENIED_CODES, Answer.DENIED),
    **dict.fromkeys(_BUSY_CODES, Answer.BUSY),
    "NoSuchUpload": Answer.ENDED,
    "InvalidPart": Answer.TAKEN,  # Somebody else has uploaded the same part since, and it got another ETag.
}
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


class S3Store(S3Uploads):
    """Objects in a bucket, below a prefix."""

    scheme = "s3"
    settings_type = S3StoreSettings

    # -- whole objects --------------------------------------------------------------------------------------------

    def head(self, name: str) -> ObjectInfo:
        key = self._key(name)
        arguments = {"Bucket": self._container, "Key": key, **self._checked(ChecksumMode="ENABLED")}
        return self._reading("head", name, lambda: object_info(name, self._client.head_object(**arguments)))

    def delete(self, names: Iterable[str]) -> None:
        deletions = self._deletions([self._key(name) for name in checked_names(names)])
        with self._telling("delete", ""):
            self._each(lambda request: request(), deletions)

    def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """A page without nonces and checksums, which S3 does not list."""
        following = {"ContinuationToken": token} if token else {}
        page = self._client.list_objects_v2(
            Bucket=self._container, Prefix=prefix, MaxKeys=self._settings.page_size, **following
        )
        infos = [
            ObjectInfo(
                name=found["Key"],
                size=found["Size"],
                modified_at=found["LastModified"].timestamp(),
                version=found["ETag"],
            )
            for found in page.get("Contents", ())
        ]
        return infos, page["NextContinuationToken"] if page.get("IsTruncated") else None

    def _is_beyond_end(self, error: Exception) -> bool:
        return isinstance(error, sdk.ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] == 416

    # -- the SDK --------------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        settings = self._settings
        when = "when_supported" if settings.checksums else "when_required"
        session = botocore.session.get_session()
        session.register_component("data_loader", _loader())
        client = boto3.session.Session(botocore_session=session).client(
            "s3",
            endpoint_url=settings.endpoint or None,
            region_name=settings.region or None,
            aws_access_key_id=settings.access_key_id and settings.access_key_id.reveal(),
            aws_secret_access_key=settings.secret_access_key and settings.secret_access_key.reveal(),
            aws_session_token=settings.session_token and settings.session_token.reveal(),
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
            known = _ANSWERS_OF_CODES.get(error.response.get("Error", {}).get("Code", ""))
            return known or answer_of_status(error.response["ResponseMetadata"]["HTTPStatusCode"])
        if isinstance(error, _CREDENTIAL_ERRORS):
            return Answer.DENIED
        if isinstance(error, _CUT_ERRORS):
            return Answer.CUT
        if isinstance(error, sdk.HTTPClientError | sdk.ConnectionError):
            return Answer.SILENT
        return Answer.REFUSED if isinstance(error, sdk.BotoCoreError) else None


@cache
def _loader() -> Any:
    """The SDK's description of the service, parsed once per process: it is most of the cost of a client."""
    return botocore.loaders.create_loader()
