"""One cloud each, seen through a server that fails on demand: a store, its faults, and what its requests look like."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from emulators import AZURITE_ACCOUNT
from test_azure_conformance import CONTAINER, connection_string, make_container
from test_gcs_conformance import open_gcs
from test_s3_conformance import BUCKET, make_bucket

from stateline.blob import BlobStore
from stateline.blob.azure import AzureStore
from stateline.blob.s3 import S3Store
from tests.kit.fault_proxy import FaultPlan

PATIENCE = {"attempts": "3", "connect_timeout": "2s", "read_timeout": "5s"}
MIB = 1024 * 1024


@dataclass
class World:
    """A store behind a fault plan.

    Attributes:
        store: What is tested.
        faults: Its faults.
        requests: Method and path of the request that has the effect of each operation.
        piece_bytes: Length of a piece that the service itself can join.
        options: What another process must say of the place, besides the URL, to open the same store.
        connection_string: Of the account on Azure, where that is in the environment.
        retries_429: Whether the SDK tries again after 429.
    """

    name: str
    store: BlobStore
    faults: FaultPlan
    requests: dict[str, tuple[str, str]]
    piece_bytes: int = 1000
    options: dict[str, str] = field(default_factory=dict)
    connection_string: str = ""
    retries_429: bool = True


def s3_world(endpoint, proxy) -> World:
    make_bucket(endpoint)
    options = {"endpoint": proxy.url, "path_style": "true"}
    return World(
        name="s3",
        store=S3Store.open(f"s3://{BUCKET}/{uuid.uuid4().hex}", options | PATIENCE, None),
        faults=proxy.faults,
        requests={
            "put": ("PUT", "/object$"),
            "put_if_absent": ("PUT", "/object$"),
            "get": ("GET", "/object$"),
            "get_range": ("GET", "/object$"),
            "head": ("HEAD", "/object$"),
            "list": ("GET", "list-type=2"),
            "copy": ("POST", r"/target\?.*uploadId="),
            "delete": ("POST", r"\?delete$"),
            "stage": ("PUT", r"/\.inprogress/[0-9a-f]{32}$"),
            "publish_short": ("PUT", "/target$"),
            "publish_begin": ("POST", r"/target\?uploads$"),
            "publish_copy": ("PUT", r"/target\?.*partNumber="),
            "publish": ("POST", r"/target\?.*uploadId="),
            "discard": ("POST", r"\?delete$"),
        },
        piece_bytes=5 * MIB,
        options=options,
    )


def gcs_world(server) -> World:
    return World(
        name="gcs",
        store=open_gcs(server.url, **PATIENCE),
        faults=server.faults,
        requests={
            "put": ("POST", "/upload/.*uploadType=multipart"),
            "put_if_absent": ("POST", "/upload/.*uploadType=multipart"),
            "get": ("GET", "/download/"),
            "get_range": ("GET", "/download/"),
            "head": ("GET", "/o/root%2Fobject"),
            "list": ("GET", r"/o\?"),
            "copy": ("POST", "/o/root%2Ftarget/compose"),
            "delete": ("DELETE", "/o/root%2Fobject"),
            "stage": ("POST", "/upload/.*uploadType=multipart"),
            "publish": ("POST", "/o/root%2Ftarget/compose"),
            "discard": ("DELETE", "/o/.inprogress"),
        },
        options={"endpoint": server.url, "anonymous": "true"},
    )


def azure_world(endpoint, proxy, monkeypatch) -> World:
    make_container(endpoint)
    through = f"{proxy.url}/{AZURITE_ACCOUNT}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(through))
    options = {**PATIENCE, "block_size_min": "1000"}
    return World(
        name="azure",
        store=AzureStore.open(f"az://{CONTAINER}/{uuid.uuid4().hex}", options, None),
        faults=proxy.faults,
        requests={
            "put": ("PUT", "/object$"),
            "put_if_absent": ("PUT", "/object$"),
            "get": ("GET", "/object$"),
            "get_range": ("GET", "/object$"),
            "head": ("HEAD", "/object$"),
            "list": ("GET", "comp=list"),
            "copy": ("PUT", "/target$"),
            "delete": ("DELETE", "/object$"),
            "stage": ("PUT", r"/target\?.*comp=block&|/target\?comp=block&|/target\?blockid=.*comp=block$"),
            "publish": ("PUT", "/target.*comp=blocklist"),
        },
        connection_string=connection_string(through),
        retries_429=False,
    )
