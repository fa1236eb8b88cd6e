"""The documentation site: it builds without a network, needs none to be read, and its code runs."""

from __future__ import annotations

import csv
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.cli.check import MEANS
from scripts import run_command, run_script

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
AS_THEY_STAND = ("index", "choose", "own-model", "own-method", "tutorial-hospitals", "tutorial-hosts")
FAST = ("--engine", "loop", "--gradient", "explicit")  # neither processes nor compilation
pytestmark = pytest.mark.usefixtures("undrawn")
NOT_HERE = ("demo", "link", "node", "submit", "status")  # the demo has a test of its own; programs that keep running


class Resources(HTMLParser):
    """What a page makes a browser fetch: links that a reader may click are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag in FETCHED and told.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(told.get(FETCHED[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does; nothing can be fetched while it is."""
    pytest.importorskip("zensical", reason='needs the documentation extra: pip install "fedkin[docs]"')
    pytest.importorskip("mkdocstrings", reason='needs the documentation extra: pip install "fedkin[docs]"')
    pytest.importorskip("latex2mathml", reason='needs the documentation extra: pip install "fedkin[docs]"')
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, place / "docs")  # a copy, since the site is built next to its configuration
    shutil.copy(ROOT / "mkdocs.yml", place)
    for name in ("src", "CHANGELOG.md"):
        (place / name).symlink_to(ROOT / name)
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    env = {**os.environ, **nowhere, "PYTHONPATH": "docs"}
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "site"


def test_every_page_is_there(site: Path) -> None:
    """Each page of docs/ is built and can be reached from the navigation."""
    menu = (site / "index.html").read_text(encoding="utf-8")
    pages = [p.relative_to(DOCS).with_suffix(".html").as_posix() for p in DOCS.rglob("*.md")]
    assert len(pages) > 50
    for page in pages:
        assert (site / page).is_file(), page
        assert f'href="./{page}"' in menu or page == "index.html", f"{page} is not in mkdocs.yml's nav"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, styles, pictures and fonts lie in the site, also where a style sheet names them."""
    for page in site.rglob("*.html"):
        found = Resources()
        found.feed(page.read_text(encoding="utf-8"))
        assert found.found
        for address in found.found:
            assert not re.match(r"(https?:)?//", address), f"{page.name} fetches {address}"
            if address and not address.startswith(("data:", "#")) and page.name != "404.html":
                assert (page.parent / address.partition("?")[0].partition("#")[0]).exists(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style.name
    ours = (site / "javascripts" / "iframe-worker.js").read_text(encoding="utf-8")
    assert "http" not in ours


def test_the_reference_has_the_docstrings(site: Path) -> None:
    """Texts of the code itself."""
    page = (site / "reference" / "run.html").read_text(encoding="utf-8")
    assert "Train a federation by a method." in page
    assert "Fraction of the clients that each round samples." in page


def test_formulas_are_mathematics(site: Path) -> None:
    """Every formula of a method's page is MathML, of known commands alone; neither dollars nor backslashes are left."""
    for page in sorted((DOCS / "methods").glob("*.md")):
        built = (site / "methods" / f"{page.stem}.html").read_text(encoding="utf-8")
        source = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        assert built.count("<math ") == source.count("$") / 2, page.stem
        formulas = re.findall(r"<math .*?</math>", built, re.S)
        assert not [f for f in formulas if "\\" in f or "merror" in f], page.stem
        text = re.sub(r"<(code|script|style|pre)\b.*?</\1>", "", built, flags=re.S)
        assert "$" not in text, page.stem


def test_the_search_knows_the_pages(site: Path) -> None:
    """Its index is a script, which a page that is opened as a file can read."""
    index = (site / "search.js").read_text(encoding="utf-8")
    assert index.startswith("var __index = ")
    assert '"location":"own-method.html"' in index


def test_an_opened_page_can_be_searched(site: Path, browser: Any) -> None:
    """In Chromium, from a file: what is typed stays, pages are found, nothing is fetched."""
    asked: list[str] = []
    tab = browser.new_page(viewport={"width": 1100, "height": 800})
    tab.set_default_timeout(300_000)
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((site / "index.html").as_uri())
    tab.click(".md-search__button")
    field = tab.locator("input[placeholder=Search]")
    field.press_sequentially("adjusted Rand")
    tab.get_by_text("Recovery of groups").last.wait_for()
    assert field.input_value() == "adjusted Rand"
    tab.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, title, text) of the code of a page."""
    found = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', (DOCS / f"{page}.md").read_text(), re.M | re.S)
    return [(kind, title, text) for kind, title, text in found]


@pytest.mark.parametrize("page", AS_THEY_STAND)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom in a folder with the examples: titled files, scripts, commands (one round), configs."""
    if "keys" in (DOCS / f"{page}.md").read_text():
        pytest.importorskip("flwr", reason='keys need the extra for hosts: pip install "fedkin[flower]"')
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    ran = 0
    for kind, title, text in blocks(page):
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
            continue
        if kind == "toml":
            (tmp_path / "page.toml").write_text(text, encoding="utf-8")
            commands = [["run", "page.toml", "--rounds", "1"]]
        elif kind == "python":
            run_script(re.sub(r"rounds=\d+", "rounds=1", text), tmp_path, monkeypatch)
            commands, ran = [], ran + 1
        elif kind == "sh":
            short = re.sub(r"--seeds [\d ]+", "--seeds 0 ", re.sub(r"--rounds \d+", "--rounds 1", text))  # for speed
            lines = [shlex.split(line) for line in short.replace("\\\n", " ").splitlines()]
            for line in short.splitlines():
                if line.startswith(("mkdir hospitals", "cp docs/")):
                    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
            commands = [line[1:] for line in lines if line[0] == "fedkin" and line[1] not in NOT_HERE]
            trained = ("run", "compare") if page.startswith("tutorial") else ()
            commands = [[*line, *(FAST if line[0] in trained else ())] for line in commands]
        else:
            continue
        for command in commands:
            assert run_command(command, tmp_path, monkeypatch) == 0, command
            ran += 1
    assert ran >= 1


def test_the_hospitals_are_those_of_the_script() -> None:
    """Each table is what `docs/examples/hospitals.py` draws; the page shows the beginning of one."""
    made = runpy.run_path(str(DOCS / "examples" / "hospitals.py"))
    tutorial = (DOCS / "tutorial-hospitals.md").read_text(encoding="utf-8")
    stored = {p.stem: p.read_bytes() for p in (DOCS / "examples" / "hospitals").iterdir()}
    assert stored == {name: made["table"](name).encode() for name in made["PATIENTS"]}
    assert "\n".join(stored["north"].decode().splitlines()[:3]) in tutorial
    assert (DOCS / "examples" / "patients.csv").read_text() in tutorial


def test_the_tutorial_shows_what_an_inspection_finds() -> None:
    """Numbers of samples of each client, the finding in the excerpt and the advice at its end."""
    tutorial = (DOCS / "tutorial-hospitals.md").read_text(encoding="utf-8")
    found = fedkin.inspect(DOCS / "examples" / "hospitals", target="readmitted")
    assert {"constant-at-client", "one-sided-client"} <= {f.code for f in found.findings}
    assert f"{sum(c.train + c.validation + c.test for c in found.clients)} patients in all" in tutorial
    for c in found.clients:
        assert re.search(rf"^ {c.name} .* {c.train} +{c.validation} +{c.test} ", tutorial, re.MULTILINE), c


@pytest.mark.thorough
def test_the_tutorial_shows_what_its_comparison_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison as it stands: the means of its table, to a point, as other processors round otherwise."""
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    shell = next(text for kind, _, text in blocks("tutorial-hospitals") if text.startswith("fedkin compare"))
    assert run_command(shlex.split(shell.replace("\\\n", " "))[1:], tmp_path, monkeypatch) == 0
    given = {}
    for line in (tmp_path / "runs" / "hospitals" / "table.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8:
            given[cells[0]] = [cells[i].partition(" ")[0] for i in (1, 2, 4)]
    excerpt = next(text for _, _, text in blocks("tutorial-hospitals") if text.startswith(" method "))
    rows = [re.split(r"  +| (?=\d)", line.strip()) for line in excerpt.splitlines()[2:]]
    assert len(rows) == 7
    for name, *shown in rows:
        values = [float(cell.partition("±")[0]) for cell in shown[:3]]
        assert values == pytest.approx([float(v) for v in given[name]], abs=1), name


def test_the_rules_are_those_of_the_check() -> None:
    """The page's table is what `fedkin check` says."""
    text = (DOCS / "own-method.md").read_text(encoding="utf-8")
    for rule, (asks, _) in MEANS.items():
        assert f"\n| {rule} | {asks} |\n" in text


def test_figures_are_those_of_the_results() -> None:
    """What the guide and the page on why quote stands in the tables of the results."""
    with (DOCS.parent / "reproduce" / "catalogue" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["federation"], row["method"]): row for row in csv.DictReader(file)}
    why, choose = ((DOCS / f"{p}.md").read_text(encoding="utf-8") for p in ("why", "choose"))
    for federation, named in (
        ("digits", "digits"),
        ("fashion", "Fashion-MNIST"),
        ("writers", "MNIST by writer"),
    ):
        (line,) = [row for row in why.splitlines() if row.startswith(f"| {named}")]
        for method in ("Local", "FedAvg", "FedAvg + FT"):
            assert f" {rows[federation, method]['accuracy %'].partition(' ')[0]} " in line
        assert f" {rows[federation, 'FedAvg']['harmed']} " in line
    for federation, method, said in (
        ("writers", "FedAvg", "FedAvg 94.9"),
        ("writers", "FedRoD", "FedRoD 97.1"),
        ("digits", "FedAvg", "FedAvg 94.9"),
        ("digits", "Local", "Local 89.4"),
        ("digits", "CFIC", "(96.6)"),
        ("fashion", "Local", "(96.4)"),
    ):
        assert rows[federation, method]["accuracy %"].partition(" ")[0] in said
        assert said in choose
