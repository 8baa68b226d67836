"""A store of immutable bytes under names, on memory, local disk, S3, GCS and Azure.

:mod:`stateline.blob.api` states the promises, :mod:`stateline.blob.outcome` the rules for lost answers.
"""

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.instrumented import InstrumentedStore, StoreDecorator
from stateline.blob.urls import open_store

__all__ = ["BlobStore", "Buffer", "InstrumentedStore", "ObjectInfo", "StoreDecorator", "open_store"]
