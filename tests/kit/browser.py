"""Chromium without a window, over its own protocol: JSON between NUL bytes, over two pipes.

Nothing else is needed than the browser itself, and no port is opened.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

__all__ = ["Browser", "BrowserMissingError", "advice", "install", "installed"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_SECONDS = 60.0
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
)


MANAGERS = {
    "apt-get": [
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "chromium"],
    ],
    "dnf": [["dnf", "install", "-q", "-y", "chromium"]],
    "apk": [["apk", "add", "-q", "chromium"]],
    "pacman": [["pacman", "-S", "--noconfirm", "--needed", "chromium"]],
    "zypper": [["zypper", "-n", "-q", "install", "chromium"]],
}
"""What installs Chromium, by the package manager of the system. Each needs the rights of root."""


class BrowserMissingError(Exception):
    """There is no browser on this machine."""


def installed() -> str | None:
    """The browser of this machine; ``None`` if it has none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def advice() -> str:
    """Which command installs a browser on this machine."""
    manager = next((name for name in MANAGERS if shutil.which(name)), None)
    if manager is None:
        return "Install Chromium or Chrome so that one of these is on the PATH"
    return f"Install Chromium: sudo {shlex.join(MANAGERS[manager][-1])}. Or install Chrome"


def install() -> None:
    """Installs Chromium by the system's package manager, unless a browser is there. Asks for no password.

    Where that is impossible, says which command does it. The tests of pages fail then, and say the same.
    """
    if installed() is not None:
        return
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    manager = next((name for name in MANAGERS if shutil.which(name)), None)
    if manager is not None and (not as_root or shutil.which("sudo")):
        sys.stderr.write("Installing Chromium, for the tests of pages.\n")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in MANAGERS[manager]:
            subprocess.run([*as_root, *command], check=False, env=quiet, stdout=subprocess.DEVNULL)
    if installed() is None:
        sys.stderr.write(f"There is no browser, so the tests of pages will fail. {advice()}\n")


class Browser:
    """One page of one browser. A context manager that ends it.

    Args:
        profile: A folder for it, empty.

    Raises:
        BrowserMissingError: There is none.
    """

    def __init__(self, profile: Path) -> None:
        program = installed()
        if program is None:
            raise BrowserMissingError(f"none of {', '.join(NAMES)} is installed. {advice()}")
        to_browser, self._writing = os.pipe()
        self._reading, from_browser = os.pipe()

        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'  # Chromium asks for these two numbers.
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        os.close(self._writing)
        os.close(self._reading)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"])[:2000])
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._reading, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended")
            self._buffer += data
        one, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(one)

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Waits until an expression is true."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.evaluate(script):
            if time.monotonic() > until:
                raise AssertionError(f"never true: {script}")
            time.sleep(0.05)

    def open(self, url: str) -> None:
        """Goes to a page, and waits until it is there."""
        self.call("Page.navigate", url=url)
        self.wait_for(
            f"document.readyState === 'complete' && location.href !== 'about:blank' && {json.dumps(url)} !== ''"
        )

    def look_like(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The width of the page, and its colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Presses a key."""
        text = key if len(key) == 1 else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def point_at(self, x: float, y: float) -> None:
        """Moves the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path, *, whole: bool = True) -> Path:
        """A picture of the page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))
        return file


if __name__ == "__main__":
    install()
