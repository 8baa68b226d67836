"""An S3 service and its client, as objects: what the real ``S3Store`` runs on inside the simulator.

Facts that it keeps (Amazon S3 API reference):
- ``If-None-Match: *`` is judged at the instant of the effect: 412 where the key exists.
- A completed or aborted upload is forgotten: 404 NoSuchUpload. Lifecycle rules may do that, too.
- Parts but the last have a least size, and a completion compares ETags, sizes and the CRC32C of the whole object.
- An ETag is a function of the bytes (and of the parts): equal bytes, equal ETag.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any, NoReturn, TypeVar

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.environment import Environment
from tests.kit.cloud_network import CutBody, Network, NoAnswer, Refused, ServiceClock

__all__ = ["PART_BYTES_MIN", "S3Client", "S3Service", "simulated_s3"]

T = TypeVar("T")

PART_BYTES_MIN = 60
"""Least size of a part but the last: 5 MiB at Amazon's, too much for thousands of runs."""


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    metadata: Mapping[str, str]
    modified_at: datetime


@dataclass(slots=True)
class _Upload:
    key: str
    metadata: Mapping[str, str]
    parts: dict[int, tuple[bytes, str]] = field(default_factory=dict)


class S3Service:
    """One bucket. Every method is one request that arrives; it raises :class:`Refused`."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.uploads: dict[str, _Upload] = {}
        self._clock = ServiceClock()
        self._upload_ids = count(1)

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], checksum: str, *, if_absent: bool) -> _Object:
        """PutObject."""
        if if_absent and key in self.objects:
            raise Refused(412, "PreconditionFailed")
        if checksum != _encoded(data):
            raise Refused(400, "BadDigest")
        return self._store(key, data, _etag(data), metadata)

    def get(self, key: str, if_match: str | None = None) -> _Object:
        """GetObject and HeadObject."""
        found = self.objects.get(key)
        if found is None:
            raise Refused(404, "NoSuchKey")
        if if_match is not None and found.etag != if_match:
            raise Refused(412, "PreconditionFailed")
        return found

    def delete(self, keys: list[str]) -> None:
        """DeleteObjects."""
        for key in keys:
            self.objects.pop(key, None)

    def begin(self, key: str, metadata: Mapping[str, str]) -> str:
        """CreateMultipartUpload."""
        upload_id = f"upload-{next(self._upload_ids)}"
        self.uploads[upload_id] = _Upload(key, metadata)
        return upload_id

    def part(self, upload_id: str, number: int, data: bytes) -> str:
        """UploadPart."""
        self._upload(upload_id).parts[number] = data, _etag(data)
        return _etag(data)

    def complete(
        self, upload_id: str, wanted: list[Mapping[str, Any]], checksum: str, size: int, *, if_absent: bool
    ) -> _Object:
        """CompleteMultipartUpload."""
        upload = self._upload(upload_id)
        if if_absent and upload.key in self.objects:
            raise Refused(412, "PreconditionFailed")
        parts = [upload.parts.get(part["PartNumber"], (b"", "")) for part in wanted]
        if [etag for _, etag in parts] != [part["ETag"] for part in wanted]:
            raise Refused(400, "InvalidPart")
        if any(len(data) < PART_BYTES_MIN for data, _ in parts[:-1]):
            raise Refused(400, "EntityTooSmall")
        data = b"".join(data for data, _ in parts)
        if len(data) != size or _encoded(data) != checksum:
            raise Refused(400, "BadDigest")
        del self.uploads[upload_id]
        etag = f'"{hashlib.md5("".join(tag for _, tag in parts).encode()).hexdigest()}-{len(parts)}"'
        return self._store(upload.key, data, etag, upload.metadata)

    def abort(self, upload_id: str) -> None:
        """AbortMultipartUpload."""
        if self.uploads.pop(upload_id, None) is None:
            raise Refused(404, "NoSuchUpload")

    def _upload(self, upload_id: str) -> _Upload:
        if upload_id not in self.uploads:
            raise Refused(404, "NoSuchUpload")
        return self.uploads[upload_id]

    def _store(self, key: str, data: bytes, etag: str, metadata: Mapping[str, str]) -> _Object:
        self.objects[key] = made = _Object(data, etag, dict(metadata), self._clock.now())
        return made


class S3Client:
    """What ``boto3`` calls a client: the methods that the adapter uses, with their arguments and errors."""

    # The names of the arguments are Amazon's.
    # ruff: noqa: N803

    def __init__(self, service: S3Service, network: Network, errors: Any) -> None:
        self._service = service
        self._network = network
        self._errors = errors

    def close(self) -> None:
        """Nothing is held."""

    def put_object(
        self, *, Key: str, Body: bytes, Metadata: Mapping[str, str], IfNoneMatch: str = "", **more: Any
    ) -> dict[str, Any]:
        """See the SDK."""
        data, if_absent = bytes(Body), IfNoneMatch == "*"
        made = self._call(
            "request.create" if if_absent else "request.put",
            Key,
            lambda: self._service.put(Key, data, Metadata, more["ChecksumCRC32C"], if_absent=if_absent),
        )
        return {"ETag": made.etag}

    def get_object(self, *, Key: str, Range: str = "", IfMatch: str | None = None, **_: Any) -> dict[str, Any]:
        """See the SDK."""

        def read() -> bytes:
            data = self._service.get(Key, IfMatch).data
            if not Range:
                return data
            first, _, last = Range.removeprefix("bytes=").partition("-")
            if int(first) >= len(data):
                raise Refused(416, "InvalidRange")
            return data[int(first) : int(last) + 1]

        return {"Body": io.BytesIO(self._call("request.get", Key, read))}

    def head_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        """See the SDK."""
        found = self._call("request.head", Key, lambda: self._service.get(Key))
        return {
            "ContentLength": len(found.data),
            "ETag": found.etag,
            "LastModified": found.modified_at,
            "Metadata": found.metadata,
        }

    def list_objects_v2(self, *, Prefix: str, MaxKeys: int, ContinuationToken: str = "", **_: Any) -> dict[str, Any]:
        """See the SDK. What is made or deleted between two pages shows or not, as its key falls."""

        def page() -> dict[str, Any]:
            keys = sorted(key for key in self._service.objects if key.startswith(Prefix) and key > ContinuationToken)
            found = [(key, self._service.objects[key]) for key in keys[:MaxKeys]]
            contents = [
                {"Key": key, "Size": len(item.data), "LastModified": item.modified_at, "ETag": item.etag}
                for key, item in found
            ]
            more = {"IsTruncated": True, "NextContinuationToken": found[-1][0]} if len(keys) > MaxKeys else {}
            return {"Contents": contents, **more}

        return self._call("request.list", Prefix, page)

    def delete_objects(self, *, Delete: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """See the SDK."""
        keys = [item["Key"] for item in Delete["Objects"]]
        self._call("request.delete", " ".join(keys), lambda: self._service.delete(keys))
        return {}

    def create_multipart_upload(self, *, Key: str, Metadata: Mapping[str, str], **_: Any) -> dict[str, Any]:
        """See the SDK."""
        upload_id = self._call("request.part", Key, lambda: self._service.begin(Key, Metadata))
        return {"UploadId": upload_id, "ChecksumType": "FULL_OBJECT"}

    def upload_part(self, *, Key: str, UploadId: str, PartNumber: int, Body: bytes, **_: Any) -> dict[str, Any]:
        """See the SDK."""
        data = bytes(Body)
        etag = self._call("request.part", Key, lambda: self._service.part(UploadId, PartNumber, data))
        return {"ETag": etag, "ChecksumCRC32C": _encoded(data)}

    def upload_part_copy(
        self,
        *,
        Key: str,
        UploadId: str,
        PartNumber: int,
        CopySource: Mapping[str, str],
        CopySourceIfMatch: str,
        CopySourceRange: str = "",
        **_: Any,
    ) -> dict[str, Any]:
        """See the SDK."""

        def copy() -> tuple[str, bytes]:
            data = self._service.get(CopySource["Key"], CopySourceIfMatch).data
            if CopySourceRange:
                first, _, last = CopySourceRange.removeprefix("bytes=").partition("-")
                data = data[int(first) : int(last) + 1]
            return self._service.part(UploadId, PartNumber, data), data

        etag, data = self._call("request.part", Key, copy)
        return {"CopyPartResult": {"ETag": etag, "ChecksumCRC32C": _encoded(data)}}

    def complete_multipart_upload(
        self,
        *,
        Key: str,
        UploadId: str,
        MultipartUpload: Mapping[str, Any],
        ChecksumCRC32C: str,
        MpuObjectSize: int,
        IfNoneMatch: str = "",
        **_: Any,
    ) -> dict[str, Any]:
        """See the SDK."""
        parts, if_absent = MultipartUpload["Parts"], IfNoneMatch == "*"
        made = self._call(
            "request.join",
            Key,
            lambda: self._service.complete(UploadId, parts, ChecksumCRC32C, MpuObjectSize, if_absent=if_absent),
            expire=lambda: self._service.uploads.pop(UploadId, None),
        )
        return {"ETag": made.etag}

    def abort_multipart_upload(self, *, Key: str, UploadId: str, **_: Any) -> None:
        """See the SDK."""
        self._call("request.delete", Key, lambda: self._service.abort(UploadId))

    def _call(
        self, operation: str, key: str, effect: Callable[[], T], *, expire: Callable[[], object] | None = None
    ) -> T:
        try:
            return self._network.call(operation, key, effect, expire=expire)
        except NoAnswer as error:
            raise self._errors.ReadTimeoutError(endpoint_url="simulated") from error
        except CutBody as error:
            raise self._errors.IncompleteReadError(actual_bytes=1, expected_bytes=2) from error
        except Refused as refused:
            self._refuse(operation, refused)

    def _refuse(self, operation: str, refused: Refused) -> NoReturn:
        status = 500 if refused.status == 200 else refused.status  # The SDK takes an error in the body for a 500.
        answer = {
            "Error": {"Code": refused.code, "Message": refused.code},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }
        raise self._errors.ClientError(answer, operation) from refused


def simulated_s3(name: str, environment: Environment, service: S3Service, network: Network) -> BlobStore:
    """The real adapter over the simulated service."""
    adapter = importlib.import_module("stateline.blob.s3")  # Needs the SDK, whose errors it tells apart.

    class Simulated(adapter.S3Store):  # type: ignore[name-defined]
        def _connect(self) -> S3Client:
            return S3Client(service, network, adapter.sdk)

    store: BlobStore = Simulated.open(f"s3://bucket/{name}", {"page_size": "3", "parallelism": "2"}, environment)
    return store


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _encoded(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode("ascii")
