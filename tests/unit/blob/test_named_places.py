"""A place that a record names is opened only where the caller named it, too."""

from __future__ import annotations

import pytest

from stateline.blob.places import check_named
from stateline.errors import InvalidInputError


@pytest.mark.parametrize(
    ("url", "root", "named"),
    [
        ("s3://bucket/flights/out", "s3://bucket/flights/state", ()),
        ("s3a://bucket/flights/out", "s3://bucket/flights/state/", ()),
        ("s3://bucket/out", "s3://bucket/state", ()),
        ("file:///a/out", "file:///a/state", ()),
        ("file:///a/out", "file:///a/out/.stateline/stream", ()),
        ("s3://b/out", "s3://b/out/.stateline/stream", ()),
        ("memory://x/out", "memory://x/state", ()),
        ("gs://other/out/x", "s3://bucket/state", ("gs://other/out",)),
        ("file:///other", "file:///state", ("/other",)),
        ("az://c@account/f/out", "az://c@account/f/state", ()),
    ],
)
def test_what_lies_beside_the_root_or_was_named_is_opened(url, root, named):
    check_named(url, root, named, operation="sweep", hint="Name it")


@pytest.mark.parametrize(
    ("url", "root", "named"),
    [
        ("s3://bucket/other/out", "s3://bucket/flights/state", ()),
        ("s3://other/flights/out", "s3://bucket/flights/state", ()),
        ("s3://bucket/flights2/out", "s3://bucket/flights/state", ()),
        ("gs://bucket/flights/out", "s3://bucket/flights/state", ()),
        ("file:///etc", "file:///a/state", ()),
        ("file:///a/../etc", "file:///a/state", ()),
        ("file:///etc", "file:///state", ()),
        ("s3://other", "s3://bucket", ()),
        ("file:///a/other", "file:///a/out/.stateline/stream", ("/b",)),
        ("file:///a/out", "s3://a/state", ()),
    ],
)
def test_what_lies_elsewhere_is_refused(url, root, named):
    with pytest.raises(InvalidInputError, match="names this output, which lies elsewhere") as caught:
        check_named(url, root, named, operation="sweep", hint="Name it")
    assert caught.value.subject == url


def test_a_link_beside_the_root_leads_nowhere_else(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place/out").symlink_to(tmp_path)
    with pytest.raises(InvalidInputError):
        check_named(str(tmp_path / "place/out"), str(tmp_path / "place/state"), (), operation="sweep", hint="Name it")
