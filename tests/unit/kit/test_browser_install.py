"""Chromium comes with `make test` where a package manager can bring it; elsewhere a message names the command."""

from __future__ import annotations

import os
import sys

import pytest

from tests.kit import browser


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A machine that has only the programs which a test makes, and a log of what was run."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))

    def make(name, brings=""):
        path = tmp_path / name
        brought = (
            f"open({str(tmp_path / brings)!r}, 'w'); os.chmod({str(tmp_path / brings)!r}, 0o755)" if brings else ""
        )
        lines = ["import os, sys", "open(os.environ['LOG'], 'a').write(' '.join(sys.argv[1:]) + chr(10))", brought]
        path.write_text(f"#!{sys.executable}\n" + "\n".join(lines) + "\n")
        path.chmod(0o755)
        return lambda: (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []

    return make


def test_a_browser_that_is_there_is_enough(programs, capsys):
    programs("google-chrome")
    ran = programs("apt-get", brings="chromium")
    browser.install()
    assert ran() == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("manager", browser.MANAGERS)
def test_the_package_manager_of_the_system_brings_one(programs, monkeypatch, manager):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    ran = programs(manager, brings="chromium")
    browser.install()
    assert browser.installed() is not None
    assert ran() == [" ".join(command[1:]) for command in browser.MANAGERS[manager]]


def test_a_user_without_sudo_is_told_the_command(programs, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    ran = programs("apt-get", brings="chromium")
    browser.install()
    assert ran() == []
    assert "sudo apt-get install" in capsys.readouterr().err


def test_sudo_that_asks_for_a_password_is_not_waited_for(programs, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    programs("apt-get")
    ran = programs("sudo")
    browser.install()
    assert [line.split()[0] for line in ran()] == ["-n", "-n"]
    assert "sudo apt-get install" in capsys.readouterr().err


def test_a_machine_without_a_known_manager_is_told_what_to_install(programs, capsys):
    browser.install()
    assert "Install Chromium or Chrome" in capsys.readouterr().err
