"""What a screen looks like: widths, order, colours, and where a line may be wrapped."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from commandline import Command
from fedkin.cli import screen
from fedkin.cli.outcome import Outcome, style_of, tell_verdicts
from fedkin.core.errors import counted
from fedkin.evaluate import Conclusion, against, judge
from fedkin.methods import METHODS
from fedkin.record.lines import Figures, RoundLine
from fedkin.report.tables import Grid

SHORT = "--clients 3 --samples-per-client 30 --rounds 1 --model linear --engine loop"


@pytest.fixture
def narrow(fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands on a screen of 80 columns."""
    for console in (screen.out, screen.err):
        monkeypatch.setattr(console, "width", 80)
    return fedkin


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a terminal of 80 columns with colours receives."""
    text = io.StringIO()
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = Console(file=text, force_terminal=True, color_system="standard", width=80, highlight=False)
    monkeypatch.setattr(screen, "out", shown)
    return text


def test_a_bar_shows_brackets_in_the_names_of_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no markup, which would hide them."""
    text = io.StringIO()
    monkeypatch.setattr(text, "isatty", lambda: True)
    monkeypatch.setattr(screen, "err", Console(file=text, force_terminal=True, width=120))
    with screen.bar(2, "runs/x[lr=0.1]", quiet=False) as bar:
        bar.at(RoundLine(1, figures=Figures(accuracy=0.5)))
    assert "runs/x[lr=0.1]" in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text.getvalue())


def test_every_byte_of_a_fingerprint_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No pair of letters between colons is a picture (rich has :AB:, :CL:, :ON: and more): lines, notes, tables."""
    for text in (bytes(range(256)).hex(":").upper(), bytes(range(256)).hex(":"), "SHA256::ab:cd :on:/:cl:", ":smile:"):
        for show in (screen.say, screen.paragraph, screen.note):
            show(text)
            shown = capsys.readouterr()
            assert shown.out + shown.err == text + "\n"
            assert text.isascii()
        screen.table(Grid(text, ("key",), ((text,),), note=text))
        assert "".join(capsys.readouterr().out.split()).count("".join(text.split())) >= 2


@pytest.mark.parametrize(("columns", "lines"), [(None, 100), (60, 60), (99, 99), (101, 100), (250, 100)])
def test_lines_are_as_long_as_can_be_read(columns: int | None, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a window is wide, but no longer than 100 characters; so are those of a file. What has no space is not cut."""
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    here, path = screen.Screen(), "runs/" + "a-long-name/" * 20
    here.file = text = io.StringIO()
    for name in ("out", "err"):
        monkeypatch.setattr(screen, name, here)
    for show in (screen.paragraph, screen.note):
        show("some words " * 40 + path)
    screen.table(Grid("A title " * 20, ("a", "b"), ((" a word" * 30, "1"),), note="of notes " * 30))
    found = text.getvalue().splitlines()
    assert max(len(line) for line in found if path not in line) == lines
    assert [line for line in found if "/" in line] == [path] * 2


# ---- lists --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["methods", "papers", "partitions", "models", "data"])
def test_lists_fit_80_columns_and_cut_nothing(kind: str, narrow: Command) -> None:
    """A title, two columns (of methods three), no line of more than 80 characters, no dots in the place of text."""
    lines = narrow(f"list {kind}").out.splitlines()
    heads = " ".join(itertools.takewhile(lambda line: "─" not in line, lines[2:])).split()
    assert max(map(len, lines)) <= 80
    assert lines[0] == ""
    assert lines[1].startswith(kind.capitalize())
    first = {"methods": "method", "papers": "method"}.get(kind, kind.rstrip("s"))
    third = ["what", "the", "server", "learns", "of", "each", "client"] if kind == "methods" else []
    assert sorted(heads) == sorted([first, "description", *third])
    assert not [line for line in lines if "…" in line]


def test_methods_are_listed_with_what_the_server_learns(narrow: Command) -> None:
    """In a column of its own, under a heading that is there once; all texts begin in one column."""
    lines = narrow("list methods").out.splitlines()
    starts = [n for n, line in enumerate(lines) if line[1:].split(" ")[0] in METHODS]
    assert len(starts) == len(METHODS)
    assert max(b - a for a, b in itertools.pairwise(starts)) <= 9  # a blank line and a family among them
    assert len({len(lines[n]) - len(lines[n][1:].split(" ", 1)[1].lstrip()) for n in starts}) == 1
    (fedavg,) = (line for line in lines if line.startswith(" fedavg "))
    assert re.split(r"  +", fedavg.strip()) == ["fedavg", "One global model: the", "its model (sums suffice)"]
    assert " ".join(lines).count("server learns of") == 1


def test_long_paths_are_folded_and_no_figure_is_lost(narrow: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths and names of 40 characters take several lines, behind slashes and dashes; every column is there in full."""
    names = ("comparison-of-a-long-name-2026/fedavg-seed0", "Abcdefghijklmnopqrstuvwxyzabcdefghijklmn")
    columns = ("folder", "method", "data", "state", "seed", "rounds", "accuracy %")
    rows = (
        (*names, "hospitals", "finished", "0", "50 of 50", "84.2"),
        ("b", "FedAvg", "digits", "lost", "1", "7", "–"),
    )
    screen.table(Grid("", columns, rows, words=4))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line.split() for line in lines if "─" not in line] == [
        ["accuracy"], ["folder", "method", "data", "state", "seed", "rounds", "%"],
        ["comparison-of-a-", "Abcdefghijklmnopqrs", "hospitals", "finished", "0", "50", "of", "50", "84.2"],
        ["long-name-2026/", "tuvwxyzabcdefghijkl"], ["fedavg-seed0", "mn"],
        ["b", "FedAvg", "digits", "lost", "1", "7", "–"],
    ]  # fmt: skip
    assert max(map(len, lines)) <= 80


def test_a_note_takes_the_width_of_the_screen(narrow: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """And not that of a narrow table."""
    screen.table(Grid("A title", ("a", "b"), (("1", "2"),), note="a note of some words, longer than the table is wide"))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line and "─" not in line] == [
        "A title", " a  b", " 1  2", "a note of some words, longer than the table is wide",
    ]  # fmt: skip


# ---- inspect ------------------------------------------------------------------------------------------------------
def table(name: str = "a.csv") -> None:
    """A table with a column that gives the class away (a warning), few inputs and copies (notes)."""
    rows = [f"{i % 7},{'un'[i % 2]},{i % 2}" for i in range(80)]
    Path(name).write_text("\n".join(["a,outcome,y", *rows, ""]))


def test_inspect_begins_with_what_matters(narrow: Command) -> None:
    """Errors, warnings, what was read, columns, clients, notes, advice."""
    table()
    out = narrow("inspect a.csv --target y --partition iid --clients 3").out
    order = [out.index(part) for part in ("a.csv: ", "\nwarning: ", "\ndata ", "\nColumns", "\nLabels", "\nnote: ")]
    wrong = narrow("inspect a.csv --target z --partition iid --clients 3").out
    assert out.startswith("a.csv: 1 warning, ")
    assert order == sorted(order)
    assert out.index("\nThe data name no clients") > max(out.rindex("\nnote: "), order[-1])
    assert max(map(len, out.splitlines())) <= 80
    assert wrong.index("error: ") < wrong.index("\ndata ")


def test_inspect_counts_what_a_run_uses(fedkin: Command) -> None:
    """Not what lies in the file: with a cap per client, and where small clients are left out."""
    rows = [f"{i * 37 % 101},{'ab'[i % 2]},{i // 2 % 2}" for i in range(60)] + ["5,c,0"]
    Path("w.csv").write_text("\n".join(["a,ward,y", *rows, ""]))
    assert "samples     60 used of 61 read" in fedkin("inspect w.csv --target y --client-column ward").out
    capped = fedkin("inspect digits --clients 5 --samples-per-client 20").out
    assert "samples     100 used of 1,797 read" in capped
    assert "used of" not in fedkin("inspect digits --clients 5").out


def test_inspect_says_once_who_is_left_out(fedkin: Command, caplog: pytest.LogCaptureFixture) -> None:
    """As a finding, not in the log as well, where a run has it before and afterwards."""
    rows = [f"{i * 37 % 101},{'ab'[i % 2]},{i // 2 % 2}" for i in range(60)] + ["5,c,0"]
    Path("w.csv").write_text("\n".join(["a,ward,y", *rows, ""]))
    data = "--data w.csv --target y --client-column ward"
    assert "left out for fewer than 10 samples: c (1)" in fedkin(f"inspect {data}").out
    assert caplog.records == []
    fedkin(f"run local {data} --model linear --rounds 1 --engine loop --out out")
    assert [record.name for record in caplog.records] == ["fedkin.data"]


def test_advice_repeats_the_partition_that_was_given(fedkin: Command) -> None:
    """Not a default one."""
    assert (
        "--partition dirichlet@alpha=0.2 makes up"
        in fedkin("inspect digits --clients 3 --partition dirichlet@alpha=0.2").out
    )
    iid = fedkin("inspect digits --clients 3 --partition iid").out
    assert "--partition iid makes up clients" in iid
    assert "alpha" not in iid


def arrays(name: str, **more: np.ndarray) -> None:
    """An npz file with inputs, labels and more arrays."""
    np.savez(name, x=np.random.default_rng(0).normal(size=(240, 5)), y=np.arange(240) % 3, **more)


@pytest.mark.parametrize("command", ["inspect --clients 3", f"run local {SHORT}", f"compare local {SHORT}"])
def test_an_array_that_may_name_the_clients(command: str, fedkin: Command) -> None:
    """The flag that uses it is suggested."""
    arrays("a.npz", speaker=np.arange(240) // 10)
    done = fedkin(f"{command} --data a.npz")
    assert done.code == 0
    assert "--client-column speaker" in done.out + done.err


@pytest.mark.parametrize("command", ["inspect --clients 3 --data", f"run local {SHORT} --out out --data"])
@pytest.mark.parametrize("case", ["named", "known", "none", "chosen"])
def test_where_no_array_is_suggested(command: str, case: str, fedkin: Command) -> None:
    """The array is used, none can name clients, or a run is told the partition; of two, a known name is suggested."""
    ids = np.arange(240) // 10
    arrays("named.npz", speaker=ids)
    arrays("known.npz", speaker=ids, subject=ids)
    numbers, one = np.linspace(0, 1, 240), np.zeros(240, dtype=np.int64)
    arrays("none.npz", row=np.arange(240), gain=numbers, one=one, few=ids[:9])
    more = {"named": "--client-column speaker", "chosen": "--partition iid"}.get(case, "")
    done = fedkin(f"{command} {'named' if case == 'chosen' else case}.npz {more}")
    assert done.code == 0, done.err
    suggested = "not used" in done.out + done.err
    assert suggested == (case == "chosen" if "inspect" in command else case == "known")


# ---- verdicts -----------------------------------------------------------------------------------------------------
def judged(gain: float, seeds: int, spread: float = 0.01) -> Conclusion:
    """The conclusion on 30 clients whose gains are about the same."""
    rng = np.random.default_rng(0)
    local = dict.fromkeys(range(30), 0.5)
    gains = [gain + spread * rng.normal(size=30) for _ in range(seeds)]
    return judge([against(local, dict(enumerate((0.5 + g).tolist()))) for g in gains])


@pytest.mark.parametrize(
    ("conclusion", "style"),
    [
        (judged(0.1, 3), "green"),
        (judged(-0.1, 3), "red"),
        (judged(0.0, 3), "dim"),
        (judged(0.1, 1), ""),
        (judged(-0.1, 1), ""),
        (judged(0.0, 3, spread=0.0), "dim"),
    ],
    ids=["better", "worse", "unclear", "ahead", "behind", "identical"],
)
def test_the_style_of_a_verdict(conclusion: Conclusion, style: str) -> None:
    """Green and red are for what two seeds or more show; a single run is plain, the unclear dim."""
    assert style_of(conclusion) == style


OUTCOME = (
    "A: better than Local, by 3.0 points on average (95 % interval of the mean of clients: 2.0 to 4.0 points)",
    "B",
)


def outcome() -> Outcome:
    """An outcome of which only the verdicts are shown."""
    nothing = SimpleNamespace(unlearned=None, which_is_which="")
    found: Any = SimpleNamespace(verdicts=OUTCOME, styles=("green", "dim"), report=nothing)
    return found  # type: ignore[no-any-return]


def test_verdicts_on_a_terminal(terminal: io.StringIO) -> None:
    """In their colours, wrapped between words; the words are there without colours."""
    tell_verdicts(outcome())
    shown = terminal.getvalue()
    assert "\x1b[32mA: better than Local" in shown
    assert "\x1b[2mB\x1b[0m" in shown
    plain = re.sub(r"\x1b\[\d*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 80
    assert " ".join(plain.split()) == " ".join(OUTCOME)


def test_verdicts_without_a_terminal_or_colours(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file gets plain text, as wide as the console; NO_COLOR leaves no colour on a terminal."""
    monkeypatch.setenv("NO_COLOR", "1")
    text = io.StringIO()
    monkeypatch.setattr(screen, "out", Console(file=text, force_terminal=True, color_system="standard", width=80))
    tell_verdicts(outcome())
    assert "\x1b[3" not in text.getvalue()
    monkeypatch.setattr(screen, "out", Console(file=(text := io.StringIO()), width=80))
    tell_verdicts(outcome())
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert (" ".join(lines).split(), lines[-1]) == (" ".join(OUTCOME).split(), OUTCOME[-1])


# ---- --out --------------------------------------------------------------------------------------------------------


def test_folders_may_have_dots_in_their_names(fedkin: Command) -> None:
    """Such as a version or a date."""
    assert fedkin(f"run local {SHORT} --out v1.2 --quiet").code == 0
    assert Path("v1.2/summary.json").is_file()


# ---- words --------------------------------------------------------------------------------------------------------
def test_a_number_stands_with_its_noun() -> None:
    assert [counted(n, "client") for n in (0, 1, 2, 1200)] == ["0 clients", "1 client", "2 clients", "1,200 clients"]
    assert [counted(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]


def test_one_is_not_many(fedkin: Command) -> None:
    """Groups of one client, one rule."""
    assert "keeps the 1 rule checked." in fedkin("check local --rules declared").out
    grouped = fedkin("inspect digits --clients 43 --partition iid").out
    assert "1 client, most of" in grouped
    assert re.search(r"\b1 (clients|classes|samples|rules)\b", grouped) is None


def test_a_command_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be copied."""
    monkeypatch.setattr(screen, "err", Console(file=(text := io.StringIO()), width=40))
    screen.note("the client's run of the last night goes on:", "fedkin status 'my own link'")
    assert text.getvalue().splitlines() == [
        "the client's run of the last night goes",
        "on: fedkin status 'my own link'",
    ]
