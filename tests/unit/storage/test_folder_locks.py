"""One writer in a run folder: a second process is refused by name, readers are not, and a dead owner's lock is free."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import fedkin.cli.commands
import fedkin.storage.lock
from commandline import Command
from fedkin.cli import BAD_INPUT, OK
from fedkin.core.errors import FolderBusyError
from fedkin.experiment.compare import Comparison, compare
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import toml_of
from fedkin.experiment.sweep import Sweep, run_sweep
from fedkin.storage.lock import NAME, held, owner, remove, require_free, writing
from fedkin_hosts import submitted
from fedkin_hosts.serve import serve
from folders import assert_same_run, content, lines_in, small
from hosttoys import Direct, settings, sites

FORK = multiprocessing.get_context("fork")


def forked(work: Callable[[], Any]) -> BaseProcess:
    """A started process."""
    process = FORK.Process(target=work)
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


@contextmanager
def another(begin: Callable[[Callable[[], None]], Any]) -> Iterator[BaseProcess]:
    """A process that is in the middle of writing: `begin` is given what it calls there, which never comes back."""
    ours, theirs = FORK.Pipe()

    def there(end: Connection = theirs) -> None:
        end.send(None)
        while True:
            signal.pause()

    process = forked(lambda: begin(there))
    theirs.close()
    try:
        assert ours.poll(300), "the other process was not there in five minutes"
        ours.recv()
        yield process
    finally:
        process.kill()
        process.join()


def holding(folder: Path) -> Any:
    """Another process that is writing into the folder."""

    def begin(there: Callable[[], None]) -> None:
        with writing(folder):
            there()

    return another(begin)


def running(out: Path, rounds: int = 4) -> Any:
    """Another process whose run in the folder has finished its second round and does not go on."""

    def begin(there: Callable[[], None]) -> None:
        run_settings(small(run={"rounds": rounds}), out=out, on_round=lambda r, line: r.round == 2 and there())

    return another(begin)


# ---- the lock -----------------------------------------------------------------------------------------------------
def test_a_folder_has_one_writer_who_is_named(tmp_path: Path) -> None:
    """A second process is refused, and told the number, host and time of the first."""
    with holding(tmp_path / "a") as other:
        with (
            pytest.raises(FolderBusyError, match=rf"a is being written by process {other.pid} on \S+ since \d{{4}}-"),
            writing(tmp_path / "a"),
        ):
            pass
        assert (tmp_path / "a" / NAME).exists()


def test_a_lock_is_gone_with_the_block(tmp_path: Path) -> None:
    """Nothing is left of a lock that was given back, and it can be taken again."""
    for _ in range(2):
        with writing(tmp_path / "a"):
            assert [p.name for p in (tmp_path / "a").iterdir()] == [NAME]
        assert not list((tmp_path / "a").iterdir())


def test_a_dead_process_has_no_lock(tmp_path: Path) -> None:
    """The lock of a process that was killed is taken over, though its file is still there."""
    with holding(tmp_path / "a") as other:
        other.kill()
        other.join()
        assert (tmp_path / "a" / NAME).exists()
        assert owner(tmp_path / "a" / NAME) is None
        with writing(tmp_path / "a"):
            found = owner(tmp_path / "a" / NAME)
            assert found is not None
            assert found.pid == os.getpid()


def test_a_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    """Workers that outlive the process that forked them for a while do not hold its folder."""
    ours, theirs = FORK.Pipe()

    def begin(there: Callable[[], None]) -> None:
        with writing(tmp_path / "a"):
            theirs.send(forked(lambda: time.sleep(600)).pid)
            there()

    with another(begin) as parent:
        child = ours.recv()
        parent.kill()
        parent.join()
        try:
            os.kill(child, 0)
            require_free(tmp_path / "a")
        finally:
            os.kill(child, signal.SIGKILL)


def test_two_threads_are_two_writers(tmp_path: Path) -> None:
    """Another thread of the same process is refused, the same thread may enter again."""
    found: list[object] = []

    def other() -> None:
        try:
            with writing(tmp_path / "a"):
                found.append("in")
        except FolderBusyError as e:
            found.append(e)

    with writing(tmp_path / "a"), writing(tmp_path / "a"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert [type(each) for each in found] == [FolderBusyError]


def test_a_folder_is_removed_with_its_lock(tmp_path: Path) -> None:
    """Its files and folders at once, but not what links lead to; the lock, which is held meanwhile, and the folder at
    the end. A folder in which something is written after that stays, without a lock."""
    a, other = tmp_path / "a", tmp_path / "other"
    for folder in (a / "runs" / "one", other):
        folder.mkdir(parents=True)
        (folder / "file").write_text("")
    with writing(a):
        (a / "link").symlink_to(other)
        (a / "table").write_text("")
        remove(a)
        assert [path.name for path in a.iterdir()] == [".lock"]
        assert owner(a / ".lock") is not None
    assert not a.exists()
    assert (other / "file").exists()
    with writing(a):
        remove(a)
        (a / "late").write_text("")
    assert [path.name for path in a.iterdir()] == ["late"]


def test_of_many_at_one_instant_one_gets_the_lock(tmp_path: Path) -> None:
    """Of six processes that take the lock of a dead one at the same instant exactly one succeeds."""
    path, got, gate = tmp_path / "lock", tmp_path / "got", FORK.Event()
    path.write_text("of a dead one")

    def child() -> None:
        gate.wait()
        with held(path) as mine:
            with got.open("a") as file:
                file.write(f"{mine}\n")
            while True:
                signal.pause()

    many = [forked(child) for _ in range(6)]
    gate.set()
    end = time.monotonic() + 300
    while not got.exists() or got.read_text().count("\n") < len(many):
        assert time.monotonic() < end, "not all had tried in five minutes"
        time.sleep(0.01)
    assert sorted(got.read_text().split()) == ["False"] * 5 + ["True"]
    for process in many:
        process.kill()
        process.join()


def test_a_lock_file_that_is_removed_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last owner removes the file between its opening and its locking, the lock is that of a new file."""
    path, lock, first = tmp_path / "lock", fedkin.storage.lock.fcntl.flock, iter([True])

    def late(number: int, how: int) -> None:
        if next(first, False):
            path.unlink()
        lock(number, how)

    monkeypatch.setattr(fedkin.storage.lock.fcntl, "flock", late)
    with held(path) as got:
        assert got
        found = owner(path)
        assert found is not None
        assert found.pid == os.getpid()


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the file system has no locks a run is not refused, and a warning says what is missing."""

    def without(number: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fedkin.storage.lock.fcntl, "flock", without)
    with writing(tmp_path / "a"):
        pass
    assert "the file system has no locks" in caplog.text


# ---- runs ---------------------------------------------------------------------------------------------------------
def test_resume_of_a_run_that_is_running_is_refused(tmp_path: Path, fedkin: Command) -> None:
    """``fedkin resume`` of a running run ends with code 2 and changes nothing; after the run's end it goes on."""
    whole = run_settings(small(), out="whole").folder
    assert whole is not None
    with running(tmp_path / "a") as other:
        before = content(tmp_path / "a")
        done = fedkin("resume a")
        assert (done.code, done.out) == (BAD_INPUT, "")
        assert f"a is being written by process {other.pid} on " in done.err
        assert content(tmp_path / "a") == before
    resume("a")
    assert_same_run(tmp_path / "a", whole)


def test_readers_do_not_wait_for_the_writer(tmp_path: Path, fedkin: Command) -> None:
    """While a finished run is being written again, its report can be made and a model exported."""
    run_settings(small(), out="a")
    with holding(tmp_path / "a"):
        assert fedkin("report a").code == OK
        assert fedkin("export a --client 0 --out model").code == OK


def test_two_runs_into_one_folder_at_one_instant(tmp_path: Path) -> None:
    """Of two ``fedkin run --out a`` exactly one runs; the other ends with code 2 and leaves the folder alone."""
    path = {**os.environ, "PYTHONPATH": str(Path(fedkin.storage.lock.__file__).parents[2])}
    (tmp_path / "run.toml").write_text(toml_of(small(run={"rounds": 30})))
    command = [sys.executable, "-m", "fedkin", "run", "run.toml", "--quiet", "--out", "a"]
    both = [
        subprocess.Popen(command, cwd=tmp_path, env=path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {process.returncode: err for process in both if (err := process.communicate(timeout=300)[1]) is not None}
    assert sorted(said) == [OK, BAD_INPUT]
    assert "a is being written by process " in said[BAD_INPUT] or "a exists already" in said[BAD_INPUT]
    run_settings(small(run={"rounds": 30}), out=tmp_path / "whole")
    assert lines_in(tmp_path / "a") == lines_in(tmp_path / "whole")


def test_a_new_run_where_another_is_running_is_refused(tmp_path: Path) -> None:
    """A new run, and what it removes when it is stopped, do not touch a folder that another process writes."""
    with running(tmp_path / "a"):
        before = content(tmp_path / "a")
        with pytest.raises(FolderBusyError, match="is being written by process"):
            run_settings(small(), out=tmp_path / "a")
        assert content(tmp_path / "a") == before


def test_stopping_a_refused_run_does_not_remove_the_folder_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C on a run whose folder was new when it started leaves it alone if another process has begun there."""
    monkeypatch.chdir(tmp_path)
    with holding(tmp_path / "a"):
        (tmp_path / "a" / "config.toml").write_text("of the other")
        assert fedkin.cli.commands._stopped(Path("a"), new=True) == 130
        assert (tmp_path / "a" / "config.toml").exists()
    fedkin.cli.commands._stopped(Path("a"), new=True)
    assert not (tmp_path / "a").exists()


def plan_of_two() -> Comparison:
    """A comparison of some milliseconds."""
    return Comparison(("fedavg",), base=small("fedavg", run={"rounds": 2}))


def test_a_comparison_locks_its_folder_and_its_runs(tmp_path: Path) -> None:
    """While a comparison runs nobody else can resume it, nor the run in it that is being made."""
    seen: list[object] = []

    def look(name: str, seed: int, report: Any, line: dict[str, Any]) -> None:
        for place in (tmp_path / "a", tmp_path / "a" / f"{name}-seed{seed}"):
            seen.append(getattr(owner(place / NAME), "pid", None))

    compare(plan_of_two(), out=tmp_path / "a", on_round=look)
    assert seen
    assert set(seen) == {os.getpid()}
    assert not list((tmp_path / "a").rglob(NAME))
    with holding(tmp_path / "a"), pytest.raises(FolderBusyError, match="is being written by process"):
        compare(plan_of_two(), out=tmp_path / "a", resume=True)


def test_a_sweep_locks_its_folder(tmp_path: Path) -> None:
    """While a sweep runs nobody else can resume it."""
    sweep = Sweep(small(data={"validation": 0.2}), {"training.lr": (0.1, 0.2)})
    seen: list[object] = []
    run_sweep(sweep, tmp_path / "a", on_trial=lambda *_: seen.append(owner(tmp_path / "a" / NAME)))
    assert seen
    assert None not in seen
    with holding(tmp_path / "a"), pytest.raises(FolderBusyError, match="is being written by process"):
        run_sweep(sweep, tmp_path / "a", resume=True)


# ---- hosts --------------------------------------------------------------------------------------------------------
def test_a_server_locks_its_folder_from_before_it_waits_for_nodes(tmp_path: Path) -> None:
    """A second server of a run that is waiting for its nodes is refused."""
    s = settings("fedavg")
    post, seen = Direct(sites(tmp_path)), []
    nodes = post.nodes
    post.nodes = lambda: seen.append(owner(tmp_path / "run" / NAME)) or nodes()  # type: ignore[func-returns-value,method-assign]
    serve(s, post, tmp_path / "run", clock=post.time.clock())
    assert seen
    assert None not in seen
    with holding(tmp_path / "run"), pytest.raises(FolderBusyError, match="is being written by process"):
        serve(s, post, tmp_path / "run", clock=post.time.clock())


def test_a_second_server_leaves_no_word_of_failure_to_the_first(tmp_path: Path) -> None:
    """A server that finds its folder taken writes no failed.txt, which would end the command that follows the first."""
    word = submitted.Submitted.of(settings("fedavg"), tmp_path / "run").word
    with holding(tmp_path / "run"):
        with pytest.raises(FolderBusyError, match="is being written by process"):
            submitted.run_submitted(Direct(sites(tmp_path)), word)
        assert [p.name for p in (tmp_path / "run").iterdir()] == [NAME]


def test_submit_is_refused_while_the_run_is_served(tmp_path: Path, fedkin: Command) -> None:
    """``fedkin submit RUN`` ends with code 2 while a server writes the folder, before it asks the link."""
    run_settings(small(), out="run")
    (tmp_path / "run" / "failed.txt").write_text("of before")
    with holding(tmp_path / "run") as other:
        done = fedkin("submit run")
        assert (done.code, done.out) == (BAD_INPUT, "")
        assert f"run is being written by process {other.pid} on " in done.err
        assert (tmp_path / "run" / "failed.txt").exists()


def test_the_lock_file_says_who(tmp_path: Path) -> None:
    """The lock file holds process, host and time in JSON."""
    with writing(tmp_path / "a"):
        told = json.loads((tmp_path / "a" / NAME).read_text())
    assert told.keys() == {"pid", "host", "since"}
    assert told["pid"] == os.getpid()
