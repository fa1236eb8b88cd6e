"""`fedkin run | compare | resume | list | demo`, as people type them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin as package
from commandline import Command, table
from fedkin import Bundle, Client, Method, Round, Train, Work, to_all
from fedkin.cli import _COMMANDS, _HOSTS, BAD_INPUT, DIVERGED, commands, screen
from fedkin.data import PARTITIONS, SOURCES
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import Compute, settings_from
from fedkin.methods import METHODS
from fedkin.models import MODELS
from fedkin.record.divergence import sentence
from fedkin.record.result import Result
from fedkin.storage.toml import read_toml
from folders import FILES, content, lines_in, without_end
from madeup import about, round_line
from owncode import CAUTIOUS
from thorough import OF_EVERY_KIND, thorough_except
from toys import Averaging

PAGES = {"report.html", "overview.png"}


# ---- help, list ---------------------------------------------------------------------------------------------------
def test_version(fedkin: Command) -> None:
    """The version and nothing else."""
    done = fedkin("--version")
    assert (done.code, done.out, done.err) == (0, f"{package.__version__}\n", "")


@pytest.mark.parametrize("args", ["", "--help", "-h", "help"])
def test_help_fits_one_screen(args: str, fedkin: Command) -> None:
    """24 lines of 80 characters with the next prompt, a line for every command, and the exit codes."""
    done = fedkin(args)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert sorted(line[9:].split()[0] for line in lines[1:19]) == sorted((*_COMMANDS, *_HOSTS))
    assert "130" in done.out


HELP = """
run     | METHOD | --rounds | --partition | --out | --data
sweep   | METHOD | --grid | --trials | --rounds | --seeds
check   | METHOD | --rules | --json
list    | methods | papers | partitions | models | data
compare | M1 | --rounds | --seeds | --set | --partition | --out
inspect | --data | --target | --partition | --out | --strict | --json
export  | --client | --out
predict | FILE | --out
demo    | Other data and settings: fedkin compare.
"""


@pytest.mark.parametrize("row", table(HELP), ids=lambda row: row[0])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command_is_its_own(row: list[str], flag: str, fedkin: Command) -> None:
    """Before a method is named: the command's usage and flags, and those of no other command."""
    done = fedkin(f"{row[0]} {flag}")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: fedkin {row[0]} ")
    shown = " ".join(done.out.split())
    assert not [word for word in row[1:] if not re.search(rf"{re.escape(word)}(?![\w-])", shown)]
    assert "fedkin demo" not in done.out or row[0] == "demo"
    assert ("--grid" in done.out) == (row[0] == "sweep")


def test_commands_for_hosts_are_entry_points(fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package an answer says how to get it."""
    assert {one.name for one in entry_points(group="fedkin.commands")} == set(_HOSTS)
    monkeypatch.setattr("fedkin.cli.entry_points", lambda **_: ())
    done = fedkin("link --help")
    assert (done.code, done.out) == (BAD_INPUT, "")
    assert "pip install fedkin-hosts" in done.err


@pytest.mark.parametrize("name", thorough_except(METHODS, OF_EVERY_KIND))
def test_help_of_a_method_shows_its_fields(name: str, fedkin: Command) -> None:
    """``fedkin run METHOD --help`` has the method's fields, the common flags, and its paper's first author."""
    done = fedkin(f"run {name} --help")
    method = METHODS[name]()
    own = [f for part in (method, getattr(method, "inner", method)) for f in vars(part) if f != "inner"]
    assert (done.code, done.err) == (0, "")
    text = re.sub(r"[│\s]+", " ", done.out)
    assert all(f"{field}=" in text for field in own if getattr(method, field, 0) is not None)
    for flag in ("rounds", "clients", "partition", "lr", "model", "out", "per-client", "preset"):
        assert f"--{flag}" in text, flag
    assert method.paper.split(",")[0] in text


def test_list_shows_everything(fedkin: Command) -> None:
    """Every method under its family and with its paper, every partition, model and source, each with a line on it."""
    done = fedkin("list")
    assert (done.code, done.err) == (0, "")
    for name in [*METHODS, *PARTITIONS, *MODELS, *SOURCES, "PATH"]:
        rows = re.findall(rf"^ {re.escape(name)} +(\S.*)$", done.out, re.MULTILINE)
        assert len(rows) == (2 if name in METHODS else 1)  # methods and papers
        assert all(len(row) > 20 for row in rows)
    for make in METHODS.values():
        assert re.search(rf"^ {make().family} *$", done.out, re.MULTILINE | re.IGNORECASE)
    for make in METHODS.values():
        assert make().paper.split(",")[0].lower() in done.out.lower()


@pytest.mark.parametrize("kind", ["methods", "papers", "partitions", "models", "data"])
def test_list_of_one_kind(kind: str, fedkin: Command) -> None:
    """One kind alone, and no other."""
    done = fedkin(f"list {kind}")
    shown = {
        "methods": r"local  +Every client",
        "papers": r"local  +Local\.",
        "partitions": "dirichlet-total ",
        "models": "resnet18 ",
        "data": "synthetic ",
    }
    assert done.code == 0
    assert [k for k, name in shown.items() if re.search(rf"^ {name}", done.out, re.MULTILINE)] == [kind]


# ---- run ----------------------------------------------------------------------------------------------------------
def test_run_writes_everything_and_shows_the_figures(fedkin: Command, small: str, drawn: None) -> None:
    """A table with the final figures, where everything is, and the run folder with its pages."""
    done = fedkin(f"run da-pfl {small} --out a")
    summary = json.loads(Path("a/summary.json").read_text())
    assert (done.code, done.notes) == (0, "")
    assert {p.name for p in Path("a").iterdir()} == FILES | PAGES
    assert Path("a/overview.png").read_bytes().startswith(b"\x89PNG")
    assert "DA-PFL, seed 0" in done.out
    assert f"{100 * summary['final']['accuracy']:.1f} %" in done.out
    assert "Everything is in a; pictures and tables: a/report.html" in done.out
    assert "\nCaveats:\n- " in done.out
    assert "\n- One seed only: " in done.out
    advice = "Is it worth it? fedkin compare da-pfl with the same flags adds Local, Local (full) and FedAvg."
    assert advice in done.out


def test_a_line_for_each_finished_run_where_there_is_no_terminal(
    fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error: method, seed, rounds, the final accuracy (of a sweep that on validation data) and seconds, in
    the order of the runs, also with FORCE_COLOR; nothing with --quiet and --json, and nothing of a live bar."""
    monkeypatch.setattr(screen.err, "_force_terminal", True)
    every = {
        "run fedavg --out r": ["FedAvg, seed 0"],
        "compare fedavg --seeds 0 1 --out c": [
            f"{n} of 6: {title}, seed {seed}"
            for n, (seed, title) in enumerate(((s, t) for s in (0, 1) for t in ("Local", "Local (full)", "FedAvg")), 1)
        ],
        "sweep fedprox --grid method.mu=0.1,1 --seeds 4 5 --out s": [
            f"{n} of 4: FedProx, mu={mu}, seed {seed}"
            for n, (mu, seed) in enumerate(((mu, s) for mu in (0.1, 1) for s in (4, 5)), 1)
        ],
    }
    for command, runs in every.items():
        done = fedkin(f"{command} {small}")
        figure = "validation accuracy" if "sweep" in command else "accuracy"
        assert done.code == 0
        assert re.sub(r"\d+\.\d+ (%|s\n)", r"X \1", done.err) == "".join(
            f"{run}, 2 rounds, {figure} X %, X s\n" for run in runs
        )
        for flag in ("--quiet", "--json"):
            assert fedkin(f"{command}-{flag[2:]} {small} {flag}").err == ""
    final = json.loads(Path("c/fedavg-seed1/summary.json").read_text())["final"]["accuracy"]
    again = fedkin("resume c")
    assert (again.code, again.err) == (0, "")  # not one run was made
    without_end(Path("c/fedavg-seed1"))
    assert f", accuracy {100 * final:.1f} %, " in fedkin(f"compare fedavg {small} --seeds 1 --out d").err


def test_the_line_of_a_run_that_was_not_evaluated_or_diverged(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no accuracy, and the round from which on it diverged."""
    line = round_line(1, evaluated=False, answered=(0,))
    log = screen.RunLog(quiet=False)
    log.finished("FedAvg, seed 0", Result(run=about(), config={}, rounds=[line]))
    assert re.fullmatch(r"FedAvg, seed 0, 1 round, not evaluated, [\d.]+ s\n", capsys.readouterr().err)
    lost = round_line(2, answered=(0,), accuracy=0.125, clients=1, unpredicted=(0,))
    log.finished("FedAvg, seed 0", Result(run=about(), config={}, rounds=[line, lost]))
    said = capsys.readouterr().err
    assert said.startswith("FedAvg, seed 0, 2 rounds, accuracy 12.5 %, diverged from round 2 on, ")


DIVERGING = "--model mlp --lr 1e30"


def test_a_run_that_diverges_ends_with_a_code_of_its_own(fedkin: Command, small: str, drawn: None) -> None:
    """3, after everything is written; one line on standard error says since when and what to try, also with --json and
    --quiet; the summary and the table have it, and so has going on with it."""
    done = fedkin(f"run fedavg {small} {DIVERGING} --out a")
    summary = json.loads(Path("a/summary.json").read_text())
    assert done.code == DIVERGED == 3
    assert done.notes == f"fedkin: {sentence(1, [])}\n"
    assert summary["diverged"] == 1
    assert {p.name for p in Path("a").iterdir()} >= FILES | PAGES
    assert Path("a/overview.png").read_bytes().startswith(b"\x89PNG")
    assert "† training diverged from round 1 on" in " ".join(done.out.split())
    assert "Training diverged from round 1 on" in Path("a/report.html").read_text(encoding="utf-8")
    for command in (f"run local {small} {DIVERGING} --out b --quiet", "resume a --json"):
        again = fedkin(command)
        assert (again.code, again.err) == (3, done.notes)
    assert json.loads(again.out)["diverged"] == 1
    assert fedkin("report a").code == 0


def test_a_comparison_in_which_a_method_diverges(fedkin: Command, small: str, drawn: None) -> None:
    """Code 3, a line that names the runs, a dagger in every table; whoever did not diverge has none."""
    done = fedkin(f"compare fedprox {small} --model mlp --lr 0.05 --set fedprox.mu=1e35 --seeds 0 1 --out a")
    assert done.code == 3
    assert Path("a/overview.png").read_bytes().startswith(b"\x89PNG")
    assert re.fullmatch(
        r"fedkin: training diverged in 2 of 8 runs: FedProx, seed 0 \(round 1\); FedProx, seed 1 \(round 1\); "
        r"a smaller learning rate \(--lr\) is the first thing to try\n",
        done.notes,
    )
    assert re.findall(r"^ (\w+) .* †", done.out, re.MULTILINE) == ["FedProx"]
    assert "† FedProx: diverged from round 1 on (seed 0), round 1 on (seed 1)" in " ".join(done.out.split())
    assert re.search(r"\| FedProx \| [^|]+ † \|", Path("a/table.md").read_text())
    assert "$\\dagger$" in Path("a/table.tex").read_text()
    rows = csv.DictReader(io.StringIO(Path("a/table.csv").read_text()))
    assert [row["diverged"] for row in rows] == ["", "", "", "1"]


def test_json_is_one_document(fedkin: Command, small: str) -> None:
    """--json prints the summary as one JSON document, and nothing else anywhere."""
    done = fedkin(f"run fedper {small} --seed 3 --out a --json")
    printed = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    summary = json.loads(Path("a/summary.json").read_text())
    assert printed == {**summary, "folder": "a"}
    assert (printed["method"], printed["seed"], printed["rounds"]) == ("fedper", 3, 2)
    assert printed["config"] == read_toml("a/config.toml")
    assert set(printed["final"]) >= {"accuracy", "worst_decile", "macro_f1"}
    assert printed["best"]["round"] in (1, 2)


def test_per_client_on_request(fedkin: Command, small: str) -> None:
    """--per-client adds a figure per client to the JSON, and a row per client to the screen."""
    printed = json.loads(fedkin(f"run fedper {small} --out a --json --per-client").out)
    shown = fedkin(f"run fedper {small} --out b --per-client").out
    assert set(printed["accuracy_by_client"]) == {"0", "1", "2", "3"}
    mean = sum(printed["accuracy_by_client"].values()) / 4
    assert mean == pytest.approx(printed["final"]["accuracy"])
    table = shown[shown.index("Clients") :]
    assert sorted(re.findall(r"^ +(\d) +\d+ ", table, re.MULTILINE)) == ["0", "1", "2", "3"]


def test_figures_of_the_best_round_are_all_of_it(fedkin: Command, small: str) -> None:
    """With --round best also the final ones of the JSON, whose mean over clients is the accuracy."""
    flags = f"{small} --rounds 8 --lr 5 --json --per-client --round best"
    printed = json.loads(fedkin(f"run fedavg {flags} --out a").out)
    best = printed["best"]["round"]
    assert best < 8
    assert printed["final"]["rounds"] == [best]
    mean = sum(printed["accuracy_by_client"].values()) / 4
    assert mean == pytest.approx(printed["final"]["accuracy"])


def test_a_run_is_made_again(fedkin: Command, small: str) -> None:
    """By its config, by the command in its summary and by `run_settings`: the same lines byte for byte. Without --out
    the folder is runs/METHOD-TIME, each time another."""
    flags = "--dropout 0.3 --seed 2 --partition cluster-classes@groups=2"
    printed = json.loads(fedkin(f"run fesem-cam@clusters=2 {small} {flags} --out a --json").out)
    for command in ("run a/config.toml", printed["command"].removeprefix("fedkin ")):
        done = fedkin(f"{command} --quiet")
        assert (done.code, done.out, done.err) == (0, "", "")
    names = [p.name for p in Path("runs").iterdir()]
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"fesem-cam@clusters=2-\d{8}-\d{6}(-\d+)?", name)
        assert lines_in(Path("runs", name)) == lines_in(Path("a"))
        assert Path("runs", name, "config.toml").read_bytes() == Path("a/config.toml").read_bytes()
        assert Path("runs", name, "report.html").exists()
    result = run_settings(settings_from(read_toml("a/config.toml")))
    assert printed["final"]["accuracy"] == result.final.accuracy


@dataclass(frozen=True)
class Failing(Averaging, Method):
    """FedAvg whose client 2 fails in round 2."""

    def distribute(self, s: Bundle, r: Round) -> Any:
        return to_all(model=s.model, round=torch.tensor(r.index))

    def client_update(self, c: Client) -> Work:
        if c.id == 2 and int(c.received.round) == 2:
            raise ValueError("no such file")
        w = yield Train(c.received.model)
        return Bundle(model=w)


@pytest.mark.parametrize("engine", ["loop", "workers"])
def test_client_code_that_fails(engine: str, fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a method's client code ends with exit code 1 and one line naming step, client, round and error."""
    monkeypatch.setitem(METHODS, "failing", Failing)
    done = fedkin(f"run failing {small} --engine {engine} --out a")
    assert (done.code, done.out) == (1, "")
    line = Failing.client_update.__code__.co_firstlineno + 2
    assert done.err == (
        f"fedkin: update of client 2 failed in round 2: ValueError: no such file (test_commands.py, line {line})\n"
    )


MISUSED = """
aggregate(self, s, r, up): | aggregate(self, r, up): | aggregate of Cautious failed in round 1: TypeError: \
Cautious.aggregate() takes 3 positional arguments but 4 were given; expected aggregate(self, s, r, up)
def init(self, r): | def init(self): | init of Cautious failed before the first round: TypeError: Cautious.init() \
takes 1 positional argument but 2 were given; expected init(self, r)
model=r.w0) | model=r.start) | init of Cautious failed before the first round: AttributeError: 'Round' object has no \
attribute 'start' (mine.py, line 16)
model=r.w0) | seen=0) | Cautious.init must return a Bundle of tensors; 'seen' is an int; write torch.tensor(0)
model=s.model) | model=s.model, step=self.step) | distribute of Cautious failed in round 1: to_all: 'step' is a float; \
write torch.tensor(0.5) (mine.py, line 19)
r.mean(up.model) | up.model[99] | aggregate of Cautious failed in round 1: IndexError: index 99 is out of bounds for \
dimension 0 with size 4 (mine.py, line 26)
r.mean(up.model) | r.mean(up.model, 0 * r.weight) | aggregate of Cautious failed in round 1: a mean needs weights of 0 \
or more, not all 0; got [0, 0, 0, 0] (mine.py, line 26)
c.received.model | c.received.modle | update of client 0 failed in round 1: AttributeError: no tensor named 'modle' in \
this bundle; it holds ['model'] (mine.py, line 22)
w = yield fedkin.Train(c.received.model) | w = c.received.model; c.state.seen = w | update of client 0 failed in round \
1: AttributeError: a bundle is not changed by an attribute; take a copy: bundle.but(seen=...), such as c.state = \
c.state.but(seen=...) (mine.py, line 22)
"""


@pytest.mark.parametrize(("good", "bad", "said"), table(MISUSED), ids=lambda cell: cell[:24])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_step_of_a_users_file_that_fails(
    command: str, good: str, bad: str, said: str, fedkin: Command, small: str
) -> None:
    """One message instead of a traceback: step, round, error, what is expected, and the innermost line of the file."""
    Path("mine.py").write_text(CAUTIOUS.replace(good, bad))
    done = fedkin(f"{command} ./mine.py:Cautious {small} --out a")
    assert (done.code, done.err.splitlines()[-1]) == (1, f"fedkin: {said}")
    assert "Traceback" not in done.err


def test_a_full_disk_is_told(fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk ends with exit code 1 and one line: the place, the room that is left, and how to go on."""

    def full(*args: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device", "a/commit.json")

    monkeypatch.setattr("fedkin.experiment.run_folder.RunFolder.save", full)
    done = fedkin(f"run fedavg {small} --out a")
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(
        r"fedkin: the disk is full: a/commit.json cannot be written, [0-9,.]+ MB are free there; make room, "
        r"then continue with: fedkin resume a\n",
        done.err,
    )


# ---- resume -------------------------------------------------------------------------------------------------------
def test_resume_of_a_finished_run_shows_it_again(fedkin: Command, small: str) -> None:
    """The same figures as before; not a byte of the run is changed."""
    first = fedkin(f"run da-pfl {small} --out a --json")
    before = {name: text for name, text in content(Path("a")).items() if name not in PAGES}
    again = fedkin("resume a --json")
    assert again.code == 0
    assert json.loads(again.out) == json.loads(first.out)
    assert {name: text for name, text in content(Path("a")).items() if name not in PAGES} == before
    said = "a was finished already, nothing was trained; --rounds N gives a run more rounds"
    assert fedkin("resume a").notes == f"{said}\n"
    assert said not in fedkin("resume a --rounds 3").err


def test_resume_of_a_stopped_run(fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after a round: exit code 130 and how to go on; going on gives the run as if nothing had been."""
    fedkin(f"run fedper {small} --rounds 5 --out whole --quiet")
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        done = fedkin(f"run fedper {small} --rounds 5 --out a")
    assert (done.code, done.out, done.notes) == (130, "", "stopped; continue with: fedkin resume a\n")
    assert not Path("a/summary.json").exists()
    done = fedkin("resume a")
    assert (done.code, done.notes) == (0, "")
    assert "FedPer, seed 0" in done.out
    assert lines_in(Path("a")) == lines_in(Path("whole"))


def interrupt(patch: pytest.MonkeyPatch, round: int) -> None:
    """Ctrl-C after a round's lines are written, before its checkpoint."""
    from fedkin.experiment.run_folder import RunFolder

    save = RunFolder.save

    def stopping(self: RunFolder, server: Any, *more: Any, **named: Any) -> None:
        if server.round == round:
            raise KeyboardInterrupt
        save(self, server, *more, **named)

    patch.setattr(RunFolder, "save", stopping)


def test_stopped_before_the_first_round(fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is done, so nothing is left: exit code 130 and no folder."""
    interrupt(monkeypatch, 1)
    done = fedkin(f"run fedper {small} --out a")
    assert (done.code, done.out, done.err) == (130, "", "stopped before the first round was done\n")
    assert not Path("a").exists()


@pytest.mark.parametrize("moment", ["reading the data", "training"])
def test_stopping_never_removes_what_was_there(
    moment: str, fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before the first round leaves a folder that existed before as it was, whatever is in it."""
    Path("a").mkdir()
    Path("a/config.toml").write_text("mine")
    Path("a/thesis.txt").write_text("mine")
    if moment == "reading the data":
        monkeypatch.setattr("fedkin.data.sites.fetched", stopped)
    else:
        monkeypatch.setattr("fedkin.engines.loop.Loop.start", stopped)
    done = fedkin(f"run fedavg {small} --out a")
    assert done.code == 130
    assert content(Path("a")) == {"config.toml": b"mine", "thesis.txt": b"mine"}


def stopped(*args: Any, **more: Any) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def test_stopping_a_resume_before_its_first_round_keeps_the_folder(
    fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that a resume found without a checkpoint is still there after Ctrl-C."""
    fedkin(f"run fedper {small} --out a --quiet")
    Path("a/commit.json").unlink()
    interrupt(monkeypatch, 1)
    done = fedkin("resume a")
    assert (done.code, done.err) == (130, "stopped; continue with: fedkin resume a\n")
    assert Path("a/config.toml").exists()


def test_a_programs_run_is_sent_back_to_it(fedkin: Command) -> None:
    """A folder that a program with its own method has written: exit code 2 and how that program goes on."""
    from fedkin.data import planted_groups
    from fedkin.experiment.run import run

    run(
        Failing(),
        planted_groups(clients=2, groups=1, samples=12),
        "linear",
        rounds=1,
        compute=Compute(engine="loop"),
        out="a",
    )
    for command in ("resume a", "run a/config.toml"):
        done = fedkin(command)
        assert (done.code, done.out) == (2, "")
        assert "made by a program with method Failing" in done.err


# ---- compare ------------------------------------------------------------------------------------------------------
def test_compare_shows_every_method_and_a_verdict(fedkin: Command, small: str) -> None:
    """A row per method over its seeds, and a sentence for each against Local; the same in table.md."""
    done = fedkin(f"compare da-pfl fedper {small} --seeds 0 1 --out a")
    written = Path("a/table.md").read_text()
    assert (done.code, done.notes) == (0, "")
    for title in ("Local", "FedAvg", "DA-PFL", "FedPer"):
        assert re.search(rf"^ {title} .*±", done.out, re.MULTILINE)
        assert f"| {title} |" in written or f"| **{title}** |" in written
    for title in ("FedAvg", "DA-PFL", "FedPer"):
        (against,) = re.findall(rf"^{title}: (.*)$", done.out, re.MULTILINE)
        assert len(f"{title}: {against}") <= 100
        assert f"- {title}: {against}" in written
        assert "Local (full)" not in against  # which is identical here: the sentence would be the same
    assert not re.search(r"^(- )?Local: ", done.out + written, re.MULTILINE)  # that of Local (full) says the same
    assert "Local and Local (full): under both every client trains alone in all 2 rounds" in done.out
    assert "Local and Local (full): under both every client trains alone in all 2 rounds" in written
    assert "pictures and tables: a/" in done.out.lower()
    assert "One seed only" not in done.out
    assert "One seed only" in fedkin(f"compare fedper {small} --out b").out.split("Caveats:")[1]
    one = fedkin("resume b/fedavg-seed0").out
    assert "Next to the other runs of b: fedkin resume b\n" in one  # it has its references there
    assert "Is it worth it?" not in one


def test_a_tuned_comparison_shows_what_was_chosen(fedkin: Command, small: str) -> None:
    """Below the table, the setting of each method and its trials; a line per trial with its validation accuracy; JSON
    has it for each run."""
    done = fedkin(f"compare fedprox {small} --tune 2 --lr 0.002 --out a")
    lines = done.err.splitlines()
    found = {one["title"]: one for one in json.loads(Path("a/tuning.json").read_text())}
    assert done.code == 0
    assert len(lines) == 4 * 2 + 4
    setting = r"lr [\d.]+, mu [\d.]+, momentum [\d.]+"
    assert re.fullmatch(
        rf"8 of 12: FedProx, trial 2 of 2: {setting}, 2 rounds, validation accuracy [\d.]+ %, .* s", lines[7]
    )
    assert lines[8].startswith("9 of 12: FedProx, seed 0, 2 rounds, accuracy ")
    below = done.out.split("\nTuning\n")[1]
    for title, one in found.items():
        lr = one["chosen"]["training.lr"]
        assert re.search(rf"^ {re.escape(title)} +lr {lr}\b.* {one['trial']} ", below, re.MULTILINE)
    assert "2 trials of every method on validation data of seed 0" in " ".join(below.split())
    shown = json.loads(fedkin("resume a --json").out)
    assert [run["tuning"] for run in shown] == list(found.values())


def test_a_second_verdict_where_local_full_differs(fedkin: Command, small: str) -> None:
    """Clients that are sampled now and then train less under Local than under Local (full): table.md has both."""
    done = fedkin(f"compare fedper {small.replace('--rounds 2', '--rounds 4')} --participation 0.5 --lr 0.5 --out a")
    (shown,) = re.findall(r"^FedPer: (.*)$", done.out, re.MULTILINE)
    first, second = re.findall(r"^- FedPer: (.*)$", Path("a/table.md").read_text(), re.MULTILINE)
    assert "Local (full)" in second
    assert "Local (full)" not in first
    assert first.startswith(shown.split(" (")[0])


def test_compare_against_another_method(fedkin: Command, small: str) -> None:
    """--baseline sets the reference of verdicts and tables, and is kept for resume; report has --decimals."""
    done = fedkin(f"compare da-pfl {small} --baseline fedavg --out a")
    grid, again = Path("a/table.md").read_text(), fedkin("resume a")
    assert (done.code, done.notes, again.code) == (0, "", 0)
    assert "difference to FedAvg" in grid
    assert fedkin("report a --decimals 2").code == 0
    for digits, text in ((1, grid), (2, Path("a/table.md").read_text())):
        assert re.search(rf"\| DA-PFL \| \d+\.\d{{{digits}}} \|", text)
    for out in (done.out, again.out):
        assert re.findall(r"^([A-Z][\w (-]+\)?): .* FedAvg", out, re.MULTILINE) == ["Local", "Local (full)", "DA-PFL"]
    assert read_toml("a/compare.toml")["baseline"] == "fedavg"


def test_compare_as_json(fedkin: Command, small: str) -> None:
    """One JSON document: a list of summaries, one per run."""
    done = fedkin(f"compare da-pfl {small} --seeds 4 5 --out a --json")
    printed = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert [(run["method"], run["seed"]) for run in printed] == [
        (m, s) for s in (4, 5) for m in ("local", "local-full", "fedavg", "da-pfl")
    ]
    assert printed[0]["folder"] == "a/local-seed4"


def test_set_changes_one_method(fedkin: Command, small: str) -> None:
    """--set METHOD.FIELD=VALUE reaches that method and no other."""
    fedkin(f"compare da-pfl fedprox {small} --set da-pfl.lam=0.5 da-pfl.sigma=median fedprox.mu=2 --out a --quiet")
    da_pfl, fedprox = (read_toml(f"a/{n}-seed0/config.toml")["method"] for n in ("da-pfl", "fedprox"))
    assert (da_pfl["lam"], da_pfl["sigma"]) == (0.5, "median")
    assert fedprox["mu"] == 2.0
    assert read_toml("a/compare.toml")["method"] == {"da-pfl": {"lam": 0.5, "sigma": "median"}, "fedprox": {"mu": 2}}


def test_compare_from_its_file(fedkin: Command, small: str) -> None:
    """``fedkin compare FILE.toml`` makes the comparison again; flags win over the file."""
    fedkin(f"compare da-pfl {small} --seeds 1 --set da-pfl.lam=0.5 --out a --quiet")
    fedkin("compare a/compare.toml --out b --quiet")
    fedkin("compare a/compare.toml --rounds 1 --seeds 2 --set da-pfl.eps=1e-6 --out c --quiet")
    for name in ("local", "local-full", "fedavg", "da-pfl"):
        assert lines_in(Path(f"a/{name}-seed1")) == lines_in(Path(f"b/{name}-seed1"))
    table = read_toml("c/da-pfl-seed2/config.toml")
    assert (table["run"]["rounds"], table["method"]["lam"], table["method"]["eps"]) == (1, 0.5, 1e-6)


def test_a_stopped_comparison_goes_on(fedkin: Command, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the third run: exit code 130, how to go on, and going on ends in the same table."""
    whole = fedkin(f"compare da-pfl {small} --out whole")
    with monkeypatch.context() as patch:
        count = iter(range(100))
        from fedkin.experiment.run_folder import RunFolder

        save = RunFolder.save

        def stopping(self: RunFolder, *args: Any, **named: Any) -> None:
            if next(count) == 5:
                raise KeyboardInterrupt
            save(self, *args)

        patch.setattr(RunFolder, "save", stopping)
        done = fedkin(f"compare da-pfl {small} --out a")
    assert (done.code, done.out, done.notes) == (130, "", "stopped; continue with: fedkin resume a\n")
    again = fedkin("resume a")
    assert again.code == 0
    assert again.out == whole.out.replace("whole", "a")
    assert Path("a/table.md").read_text() == Path("whole/table.md").read_text().replace("whole/", "a/")


# ---- demo ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with two rounds, in this process."""
    monkeypatch.setattr(commands, "DEMO_ROUNDS", 2)


def test_demo(short: None, fedkin: Command) -> None:
    """Ten methods in one table, and for each but the reference a sentence on whether it paid."""
    done = fedkin("demo")
    cams = ("IFCA-CAM", "IFCA-CAM (Eq. 6)", "FeSEM-CAM")
    titles = ("Local", "Local (full)", "FedAvg", "DA-PFL", "DA-PFL-safe", "CFIC", "PFedCS", *cams)
    assert (done.code, done.notes) == (0, "")
    assert "Which clients should learn from whom" in done.out
    assert tuple(re.findall(r"^ ([A-Z]\S+(?: \((?:full|Eq. 6)\))?) +[\d.]+ ", done.out, re.MULTILINE)) == titles
    for title in map(re.escape, titles[1:]):
        assert re.search(rf"^{title}: .*Local", done.out, re.MULTILINE), title
    (written,) = Path("runs").glob("*/table.md")
    for title in map(re.escape, titles[2:]):  # the second line of each
        both = rf"^- {title}: .*Local\b.*\n- {title}: .*Local \(full\)"
        assert re.search(both, written.read_text(), re.MULTILINE), title
    assert done.out.count("under Local a client trains alone, and only in the rounds it is sampled for") == 1
    assert "(50 % of the clients in each round)" in done.out
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("demo-")
    assert {p.name for p in folder.iterdir()} >= {f"{n}-seed0" for n in ("da-pfl", "fesem-cam")} | PAGES


def test_rounds_and_bytes_until_an_accuracy(fedkin: Command, small: str) -> None:
    """--target-accuracy counts rounds and bytes up to the first round that reaches it, or says that there is none."""
    printed = json.loads(fedkin(f"run fedavg {small} --out a --json --target-accuracy 0.0001").out)
    lines = Result.open("a").rounds
    first = next(line.round for line in lines if (line.accuracy or 0) >= 0.0001)
    spent = sum(line.bytes for line in lines if line.round <= first)
    assert printed["reached"] == {"rounds": first, "bytes": spent}
    assert json.loads(fedkin(f"run fedavg {small} --out b --json --target-accuracy 1").out)["reached"] is None
    assert "did not reach 100 % accuracy" in fedkin(f"run fedavg {small} --out c --target-accuracy 1").out


# ---- sweep --------------------------------------------------------------------------------------------------------
def test_sweep_from_flags_and_from_a_file(fedkin: Command, small: str) -> None:
    """Flags and [sweep] in a file give the same; resume shows it again; fedkin run takes what was chosen."""
    done = fedkin(f"sweep fedprox {small} --grid training.lr=0.1,0.5 method.mu=0.1,1 --seeds 3 --out a")
    again = fedkin("sweep a/sweep.toml --out b --json")
    assert (done.code, done.notes, again.code) == (0, "", 0)
    assert "bold: chosen by it, test accuracy" in " ".join(done.out.split())
    trials = json.loads(again.out)
    assert [t["values"]["training.lr"] for t in trials] == [0.1, 0.1, 0.5, 0.5]
    assert sum(t["chosen"] for t in trials) == 1
    assert all((t["test"] is not None) == t["chosen"] for t in trials)
    assert Path("a/sweep.csv").read_text() == Path("b/sweep.csv").read_text()
    assert fedkin("resume a").out == done.out
    assert fedkin("run a/chosen.toml --quiet --out c").code == 0
    best = next(t for t in trials if t["chosen"])
    assert json.loads(Path("c/summary.json").read_text())["final"]["accuracy"] == best["test"]["mean"]


# ---- who the clients are ------------------------------------------------------------------------------------------
def tables(folder: str, **rows: int) -> None:
    """A csv file for each client, with so many rows."""
    Path(folder).mkdir()
    for name, n in rows.items():
        lines = [f"{i % 7},{i % 3},{i % 2}" for i in range(n)]
        Path(folder, f"{name}.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")


QUICK = "--target y --model linear --rounds 1 --steps 1 --engine loop"


@pytest.mark.parametrize("command", ["run fedavg", "compare fedper", "sweep fedprox --grid method.mu=0.1"])
def test_clients_that_the_data_bring_and_those_left_out(
    command: str, fedkin: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Said before anything is trained, and on the page: they take no part, and no figure is about them."""
    tables("own", north=40, south=40, tiny=3)
    done = fedkin(f"{command} --data own {QUICK} --out a")
    assert done.code == 0, done.err
    assert done.err.startswith("clients: as given by the data (partition natural)")
    note = "1 client of the data is left out for fewer than 10 samples: tiny (3). "
    note += "--partition natural@min_samples=1 keeps all clients"
    assert [r.getMessage() for r in caplog.records if r.name == "fedkin.data"] == [f"own: {note}"]
    for page in Path("a").glob("report.html"):
        assert page.read_text(encoding="utf-8").count(f"{note}.") == 1
    summary = next(Path("a").rglob("summary.json"))
    assert json.loads(summary.read_text())["notes"] == [note]


def test_an_array_that_names_clients_is_suggested(fedkin: Command) -> None:
    """The array ``subject`` of an npz file is not used without a setting; a run says how to use it, and then does."""
    rng, quick = np.random.default_rng(0), QUICK.removeprefix("--target y")
    np.savez("har.npz", x=rng.normal(size=(400, 3)), y=np.arange(400) % 2, subject=np.arange(400) // 2 % 4)
    said = fedkin(f"run fedavg --data har.npz {quick} --out a").err
    assert said.startswith("har.npz: the array subject has a value for each sample and is not used")
    assert "clients: 20 simulated ones" in said
    named = fedkin(f"run fedavg --data har.npz --client-column subject {quick} --out b").err
    assert "subject" not in named
    assert json.loads(Path("b/summary.json").read_text())["clients"] == 4


def test_clients_that_are_made_up(fedkin: Command) -> None:
    """One file names no clients; said unless a setting says who they are."""
    tables("own", all=4000)
    one = f"run fedavg --data own {QUICK}"
    assert fedkin(f"{one} --out a").err.startswith("clients: 20 simulated ones, among which samples are distributed")
    for n, said in enumerate(
        ("--clients 4", "--partition iid", "--partition dirichlet@alpha=100", "--quiet", "--json")
    ):
        assert "clients:" not in fedkin(f"{one} {said} --out b{n}").err, said


def test_a_saved_federation_has_clients_of_its_own(fedkin: Command) -> None:
    """Neither the screen nor the files speak of a partition; the number of the folder's clients is said."""
    package.federate(package.load("digits"), package.Dirichlet(alpha=0.5), clients=3, seed=3).save("saved")
    done = fedkin("run fedavg --data saved --rounds 1 --out a")
    assert done.code == 0
    assert done.err.startswith("clients: the 3 of the saved federation saved (digits, dirichlet)")
    assert "partition" not in done.err
    assert "partition" not in read_toml(Path("a/config.toml"))["data"]
    summary = json.loads(Path("a/summary.json").read_text())
    assert (summary["clients"], "partition" in summary["config"]["data"]) == (3, False)
    fedkin("compare fedavg --data saved --rounds 1 --out b")
    assert "partition" not in read_toml(Path("b/compare.toml"))["data"]
    assert all("partition" not in read_toml(file)["data"] for file in Path("b").glob("*/config.toml"))
