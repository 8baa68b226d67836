"""Listings of the clouds: an answer in the middle that is not one must not pass for the end."""

import json

import pytest

from stateline.blob import open_store
from tests.kit.loopback_http import LoopbackServer, Reply

OPTIONS = {
    "s3": {"path_style": "true", "access_key_id": "id", "secret_access_key": "key", "region": "us-east-1"},
    "gs": {"anonymous": "true"},
    "az": {"account_key": "a2V5"},
}


def s3_page(key, following):
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{following}</NextContinuationToken>"
    return (
        f"<ListBucketResult><Contents><Key>{key}</Key><Size>0</Size><ETag>x</ETag>"
        "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        f"{more if following else ''}</ListBucketResult>"
    )


def gs_page(key, following):
    item = {"name": key, "bucket": "bucket", "generation": "1", "updated": "2026-01-01T00:00:00Z"}
    return json.dumps({"items": [item], **({"nextPageToken": following} if following else {})})


def az_page(key, following):
    return (
        '<EnumerationResults ServiceEndpoint="http://x/" ContainerName="bucket"><Blobs><Blob>'
        f"<Name>{key}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
        "<Etag>x</Etag><Content-Length>0</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob></Blobs>"
        f"<NextMarker>{following}</NextMarker></EnumerationResults>"
    )


PAGES = {"s3": s3_page, "gs": gs_page, "az": az_page}
NOT_PAGES = {
    "s3": "<ListBucketResult><Contents><Size>0</Size></Contents></ListBucketResult>",
    "gs": "[]",
    "az": "<EnumerationResults><Blobs><Blob><Name>x</Name></Blob></Blobs></EnumerationResults>",
}


@pytest.mark.parametrize("scheme", OPTIONS)
@pytest.mark.parametrize("wrong_at", [0, 1, 2])
def test_a_page_that_is_not_understood_is_asked_for_again(scheme, wrong_at):
    kind = "application/json" if scheme == "gs" else "application/xml"
    names = ["a", "b", "c"]
    texts = [PAGES[scheme](f"root/{name}", following) for name, following in zip(names, ["1", "2", ""], strict=True)]
    texts.insert(wrong_at, NOT_PAGES[scheme])
    asked = []

    def answer(request):
        asked.append(request.query.get({"s3": "continuation-token", "gs": "pageToken", "az": "marker"}[scheme], ""))
        return Reply(200, texts[len(asked) - 1].encode(), {"Content-Type": kind})

    with LoopbackServer(answer) as server:
        endpoint = f"{server.url}/account" if scheme == "az" else server.url
        with open_store(f"{scheme}://bucket/root", {"endpoint": endpoint, **OPTIONS[scheme]}) as store:
            assert [info.name for info in store.list("")] == names
    tokens = ["", "1", "2"]
    tokens.insert(wrong_at, tokens[wrong_at])
    assert asked == tokens
