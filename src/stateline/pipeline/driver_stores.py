"""The stores that a driver has open: those of the checkpoint root, of every output, and of other roots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from stateline.blob import BlobStore, open_store
from stateline.changelog.host_cache import HostCache
from stateline.changelog.racing import raced
from stateline.environment import Closable, Environment
from stateline.pipeline.plan import AUTO_COPIES, NO_COPIES, PipelinePlan

__all__ = ["DriverStores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStores(Closable):
    """The stores of one plan. A context manager that closes them.

    Attributes:
        root: The checkpoint root.
        outputs: The outputs by operator.
        lookups: The other roots that operators look into, by URL.
    """

    root: BlobStore
    outputs: Mapping[str, BlobStore]
    lookups: Mapping[str, BlobStore] = field(default_factory=dict)

    @classmethod
    def open(cls, plan: PipelinePlan, environment: Environment) -> Self:
        """Opens them; no I/O happens before the first call on one.

        Raises:
            InvalidInputError: An option of a store is wrong, or the folder of local copies is not apart from them.
            NotInstalledError: The SDK of a cloud is missing.
        """

        def opened(url: str, options: Mapping[str, str]) -> BlobStore:
            return raced(open_store(url, options, environment), plan.settings.retry_policy, environment)

        stores = cls(
            root=opened(plan.root_url, plan.root_options),
            outputs={
                operator.name: opened(operator.output.url, operator.output.store_options)
                for operator in plan.graph.operators
                if operator.output is not None
            },
            lookups={url: opened(url, options) for url, options in plan.graph.lookup_roots.items()},
        )
        folder = plan.settings.local_copies
        if folder not in (AUTO_COPIES, NO_COPIES):
            copies = HostCache(folder, plan.settings.local_copies_bytes, environment=environment)
            copies.check_apart([stores.root, *stores.outputs.values()], "local_copies")
        return stores

    def close(self) -> None:
        """Gives descriptors and connections back. Idempotent."""
        for store in (self.root, *self.outputs.values(), *self.lookups.values()):
            store.close()
