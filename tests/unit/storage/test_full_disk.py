"""A full disk and files that only their owner may read."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commandline import Command
from fedkin.cli import BAD_INPUT, FAILED, OK
from fedkin.core.errors import DiskFullError
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Settings, toml_of
from fedkin.experiment.sweep import Sweep, run_sweep
from fedkin_hosts.client_memory import ClientStore
from folders import assert_same_run, small
from hosttoys import Direct, on_hosts, settings, sites
from kills import assert_goes_on

FULL = OSError(28, "No space left on device")
TOLD = (
    r"the disk is full: \S+ cannot be written, [0-9,.]+ MB are free there; make room, "
    r"then continue with: fedkin resume "
)


def settings_of(state: str) -> Settings:
    """A run with states, a bank and a best round."""
    return small("da-pfl", run={"rounds": 5}, compute={"state": state})


class Disk:
    """A disk that is full from its n-th write on: whatever is written through the system's calls fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, left: float) -> None:
        self.folder, self.left, self.writes = str(folder), left, 0
        opened, pwrite, write_bytes = Path.open, os.pwrite, Path.write_bytes

        def open_(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
            file = opened(path, mode, *args, **more)
            if ("w" in mode or "a" in mode) and str(path).startswith(self.folder):
                return Failing(file, self)
            return file

        def write_bytes_(path: Path, raw: bytes) -> int:
            self.spend()
            return write_bytes(path, raw)

        def pwrite_(number: int, raw: bytes, at: int) -> int:
            if not os.readlink(f"/proc/self/fd/{number}").endswith(".lock"):
                self.spend()
            return pwrite(number, raw, at)

        monkeypatch.setattr(Path, "open", open_)
        monkeypatch.setattr(Path, "write_bytes", write_bytes_)
        monkeypatch.setattr(os, "pwrite", pwrite_)

    def spend(self) -> None:
        self.writes += 1
        if self.writes > self.left:
            raise OSError(*FULL.args)


class Failing:
    """A file on such a disk."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, raw: bytes) -> int:
        try:
            self._disk.spend()
        except OSError:
            self._file.write(raw[: len(raw) // 2])  # what still had room
            raise
        return int(self._file.write(raw))


@pytest.mark.parametrize("state", ["memory", "file"])
def test_every_write_of_a_run_can_meet_a_full_disk(
    state: str, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write fails, the message names place, room and command, and the run then goes on to the same end."""
    made = settings_of(state)
    with monkeypatch.context() as patch:
        disk = Disk(patch, tmp_path, float("inf"))
        run_settings(made, out=tmp_path / "all")
        writes = disk.writes
    assert writes > 25
    for left in range(
        2, writes, 1 if state == "memory" else 7
    ):  # the first two are those of a folder that is not begun
        with monkeypatch.context() as patch:
            Disk(patch, tmp_path, left)
            with pytest.raises(DiskFullError, match=TOLD + re.escape(str(tmp_path / "a"))):
                run_settings(made, out=tmp_path / "a")
        assert_goes_on(tmp_path / "a", whole(made))
        shutil.rmtree(tmp_path / "a")


@pytest.mark.parametrize("lacking", [1, 2])
def test_a_full_disk_at_the_report_costs_the_report_alone(
    lacking: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedkin: Command
) -> None:
    """The run is whole; one line names the file, the room and the command that writes the report."""
    command = "run fedavg --data digits --clients 3 --model linear --rounds 2 --engine loop --quiet --out"
    with monkeypatch.context() as patch:
        disk = Disk(patch, tmp_path, float("inf"))
        assert fedkin(command, tmp_path / "all").code == OK
        disk.left, disk.writes = disk.writes - lacking, 0
        done = fedkin(command, tmp_path / "a")
        assert (done.code, done.out) == (FAILED, "")
        assert re.search(TOLD.replace("resume", "report") + r"\S+/a$", done.err.strip(), re.MULTILINE), done.err
    assert fedkin("report a").code == OK
    assert_same_run(tmp_path / "a", tmp_path / "all")


def test_a_folder_that_cannot_be_begun_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even the config can be written there is nothing to go on with: another folder is asked for."""
    Disk(monkeypatch, tmp_path, 0)
    with pytest.raises(DiskFullError, match=r"config.toml cannot be written, .* make room, or choose another .*--out"):
        run_settings(settings_of("memory"), out=tmp_path / "a")


def test_comparisons_and_sweeps_name_their_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be resumed is the whole of it and not the run in it that met the full disk."""
    Disk(monkeypatch, tmp_path, 8)
    with pytest.raises(DiskFullError, match=TOLD + re.escape(str(tmp_path / "a")) + "$"):
        run_sweep(Sweep(small(data={"validation": 0.2}), {"training.lr": (0.1, 0.2)}), tmp_path / "a")


def test_a_server_on_hosts_names_its_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over hosts goes on with fedkin submit."""
    post = Direct(sites(tmp_path / "nodes"))
    Disk(monkeypatch, tmp_path / "run", 9)
    with pytest.raises(DiskFullError, match=r"continue with: fedkin submit \S+run$"):
        on_hosts(settings("fedavg"), tmp_path, post)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 300 kB, where this process may mount one."""
    place = tmp_path / "tiny"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("state", ["memory", "file"])
def test_a_real_full_disk(state: str, whole: Any, tiny: Path, tmp_path: Path, fedkin: Command) -> None:
    """On a disk that a stranger fills up, ``fedkin run`` ends with code 1; with room again, resuming ends as usual."""
    made = settings_of(state)
    (tmp_path / "run.toml").write_text(toml_of(made))
    (tiny / "other").write_bytes(b"x" * (300 * 1024 - 60 * 1024))
    done = fedkin(f"run run.toml --quiet --out {tiny / 'a'}")
    assert (done.code, done.out) == (FAILED, "")
    assert re.fullmatch("fedkin: " + TOLD + re.escape(str(tiny / "a")) + "\n", done.err)
    (tiny / "other").unlink()
    resume(tiny / "a")
    assert_same_run(tiny / "a", whole(made))


def test_a_folder_that_may_not_be_written_is_told(tiny: Path, fedkin: Command) -> None:
    """A run on a disk that is read-only cannot be resumed or reported there; no traceback, and a report elsewhere."""
    run_settings(small(), out=tiny / "a")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    done = fedkin(f"resume {tiny / 'a'}")
    assert (done.code, done.out) == (BAD_INPUT, "")
    assert re.search(r"a cannot be written to \(Read-only file system\); make it writable", done.err)
    for command in (f"report {tiny / 'a'}", f"run fedavg --out {tiny / 'b'}", f"resume {tiny / 'a'} --rounds 9"):
        done = fedkin(command)
        assert done.code in (FAILED, BAD_INPUT), command
        assert "Read-only file system" in done.err
        assert done.err.count("\n") == 1
    assert fedkin(f"export {tiny / 'a'} --client 0 --out home").code == OK


# ---- rights -------------------------------------------------------------------------------------------------------
def rights(path: Path) -> str:
    """As ``chmod`` takes them."""
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


@pytest.mark.parametrize("state", ["memory", "file"])
def test_states_and_models_of_single_clients_are_private(state: str, tmp_path: Path) -> None:
    """Checkpoints, states and banks may be read by their owner alone, whatever the process allows others."""
    before = os.umask(0)
    try:
        run_settings(settings_of(state), out=tmp_path / "a")
    finally:
        os.umask(before)
    private = list((tmp_path / "a" / "objects").iterdir())
    assert private
    assert {rights(path) for path in private} == {"600"}
    assert rights(tmp_path / "a" / "objects") == "700"


def test_folders_that_were_open_are_closed(tmp_path: Path) -> None:
    """A run that goes on in a folder that others may read takes their rights away."""
    made = small("fedper", run={"rounds": 3}, compute={"state": "file"})
    run_settings(made, out=tmp_path / "a")
    (tmp_path / "a" / "objects").chmod(0o755)
    resume(tmp_path / "a", rounds=5)
    assert rights(tmp_path / "a" / "objects") == "700"


def test_a_client_s_memory_on_a_node_is_private(tmp_path: Path) -> None:
    """What a node keeps of a run is for its owner alone."""
    before = os.umask(0)
    try:
        on_hosts(settings("fedrep"), tmp_path, Direct(sites(tmp_path)))
    finally:
        os.umask(before)
    memories = list((tmp_path / "disks").rglob("memory.safetensors"))
    assert len(memories) == 3
    assert {rights(path) for path in memories} == {"600"}
    assert {rights(path.parent) for path in memories} == {"700"}
    assert ClientStore(tmp_path / "disks", "c0").path("run").name == "memory.safetensors"
