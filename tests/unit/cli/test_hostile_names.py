"""Names of clients, classes, columns, folders and methods never drive a terminal, end a chart, or break a page."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image

from commandline import Command, Done
from fedkin.display import printable
from fedkin.report import charts

HOSTILE = [
    *("\x01", "\x07", "\x08", "\x0b", "\x0c", "\x1b[2J", "\x1b]0;t\x07", "\x7f", "\x9b2J", "\x9d0;t\x9c", "\u2028"),
    *("\u2029", "\u061c", "\u200e", "\u202e", "\u2066", "\ufffe", "\uffff", ":AB:", "[red]x"),
]
DRIVES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def quiet(done: Done, code: int = 0) -> Done:
    """A command that ended with this code and wrote nothing but text."""
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert not DRIVES.findall(done.out + done.err)
    return done


def write_table() -> None:
    """A table in which every name is hostile; a client for each of the names above."""
    with Path("t.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["age\x1b[31m", "dose\u202e\x07", "site\x9b", "ill\x07"])
        for i in range(12 * len(HOSTILE)):
            client, label = HOSTILE[i % len(HOSTILE)], i // len(HOSTILE) % 2
            out.writerow([i % 37, i % 5, f"north{client}x", f"{'yn'[label]}\x1b]0;mine\x07\ufffe"])


RUN = "--partition natural --rounds 1 --model linear --engine loop --quiet"
HOW = ("--client-column", "site\x9b", "--target", "ill\x07")


def drawn(folder: Path, kinds: tuple[str, ...] = (".svg", ".pdf", ".html")) -> None:
    """There are charts and pages, and they are text as XML and UTF-8 have it."""
    files = [f for f in folder.iterdir() if f.suffix in kinds]
    assert files
    for file in files:
        assert file.stat().st_size > 200
        if file.suffix != ".pdf":
            assert not DRIVES.search(file.read_text(encoding="utf-8").partition("<script")[0]), file


def test_names_of_a_table(fedkin: Command) -> None:
    """Whatever prints or draws shows escapes; data files keep the names."""
    write_table()
    shown = quiet(fedkin("inspect t.csv --out looked", *HOW))
    assert r"north\x1b[2Jx" in shown.out
    assert ":AB:" in shown.out
    drawn(Path("looked"))
    assert json.loads(quiet(fedkin("inspect t.csv --json", *HOW)).out)["clients"][0]["name"].startswith("north")
    quiet(fedkin(f"run fedavg --data t.csv {RUN} --out", "r\x1b[2J\x07", *HOW))
    quiet(fedkin("report --figures figures", "r\x1b[2J\x07"))
    drawn(Path("figures"))
    with Path("figures/clients.csv").open(newline="", encoding="utf-8") as file:
        names = {row["name"] for row in csv.DictReader(file)}
    assert {f"north{name}x" for name in HOSTILE} <= names
    assert r"r\x1b[2J\x07" in quiet(fedkin("runs .")).out
    quiet(fedkin("join --after 0 --data t.csv", "r\x1b[2J\x07"))
    quiet(fedkin("export --client 0 --out home", "r\x1b[2J\x07"))
    quiet(fedkin("predict home t.csv --json"))
    quiet(fedkin("predict home t.csv --out labels.csv"))


def test_names_of_folders_that_are_no_text(fedkin: Command) -> None:
    """Class folders whose names are not UTF-8: every command goes through, and JSON and CSV are written."""
    for name in (b"caf\xe9", b"\x1b[2J", b"\xff\xfe"):
        os.makedirs(b"images/" + name)
        for i in range(12):
            Image.effect_noise((8, 8), 50).save(os.fsdecode(b"images/%s/%d.png" % (name, i)))
    shown = quiet(fedkin("inspect images --clients 2 --out looked"))
    assert r"caf\udce9" in shown.out
    drawn(Path("looked"))
    quiet(fedkin("run fedavg --data images --clients 2 --rounds 1 --model linear --engine loop --quiet --out run"))
    quiet(fedkin("report run --figures figures"))
    quiet(fedkin("export run --client 0 --out home"))
    quiet(fedkin("predict home images --out labels.csv"))
    assert rb"caf\udce9" in Path("labels.csv").read_bytes()


def forge(folder: Path, title: str) -> None:
    """Gives a run another title, as somebody may who hands it on."""
    said = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**said, "title": title}))


ODD, QUOTED = "north\x07\x1b[2J\ufffex", "\\x07\\u0007\x07\x9b'\"</script>"


@pytest.mark.parametrize(
    ("command", "title"), [("run fedavg", QUOTED), ("compare fedavg", ODD)], ids=["run", "compare"]
)
def test_titles_of_a_folder_that_was_handed_on(command: str, title: str, fedkin: Command) -> None:
    """The name of a method comes from the record of a run, and is a name in expressions of charts too."""
    quiet(fedkin(f"{command} --clients 3 --samples-per-client 30 {RUN.replace('--partition natural ', '')} --out it"))
    folders = [path.parent for path in sorted(Path("it").rglob("run.json"))]
    forge(folders[0], title)
    for again in ("report it --figures figures", "runs ."):
        quiet(fedkin(again))
    for place in ("it", "figures"):
        drawn(Path(place), (".svg", ".html", ".md", ".tex"))


@pytest.mark.parametrize(
    "words",
    [
        ["run", "fedavg", "--data", "no\x1b[2J"], ["inspect", "no\x9b2J"], ["runs", "no\x1b]0;t\x07"],
        ["no\x1b[2J"], ["run", "no\x1b[2J\u202e"],
        ["run", "fedavg", "--model", "no\x1b[2J"], ["run", "fedavg", "--lr", "\x1b[2J"], ["resume", "no\x1b[2J"],
        ["report", "no\x1b[2J"], ["export", "no\x1b[2J"], ["predict", "no\x1b[2J", "x\x07"],
    ],
)  # fmt: skip
def test_errors(words: list[str], fedkin: Command) -> None:
    """A word of the command that an error repeats."""
    quiet(fedkin("", *words), 2)


def test_charts_of_any_character() -> None:
    """What XML lacks would end the whole process in the library that draws."""
    names = [printable(chr(n)) and chr(n) for n in (*range(0x20), *range(0x7F, 0xA0), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF)]
    spec = {"data": {"values": [{"a": f"x{name}", "b": n} for n, name in enumerate(names)]}, "mark": "bar",
            "title": "".join(names), "encoding": {"y": {"field": "a", "type": "nominal"},
                                                  "x": {"field": "b", "type": "quantitative"}}}  # fmt: skip
    assert "</svg>" in charts.svg(spec)
    assert charts.png(spec).startswith(b"\x89PNG")
    assert charts.pdf(spec, 3.3, 220).startswith(b"%PDF")
