"""The pages on the methods say what the code does: settings, commands, payloads; tables are those of their programs."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.capabilities import Uploads, has
from fedkin.cli import _COMMANDS, _HOSTS, main
from fedkin.cli.flags import compare_flags, run_flags
from fedkin.core import errors as core_errors
from fedkin.core.method import FAMILIES
from fedkin.experiment.run import run_settings
from fedkin.methods import METHODS
from fedkin.testing.payloads import Payloads, payloads
from scripts import run_script

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "methods"
SECTIONS = ["Equations", "What leaves a client", "Settings", "Readings", "Known problems", "Try it"]
EVERY = pytest.mark.parametrize("name", METHODS)
pytestmark = pytest.mark.usefixtures("undrawn")


def text_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    return text_of(name).split(f"\n## {title}\n")[1].split("\n## ")[0]


@EVERY
def test_a_method_has_its_page_with_all_sections(name: str) -> None:
    """Title, what it does, the paper; then six sections in one order, with its own settings."""
    text = text_of(name)
    assert text.startswith(f"# {METHODS[name]().title}\n"), text.splitlines()[0]
    assert "\n\nPaper: " in text
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert f"<!-- table: docs/generate.py method {name} -->" in text
    assert len(re.findall(r"^\| ", section(name, "Equations"), re.M)) >= 4, "two equations"


@EVERY
def test_the_command_is_one(name: str) -> None:
    """`fedkin run` takes it, with this method."""
    block = re.search(r"```sh\n(.*?)```", section(name, "Try it"), re.S)
    assert block is not None
    line = shlex.split(block[1].replace("\\\n", " ").splitlines()[0])
    assert [*line[:2], line[2].partition("@")[0]] == ["fedkin", "run", name]
    settings, _ = run_flags(line[2:])
    assert settings.method["name"].partition("@")[0] == name


@EVERY
def test_the_catalogue_says_what_a_method_gives_and_reveals(name: str) -> None:
    """Each method states its family, and what the server learns about one client."""
    method = METHODS[name]()
    assert method.family in FAMILIES
    assert has(method, Uploads).reveals
    assert name == "local" or method.paper


@EVERY
def test_equations_are_mathematics(name: str) -> None:
    """Formulas stand between dollars, in what GitHub and the site both read: no bar, which divides a table; no escape
    that Markdown would take for its own; no underscore that could begin an emphasis."""
    text = re.sub(r"```.*?```", "", text_of(name), flags=re.S)
    for formula in re.findall(r"\$([^$]*)\$", re.sub(r"`[^`]*`", "", text)):
        assert not re.search(r"[|*]|\\[^A-Za-z]|(?<![A-Za-z0-9])_", formula), formula


def test_commands_fit_a_narrow_page() -> None:
    """Lines of shell blocks have up to 76 columns: a page on the site, or half a screen, shows them whole."""
    wide = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
        for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S)
        for line in block.splitlines()
        if len(line) > 76
    ]
    assert wide == []


FAMILY_PAGES = runpy.run_path(str(ROOT / "docs" / "families.py"))


def test_what_a_sixth_of_the_methods_send_is_on_the_page() -> None:
    """Their rows are those that a run gives now; `make test-all` makes the whole page."""
    methods = {name: make() for name, make in list(METHODS.items())[::6]}
    made = FAMILY_PAGES["leaves"](methods, {name: payloads(method) for name, method in methods.items()})
    stored = (ROOT / "docs" / "what-leaves-a-client.md").read_text(encoding="utf-8")
    rows, stored_rows = FAMILY_PAGES["cells_of"](made), FAMILY_PAGES["cells_of"](stored)
    assert set(rows) > {method.title for method in methods.values()}
    assert {title: stored_rows[title] for title in rows} == rows


@pytest.mark.thorough
def test_what_leaves_a_client_is_what_the_code_sends() -> None:
    """The page and the pictures of families are what a run of each method gives now; `python docs/generate.py` makes
    them anew."""
    methods = {name: make() for name, make in METHODS.items()}
    payloads_of = {name: payloads(method) for name, method in methods.items()}
    made = FAMILY_PAGES["leaves"](methods, payloads_of)
    assert made == (ROOT / "docs" / "what-leaves-a-client.md").read_text(encoding="utf-8")
    pictures = FAMILY_PAGES["pictures"](methods, payloads_of)
    stored = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert pictures == stored
    titles = [m.title for m in methods.values()]
    assert all(f">{title}</text>" in "".join(stored.values()) for title in titles)


def test_pictures_show_bodies_heads_and_what_is_sent_in_some_rounds_only() -> None:
    """A body for `[B]`, body and head for `[P]`, thin bars for several models, a named pill for other tensors; pale
    where no message always contains it."""
    found = Payloads(
        seen={
            "says": {"label": "int"},
            "sends": {"body": "[B]", "head": "[H]"},
            "sent": {"model0": "[P]", "model1": "[P]", "q": "[K, P]"},
            "shown": {"q": "[K, P]"},
        },
        times={("says", "label"): 2, ("sends", "body"): 2, ("sends", "head"): 1, ("sent", "model0"): 1,
               ("sent", "model1"): 1, ("sent", "q"): 2, ("shown", "q"): 1},
        messages={"says": 2, "sends": 2, "sent": 2, "shown": 2},
    )  # fmt: skip
    stays, sent, received = FAMILY_PAGES["columns_of"](found)
    chips = FAMILY_PAGES["_chips"]
    assert [(t.name, t.sometimes) for t in sent] == [("label", False), ("body", False), ("head", True)]
    assert [(t.name, t.sometimes) for t in received] == [("models", True), ("q", False)]
    assert chips(stays, 0, 0) == ['<text class="h" x="0" y="12">–</text>']
    _, word, body, head = chips(sent, 0, 0)
    assert (">label<" in word, 'class="b"' in body, 'class="k d"' in head) == (True, True, True)
    bars = "".join(chips(received, 0, 0))
    assert [bars.count(f'class="{kind}"') for kind in ("b d", "k d", "b", "k")] == [3, 3, 3, 3]


def test_pages_of_methods_name_flags_that_exist() -> None:
    """Fields of a method are no flags: a page names them NAME@field=value."""
    flags = set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs" / "reference" / "flags.md").read_text(encoding="utf-8")))
    pages = [ROOT / "README.md", *(ROOT / "docs" / "methods").glob("*.md"), *(ROOT / "docs").glob("tutorial*.md")]
    named = {(p.name, f) for p in pages for f in re.findall(r"(?<![\w-])--[a-z][a-z-]+", p.read_text(encoding="utf-8"))}
    assert {(page, flag) for page, flag in named if flag not in flags} == set()


def test_the_page_of_flags_is_what_the_code_declares() -> None:
    """Every group of settings, every field of a method and every command; `python docs/generate.py` makes it anew."""
    pytest.importorskip(
        "flwr", reason='flags of fedkin node are read from code that needs: pip install "fedkin[flower]"'
    )
    made = runpy.run_path(str(ROOT / "docs" / "flag_pages.py"))
    text = made["page"]({name: make() for name, make in METHODS.items()})
    assert text == (ROOT / "docs" / "reference" / "flags.md").read_text(encoding="utf-8")
    shown = {command.split()[0] for command in made["COMMANDS"]}
    assert shown | {"list"} == {*_COMMANDS, *_HOSTS}
    for row in (
        "| `--batch-size` | integer: `10` | Samples per mini-batch; ",
        "| `--rule` | text: `mean` |",
        "| `min_clients` | integer: `1` |",
        "| `RUN` | path, required |",
        "| `--global` | yes or no: no |",
    ):
        assert f"\n{row}" in text, row


PLACES = (ROOT, ROOT / "src" / "fedkin", ROOT / "packages" / "fedkin-hosts" / "src")
GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))


def test_the_map_of_the_code_names_files_that_are_there() -> None:
    """Forty rows, as its heading says, of the package and of the folders beside it."""
    page = (ROOT / "docs" / "house.md").read_text(encoding="utf-8").partition("\n## Packages\n")[0]
    paths = [re.findall(r"`([^`]+)`", line.split(" | ")[0]) for line in page.splitlines() if line.startswith("| `")]
    assert len(paths) == 40
    assert [p for row in paths for p in row if not any((place / p).exists() for place in PLACES)] == []


def test_the_picture_of_rooms_has_the_imports_of_now() -> None:
    """No room imports one of its layer or above."""
    rooms = runpy.run_path(str(ROOT / "docs" / "rooms.py"))
    arrows = rooms["imports"]()
    assert rooms["back"](arrows, rooms["layers"]()) == []
    drawn = (ROOT / "docs" / "rooms.svg").read_text(encoding="utf-8")
    assert drawn.count("url(#tip)") == sum(map(len, rooms["drawn"](arrows).values()))


@pytest.mark.parametrize("path", GENERATE["marked"](), ids=lambda path: path.stem)
def test_tables_are_those_that_their_programs_make(path: Path) -> None:
    """Of the code, or of measured lines; `python docs/generate.py` makes them anew."""
    text = path.read_text(encoding="utf-8")
    assert GENERATE["renewed"](text) == text


def test_every_method_has_a_second_program() -> None:
    """The table of `results/independent.md` has each in `tests/golden`; safe forms alone have none."""
    bench = runpy.run_path(str(ROOT / "bench" / "independent.py"))
    files = (ROOT / "tests" / "golden").glob("test_*.py")
    there = {p.stem.removeprefix("test_") for p in files if f"def {bench['NAME']}" in p.read_text(encoding="utf-8")}
    assert set(json.loads(bench["FILE"].read_text(encoding="utf-8"))) == there
    assert sorted(m for name in there for m in bench["methods_of"](name)) == sorted({*METHODS} - {"fedavg-safe"})


def test_the_rule_of_the_simulated_verdicts_is_the_library_s() -> None:
    """The tables of `verdicts.md` are of it."""
    runpy.run_path(str(ROOT / "bench" / "verdict.py"))["check"]()


def test_the_reference_has_the_public_names() -> None:
    """Every public name but the modules is on one page, and no page has another: `fedkin.NAME`, the errors, and the
    check of methods."""
    pages = [p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "reference").glob("*.md")]
    shown = re.findall(r"^::: (\S+)", "\n".join(pages), re.MULTILINE)
    shown = ["fedkin.federate" if name == "fedkin.data.federate.federate" else name for name in shown]
    modules = {"__version__", "capabilities", "data", "methods", "models"}
    public = {f"fedkin.{name}" for name in fedkin.__all__ if name not in modules} - {"fedkin.FedkinError"}
    assert sorted(shown) == sorted(
        {*public, "fedkin.core.errors", "fedkin.testing", "fedkin.capabilities", "fedkin.record.lines"}
    )
    errors = {name for name, one in vars(core_errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    (listed,) = re.findall(r"members: \[(FedkinError.*)\]", "\n".join(pages))
    assert errors == set(listed.split(", "))


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page of ``docs``."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def titled(page: str) -> list[tuple[str, str]]:
    """The files of a page of ``docs``: the name and the text of each block of Python with a title."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r'```python title="([^"]+)"\n(.*?)```', text, re.S)


def printed(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What all python of a page, as one script in this folder, prints."""
    return run_script("\n".join(blocks(page, "python")), folder, monkeypatch)


def test_write_a_method_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All python of the page in one script: three methods that keep the contract, learn, and differ."""
    said = printed("write-a-method.md", tmp_path, monkeypatch)

    accuracy = {name: float(value) for name, value in (line.split() for line in said.splitlines())}
    assert list(accuracy) == ["Average", "OwnHead", "Neighbours"]
    assert all(0.3 < v <= 1 for v in accuracy.values())
    assert len(set(accuracy.values())) == 3


def test_a_written_method_gets_to_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the page, with the class in a file as it says: the table for a paper has its row, and the sweep
    tries the settings of its own field."""
    imports, *others = blocks("write-a-method.md", "python")
    (neighbours,) = (block for block in others if "class Neighbours" in block)
    (tmp_path / "neighbours.py").write_text(imports.split("\n\n\n")[0] + "\n\n" + neighbours)
    monkeypatch.chdir(tmp_path)
    check, compare, sweep = commands_in("write-a-method.md")
    short = ["--rounds", "1", "--engine", "loop", "--quiet"]
    assert main([*check, "--rules", "declared", "runs"]) == 0
    assert main([*compare, *short, "--seeds", "0", "--clients", "4"]) == 0
    assert "Neighbours & " in Path("runs/neighbours/table.tex").read_text()
    assert main([*sweep, *short, "--clients", "4"]) == 0
    assert Path("runs/sharpness/sweep.csv").read_text().count("\n") >= 4


def test_the_template_of_a_method_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files as they stand: the method keeps rules of the contract and trains, the numbers by hand are its own."""
    monkeypatch.chdir(tmp_path)
    files = dict(titled("write-a-method.md"))
    assert set(files) == {"my_method.py", "test_my_method.py"}
    for name, text in files.items():
        Path(name).write_text(text)
    assert main(["check", "./my_method.py:MyMethod", "--rules", "declared", "runs"]) == 0
    short = ["--clients", "3", "--rounds", "1", "--engine", "loop", "--quiet", "--out", "run"]
    assert main(["run", "./my_method.py:MyMethod@mu=0.1", *short]) == 0
    monkeypatch.syspath_prepend(str(tmp_path))
    tests = runpy.run_path("test_my_method.py")
    assert sorted(name for name in tests if name.startswith("test_")) == ["test_the_contract", "test_the_mean_by_hand"]
    tests["test_the_mean_by_hand"]()


def test_a_comparison_grows_and_is_read_as_the_pages_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method and a seed that are added to compare.toml are run by `fedkin resume`, which keeps the others; the pandas
    of the page on run folders has a row for each run."""
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "fedper", *shlex.split("--clients 3 --rounds 1 --engine loop --quiet --out runs/c")]) == 0
    plan, former = Path("runs/c/compare.toml"), Path("runs/c/fedper-seed0/timing.jsonl").read_bytes()
    text = plan.read_text().replace('    "fedper",\n', '    "fedper",\n    "ditto",\n')
    plan.write_text(text.replace("seeds = [\n    0,\n", "seeds = [\n    0,\n    1,\n"))
    assert main(["resume", "runs/c", "--quiet"]) == 0
    assert Path("runs/c/fedper-seed0/timing.jsonl").read_bytes() == former
    assert "Ditto" in Path("runs/c/table.md").read_text()
    said = printed("run-folder.md", tmp_path, monkeypatch)
    assert all(name in said for name in ("Ditto", "FedPer", "Local (full)")), said
    assert len(list(Path("runs/c").glob("*-seed*"))) == 2 * 5


def test_inspect_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The python of the page prints what stands below it, and its table names every finding there is."""
    text = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")

    assert printed("inspect.md", tmp_path, monkeypatch) in text
    package = ROOT / "src" / "fedkin" / "inspection"
    source = "\n".join(p.read_text(encoding="utf-8") for p in package.glob("*.py"))
    codes = set(re.findall(r'(?:Finding|refused)\(\s*"([a-z-]+)"', source))
    table = text.split("## Findings")[1].split("\n## ")[0]
    told = set(re.findall(r"`([a-z-]+)`", table))
    assert codes == told


def _look_alikes(folder: Path) -> None:
    """Small data with the columns, arrays and folders of the sets that `own-data.md` speaks of."""
    rng = np.random.default_rng(0)
    head, every = "age,sex,chol,thal,num", []
    (folder / "heart").mkdir()
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        rows = [
            f"{rng.integers(30, 80)},{rng.integers(2)},{'' if i % 9 == 0 else rng.integers(150, 300)},"
            f"{('normal', 'fixed', '')[i % 3]},{rng.integers(5)}"
            for i in range(40)
        ]
        (folder / "heart" / f"{hospital}.csv").write_text("\n".join([head, *rows]) + "\n")
        every += [f"{row},{hospital}" for row in rows]
    (folder / "heart.csv").write_text("\n".join([f"{head},hospital", *every]) + "\n")
    subject = np.repeat(np.arange(1, 6), 48)
    np.savez(folder / "har.npz", x=rng.normal(size=(240, 9)), y=np.arange(240) % 6, subject=subject,
             segment=np.arange(240) // 4)  # fmt: skip
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, the extra 'images'")
    for client, kind in ((c, k) for c in "ab" for k in ("cat", "dog")):
        (folder / "pictures" / client / kind).mkdir(parents=True)
        for i in range(10):
            size = (18, 20) if i % 2 else (16, 16)
            image.new("L", size, 10 * i + 100 * (kind == "dog")).save(folder / "pictures" / client / kind / f"{i}.png")
    (folder / "mnist").mkdir()
    writers = {}
    for part, n in (("train", 90), ("t10k", 30)):
        x, y = rng.integers(0, 256, (n, 8, 8), dtype=np.uint8), (np.arange(n) % 3).astype(np.uint8)
        for what, values in (("images", x), ("labels", y)):
            sides = b"".join(side.to_bytes(4, "big") for side in values.shape)
            raw = bytes([0, 0, 8, values.ndim]) + sides + values.tobytes()
            (folder / "mnist" / f"{part}-{what}-idx{values.ndim}-ubyte").write_bytes(raw)
        name = "train" if part == "train" else "test"
        writers |= {f"{name}_writer": np.arange(n) % 6, f"{name}_series": np.arange(n) % 6 // 3}
    np.savez(folder / "mnist" / "mnist-writers.npz", **writers)


def test_own_data_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All python of the page in one script and all of its commands, on look-alikes: the right clients every time."""
    _look_alikes(tmp_path)
    said = printed("own-data.md", tmp_path, monkeypatch)

    hospitals, same_inputs, speakers, table, divided, sorted_, known, wards = said.splitlines()
    assert hospitals == "4 ('cleveland', 'hungarian', 'switzerland', 'va')"
    assert (same_inputs, divided, wards) == ("True", "True 3", "('a', 'b')")
    assert speakers == "3 ('no', 'yes') ('anna', 'ben', 'carla')"
    assert table == "Dataset('table', 120 samples, 2 classes, inputs [4])"
    assert (sorted_, known) == ("4", "3")
    monkeypatch.chdir(tmp_path)
    found = {}
    for args in commands_in("own-data.md"):
        settings, _ = run_flags([*args[1:], "--rounds", "1", "--engine", "loop"])
        result = run_settings(settings)
        assert 0 <= result.final.accuracy <= 1
        found[args[3]] = result.run.clients
    named = {"heart/": 4, "heart.csv": 4, "har.npz": 5, "pictures/": 2, "mnist/": 6, "./mydata.py:wards": 2}
    assert found == {**named, "digits": 12}


def test_take_home_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All python of the page in one script; the figures that it prints are counts and shares, its interval Wilson's
    around the accuracy."""
    said = printed("take-home.md", tmp_path, monkeypatch)

    first, labels, shape, second, third = said.splitlines()
    assert (labels, shape) == ("['no', 'yes']", "['no', 'yes'] (2, 2)")
    low, high, accuracy = (float(v) for v in re.findall(r"[\d.]+", third)[:2] + re.findall(r"[\d.]+", second)[1:2])
    assert low < accuracy < high
    assert "only 24 test samples" in third
    assert 0 < int(first.split()[0]) <= int(first.split()[1])
    assert re.findall(r"(\d+): ", second) == ["0", "1", "5", "0", "1", "5", "10"]
    assert (tmp_path / "digits-of-client-3" / "model.onnx").is_file()


def commands_in(page: str) -> list[list[str]]:
    """The arguments of every ``fedkin`` command in a page's shell blocks."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedkin ")]


def test_commands_on_comparing_are_understood() -> None:
    """Methods, seeds, the reference, settings in names, safe forms and trials as the page has them; its python runs."""
    first, second, settings, third, fourth, fifth = (compare_flags(args[1:]) for args in commands_in("compare.md"))
    assert first[0].seeds == (0, 1, 2)
    assert second[0].baseline == "fedavg"
    assert [settings[0].settings(name, 0).method["lam"] for name in settings[0].names[3:6]] == [1.0, 1.0, 0.1]
    assert {"fedavg-safe", "da-pfl-safe", "pfedcs-safe"} < set(third[0].names)
    assert [fourth[0].settings(name, 0).method["mode"] for name in ("fedper-safe", "fedavg-safe")] == ["best", "sure"]
    assert fifth[0].tune == 20
    for code in blocks("compare.md", "python"):
        exec(compile(code, "compare.md", "exec"), {})


@pytest.mark.thorough
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
    """The commands with TensorBoard run as they stand; the other is understood."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("tensorboard", reason='the page tells TensorBoard: pip install "fedkin[tensorboard]"')
    first, second, third = commands_in("trackers.md")
    assert main([*first, "--quiet"]) == main([*third, "--quiet"]) == 0
    assert [len(list(tmp_path.glob(f"runs/{where}/tensorboard"))) for where in ("fedavg-*", "sweep-*/*")] == [1, 2]
    assert compare_flags(second[1:])[1].track == ("mlflow", "wandb")
