"""Names below a root, in all the spellings that people use."""

import pytest

from stateline.blob.urls import relative_name, same_service
from stateline.errors import InvalidInputError


@pytest.mark.parametrize(
    ("root", "given", "expected"),
    [
        ("s3://b/p", "x/y", "x/y"),
        ("s3://b/p", "s3://b/p/x/y", "x/y"),
        ("s3://b/p", "s3a://b/p/x%20y", "x%20y"),
        ("s3://b", "s3://b/x?#y", "x?#y"),
        ("gs://b/p/q", "gs://b/p/q/x", "x"),
        ("memory://m", "memory://m/x", "x"),
        ("az://c/p", "az://c/p/x", "x"),
        ("az://c/p", "abfss://c@acc.dfs.core.windows.net/p/x", "x"),
        ("az://c@acc.blob.core.windows.net/p", "abfss://c@acc.dfs.core.windows.net/p/x", "x"),
        ("az://c@acc.blob.core.windows.net/p", "az://c/p/x", "x"),
        ("file:///r/s", "/r/s/x", "x"),
        ("file:///r/s", "file:/r/s/x", "x"),
    ],
)
def test_names_below_the_root(root, given, expected):
    assert relative_name(root, given) == expected


@pytest.mark.parametrize(
    ("root", "given"),
    [
        ("s3://b/p", "s3://b/pq/x"),
        ("s3://b/p", "s3://b/p"),
        ("s3://b/p", "s3://c/p/x"),
        ("s3://b/p", "gs://b/p/x"),
        ("s3://b/p", "/p/x"),
        ("s3://b/p", "s3://b/p/../x"),
        ("az://c@acc.blob.core.windows.net/p", "abfss://c@other.dfs.core.windows.net/p/x"),
        ("file:///r/s", "file:///r/s/../x"),
        ("file:///r/s", "file:///r/x"),
    ],
)
def test_what_is_not_below_the_root(root, given):
    with pytest.raises(InvalidInputError):
        relative_name(root, given)


def test_spellings_of_one_service():
    assert same_service("s3a://bucket/x", "s3://other")
    assert same_service("/folder", "file:///folder")
    assert same_service("abfss://c@account.dfs.core.windows.net/x", "az://c")
    assert not same_service("s3://bucket", "/bucket")
    assert not same_service("hdfs://host/x", "gs://bucket")
