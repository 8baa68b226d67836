"""Cloud stores under the simulator: the real adapters, over services and networks in this process.

Needs the SDK of the cloud, for its errors; no request leaves the process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from stateline.blob import gcs_compose
from stateline.blob.api import BlobStore
from stateline.blob.s3_parts import plan_parts
from stateline.environment import Environment
from stateline.errors import InternalError
from stateline.testing.system_calls import Gate
from tests.kit import cloud_azure, cloud_gcs, cloud_s3
from tests.kit.cloud_network import Network, RequestGate

__all__ = ["AzureBackend", "CloudBackend", "GcsBackend", "S3Backend"]


class CloudBackend:
    """Stores of one cloud, empty at the beginning of each world.

    Args:
        service: Makes the service.
        connect: Opens the real adapter over it.
    """

    def __init__(
        self, service: Callable[[], Any], connect: Callable[[str, Environment, Any, Network], BlobStore]
    ) -> None:
        self._service = service()
        self._connect = connect
        self._network: Network | None = None

    @property
    def position(self) -> int:
        """See :attr:`Backend.position`."""
        return 0

    @property
    def is_gated(self) -> bool:
        """See :attr:`Backend.is_gated`."""
        return True

    @property
    def is_struck(self) -> bool:
        """See :attr:`Backend.is_struck`."""
        return True

    def open(self, name: str, environment: Environment) -> BlobStore:
        """See :meth:`Backend.open`."""
        if self._network is None:
            raise InternalError("it is not attached to a world", operation="open", subject=name)
        return self._connect(name, environment, self._service, self._network)

    @contextlib.contextmanager
    def attached(self, gate: Gate) -> Iterator[None]:
        """See :meth:`Backend.attached`."""
        if not isinstance(gate, RequestGate):
            raise InternalError("its requests need a gate of their own", operation="attach")
        self._network = Network(gate)
        with self._small_limits():
            yield

    def _small_limits(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class S3Backend(CloudBackend):
    """S3."""

    def __init__(self) -> None:
        super().__init__(cloud_s3.S3Service, cloud_s3.simulated_s3)

    def _small_limits(self) -> contextlib.AbstractContextManager[None]:
        adapter = importlib.import_module("stateline.blob.s3_uploads")
        small = functools.partial(plan_parts, part_bytes_min=cloud_s3.PART_BYTES_MIN)
        return _exchanged(adapter, "plan_parts", small)


class GcsBackend(CloudBackend):
    """Cloud Storage."""

    def __init__(self) -> None:
        super().__init__(cloud_gcs.GcsService, cloud_gcs.simulated_gcs)

    def _small_limits(self) -> contextlib.AbstractContextManager[None]:
        return _exchanged(gcs_compose, "SOURCES_MAX", cloud_gcs.SOURCES_MAX)


class AzureBackend(CloudBackend):
    """Blob Storage. Its limits are settings."""

    def __init__(self) -> None:
        super().__init__(cloud_azure.AzureService, cloud_azure.simulated_azure)


@contextlib.contextmanager
def _exchanged(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
