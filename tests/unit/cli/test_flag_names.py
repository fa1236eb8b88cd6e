"""Flags and commands that do not exist are refused before torch is loaded; those that exist are never refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedkin.cli
from commandline import Command
from fedkin.cli.flag_names import declared, refusal
from fedkin.cli.flags import RunsSettings, ShowCompare, ShowRun, SweepSettings, parts_of
from fedkin.cli.parts import flags_of, renamed
from fedkin.experiment.settings import Setup
from fedkin.methods import METHODS

SHOWN = re.compile(r"(?<![\w-])--([a-z][a-z0-9.-]*)")


@pytest.mark.parametrize("name", METHODS)
def test_no_flag_of_a_run_is_refused(name: str) -> None:
    """Every flag of run and sweep, also with ``=``, with underscores and after ``--no-``."""
    parts = {"method": METHODS[name](), **parts_of(Setup()), "show": ShowRun(), "sweep": SweepSettings()}
    flags = [f for n, part in parts.items() for f in flags_of(part, renamed(n, parts)).values()]

    assert len(flags) > 60
    for command in ("run", "sweep"):
        assert refusal([command, name, *(f"--{f}" for f in flags), "--help-all"]) is None
        assert (
            refusal([command, name, *(f"--no-{f}=1".replace("-", "_").replace("__", "--", 1) for f in flags)]) is None
        )


def test_no_flag_of_a_comparison_is_refused() -> None:
    parts = {**parts_of(Setup()), "runs": RunsSettings(), "show": ShowCompare()}
    flags = [f"--{f}" for n, part in parts.items() for f in flags_of(part, renamed(n, parts)).values()]

    assert refusal(["compare", "fedavg", "da-pfl", *flags]) is None


@pytest.mark.parametrize("command", ["check local", "inspect", "resume", "runs", "report", "export", "predict", "join"])
def test_no_flag_of_the_help_is_refused(command: str, fedkin: Command) -> None:
    """Commands with their flags in one class: all that their help shows."""
    flags = set(SHOWN.findall(fedkin(f"{command} --help-all").out)) - {"help", "help-all"}

    assert flags
    assert refusal([*command.split(), *(f"--{flag}" for flag in sorted(flags))]) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run fedavg --typo 3", "fedkin run has no flag --typo; fedkin run fedavg --help shows all"),
        ("run fedavg --roundss=3", "no flag --roundss; did you mean --rounds? fedkin run fedavg --help shows all"),
        ("compare fedavg --see 1 --lr 1", "fedkin compare has no flag --see; did you mean --seeds? fedkin compare"),
        ("compare fedavg da-pfl --lam 1", "fedkin compare has no flag --lam"),
        ("sweep fedavg --gird a=1", "fedkin sweep has no flag --gird; did you mean --grid?"),
        ("runs --js", "did you mean --json?"),
        ("check local --ruls runs", "did you mean --rules? fedkin check local --help shows all"),
    ],
)
def test_a_mistyped_flag_is_named(command: str, said: str, fedkin: Command, tmp_path: Path) -> None:
    """With the flag that was probably meant, and never taken for that flag: exit code 2, and no folder."""
    done = fedkin(command)

    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", ["run ./mine.py:Mine --mu2 1", "run run.toml --mu2 1", "link --anything 1", "check pack.age:M --x 1"]
)
def test_flags_that_are_known_later_are_left_to_the_reader(command: str) -> None:
    """A user-defined method has flags of its own; flags of hosts' programs are not listed."""
    assert refusal(command.split()) is None


def test_nothing_is_refused_without_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedkin.cli.flag_names._PACKAGE", tmp_path)

    assert declared("run") == set()
    assert refusal(["run", "fedavg", "--typo"]) is None


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("run fedavg --typo 3", "no flag --typo"),
        ("rum fedavg", "unknown command 'rum'; did you mean 'run'?"),
        ("xyzzy", "unknown command 'xyzzy'; fedkin --help shows all"),
    ],
)
def test_the_answer_waits_for_nothing(args: str, said: str) -> None:
    """Torch, which takes seconds to load, is not loaded for it."""
    code = "import sys; from fedkin.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules, 1"
    env = {**os.environ, "PYTHONPATH": str(Path(fedkin.cli.__file__).parents[2])}
    run = [sys.executable, "-c", f"{code}; sys.exit(code)", *args.split()]
    done = subprocess.run(run, env=env, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
