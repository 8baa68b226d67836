"""The options of a store on Google Cloud Storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stateline.blob.cloud import CloudSettings, parse_endpoint
from stateline.errors import InvalidInputError
from stateline.options import parse_bool, parse_duration, parse_size, setting

__all__ = ["GcsStoreSettings"]

_CHUNK_STEP: Final = 256 * 1024


def _parse_chunk_size(value: int | str, name: str) -> int:
    size = parse_size(value, name)
    if size % _CHUNK_STEP:
        raise InvalidInputError(f"{value!r} is not valid", subject=name, hint="Give a multiple of 256KiB, or 0")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsStoreSettings(CloudSettings):
    """Options of a ``gs:`` store.

    Attributes:
        endpoint: URL of the service; Google's own by default.
        project: Project to bill; from the SDK's chain by default.
        anonymous: Whether to send no credentials, as for emulators and public buckets.
        credentials_file: Key file of a service account, where the SDK's own chain is not to be used.
        temporary_bucket: Bucket for pieces, in the location and storage class of the target's; the target's by default.
        entropy: Whether names of pieces begin with random digits after the first segment.
        upload_chunk_size: Bytes per request of an upload over 8 MiB; 0 leaves it to the SDK.
        retry_deadline: Seconds after which a request is not tried again, whatever ``attempts`` says.
    """

    endpoint: str = setting("", parse_endpoint, help="URL of the service")
    project: str = setting("", lambda value, _: str(value), help="Project to bill")
    anonymous: bool = setting(False, parse_bool, help="Send no credentials")
    credentials_file: str = setting("", lambda value, _: str(value), help="Key file of a service account")
    temporary_bucket: str = setting("", lambda value, _: str(value), help="Bucket for pieces")
    entropy: bool = setting(False, parse_bool, help="Spread the names of pieces")
    upload_chunk_size: int = setting(0, _parse_chunk_size, help="Bytes per request of a long upload; 0: the SDK's")
    retry_deadline: float = setting("2min", parse_duration, help="No more tries after this")
