"""The pages on the methods say what the code does: settings and defaults, quoted lines, commands, payloads."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from fedkin.cli import main
from fedkin.cli.flags import compare_flags, run_flags
from fedkin.core import Method
from fedkin.core.method import FAMILIES
from fedkin.methods import METHODS, TITLES
from fedkin.testing.payloads import page

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "methods"
SECTIONS = [
    "How it works",
    "What leaves a client",
    "Settings",
    "Deviations",
    "When to use it",
    "Try it",
]
EVERY = pytest.mark.parametrize("name", METHODS)


def text_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    return text_of(name).split(f"\n## {title}\n")[1].split("\n## ")[0]


def cells(line: str) -> list[str]:
    """The cells of a row of a table; ``\\|`` is a bar inside a cell."""
    return [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def table(name: str, title: str) -> list[list[str]]:
    rows = [cells(line) for line in section(name, title).splitlines() if line.startswith("|")]
    return rows[2:]


@cache
def sources() -> str:
    folders = ("methods", "functional")
    return "\n".join(p.read_text(encoding="utf-8") for f in folders for p in (ROOT / "src/fedkin" / f).glob("*.py"))


def all_fields(method: Method) -> dict[str, object]:
    """Field -> default; those of a wrapped method as ``inner.field``."""
    found: dict[str, object] = {}
    for f in fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        found |= {f.name: value} if not isinstance(value, Method) else {f.name: type(value).__name__}
    return found


@EVERY
def test_a_method_has_its_page_with_all_sections(name: str) -> None:
    """Title, three sentences, the paper, six sections in one order."""
    text = text_of(name)
    assert text.startswith(f"# {TITLES[name]}\n"), text.splitlines()[0]
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    first = text.split("\n\n")[1].replace("\n", " ")
    ends = re.findall(r"[.!?](?=\s|$)", re.sub(r"\b(?:i\.e|e\.g|et al|vs|Eq|Eqs|cf)\.", "", first))
    assert len(ends) == 3, first


@EVERY
def test_quoted_lines_are_in_the_code(name: str) -> None:
    """The last column of "How it works" is code that the methods contain, word for word."""
    rows = table(name, "How it works")
    assert len(rows) >= 2
    for row in rows:
        quoted = re.findall(r"`([^`]+)`", row[-1])
        assert quoted, row
        for code in quoted:
            assert code in sources(), f"{name}: {code!r} is not in the code"


@EVERY
def test_settings_are_those_of_the_method(name: str) -> None:
    """Every field with its default, and no other."""
    said = {row[0].strip("`"): row[1].strip("`") for row in table(name, "Settings")}
    wanted = all_fields(METHODS[name]())
    assert set(said) == set(wanted)
    for field, value in wanted.items():
        default = said[field]
        same = default.strip("'\"") == value if isinstance(value, str) else default == repr(value)
        assert same, f"{name}: {field} is {value!r}, the page says {default}"
    for preset in type(METHODS[name]()).presets:
        assert f"`{preset}`" in section(name, "Settings")


@EVERY
def test_the_command_is_one(name: str) -> None:
    """`fedkin run` takes it, with this method."""
    block = re.search(r"```sh\n(.*?)```", section(name, "Try it"), re.S)
    assert block is not None
    line = shlex.split(block[1].replace("\\\n", " ").splitlines()[0])
    assert line[:3] == ["fedkin", "run", name]
    settings, _ = run_flags(line[2:])
    assert settings.name == name


@EVERY
def test_the_catalogue_says_what_a_method_gives_and_reveals(name: str) -> None:
    """Each method states its family, and what the server learns about one client."""
    method = METHODS[name]()
    assert method.family in FAMILIES
    assert method.reveals
    assert name == "local" or method.paper


def test_there_is_no_page_without_a_method() -> None:
    """A page that is left over would mislead."""
    assert {p.stem for p in PAGES.glob("*.md")} == set(METHODS)


def test_what_leaves_a_client_is_what_the_code_sends() -> None:
    """The page is what a run of each method gives now; `python docs/generate.py` makes it anew."""
    made = page({name: make() for name, make in METHODS.items()}, TITLES)
    assert made == (ROOT / "docs" / "what-leaves-a-client.md").read_text(encoding="utf-8")
    assert callable(runpy.run_path(str(ROOT / "docs" / "generate.py"))["main"])


def test_who_can_be_private_is_what_the_code_says() -> None:
    """The table of `robust-and-private.md`; `python docs/generate.py` makes it anew."""
    text = (ROOT / "docs" / "robust-and-private.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert made["renewed"](text, made["private"]({name: make() for name, make in METHODS.items()}, TITLES)) == text


def test_what_methods_keep_is_what_the_code_keeps() -> None:
    """The table of `results/many-clients.md`; `python docs/generate.py` makes it anew."""
    text = (ROOT / "docs" / "results" / "many-clients.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    table = made["kept"]({name: make() for name, make in METHODS.items()}, TITLES)
    assert made["renewed"](text, table, made["KEPT"]) == text


def test_what_many_clients_cost_is_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of `results/many-clients.md` is the one that `bench/many_clients.py` makes of its lines."""
    bench = runpy.run_path(str(ROOT / "bench" / "many_clients.py"))
    lines = (ROOT / "bench" / "results" / "many_clients.jsonl").read_text().splitlines()
    table = bench["table"]([json.loads(text) for text in lines])
    assert table in (ROOT / "docs" / "results" / "many-clients.md").read_text(encoding="utf-8")


def test_what_privacy_costs_is_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The tables of `robust-and-private.md` are those that `bench/private.py` makes of its lines."""
    text = (ROOT / "docs" / "robust-and-private.md").read_text(encoding="utf-8")
    runpy.run_path(str(ROOT / "bench" / "private.py"))["table"]()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 7 + 7 + 6
    assert all(f"\n{row}\n" in text for row in rows)


def test_what_a_round_costs_the_server_is_what_was_measured() -> None:
    """The table of `results/server-cost.md` is the one that `bench/server_cost.py` makes of its lines; every method of
    the catalogue is in it."""
    text = (ROOT / "docs" / "results" / "server-cost.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "bench" / "server_cost.py"))["table"]()
    assert made in text
    assert all(f"\n| {name} | 0" in made or f"\n| {name} | 1" in made for name in METHODS)


def test_write_a_method_runs_as_it_stands(tmp_path: Path) -> None:
    """All python of the page in one script: three methods that keep the contract, learn, and differ."""
    text = (ROOT / "docs" / "write-a-method.md").read_text(encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=240)

    assert done.returncode == 0, done.stderr
    accuracy = {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}
    assert list(accuracy) == ["Average", "OwnHead", "Neighbours"]
    assert all(0.3 < v <= 1 for v in accuracy.values())
    assert len(set(accuracy.values())) == 3


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page of ``docs``."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands_in(page: str) -> list[list[str]]:
    """The arguments of every ``fedkin`` command in a page's shell blocks."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedkin ")]


def test_commands_on_comparing_are_understood() -> None:
    """Methods, seeds and the reference as the page has them; the python of the page runs."""
    first, second = (compare_flags(args[1:]) for args in commands_in("compare.md"))
    assert first[0].seeds == (0, 1, 2)
    assert (second[0].against, second[1].decimals) == ("fedavg", 2)
    for code in blocks("compare.md", "python"):
        exec(compile(code, "compare.md", "exec"), {})


def test_sweeps_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the page, and its file, which tries the same settings as the first command."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("optuna", reason='the page draws trials by Optuna: pip install "fedkin[optuna]"')
    for args in commands_in("sweeps.md"):
        assert main([*args, "--quiet"]) == 0
    (text,) = blocks("sweeps.md", "toml")
    Path("FILE.toml").write_text(text, encoding="utf-8")
    assert main(["sweep", "FILE.toml", "--quiet", "--out", "again"]) == 0
    assert Path("again/sweep.csv").read_text() == Path("runs/sweep/sweep.csv").read_text()


@pytest.mark.filterwarnings("default")  # what a foreign package warns of is not ours
def test_trackers_are_told_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first command runs as it stands; the second is understood."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("tensorboard", reason='the page tells TensorBoard: pip install "fedkin[tensorboard]"')
    first, second = commands_in("trackers.md")
    assert main([*first, "--quiet"]) == 0
    assert list(tmp_path.glob("runs/*/tensorboard/events.*"))
    assert compare_flags(second[1:])[1].track == ("mlflow", "wandb")
