"""The library that draws may end its process: the command that draws goes on."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandline import Command
from fedkin.core.errors import EngineError
from fedkin.report import charts, drawing

CHART = {"data": {"values": [{"a": 1}]}, "mark": "bar", "encoding": {"x": {"field": "a", "type": "quantitative"}}}


@pytest.fixture
def no_room() -> Iterator[None]:
    """A limit on addresses, as of ``ulimit -v``, that is above what is used and below what the library reserves."""
    drawing._child.cache_clear()
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    drawing._child.cache_clear()


@pytest.mark.usefixtures("drawn", "no_room")
def test_a_run_without_room_for_its_picture_is_a_finished_run(
    fedkin: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything but the picture is there, with one line about it and the code of a finished run."""
    run = "run fedavg --clients 3 --samples-per-client 30 --rounds 1 --model linear --engine loop --quiet --out run"
    done = fedkin(run)
    assert done.code == 0
    assert "no chart was drawn" in caplog.text
    assert "Traceback" not in done.err
    assert {"summary.json", "rounds.jsonl", "report.html"} <= {path.name for path in Path("run").iterdir()}
    assert not Path("run/overview.png").exists()
    assert fedkin("report run").code == 0
    figures = fedkin("report run --figures figures")
    assert (figures.code, "Traceback" in figures.err) == (1, False)


def test_a_chart_after_the_end_of_the_library() -> None:
    """A process that was killed is started again; a chart that cannot be drawn is an error and ends nothing."""
    assert "</svg>" in charts.svg(CHART)
    os.kill(drawing._child().pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        charts.svg(CHART)
    assert charts.png(CHART).startswith(b"\x89PNG")
    child = drawing._child()
    with pytest.raises(EngineError):
        charts.svg({"mark": 7})
    assert "</svg>" in charts.svg(CHART)
    assert drawing._child() is child
