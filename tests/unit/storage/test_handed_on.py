"""Folders of runs that somebody else made: nothing outside them is written, nothing is waited for, and no code runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commandline import Command
from fedkin.cli import BAD_INPUT, OK
from fedkin.experiment.compare import compare, comparison_from
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import table_of
from fedkin.record.files import COMMIT, mark_of, read_commit, write_json
from folders import content, small
from owncode import CAUTIOUS

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links and pipes as Linux and macOS have them")
READ = ("report a", "runs a", "export a --client 0 --out new")
WRITTEN = "resume a --quiet"
MINE = b"mine, " * 20_000


class Stopped(BaseException):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs with states in memory and in files, each finished and interrupted."""
    place, found = tmp_path_factory.mktemp("runs"), {}

    def stop(report: Any, line: Any) -> None:
        if report.round == 2:
            raise Stopped

    for state in ("memory", "file"):
        for kind in ("finished", "interrupted"):
            settings = small("da-pfl", run={"rounds": 3}, compute={"state": state})
            with contextlib.suppress(Stopped):
                run_settings(settings, out=place / f"{kind}-{state}", on_round=stop if kind == "interrupted" else None)
            found[f"{kind}-{state}"] = place / f"{kind}-{state}"
    return found


@pytest.fixture
def others(tmp_path: Path) -> Callable[[], object]:
    """Files of the user; what can be seen of them."""
    place = tmp_path / "others"
    place.mkdir(mode=0o755)
    (place / "file").write_bytes(MINE)
    (place / "0.bank").write_bytes(MINE)
    (place / "below").mkdir(mode=0o755)

    def seen() -> object:
        return [(p.name, stat.S_IMODE(p.stat().st_mode), p.stat().st_mtime_ns) for p in [place, *place.rglob("*")]], (
            content(place)
        )

    return seen


NAMES = (
    ".lock", "rounds.jsonl", "clients.jsonl", "timing.jsonl", "summary.json", "commit.json", "run.json",
    "config.toml", "report.html", "overview.png", "objects", f"objects/{'0' * 40}", f"objects/.{'0' * 40}.new",
    ".commit.json.PID.new", ".rounds.jsonl.new", ".summary.json.PID.new",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["others/file", "others/below", "/dev/zero", "a pipe"])
def test_nothing_leads_out_of_a_folder(
    name: str, target: str, folders: dict[str, Path], others: Callable[[], object], tmp_path: Path, fedkin: Command
) -> None:
    """Whatever a link leads to and wherever it lies, no command writes there, waits, or ends in a traceback."""
    shutil.copytree(folders["interrupted-file"], tmp_path / "a")
    path = tmp_path / "a" / name.replace("PID", str(os.getpid()))  # of half-written files
    path.parent.mkdir(exist_ok=True, parents=True)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if target == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / target)
    before, began = others(), time.monotonic()
    for command in (*READ, WRITTEN):
        done = fedkin(command)
        assert others() == before, command
        assert (
            done.code == (OK if command == "runs a" and name != "config.toml" else BAD_INPUT) or name == "config.toml"
        )
        assert "Traceback" not in done.err
    assert time.monotonic() - began < 20


def test_a_run_folder_may_itself_be_a_link(folders: dict[str, Path], tmp_path: Path, fedkin: Command) -> None:
    """Runs may lie on another disk: the link that the user made is followed."""
    shutil.copytree(folders["interrupted-file"], tmp_path / "disk" / "a")
    (tmp_path / "a").symlink_to(tmp_path / "disk" / "a")
    assert fedkin("resume a --quiet").code == OK
    assert fedkin("report a").code == OK
    assert (tmp_path / "disk" / "a" / "summary.json").is_file()


def test_a_figure_is_named_after_no_path(
    folders: dict[str, Path], others: Callable[[], object], tmp_path: Path, fedkin: Command
) -> None:
    """Notes of a method are drawn; the names that lines give them lead out of no folder."""
    shutil.copytree(folders["finished-memory"], tmp_path / "a")
    path, names = tmp_path / "a" / "clients.jsonl", ("/../../others/file", f"/{tmp_path}/others/file", "a/b", "..")
    added = {"notes": dict.fromkeys(names, 0.5)}
    lines = [json.dumps({**json.loads(line), **added}) + "\n" for line in path.read_text().splitlines()]
    path.write_text("".join(lines))
    commit = read_commit(tmp_path / "a")
    files = {**commit.files, "clients.jsonl": mark_of(path.read_bytes())}
    write_json(tmp_path / "a" / COMMIT, msgspec.structs.replace(commit, files=files))
    before = others()
    assert fedkin("report a --figures figures").code == OK
    assert others() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "figures", "others"]
    assert not [p for p in (tmp_path / "figures").iterdir() if p.is_dir()]


def test_a_tracker_may_keep_links(folders: dict[str, Path], tmp_path: Path, fedkin: Command) -> None:
    """Weights & Biases has links to its last run and its logs in ``wandb``, which itself is none."""
    shutil.copytree(folders["interrupted-file"], tmp_path / "a")
    (tmp_path / "a" / "wandb" / "run-1").mkdir(parents=True)
    (tmp_path / "a" / "wandb" / "latest-run").symlink_to("run-1")
    assert fedkin("resume a --quiet").code == OK
    assert fedkin("report a").code == OK
    shutil.rmtree(tmp_path / "a" / "wandb")
    (tmp_path / "a" / "wandb").symlink_to(tmp_path)
    assert fedkin("resume a --quiet").code == BAD_INPUT


@pytest.mark.parametrize("name", [".lock", ".config.toml.PID.new"])
def test_a_new_run_follows_no_link(name: str, others: Callable[[], object], tmp_path: Path, fedkin: Command) -> None:
    """A folder in which only what a kill leaves is found may be written to, and that may be a link."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name.replace("PID", str(os.getpid()))).symlink_to(tmp_path / "others" / "file")
    before = others()
    fedkin("run fedavg --data digits --clients 3 --model linear --rounds 1 --engine loop --quiet --out a")
    assert others() == before


CODE = 'from pathlib import Path\n\nPath("ran").touch()\n'


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of somebody's own method."""
    place = tmp_path_factory.mktemp("compared")
    (place / "mine.py").write_text(CAUTIOUS)
    tables = {k: dict(v) for k, v in table_of(small()).items() if k in ("data", "model", "training")}
    tables["run"] = {"rounds": 2}
    tables["compute"] = {"engine": "loop"}
    plan = comparison_from({**tables, "methods": [f"{place}/mine.py:Cautious"], "baseline": "Cautious"}, "")
    compare(plan, out=place / "a", progress=False)
    return place / "a"


@pytest.mark.parametrize("where", ["its file", "its file, unmarked", "a module", "an absolute path"])
@pytest.mark.usefixtures("undrawn")
def test_a_report_runs_no_code(where: str, compared: Path, tmp_path: Path, fedkin: Command) -> None:
    """Neither the file in the folder nor one in the working folder is run by commands that read a comparison."""
    shutil.copytree(compared, tmp_path / "a")
    for file in (tmp_path / "a" / "mine.py", tmp_path / "theirs.py"):
        file.write_text(CODE + CAUTIOUS.partition("\n")[2])
    table = (tmp_path / "a" / "compare.toml").read_text()
    if where != "its file":
        table = "\n".join(line for line in table.splitlines() if not line.startswith("code = "))
    other = {"a module": "theirs:Cautious", "an absolute path": f"{tmp_path}/theirs.py:Cautious"}.get(where)
    (tmp_path / "a" / "compare.toml").write_text(table.replace("./mine.py:Cautious", other) if other else table)
    for command in ("report a", "report a/Cautious-seed0", "runs a", "runs .", "export a"):
        assert fedkin(command).code == (BAD_INPUT if command == "export a" else OK), command
        assert not (tmp_path / "ran").exists(), command


def test_a_report_without_code_is_the_report_of_the_comparison(compared: Path, tmp_path: Path, fedkin: Command) -> None:
    """Tables are the same as with the code, which may be missing."""
    shutil.copytree(compared, tmp_path / "a")
    assert fedkin("report a").code == OK
    tables = {name: (tmp_path / "a" / name).read_bytes() for name in ("table.md", "table.csv", "table.tex")}
    (tmp_path / "a" / "mine.py").unlink()
    assert fedkin("report a").code == OK
    assert {name: (tmp_path / "a" / name).read_bytes() for name in tables} == tables


@pytest.mark.parametrize("name", ["./mine.py:../../x", "./mine.py:/x", "mine:a/../../b"])
def test_a_method_is_no_path(name: str, compared: Path, tmp_path: Path, fedkin: Command) -> None:
    """The folders of runs lie in that of their comparison, whatever its methods are called."""
    shutil.copytree(compared, tmp_path / "a")
    table = (tmp_path / "a" / "compare.toml").read_text().replace("./mine.py:Cautious", name)
    (tmp_path / "a" / "compare.toml").write_text(table)
    before = {path for path in tmp_path.rglob("*") if "a" not in path.relative_to(tmp_path).parts[:1]}
    for command in ("report a", "resume a --quiet"):
        done = fedkin(command)
        assert (done.code, done.err.count("\n")) == (BAD_INPUT, 1), done.err
    assert {path for path in tmp_path.rglob("*") if "a" not in path.relative_to(tmp_path).parts[:1]} == before


@pytest.mark.parametrize("state", ["memory", "file"])
def test_a_folder_that_is_moved_is_not_made_again(state: str, tmp_path: Path, fedkin: Command) -> None:
    """Moved while it is written, it ends in one line, nothing appears at the old place, and it goes on at the new."""
    settings = small("da-pfl", run={"rounds": 4}, compute={"state": state})
    run_settings(settings, out=tmp_path / "whole")

    def move(report: Any, line: Any) -> None:
        if report.round == 2:
            (tmp_path / "a").rename(tmp_path / "b")

    with pytest.raises(Exception, match=r"a was moved or removed while it was written.*fedkin resume"):
        run_settings(settings, out=tmp_path / "a", on_round=move)
    assert not (tmp_path / "a").exists()
    assert fedkin("resume b --quiet").code == OK
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "b" / "clients.jsonl").read_bytes() == (tmp_path / "whole" / "clients.jsonl").read_bytes()


@pytest.mark.parametrize("remove", ["[run]", "[data]", "[method]", "[training]"])
def test_a_config_without_a_table_is_refused(
    remove: str, folders: dict[str, Path], tmp_path: Path, fedkin: Command
) -> None:
    """One line that begins with the folder."""
    for kind in ("finished-memory", "interrupted-memory"):
        shutil.copytree(folders[kind], tmp_path / kind)
        config = (tmp_path / kind / "config.toml").read_text()
        before, _, rest = config.partition(remove)
        (tmp_path / kind / "config.toml").write_text(
            before + "[" + rest.partition("\n[")[2] if "\n[" in rest else before
        )
        for command in (f"resume {kind}", f"resume {kind} --rounds 9", f"export {kind} --client 0"):
            done = fedkin(command)
            assert (done.code, done.out, done.err.count("\n")) == (BAD_INPUT, "", 1), (command, done.err)
            assert done.err.startswith(f"fedkin: {kind}")


@pytest.mark.parametrize("command", ["run fedavg --out", "report", "runs", "resume", "run", "export --client 0"])
def test_a_path_that_is_not_utf_8_is_refused(command: str, tmp_path: Path, fedkin: Command) -> None:
    """One line that names it, and nothing is written."""
    odd = os.fsdecode(b"caf\xe9")
    done = fedkin(*command.split(), odd)
    assert (done.code, done.out) == (BAD_INPUT, "")
    assert done.err.startswith("fedkin: caf\\xe9 is not UTF-8")
    assert done.err.count("\n") == 1
    assert not (tmp_path / odd).exists()


@pytest.mark.parametrize("file", ["commit.json", "run.json", "rounds.jsonl", "clients.jsonl", "relations.jsonl"])
@pytest.mark.parametrize("value", [None, "x", [[]], 10**30])
def test_values_of_another_kind_are_one_line(
    file: str, value: object, folders: dict[str, Path], tmp_path: Path, fedkin: Command
) -> None:
    """All values of a line or of another file are of another kind: commands work, or refuse the folder."""
    shutil.copytree(folders["finished-memory"], tmp_path / "a")
    path = tmp_path / "a" / file
    first, *rest = [path.read_text()] if file.endswith(".json") else path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps(dict.fromkeys(json.loads(first), value)) + "\n" + "".join(rest))
    for command in ("runs a", "report a", "resume a", "export a --client 0 --out new"):
        done = fedkin(command)
        assert done.code in (OK, BAD_INPUT), command
        assert done.code == OK or done.err.startswith("fedkin: "), command
