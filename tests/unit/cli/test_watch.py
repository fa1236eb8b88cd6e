"""`fedkin report --watch`: the page of runs that go on."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from commandline import Command
from fedkin.cli import report
from fedkin.cli.report import PageServer, watch
from folders import without_end


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def answer(server: PageServer, path: str = "/", host: str = "localhost", verb: str = "GET") -> int:
    connection = HTTPConnection("127.0.0.1", server.server_port)
    connection.request(verb, path, headers={"Host": host})
    return connection.getresponse().status


def test_one_page_and_nothing_else(server: PageServer) -> None:
    """It asks for itself again while it will change; other names of this machine, paths and verbs get nothing."""
    where = f"http://127.0.0.1:{server.server_port}/"
    with urllib.request.urlopen(where) as found:
        assert b"No round is done yet" in found.read()
        assert found.headers["Refresh"] == "15"
    server.text, server.going = b"<b>done", False
    with urllib.request.urlopen(where) as found:
        assert (found.read(), found.headers["Refresh"]) == (b"<b>done", None)
    assert server.server_address[0] == "127.0.0.1"
    assert [answer(server, host=host) for host in ("evil.example", "", f"localhost:{server.server_port}")] == [
        403, 403, 200,
    ]  # fmt: skip
    assert [answer(server, path) for path in ("/report.html", "/../config.toml", "//etc/passwd")] == [404] * 3
    assert answer(server, verb="POST") == 501


def test_the_page_of_runs_that_go_on(fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that are done, with a caveat; a run by itself likewise."""
    assert fedkin(f"compare fedprox {small} --quiet --out c").code == 0
    without_end(Path("c") / "fedprox-seed0")
    monkeypatch.setattr(report, "watch", lambda folder, port, write: write())
    assert fedkin("report c --watch").code == 0
    assert "1 run of 4 will have more rounds" in (Path("c") / "report.html").read_text()
    assert fedkin("report c/fedprox-seed0 --watch").code == 0
    assert "FedProx" in (Path("c") / "fedprox-seed0" / "report.html").read_text()


def test_a_port_that_is_taken(fedkin: Command, small: str, server: PageServer) -> None:
    """Refused with the flag that names another; so is a number that is no port."""
    assert fedkin(f"run fedavg {small} --quiet --out a").code == 0
    for port in (server.server_port, 70000):
        done = fedkin(f"report a --watch --port {port}")
        assert (done.code, "--port" in done.err) == (2, True)


def test_it_is_written_again_with_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not while nothing changes; Ctrl-C is the end."""
    written = []

    def write() -> Path:
        written.append(1)
        (tmp_path / "report.html").write_text("page")
        return tmp_path / "report.html"

    def sleep(seconds: float, looks: list[float] = []) -> None:  # noqa: B006
        looks.append(seconds)
        if len(looks) == 2:
            (tmp_path / "commit.json").write_text("{}\n")
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedkin.cli.report.time.sleep", sleep)
    watch(tmp_path, 0, write)
    assert len(written) == 2
