"""Names below a root, in all the spellings that people use."""

import os
from pathlib import Path

import pytest

from stateline.blob.urls import absolute_url, open_store, relative_name, same_service
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


@pytest.mark.parametrize(
    "url", ["s3://[bucket", "file://[x", "a\0b", "file:///a%00b", "s3://a\0b/x", None, 5, b"file:///x"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InvalidInputError, match="is not a URL"):
        open_store(url)


@pytest.mark.parametrize("url", ["s3:/bucket/x", "S3:bucket", "memory:name", "gs:bucket/x", "az:/c/x"])
def test_a_url_without_its_slashes_is_not_taken_for_a_folder(url):
    with pytest.raises(InvalidInputError, match="Write "):
        open_store(url)


@pytest.mark.parametrize("url", ["dbfs:/mnt/x", "hdfs:/x", "C:/x"])
def test_a_place_of_another_system_is_not_taken_for_a_folder(url, tmp_path):
    with pytest.raises(InvalidInputError, match=r"a local folder of that name\. Known schemes: memory, file"):
        open_store(url)
    for path in (f"./{url}", f"{tmp_path}/a:/b", "a:b"):
        assert absolute_url(path) == os.path.abspath(path)


@pytest.mark.parametrize("url", ["://b", "s3_a://b", "{scheme}://b", " s3://b", "s3 ://b", "a:b://c", "hdfs://host/x"])
def test_what_looks_like_a_url_without_being_one_is_no_folder(url, tmp_path):
    with pytest.raises(InvalidInputError, match=r"unknown scheme .*Known schemes: memory, file, s3.*put \./ before it"):
        open_store(url)
    for path in (f"./{url}", f"{tmp_path}/{url}/%20?#x"):
        assert open_store(path).local_path("x") == Path(os.path.abspath(path), "x")
        assert absolute_url(path) == os.path.abspath(path)


def test_a_credential_in_what_looks_like_a_url_is_not_shown():
    for url in ("s3_a://key:secret@b", "://key:secret@b", "{scheme}://b?sig=secret"):
        with pytest.raises(InvalidInputError, match="must not contain a credential") as caught:
            open_store(url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://key:secret@[bucket", "s3://key:secret@b\0", "s3:/key:secret@bucket", "az:c?sig=secret"]
)
def test_no_error_shows_a_credential(url):
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_paths_are_places_on_the_local_disk(tmp_path):
    for given in (tmp_path, str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        assert open_store(given).url == f"file://{tmp_path}"
    assert open_store("./s3:/bucket").url.startswith("file:///")


def test_spellings_of_one_service():
    assert same_service("s3a://bucket/x", "s3://other")
    assert same_service("/folder", "file:///folder")
    assert same_service("abfss://c@account.dfs.core.windows.net/x", "az://c")
    assert not same_service("s3://bucket", "/bucket")
    assert not same_service("hdfs://host/x", "gs://bucket")


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "az://container"])
@pytest.mark.parametrize("endpoint", ["localhost:9000", "http://", "ftp://host", "http://a b", "nothing"])
def test_an_endpoint_that_is_no_url_is_refused_at_once(url, endpoint):
    with pytest.raises(InvalidInputError, match="endpoint: is not a URL"):
        open_store(url, {"endpoint": endpoint})
    open_store(url, {"endpoint": "http://127.0.0.1:9000/account"})


def test_a_relative_local_place_becomes_absolute_and_other_urls_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("a/b%20c", "file:a/b%20c", "x/../a/b%20c"):
        assert absolute_url(given) == f"{tmp_path}/a/b%20c"
        assert open_store(absolute_url(given)).url == open_store(given).url
    for given in ("s3://bucket/p", "memory://m", "file:///r/s%20t", "az://c/p"):
        assert absolute_url(given) == given
    for given in (5, None, "s3:/bucket", "s3://user:secret@bucket"):
        with pytest.raises(InvalidInputError):
            absolute_url(given)
