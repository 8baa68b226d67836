"""The pages over HTTP: read only, on this machine unless told otherwise.

Rules:
- Only GET and HEAD are answered, and nothing that a page does writes into a root.
- On a loopback address a request must name one in its ``Host``, so that no page of a foreign site reaches it by a name
  that resolves to this machine. On any other address a request must bring the token, in the link that is printed or in
  the cookie that this link sets.
- A page loads nothing from elsewhere, runs no script but that of this package, and cannot be framed.
- A root is read by one request at a time; each is answered from what the last look saw, if that was a moment ago.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

import flask
import waitress

from stateline.dashboard.pages import asset, render
from stateline.dashboard.roots import RootFollower, RootView
from stateline.dashboard.rows import key_fields, key_history, row_changes
from stateline.dashboard.run_indexes import RunIndexes
from stateline.dashboard.views import (
    checkpoints_view,
    figure_differences,
    outputs_view,
    overview_card,
    state_view,
    time_view,
)
from stateline.environment import Environment, system_environment
from stateline.errors import StatelineError
from stateline.handles import SectionIdentity
from stateline.state.run_index import RunIndex
from stateline.threads import new_lock

__all__ = ["TABS", "dashboard_app", "is_loopback", "serve"]

TABS: Final = (
    ("checkpoints", "Checkpoints"),
    ("state", "State"),
    ("time", "Event time"),
    ("outputs", "Outputs"),
    ("key", "Key"),
    ("differences", "Differences"),
)
_PAGES: Final[Mapping[str, Callable[[RootView, int | None], object]]] = {
    "checkpoints": checkpoints_view,
    "time": time_view,
    "outputs": outputs_view,
}
_RANGED: Final = (*_PAGES, "state")
"""Pages that show a part of the history, which can be chosen."""

_RANGES: Final[Mapping[str, tuple[str, int | None]]] = {
    "100": ("last 100", 100),
    "1000": ("last 1,000", 1000),
    "all": ("all", None),
}
_DEFAULT_RANGE: Final = "1000"
_FRESH_SECONDS: Final = 1.0
_CHANGES_MAX: Final = 200
_DIGITS_MAX: Final = 18
_COOKIE: Final = "stateline_token"
_THREADS: Final = 8
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """The page of one key."""

    operators: Sequence[str]
    operator: str
    fields: Sequence[tuple[str, str, bool]]
    key: Sequence[str]
    asked: Sequence[str] = ()
    history: object = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Differences:
    """The page of differences."""

    ids: Sequence[int]
    retained: Sequence[int]
    operators: Sequence[str]
    operator: str
    before: int
    after: int
    figures: object = None
    changes: object = None
    is_cut: bool = False
    failure: str = ""


class _Root:
    """One root, as all requests share it."""

    def __init__(self, follower: RootFollower, environment: Environment) -> None:
        self.follower = follower
        self._clock = environment.clock
        self._lock = new_lock()
        self._view: RootView | None = None
        self._looked_at = 0.0
        self._indexes = RunIndexes(follower.store, environment)

    def view(self) -> RootView:
        """What the root holds, as of a moment ago at most."""
        with self._lock:
            if self._view is None or self._clock.monotonic() - self._looked_at > _FRESH_SECONDS:
                self._view = self.follower.look()
                self._looked_at = self._clock.monotonic()
            return self._view

    def indexes(self, view: RootView) -> Mapping[SectionIdentity, RunIndex]:
        """The indexes of the runs of the newest checkpoint."""
        with self._lock:
            return {} if view.newest is None else self._indexes.of(view.newest)


def dashboard_app(
    followers: Sequence[RootFollower],
    *,
    token: str | None = None,
    environment: Environment | None = None,
) -> flask.Flask:
    """The pages of some roots, as a WSGI application.

    Args:
        followers: The roots; the caller closes them.
        token: What a request must bring; ``None`` for an application that is bound to a loopback address.
        environment: Clock.
    """
    world = environment or system_environment()
    roots = [_Root(follower, world) for follower in followers]
    app = flask.Flask("stateline.dashboard", static_folder=None, template_folder=None)
    app.before_request(lambda: _admit(token))
    app.after_request(_with_headers)
    for code in (404, 405, 500):
        app.register_error_handler(code, _problem)

    def root_of(number: int) -> _Root:
        return roots[number] if number < len(roots) else flask.abort(404)

    @app.get("/")
    def overview() -> Any:
        if len(roots) == 1:
            return _redirect("/r/0/checkpoints")
        views = [root.view() for root in roots]
        return render("overview.html", home="/", cards=[overview_card(view) for view in views], version=_version(views))

    @app.get("/version")
    def version() -> Any:
        return _plain(_version([root.view() for root in roots]))

    @app.get("/r/<int:number>/version")
    def version_of_root(number: int) -> Any:
        return _plain(root_of(number).view().version)

    @app.get("/r/<int:number>/<tab>")
    def page(number: int, tab: str) -> Any:
        if tab not in dict(TABS):
            flask.abort(404)
        root = root_of(number)
        view, last = root.view(), flask.request.args.get("last", _DEFAULT_RANGE)
        last = last if last in _RANGES else _DEFAULT_RANGE
        return render(
            "root.html",
            home="/",
            root=number,
            roots=[each.follower.store.url for each in roots],
            view=view,
            page=_page(tab, root, view, _RANGES[last][1]),
            tab=tab,
            tab_title=dict(TABS)[tab],
            tabs=TABS,
            last=last,
            ranged=_RANGED,
            range_query="" if last == _DEFAULT_RANGE else f"?last={last}",
            ranges=[(value, title) for value, (title, _) in _RANGES.items()],
        )

    @app.get("/static/<name>")
    def static(name: str) -> Any:
        found = asset(name)
        if found is None:
            flask.abort(404)
        return flask.Response(found[0], mimetype=found[1])

    return app


def serve(app: flask.Flask, host: str, port: int, is_ready: Callable[[str, int], None] = lambda *_: None) -> None:
    """Answers requests until the process is interrupted.

    Args:
        app: The pages.
        host: The address.
        port: The port; 0 for any that is free.
        is_ready: Told the address and the port, once requests are taken.

    Raises:
        OSError: The address cannot be bound.
    """
    server = waitress.create_server(app, host=host, port=port, threads=_THREADS, ident=None)
    is_ready(host, int(getattr(server, "effective_port", port)))
    server.run()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _admit(token: str | None) -> Any:
    """Refuses a request that may not be here; ``None`` lets it pass."""
    if token is None:
        name = urlsplit(f"//{flask.request.host}").hostname or ""
        return None if is_loopback(name) else _refused("This address is for this machine alone.")
    given = flask.request.args.get("token")
    if given is not None and _is_equal(given, token):
        rest = [(name, value) for name, value in flask.request.args.items(multi=True) if name != "token"]
        answer = _redirect(flask.request.path, rest)
        answer.set_cookie(_COOKIE, token, httponly=True, samesite="Strict")
        return answer
    if _is_equal(flask.request.cookies.get(_COOKIE, ""), token):
        return None
    return _refused("Open the link with the token that `stateline ui` printed.")


def _redirect(path: str, query: Sequence[tuple[str, str]] = ()) -> flask.Response:
    """Redirect to a path of this server. Every redirect is made here.

    Browsers drop tabs and line ends from an address, and take a backslash for a slash. Two slashes at its start begin
    the name of a host. So one slash comes first, and all but plain characters are percent-encoded.
    """
    place = "/" + quote(path.lstrip("/\\"), safe="/")
    return cast("flask.Response", flask.redirect(f"{place}?{urlencode(query)}" if query else place))


def _is_equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _refused(text: str) -> tuple[str, int]:
    return render("problem.html", home="/", title="Not for you", text=text), 403


def _problem(error: Any) -> tuple[str, int]:
    code = int(getattr(error, "code", 500) or 500)
    title = {404: "There is no such page", 405: "Pages are only read"}.get(code, "This page failed")
    text = "The log of `stateline ui` says why." if code >= 500 else "Choose a view above, or go back."
    return render("problem.html", home="/", title=title, text=text), code


def _with_headers(answer: flask.Response) -> flask.Response:
    answer.headers.extend(_HEADERS)
    return answer


def _plain(text: str) -> flask.Response:
    return flask.Response(text, mimetype="text/plain")


def _version(views: Sequence[RootView]) -> str:
    return " ".join(view.version for view in views)


def _page(tab: str, root: _Root, view: RootView, last: int | None) -> object:
    if tab in _PAGES:
        return _PAGES[tab](view, last)
    if tab == "state":
        return state_view(view, last, root.indexes(view))
    return _key_page(root, view) if tab == "key" else _differences_page(root, view)


def _operators(view: RootView) -> tuple[list[str], str]:
    """The operators with state, and the one that is asked for."""
    names = [] if view.newest is None else [operator.name for operator in view.newest.operators]
    asked = flask.request.args.get("operator", "")
    return names, asked if asked in names else (names[0] if names else "")


def _key_page(root: _Root, view: RootView) -> _Key:
    names, operator = _operators(view)
    if view.newest is None or not names:
        return _Key(operators=(), operator="", fields=(), key=())
    fields, key = key_fields(view.newest, operator), flask.request.args.getlist("k")
    needed = [text for text, (*_, is_optional) in zip(key, fields, strict=False) if not is_optional]
    asked = key if any(key[len(needed) :]) else needed or key
    empty = _Key(
        operators=names, operator=operator, fields=fields, key=key if len(key) == len(fields) else (), asked=asked
    )
    if not key:
        return empty
    try:
        return replace(empty, history=key_history(root.follower.store, view.records, operator, asked))
    except StatelineError as error:
        return replace(empty, failure=str(error))


def _differences_page(root: _Root, view: RootView) -> _Differences:
    names, operator = _operators(view)
    summaries = {summary.checkpoint_id: summary for summary in view.summaries}
    records = {record.checkpoint_id: record for record in view.records}
    ids = sorted(summaries)
    before, after = sorted((_asked_id("before", ids[-2:-1]), _asked_id("after", ids[-1:])))
    page = _Differences(
        ids=ids, retained=sorted(records), operators=names, operator=operator, before=before, after=after
    )
    if len(ids) < 2:
        return page
    if before not in summaries or after not in summaries:
        known = f"#{ids[0]:,} to #{ids[-1]:,}"
        return replace(page, failure=f"The history has no such checkpoint: it knows {known}.")
    page = replace(page, figures=figure_differences(summaries[before], summaries[after]))
    if not operator or before not in records or after not in records:
        return page
    try:
        changes, is_cut = row_changes(root.follower.store, records[before], records[after], operator, _CHANGES_MAX)
    except StatelineError as error:
        return replace(page, failure=str(error))
    return replace(page, changes=changes, is_cut=is_cut)


def _asked_id(name: str, default: Sequence[int]) -> int:
    """The checkpoint that a field of the form names; -1 for what is not a number."""
    text = flask.request.args.get(name, "").strip().lstrip("#").replace(",", "")
    if not text:
        return default[0] if default else -1
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else -1
