"""A store of immutable bytes under names, on memory, local disk, S3, GCS and Azure.

``api`` states the promises, ``outcome`` the rules for lost answers, one module per backend keeps them.
"""

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.instrumented import InstrumentedStore, StoreDecorator
from stateline.blob.urls import open_store

__all__ = ["BlobStore", "Buffer", "InstrumentedStore", "ObjectInfo", "StoreDecorator", "open_store"]
