"""The pages over HTTP: every page of every kind of root, who may read, and that nothing is written."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import pytest

from stateline.blob import InstrumentedStore
from stateline.checkpoint.layout import record_name
from stateline.dashboard.roots import RootFollower
from stateline.dashboard.server import TABS, dashboard_app, is_loopback
from tests.unit.dashboard.dashboard_kit import LONG_NAME, damaged, long_root, new_store, state_root

WRITES = {"put", "put_if_absent", "delete", "stage", "publish", "discard", "copy", "prepare"}


def client_of(*followers: RootFollower, token: str | None = None):
    return dashboard_app(followers, token=token).test_client()


@pytest.fixture(scope="module")
def store():
    store = InstrumentedStore(new_store())
    long_root(store, 300)
    store.reset()
    return store


@pytest.mark.parametrize("tab", dict(TABS))
@pytest.mark.parametrize("last", ["100", "1000", "all", "nonsense"])
def test_every_page_is_there_and_nothing_is_written(store, tab, last):
    answer = client_of(RootFollower(store)).get(f"/r/0/{tab}?last={last}")
    assert answer.status_code == 200
    assert f'aria-current="page">{dict(TABS)[tab]}<' in answer.text
    assert not WRITES & store.calls.keys()


@pytest.mark.parametrize("tab", dict(TABS))
def test_an_empty_root_has_every_page_of_the_server(tab):
    answer = client_of(RootFollower(new_store())).get(f"/r/0/{tab}")
    assert answer.status_code == 200
    assert 'class="card empty"' in answer.text


@pytest.mark.parametrize("tab", dict(TABS))
def test_a_damaged_root_says_so_on_every_page(tab):
    store = new_store()
    long_root(store, 10)
    damaged(store, record_name(9))
    answer = client_of(RootFollower(store)).get(f"/r/0/{tab}")
    assert answer.status_code == 200
    assert "Not all could be read" in answer.text
    assert record_name(9) in answer.text


def test_one_root_is_shown_at_once_and_several_in_short(store):
    one = client_of(RootFollower(store)).get("/")
    assert one.headers["Location"] == "/r/0/checkpoints"
    several = client_of(RootFollower(store), RootFollower(new_store())).get("/")
    assert several.text.count("<article") == 2
    assert "No checkpoint yet" in several.text


def test_a_key_is_looked_up_over_the_retained_checkpoints():
    client = client_of(RootFollower(state_root().url))
    page = client.get("/r/0/key?operator=flights&k=N1").text
    assert page.count('class="left number"') == 3
    assert page.count('class="left value changed"') == 2 + 1
    gone = client.get("/r/0/key?operator=flights&k=N2").text
    assert gone.count("not there") == 1
    nothing = client.get("/r/0/key?operator=flights&k=N9").text
    assert nothing.count("not there") == 3
    assert "expected 1 values, got 2" in client.get("/r/0/key?operator=flights&k=a&k=b").text


def test_differences_have_rows_of_retained_checkpoints_and_figures_of_others(store):
    client = client_of(RootFollower(state_root().url))
    page = client.get("/r/0/differences?before=0&after=2&operator=flights").text
    assert 'class="delete"' in page
    assert 'class="update_after"' in page
    assert client.get("/r/0/differences?before=2&after=0&operator=flights").text.count("<tr") == page.count("<tr")
    figures = client_of(RootFollower(store)).get("/r/0/differences?before=3&after=290").text
    assert "Figures" in figures
    assert "state_bytes" in figures
    for wrong in ("before=999", "after=x", "before=-1", "before=" + "9" * 30):
        assert "no such checkpoint" in client.get(f"/r/0/differences?{wrong}").text


def test_names_and_values_are_escaped(store):
    page = client_of(RootFollower(store)).get("/r/0/key?k=<script>alert(1)</script>").text
    assert "<script>alert" not in page
    assert LONG_NAME in page


@pytest.mark.parametrize("path", ["/r/1/state", "/r/0/nothing", "/static/x", "/static/../pages.py", "/nowhere"])
def test_what_is_not_there_is_404(store, path):
    answer = client_of(RootFollower(store)).get(path)
    assert answer.status_code == 404
    assert "There is no such page" in answer.text or path == "/static/x"


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_pages_are_only_read(store, method):
    assert getattr(client_of(RootFollower(store)), method)("/r/0/state").status_code == 405


def test_a_page_may_load_nothing_from_elsewhere(store):
    for path in ("/r/0/checkpoints", "/static/dashboard.css", "/nowhere"):
        policy = client_of(RootFollower(store)).get(path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
    page = client_of(RootFollower(store)).get("/r/0/state").text
    assert "style=" not in page, "the policy forbids it"
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8642", 200),
        ("[::1]:8642", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_without_a_token_only_names_of_this_machine_are_answered(store, host, status):
    assert client_of(RootFollower(store)).get("/r/0/version", headers={"Host": host}).status_code == status


def test_with_a_token_nothing_is_shown_without_it(store):
    client = client_of(RootFollower(store), token="secret")
    for path in ("/", "/r/0/state", "/r/0/version", "/static/dashboard.css", "/r/0/state?token=wrong"):
        answer = client.get(path, headers={"Host": "any.example"})
        assert answer.status_code == 403
        assert "state_bytes" not in answer.text
    first = client.get("/r/0/state?last=100&token=secret")
    assert first.status_code == 302
    assert first.headers["Location"] == "/r/0/state?last=100"
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/r/0/state").status_code == 200


@pytest.mark.parametrize("query", ["token=secret", "token=secret&a=//host", "token=wrong", ""])
@pytest.mark.parametrize(
    "path",
    [
        "//host",
        "///host/x",
        "/%09/host",
        "/%0A%0D/host",
        "/%5Chost",
        "/%5C/host",
        "/%2F%2Fhost",
        "/.//host",
        "/..//host",
        "/%20//host",
        "/http:%2F%2Fhost",
        "/@host",
        "/%00/host",
        "/r/0//host",
        "/r/0/%09/host",
        "/%E2%80%A8//host",
    ],
)
def test_no_redirect_leads_elsewhere(store, path, query):
    client = client_of(RootFollower(store), token="secret")
    answer = client.get(f"{path}?{query}", base_url="http://own.example")
    place = answer.headers.get("Location", "/")
    for text in (place, re.sub(r"[\t\r\n]", "", place.strip()).replace("\\", "/")):
        assert urlsplit(urljoin("http://own.example/", text)).netloc == "own.example"
    assert place.isascii()
    assert not re.search(r"[\x00-\x20\\]", place)
    if query.startswith("token=secret"):
        assert answer.status_code in (302, 308)


def test_a_page_that_follows_is_told_when_there_is_something_new():
    store = new_store()
    follower = RootFollower(store)
    client = client_of(follower)
    before = client.get("/r/0/version").text
    assert client.get("/r/0/version").text == before
    long_root(store, 5)
    after = follower.look().version
    assert after != before


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("a.example", False),
    ],
)
def test_which_addresses_are_of_this_machine_alone(host, wanted):
    assert is_loopback(host) is wanted
