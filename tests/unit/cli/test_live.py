"""``--live`` and ``fedkin runs --open``: the address is printed, and a run computes the same."""

from __future__ import annotations

import json
import re
import signal
import threading
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from commandline import Command
from fedkin.cli import live
from folders import assert_same_run


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The files that were opened in a browser, on a machine with a display."""
    found: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(webbrowser, "open", found.append)
    return found


def leads_to(opened: str) -> str:
    """Where a file of this user alone leads that a browser opens: an argument of the browser tells nothing."""
    path = Path(opened.removeprefix("file://"))
    assert path.stat().st_mode & 0o777 == 0o600
    (where,) = re.findall('url=(.*)"', path.read_text())
    assert where.rpartition("/")[0].rpartition("/")[2] not in opened
    return str(where)


def test_a_live_run_is_the_same_run(fedkin: Command, small: str, opened: list[str]) -> None:
    """The address comes first and is opened, the command for another look comes last; all lines are equal."""
    assert fedkin(f"run fedavg {small} --quiet --out plain").code == 0
    done = fedkin(f"run fedavg {small} --live --out followed")
    said = done.err.splitlines()
    assert done.code == 0
    assert said[0].startswith("live page: http://127.0.0.1:")
    assert [leads_to(one) for one in opened] == [said[0].removeprefix("live page: ")]
    assert said[-1] == "live page again: fedkin runs followed --open"
    assert_same_run(Path("plain"), Path("followed"))


@pytest.mark.parametrize("command", ["compare fedprox", "sweep fedprox --grid method.mu=0.1,1 --validation 0.2"])
def test_many_runs(fedkin: Command, small: str, opened: list[str], command: str) -> None:
    """A comparison and a sweep have the same flags; JSON on standard output stays JSON."""
    done = fedkin(f"{command} {small} --live --no-browser --json --out several")
    assert (done.code, opened) == (0, [])
    assert "live page: http://127.0.0.1:" in done.err
    assert done.err.splitlines()[-1] == "live page again: fedkin runs several --open"
    assert json.loads(done.out)


@pytest.mark.thorough
def test_resumed(fedkin: Command, small: str, opened: list[str]) -> None:
    """A run that gets more rounds can be followed as well; nothing is written by the page."""
    assert fedkin(f"run fedavg {small} --quiet --out a").code == 0
    done = fedkin("resume a --rounds 3 --live --quiet")
    assert (done.code, len(opened)) == (0, 1)
    assert not [p.name for p in Path("a").iterdir() if "live" in p.name]


def test_no_browser_without_a_display(fedkin: Command, small: str, opened, monkeypatch) -> None:
    """A text browser would take over the terminal; the address is printed."""
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(live.sys, "platform", "linux")
    assert "live page: http" in fedkin(f"run fedavg {small} --live --quiet --out a").err
    assert opened == []


def test_runs_are_shown_until_ctrl_c(fedkin: Command, small: str, opened: list[str], monkeypatch) -> None:
    """The page is there while the command waits; Ctrl-C is its normal end."""
    assert fedkin(f"run fedavg {small} --quiet --out runs/a").code == 0
    found: list[str] = []

    def look(where: str) -> None:
        with urllib.request.urlopen(f"{leads_to(where)}runs.json") as answer:
            found.extend(run["id"] for run in json.loads(answer.read())["runs"])
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(webbrowser, "open", lambda where: threading.Thread(target=look, args=(where,)).start())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        done = fedkin("runs --open")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.code, found) == (0, ["a"])
    assert "Ctrl-C ends it" in done.err


def test_bad_ports(fedkin: Command, small: str) -> None:
    """Refused before anything is written."""
    done = fedkin(f"run fedavg {small} --live --port 70000 --out a")
    assert done.code == 2
    assert "--port must be a number from 0 to 65535, got 70000" in done.err
    assert not Path("a").exists()
