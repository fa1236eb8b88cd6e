"""Ctrl-C, SIGTERM and a reader that goes away, sent to real processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedkin.cli
from fedkin.cli.flags import run_flags
from fedkin.experiment import progress
from fedkin.experiment.run import resume, run_settings
from folders import lines_in

FLAGS = "--clients 4 --samples-per-client 24 --model linear --steps 2 --batch-size 5 --rounds 24 --engine workers@n=2"
RUN = ["run", "da-pfl", *FLAGS.split()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The lines of the run that nobody stops."""
    settings, _ = run_flags(RUN[1:])
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_settings(settings, out=folder)
    return lines_in(folder)


def start(*args: str, **more: Any) -> subprocess.Popen[str]:
    """``python -m fedkin ARGS`` with signals as a terminal gives them, whatever this process ignores."""
    env = {**os.environ, "PYTHONPATH": str(Path(fedkin.cli.__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "fedkin", *args],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **more,
    )


def wait_for(ready: Callable[[], bool], alive: Callable[[], bool]) -> None:
    """Waits until something is true, as long as a process lives."""
    end = time.monotonic() + 600
    while not ready():
        assert alive(), "the command ended too early"
        assert time.monotonic() < end, "nothing happened in ten minutes"
        time.sleep(0.002)


def rounds_in(folder: Path) -> int:
    """How many rounds a folder tells of."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_at_twenty(self: Any, line: Any, *more: Any) -> None:
    """Lets no command reach its end before it is stopped, however busy this machine is."""
    if line.round == 20:
        time.sleep(600)


@pytest.mark.parametrize("everyone", [False, True], ids=["to the command", "to all its processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_stopped_in_a_round(
    number: int, everyone: bool, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C goes to a whole group of processes, ``kill`` to one: both end with exit code 130, tell how to go on and
    say nothing else, and going on gives the run as if nothing had been."""
    monkeypatch.chdir(tmp_path)

    def child() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, at in (("out", 1), ("err", 2)):  # what the workers write is caught as well
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), at)
        assert sys.__stdout__ is not None
        assert sys.__stderr__ is not None
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        progress.Bar.at = wait_at_twenty  # type: ignore[method-assign]
        code = fedkin.cli.main([*RUN, "--out", "a"])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=child)
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    assert process.pid is not None
    wait_for(lambda: rounds_in(tmp_path / "a") >= 3, process.is_alive)
    (os.killpg if everyone else os.kill)(process.pid, number)
    process.join(timeout=600)
    assert process.exitcode == 130
    assert Path("err").read_text() == "stopped; continue with: fedkin resume a\n"
    assert Path("out").read_text() == ""
    assert 3 <= rounds_in(tmp_path / "a") <= 20
    resume("a")
    assert lines_in(Path("a")) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_stopped_while_packages_load(number: int, tmp_path: Path) -> None:
    """No traceback of theirs is seen, and nothing is written."""
    process = start(*RUN, "--out", "a", cwd=tmp_path)
    loaded = Path(f"/proc/{process.pid}/maps")
    if not loaded.exists():
        process.kill()
        pytest.skip("only Linux says what a process has loaded")
    wait_for(lambda: "libtorch" in loaded.read_text(), lambda: process.poll() is None)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("stopped")
    assert "Traceback" not in err
    assert not (tmp_path / "a").exists()


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup, and in the background of a script: also while packages load."""
    before, told = signal.signal(signal.SIGINT, signal.SIG_IGN), list[int]()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", lambda number, handler: told.append(number))
            fedkin.cli._commands("list")
        assert signal.SIGINT not in told
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_help_waits_for_nothing() -> None:
    """Torch takes seconds to load on a small machine; help and the version do without it."""
    code = "import sys; from fedkin.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    env = {**os.environ, "PYTHONPATH": str(Path(fedkin.cli.__file__).parents[2])}
    for args in (["--help"], [], ["--version"]):
        done = subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), args
        assert done.stdout


def test_output_that_is_closed_or_lacks_signs(tmp_path: Path) -> None:
    """The exit code is the command's, without a traceback, where output is closed or its encoding lacks ±."""
    command = f"{sys.executable} -m fedkin {' '.join(RUN)}"
    env = {**os.environ, "PYTHONPATH": str(Path(fedkin.cli.__file__).parents[2]), "PYTHONIOENCODING": "latin-1"}
    for line in (f"{command} --rounds 1 --out a >&-", f"{command} --rounds 1 --out b"):
        done = subprocess.run(line, shell=True, env=env, capture_output=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
    assert b"Everything is in b" in done.stdout
    assert b"?" in done.stdout  # for the lines of the table


def test_ctrl_c_as_people_press_it(tmp_path: Path) -> None:
    """The same with a real ``python -m fedkin``: all its processes get SIGINT, no traceback is seen anywhere."""
    process = start(*RUN, "--rounds", "5000", "--out", "a", cwd=tmp_path)
    wait_for(lambda: rounds_in(tmp_path / "a") >= 3, lambda: process.poll() is None)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (130, "", "stopped; continue with: fedkin resume a\n")


@pytest.mark.parametrize("args", [["list"], ["--help"]], ids=" ".join)
def test_a_reader_that_goes_away(args: list[str]) -> None:
    """``fedkin list | head -0``: no traceback and no other noise."""
    process = start(*args)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=600)
    assert err == ""
    assert process.returncode in (0, 1)
