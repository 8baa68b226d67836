"""Pages as a browser shows them: at three widths, light and dark, by keys, and while a root goes on.

Pictures stay in the folder of the test: ``--basetemp`` says where, and ``-o tmp_path_retention_policy=all`` keeps them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import waitress

from stateline.checkpoint import CheckpointStore
from stateline.checkpoint.history import with_summaries
from stateline.dashboard.pages import report_page
from stateline.dashboard.roots import RootFollower
from stateline.dashboard.server import TABS, dashboard_app
from tests.kit.browser import Browser
from tests.unit.dashboard.dashboard_kit import long_root, new_store, record, state_root, summary

WIDTHS = (1280, 768, 375)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
        assert browser.errors == []


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, CheckpointStore]]:
    """Three roots on a port of their own: a long one, one with rows, an empty one."""
    store = new_store()
    root = long_root(store, 400)
    app = dashboard_app([RootFollower(store), RootFollower(state_root().url), RootFollower(new_store())])
    server = waitress.create_server(app, host="127.0.0.1", port=0, threads=4)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.effective_port}", root
    server.close()
    thread.join(10)


def check_fits(browser: Browser, width: int) -> None:
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    small = "[...document.querySelectorAll('svg')].filter(each => each.getBoundingClientRect().width < 1).length"
    assert browser.evaluate(small) == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_every_width_in_light_and_dark(browser, site, tmp_path, width, dark):
    url, _ = site
    browser.look_like(width, dark=dark)
    paths = [f"r/0/{tab}" for tab in dict(TABS)]
    paths += ["", "r/1/key?operator=flights&k=N1", "r/1/differences?before=0&after=2", "r/2/checkpoints", "r/9/state"]
    for path in paths:
        browser.open(f"{url}/{path}")
        check_fits(browser, width)
        name = path.partition("?")[0].replace("/", "-") or "overview"
        assert browser.screenshot(tmp_path / f"{name}-{width}-{'dark' if dark else 'light'}.png").stat().st_size > 5000
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(14, 17, 21)") is dark


def test_a_report_fits_and_looks_the_same(browser, site, tmp_path):
    _, root = site
    file = tmp_path / "report.html"
    file.write_text(report_page(RootFollower(root.store).look()), encoding="utf-8")
    for width in WIDTHS:
        browser.look_like(width)
        browser.open(file.as_uri())
        check_fits(browser, width)
        browser.screenshot(tmp_path / f"report-{width}.png")
    browser.evaluate("document.querySelector('#state').scrollIntoView()")


def test_keys_choose_pages_and_look_up(browser, site):
    url, _ = site
    browser.look_like(1280)
    browser.open(f"{url}/r/0/checkpoints")
    for number, (name, _) in enumerate(TABS, start=1):
        browser.press(str(number))
        browser.wait_for(f"location.pathname === '/r/0/{name}' && document.readyState === 'complete'")
    browser.press("5")
    browser.wait_for("location.pathname === '/r/0/key' && document.readyState === 'complete'")
    browser.press("/")
    assert browser.evaluate("document.activeElement.name") == "k"
    browser.evaluate("document.activeElement.blur()")
    browser.press("?")
    assert browser.evaluate("document.querySelector('dialog.help').open") is True
    browser.evaluate("document.querySelector('dialog.help').close()")
    browser.press("p")
    assert browser.evaluate("document.querySelector('.live').textContent.trim()") == "paused"


def test_what_stands_under_the_pointer_is_told(browser, site):
    url, _ = site
    browser.look_like(1280)
    browser.open(f"{url}/r/0/checkpoints")
    x, y = browser.evaluate(
        "(() => { const box = document.querySelector('svg.graph').getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    browser.point_at(x, y)
    browser.wait_for("document.querySelector('.tip') && !document.querySelector('.tip').hidden")
    assert "process: " in browser.evaluate("document.querySelector('.tip').textContent")


def test_a_page_follows_its_root(browser, site):
    url, root = site
    browser.look_like(1280)
    browser.open(f"{url}/r/0/checkpoints")
    assert "#399" in browser.evaluate("document.querySelector('.tile dd').textContent")
    root.publish(with_summaries(record(400), [summary(number) for number in range(384, 401)]))
    browser.wait_for("document.querySelector('.tile dd').textContent.includes('#400')")


def test_a_page_is_complete_without_its_script(browser, site):
    url, _ = site
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(f"{url}/r/0/state")  # What the protocol evaluates runs all the same.
        assert browser.evaluate("document.querySelectorAll('svg.heat rect').length") > 100
        browser.press("1")
        assert browser.evaluate("location.pathname") == "/r/0/state"
        assert browser.evaluate("document.querySelector('.tip')") is None
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_every_control_has_a_name_and_is_reached_by_tab(browser, site):
    url, _ = site
    for path in ("r/0/checkpoints", "r/1/key?operator=flights&k=N1", "r/1/differences"):
        browser.open(f"{url}/{path}")
        nameless = (
            "[...document.querySelectorAll('a, button, input:not([type=hidden]), select')].filter(each =>"
            " !(each.textContent.trim() || each.title || (each.labels && each.labels.length))).length"
        )
        assert browser.evaluate(nameless) == 0
        assert browser.evaluate("document.querySelectorAll('[tabindex]:not([tabindex=\"0\"]):not(main)').length") == 0
