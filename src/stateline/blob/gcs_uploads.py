"""A client of Cloud Storage whose uploads are one request each, where they are short enough.

From 8 MiB on the SDK asks for a session first: a round trip more for each segment, which a micro-batch waits for. Cloud
Storage takes objects of any length in one request, and the SDK offers no switch.
"""

from __future__ import annotations

from typing import Any, Final

from google.cloud import storage

__all__ = ["DirectClient"]

_WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""What is longer goes up in a session, which goes on where it was cut."""


class DirectClient(storage.Client):
    """Sends an object up in one request if it has at most ``chunk_size`` of its blob (64 MiB by default), or 8 MiB."""

    def bucket(self, *args: Any, **rest: Any) -> storage.Bucket:
        """As the SDK's."""
        return _Bucket(self, *args, **rest)


class _Bucket(storage.Bucket):
    def blob(self, blob_name: str, **rest: Any) -> storage.Blob:
        return _Blob(blob_name, bucket=self, **rest)


class _Blob(storage.Blob):
    def _do_upload(self, client: Any, stream: Any, content_type: Any, size: int, *conditions: Any, **rest: Any) -> Any:
        if size > (self.chunk_size or _WHOLE_BYTES_MAX):
            return super()._do_upload(client, stream, content_type, size, *conditions, **rest)
        rest.pop("crc32c_checksum_value", None)  # Only sessions take it.
        return self._do_multipart_upload(client, stream, content_type, size, *conditions, **rest).json()
