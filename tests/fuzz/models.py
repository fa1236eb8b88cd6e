"""Damages exported models and saved federations in many ways: commands work, or refuse the folder in one line.

    python -m tests.fuzz --minutes 2 models

`handed_on` says what holds after each step. No code beside a model is ever run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from handed_on import CODE, HERE, NEW, Sort, tries
from PIL import Image

import fedkin
from fedkin.experiment.run import run_settings
from fedkin.exporting import export, export_all
from folders import small

RUN = ["--rounds", "1", "--steps", "1", "--model", "linear", "--engine", "loop", "--quiet", "--out", NEW]
TABLE = "age,dose,site,ill\n" + "".join(
    f"{20 + 7 * i % 50},{'abc'[i % 3]},{'xyz'[i % 3]},{i // 3 % 2}\n" for i in range(90)
)


def made(place: Path) -> dict[str, Sort]:
    """Models of a table, of images and of several networks; federations of a table and of images."""
    place.mkdir()
    (place / "rows.csv").write_text(TABLE)
    np.save(place / "x.npy", np.full((3, 1, 8, 8), 0.5, np.float32))
    (place / "images").mkdir()
    for i in range(3):
        Image.effect_noise((8, 8), 50).save(place / "images" / f"{i}.png")
    rows = fedkin.federate(fedkin.load(place / "rows.csv", target="ill", client="site"), fedkin.Natural())
    ours = run_settings(small("da-pfl"))
    table = fedkin.run(fedkin.methods.FedAvg(), rows, "mlp", rounds=1, compute=fedkin.Compute("loop"))
    found = {
        "a model of a table": (export(table, 0, place / "table"), "rows.csv"),
        "a model of arrays": (export(ours, 1, place / "arrays"), "x.npy"),
        "a model of a comparison": (list(export_all(ours, place / "all"))[2], "images"),
        "several networks": (export(run_settings(small("ifca-cam")), 0, place / "several"), "x.npy"),
    }
    sorts = {}
    for name, (folder, data) in found.items():
        (folder / "load.py").write_text(CODE)
        sorts[name] = _sort(folder, place / data)
    ours = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=3, samples_per_client=30)
    for name, federation in (("a federation of a table", rows), ("a federation of images", ours)):
        federation.save(place / name)
        sorts[name] = _federation(place / name)
    return sorts


def _sort(folder: Path, data: Path) -> Sort:
    commands: dict[str, Sequence[str]] = {
        "predict": ["predict", HERE, str(data)],
        "predict to a file": ["predict", HERE, str(data), "--out", NEW],
        "predict as JSON": ["predict", HERE, str(data), "--json"],
        "export": ["export", HERE, "--client", "0", "--out", NEW],
        "join": ["join", HERE, "--data", str(data)],
        "inspect": ["inspect", HERE, "--out", NEW],
        "runs": ["runs", HERE],
    }
    return Sort(folder, {**commands, "predict again": commands["predict"]}, frozenset({*commands, "predict again"}))


def _federation(folder: Path) -> Sort:
    commands: dict[str, Sequence[str]] = {
        "inspect": ["inspect", HERE],
        "inspect to a folder": ["inspect", HERE, "--out", NEW],
        "run": ["run", "fedavg", "--data", HERE, *RUN],
    }
    return Sort(folder, commands, frozenset(commands))


def run(seed: int, seconds: float) -> None:
    """Damages folders for some seconds.

    Raises:
        AssertionError: what holds for every folder and command did not hold; the message has the seed.
    """
    tries(made, seed, seconds=seconds)
