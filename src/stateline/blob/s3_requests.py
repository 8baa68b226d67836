"""Settings of S3, single requests on the objects of a bucket, and what is kept beside their bytes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stateline.blob.api import ObjectInfo
from stateline.blob.checksum import encoded_checksum
from stateline.blob.cloud_copies import CopyingStore
from stateline.blob.cloud_settings import CloudSettings, parse_endpoint, parse_secret
from stateline.blob.outcome import Fingerprint
from stateline.errors import AccessDeniedError, OutcomeUnknownError
from stateline.options import Secret, parse_bool, setting

__all__ = ["S3Requests", "S3StoreSettings", "metadata_of", "object_info"]

_NONCE: Final = "stateline-nonce"
_CHECKSUM: Final = "stateline-crc32c"
_DELETE_KEYS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class S3StoreSettings(CloudSettings):
    """Options of an ``s3:`` store.

    What is left out comes from the SDK's own chain: endpoint, region, and credentials (environment, profile, role).
    Turn ``checksums`` off only for services that refuse them. A store with a key cannot be sent to another process.
    """

    endpoint: str = setting("", parse_endpoint, help="URL of an S3-compatible service")
    region: str = setting("", lambda value, _: str(value), help="Region to sign for")
    path_style: bool = setting(False, parse_bool, help="Bucket in the path, not in the host name")
    checksums: bool = setting(True, parse_bool, help="Let the service compare CRC32C sums")
    access_key_id: Secret | None = setting(None, parse_secret, help="Key id, instead of the SDK's chain")  # noqa: RUF009
    secret_access_key: Secret | None = setting(None, parse_secret, help="Key, instead of the SDK's chain")  # noqa: RUF009
    session_token: Secret | None = setting(None, parse_secret, help="Token of temporary credentials")  # noqa: RUF009


class S3Requests(CopyingStore[Any, S3StoreSettings]):
    """A store that sends single requests on the objects of a bucket."""

    def _send(self, name: str, data: bytes, ours: Fingerprint, **condition: str) -> ObjectInfo:
        with self._asking():
            answer = self._client.put_object(
                Bucket=self._container,
                Key=self._key(name),
                Body=data,
                Metadata=metadata_of(ours),
                **self._checked(ChecksumCRC32C=encoded_checksum(ours.crc32c)),
                **condition,
            )
            return self._made(name, ours, answer["ETag"])

    def _put(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        return self._send(name, data, ours)

    def _create(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        return self._send(name, data, ours, IfNoneMatch="*")

    def _read(self, key: str, bounds: tuple[int, int] | None = None, **pin: str) -> bytes:
        extent = {} if bounds is None else {"Range": f"bytes={bounds[0]}-{bounds[1] - 1}"}
        data: bytes = self._client.get_object(Bucket=self._container, Key=key, **extent, **pin)["Body"].read()
        return data

    def _deletions(self, keys: Sequence[str]) -> list[Callable[[], None]]:
        """The requests that delete objects by key, if they are there."""
        return [
            partial(self._delete_page, keys[at : at + _DELETE_KEYS_MAX]) for at in range(0, len(keys), _DELETE_KEYS_MAX)
        ]

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


def object_info(name: str, found: Mapping[str, Any]) -> ObjectInfo:
    """What the service says about one object."""
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


def metadata_of(ours: Fingerprint) -> dict[str, str]:
    """What an object keeps beside its bytes."""
    return {_CHECKSUM: f"{ours.crc32c:08x}", **({_NONCE: ours.nonce} if ours.nonce else {})}
