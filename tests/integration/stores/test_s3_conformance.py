"""The promises of stores and files, kept on S3 through the real SDK, on two emulators of independent origin."""

import uuid
from functools import cache

import boto3
import pytest

from stateline.blob.s3 import S3Store
from stateline.testing.blob_conformance import BlobStoreConformance
from stateline.testing.recoverable_conformance import RecoverableConformance

BUCKET = "stateline-tests"
MIB = 1024 * 1024


@cache
def make_bucket(endpoint):
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    client.close()


def open_s3(endpoint, url=None, **options):
    make_bucket(endpoint)
    url = url or f"s3://{BUCKET}/{uuid.uuid4().hex}/root"
    return S3Store.open(url, {"endpoint": endpoint, "path_style": "true", "page_size": "10", **options}, None)


class OnMinistack:
    natural_piece_bytes = 5 * MIB

    @pytest.fixture
    def store(self, ministack_endpoint):
        store = open_s3(ministack_endpoint)
        yield store
        store.close()


class OnMoto:
    """Slow, but it refuses parts below 5 MiB. Of those that finish one upload at once it answers some 500 for ever."""

    natural_piece_bytes = 5 * MIB

    @pytest.fixture
    def store(self, moto_endpoint):
        store = open_s3(moto_endpoint, attempts="2")
        yield store
        store.close()


class TestS3Store(OnMinistack, BlobStoreConformance):
    pass


class TestS3Files(OnMinistack, RecoverableConformance):
    pass


class TestS3StoreOnMoto(OnMoto, BlobStoreConformance):
    test_a_race_of_copies_has_one_winner = None
    """Moto looks for the target and completes an upload in two steps, so two uploads may both be told that they won."""
