"""An Azure Blob Storage service and its client, as objects: what the real ``AzureStore`` runs on inside the simulator.

Facts that it keeps (Azure Storage REST reference):
- A block is invisible until a list names it. A list makes the blob of exactly its blocks and drops every other
  uncommitted block of that blob; so does writing the blob whole. Uncommitted blocks may expire.
- ``If-None-Match: *`` is judged at the effect: 409 BlobAlreadyExists. A list that names an unknown block is 400.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, NoReturn, TypeVar

from stateline.blob.api import BlobStore
from stateline.environment import Environment
from tests.kit.cloud_network import CutBody, Network, NoAnswer, Refused, ServiceClock

__all__ = ["BLOCK_BYTES_MIN", "AzureContainer", "AzureService", "simulated_azure"]

T = TypeVar("T")

BLOCK_BYTES_MIN = 60
"""Pieces at least so long are blocks: 5 MiB by default, too much for thousands of runs."""


@dataclass(frozen=True, slots=True)
class _Properties:
    """What the service says of a blob; the adapter reads these names."""

    name: str
    size: int
    etag: str
    metadata: Mapping[str, str]
    last_modified: datetime
    data: bytes


@dataclass(frozen=True, slots=True)
class _Block:
    id: str
    size: int


class AzureService:
    """One container. Every method is one request that arrives; it raises :class:`Refused`."""

    def __init__(self) -> None:
        self.blobs: dict[str, _Properties] = {}
        self.blocks: dict[str, dict[str, bytes]] = {}
        self._clock = ServiceClock()
        self._etags = count(1)

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], *, if_absent: bool) -> _Properties:
        """Put Blob."""
        if if_absent and key in self.blobs:
            raise Refused(409, "BlobAlreadyExists")
        self.blocks.pop(key, None)
        self.blobs[key] = made = _Properties(
            key, len(data), f'"0x{next(self._etags):X}"', dict(metadata), self._clock.now(), data
        )
        return made

    def get(self, key: str) -> _Properties:
        """Get Blob and Get Blob Properties."""
        if key not in self.blobs:
            raise Refused(404, "BlobNotFound")
        return self.blobs[key]

    def delete(self, key: str) -> None:
        """Delete Blob."""
        self.get(key)
        del self.blobs[key]

    def put_block(self, key: str, block: str, data: bytes) -> None:
        """Put Block."""
        self.blocks.setdefault(key, {})[block] = data

    def uncommitted(self, key: str) -> list[_Block]:
        """Get Block List."""
        if key not in self.blocks and key not in self.blobs:
            raise Refused(404, "BlobNotFound")
        return [_Block(block, len(data)) for block, data in self.blocks.get(key, {}).items()]

    def put_list(self, key: str, blocks: Sequence[str], metadata: Mapping[str, str]) -> _Properties:
        """Put Block List with If-None-Match."""
        if key in self.blobs:
            raise Refused(409, "BlobAlreadyExists")
        there = self.blocks.get(key, {})
        if any(block not in there for block in blocks):
            raise Refused(400, "InvalidBlockList")
        return self.put(key, b"".join(there[block] for block in blocks), metadata, if_absent=True)


class AzureContainer:
    """What the SDK calls a container client: the methods that the adapter uses."""

    def __init__(self, service: AzureService, network: Network, errors: Any) -> None:
        self._service = service
        self._network = network
        self._errors = errors

    def close(self) -> None:
        """Nothing is held."""

    def get_blob_client(self, key: str) -> _BlobClient:
        """See the SDK."""
        return _BlobClient(self, key)

    def list_blobs(self, *, name_starts_with: str, results_per_page: int, **_: Any) -> _Listing:
        """See the SDK."""
        return _Listing(self, name_starts_with, results_per_page)

    def call(
        self,
        operation: str,
        key: str,
        effect: Callable[[AzureService], T],
        *,
        expire: Callable[[AzureService], object] | None = None,
    ) -> T:
        """One request with its retries; errors as the SDK raises them."""
        service = self._service
        try:
            return self._network.call(
                operation, key, lambda: effect(service), expire=None if expire is None else lambda: expire(service)
            )
        except NoAnswer as error:
            raise self._errors.ServiceResponseError("simulated") from error
        except CutBody as error:
            raise self._errors.IncompleteReadError("simulated") from error
        except Refused as refused:
            self._refuse(refused)

    def _refuse(self, refused: Refused) -> NoReturn:
        kinds = {
            404: self._errors.ResourceNotFoundError,
            409: self._errors.ResourceExistsError,
            403: self._errors.ClientAuthenticationError,
        }
        error = kinds.get(refused.status, self._errors.HttpResponseError)(refused.code)
        error.status_code, error.error_code = refused.status, refused.code
        raise error from refused


class _BlobClient:
    """See the SDK."""

    def __init__(self, container: AzureContainer, key: str) -> None:
        self._container = container
        self._key = key

    def upload_blob(self, data: bytes, *, overwrite: bool, metadata: Mapping[str, str], **_: Any) -> dict[str, str]:
        """See the SDK."""
        operation = "request.put" if overwrite else "request.create"
        made = self._container.call(
            operation, self._key, lambda service: service.put(self._key, data, metadata, if_absent=not overwrite)
        )
        return {"etag": made.etag}

    def download_blob(self, *, offset: int = 0, length: int | None = None) -> _Download:
        """See the SDK."""

        def read(service: AzureService) -> bytes:
            data = service.get(self._key).data
            if length is not None and offset >= len(data):
                raise Refused(416, "InvalidRange")
            return data[offset : None if length is None else offset + length]

        return _Download(self._container.call("request.get", self._key, read))

    def get_blob_properties(self) -> _Properties:
        """See the SDK."""
        return self._container.call("request.head", self._key, lambda service: service.get(self._key))

    def delete_blob(self, **_: Any) -> None:
        """See the SDK."""
        self._container.call("request.delete", self._key, lambda service: service.delete(self._key))

    def stage_block(self, block: str, data: bytes, **_: Any) -> None:
        """See the SDK."""
        self._container.call("request.part", self._key, lambda service: service.put_block(self._key, block, data))

    def get_block_list(self, _: str) -> tuple[list[_Block], list[_Block]]:
        """See the SDK."""
        return [], self._container.call("request.list", self._key, lambda service: service.uncommitted(self._key))

    def commit_block_list(self, blocks: Sequence[Any], *, metadata: Mapping[str, str], **_: Any) -> dict[str, str]:
        """See the SDK."""
        wanted = [block.id for block in blocks]
        made = self._container.call(
            "request.join",
            self._key,
            lambda service: service.put_list(self._key, wanted, metadata),
            expire=lambda service: service.blocks.pop(self._key, None),
        )
        return {"etag": made.etag}


class _Download:
    """See the SDK."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def readall(self) -> bytes:
        """See the SDK."""
        return self._data


class _Listing:
    """See the SDK: pages are fetched one by one."""

    def __init__(self, container: AzureContainer, prefix: str, page_size: int) -> None:
        self._container = container
        self._prefix = prefix
        self._page_size = page_size

    def by_page(self, continuation_token: str | None = None) -> _Listing:
        """See the SDK."""
        self.continuation_token = continuation_token
        return self

    def __next__(self) -> list[_Properties]:
        page = self._container.call("request.list", self._prefix, self._page_after(self.continuation_token or ""))
        self.continuation_token = page[-1].name if len(page) == self._page_size else None
        return page

    def _page_after(self, after: str) -> Callable[[AzureService], list[_Properties]]:
        def page(service: AzureService) -> list[_Properties]:
            names = sorted(name for name in service.blobs if name.startswith(self._prefix) and name > after)
            return [service.blobs[name] for name in names[: self._page_size]]

        return page


def simulated_azure(name: str, environment: Environment, service: AzureService, network: Network) -> BlobStore:
    """The real adapter over the simulated service."""
    adapter = importlib.import_module("stateline.blob.azure")  # Needs the SDK, whose errors it tells apart.

    class Simulated(adapter.AzureStore):  # type: ignore[name-defined]
        def _connect(self) -> AzureContainer:
            return AzureContainer(service, network, adapter.sdk)

    options = {"page_size": "3", "parallelism": "2", "block_size_min": str(BLOCK_BYTES_MIN)}
    store: BlobStore = Simulated.open(f"az://container/{name}", options, environment)
    return store
