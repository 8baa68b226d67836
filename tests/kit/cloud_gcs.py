"""A Cloud Storage service and its client, as objects: what the real ``GcsStore`` runs on inside the simulator.

Facts that it keeps (Cloud Storage documentation):
- Every write makes a new generation. ``ifGenerationMatch=0`` means "does not exist", judged at the effect: 412.
- Compose takes sources by generation: 404 where one is gone or replaced. It is all or nothing.
- A wrong CRC32C sent with an upload is 400 and writes nothing.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, TypeVar

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.environment import Environment
from tests.kit.cloud_network import CutBody, Network, NoAnswer, Refused, ServiceClock

__all__ = ["SOURCES_MAX", "GcsClient", "GcsService", "simulated_gcs"]

T = TypeVar("T")

SOURCES_MAX = 2
"""Sources of one compose: 32 at Google's, too many for thousands of runs."""


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    generation: int
    metadata: Mapping[str, str]
    updated: datetime


class GcsService:
    """One bucket. Every method is one request that arrives; it raises :class:`Refused`."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self._clock = ServiceClock()
        self._generations = count(1000)

    def insert(
        self, name: str, data: bytes, metadata: Mapping[str, str], checksum: str, if_generation: int | None
    ) -> _Object:
        """Objects: insert."""
        self._require_generation(name, if_generation)
        if checksum != _encoded(data):
            raise Refused(400, "the checksum does not match")
        return self._store(name, data, metadata)

    def get(self, name: str, generation: int | None = None) -> _Object:
        """Objects: get, with and without the media."""
        found = self.objects.get(name)
        if found is None or generation not in (None, found.generation):
            raise Refused(404, f"no such object: {name}")
        return found

    def compose(
        self, name: str, sources: Sequence[tuple[str, int | None]], metadata: Mapping[str, str], if_generation: int
    ) -> _Object:
        """Objects: compose."""
        self._require_generation(name, if_generation)
        if not 1 <= len(sources) <= SOURCES_MAX:
            raise Refused(400, f"{len(sources)} sources")
        return self._store(name, b"".join(self.get(*source).data for source in sources), metadata)

    def delete(self, name: str, if_generation: int | None) -> None:
        """Objects: delete."""
        self.get(name)
        self._require_generation(name, if_generation)
        del self.objects[name]

    def _require_generation(self, name: str, wanted: int | None) -> None:
        found = self.objects.get(name)
        if wanted is not None and wanted != (found.generation if found else 0):
            raise Refused(412, "conditionNotMet")

    def _store(self, name: str, data: bytes, metadata: Mapping[str, str]) -> _Object:
        self.objects[name] = made = _Object(data, next(self._generations), dict(metadata), self._clock.now())
        return made


class _Bucket:
    """See the SDK."""

    def __init__(self, client: GcsClient, name: str) -> None:
        self.client = client
        self.name = name

    def blob(self, name: str, chunk_size: int | None = None, generation: int | None = None) -> _Blob:
        """See the SDK."""
        return _Blob(self, name, generation)


class _Blob:
    """See the SDK. Its properties are those of the last answer."""

    def __init__(self, bucket: _Bucket, name: str, generation: int | None) -> None:
        self.bucket = bucket
        self.name = name
        self.generation = generation
        self.metadata: Mapping[str, str] | None = None
        self.content_type = ""
        self.crc32c = ""
        self.size = 0
        self.updated: datetime | None = None

    def upload_from_string(self, data: bytes, *, if_generation_match: int | None = None, **_: Any) -> None:
        """See the SDK."""
        self._call(
            "request.put" if if_generation_match is None else "request.create",
            lambda service: service.insert(self.name, data, self.metadata or {}, self.crc32c, if_generation_match),
        )

    def download_as_bytes(self, *, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """See the SDK."""

        def read(service: GcsService) -> bytes:
            data = service.get(self.name, self.generation).data
            if start is not None and start >= len(data):
                raise Refused(416, "requestedRangeNotSatisfiable")
            return data[start : None if end is None else end + 1]

        return self.bucket.client.call("request.get", self.name, read)

    def reload(self, **_: Any) -> None:
        """See the SDK."""
        self._call("request.head", lambda service: service.get(self.name, self.generation))

    def compose(self, sources: Sequence[_Blob], *, if_generation_match: int, **_: Any) -> None:
        """See the SDK."""
        named = [(source.name, source.generation) for source in sources]
        self._call(
            "request.join",
            lambda service: service.compose(self.name, named, self.metadata or {}, if_generation_match),
            expire=lambda service: service.objects.pop(named[0][0], None),
        )

    def delete(self, *, if_generation_match: int | None = None, **_: Any) -> None:
        """See the SDK."""
        self.bucket.client.call(
            "request.delete", self.name, lambda service: service.delete(self.name, if_generation_match)
        )

    def shows(self, found: _Object) -> _Blob:
        """Takes the properties of an answer."""
        self.size, self.updated, self.generation = len(found.data), found.updated, found.generation
        self.metadata, self.crc32c = dict(found.metadata), _encoded(found.data)
        return self

    def _call(
        self,
        operation: str,
        effect: Callable[[GcsService], _Object],
        *,
        expire: Callable[[GcsService], object] | None = None,
    ) -> None:
        self.shows(self.bucket.client.call(operation, self.name, effect, expire=expire))


class GcsClient:
    """What ``google.cloud.storage`` calls a client: the methods that the adapter uses."""

    def __init__(self, service: GcsService, network: Network, adapter: Any) -> None:
        self._service = service
        self._network = network
        self._adapter = adapter

    def close(self) -> None:
        """Nothing is held."""

    def bucket(self, name: str) -> _Bucket:
        """See the SDK."""
        return _Bucket(self, name)

    def list_blobs(
        self, container: str, *, prefix: str, page_size: int = 3, page_token: str | None = None, **_: Any
    ) -> _Listing:
        """See the SDK."""
        return _Listing(self, self.bucket(container), prefix, page_size, page_token)

    def call(
        self,
        operation: str,
        name: str,
        effect: Callable[[GcsService], T],
        *,
        expire: Callable[[GcsService], object] | None = None,
    ) -> T:
        """One request with its retries; errors as the SDK raises them."""
        service = self._service
        try:
            return self._network.call(
                operation, name, lambda: effect(service), expire=None if expire is None else lambda: expire(service)
            )
        except NoAnswer as error:
            raise self._adapter.requests.ConnectionError("simulated") from error
        except CutBody as error:
            raise self._adapter.requests.exceptions.ChunkedEncodingError("simulated") from error
        except Refused as refused:
            raise self._adapter.api.from_http_status(refused.status, refused.code) from refused


class _Listing:
    """See the SDK: pages are fetched one by one, and after an error there are no more."""

    def __init__(self, client: GcsClient, bucket: _Bucket, prefix: str, page_size: int, token: str | None) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._page_size = page_size
        self.next_page_token = token

    @property
    def pages(self) -> Iterator[_Page]:
        """See the SDK."""
        while True:
            after = self.next_page_token or ""
            found, more = self._client.call("request.list", self._prefix, self._page_after(after))
            self.next_page_token = found[-1][0] if more else None
            yield _Page([_Blob(self._bucket, name, None).shows(item) for name, item in found])
            if not more:
                return

    def _page_after(self, after: str) -> Callable[[GcsService], tuple[list[tuple[str, _Object]], bool]]:
        def page(service: GcsService) -> tuple[list[tuple[str, _Object]], bool]:
            names = sorted(name for name in service.objects if name.startswith(self._prefix) and name > after)
            return [(name, service.objects[name]) for name in names[: self._page_size]], len(names) > self._page_size

        return page


class _Page(list[_Blob]):
    """See the SDK."""

    prefixes: frozenset[str] = frozenset()


def simulated_gcs(name: str, environment: Environment, service: GcsService, network: Network) -> BlobStore:
    """The real adapter over the simulated service."""
    adapter = importlib.import_module("stateline.blob.gcs")  # Needs the SDK, whose errors it tells apart.

    class Simulated(adapter.GcsStore):  # type: ignore[name-defined]
        def _connect(self) -> GcsClient:
            return GcsClient(service, network, adapter)

    store: BlobStore = Simulated.open(f"gs://bucket/{name}", {"page_size": "3", "parallelism": "2"}, environment)
    return store


def _encoded(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode("ascii")
