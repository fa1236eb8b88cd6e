"""Damages folders of runs, sweeps, models and federations in many ways: commands work, or refuse it in one line.

    python -m tests.fuzz --minutes 2 folders

`handed_on` says what holds after each step. A command that goes on with a run whose states, banks or checkpoint were
damaged and that ends with code 0 must have given the lines of the whole run, bit for bit.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from handed_on import CODE, HERE, NEW, Sort, tries

import fedkin
from fedkin.experiment.compare import compare, comparison_from
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import table_of
from fedkin.experiment.sweep import Sweep, run_sweep
from fedkin.exporting import export
from folders import lines_in, small
from owncode import CAUTIOUS

RUN: dict[str, Sequence[str]] = {
    "report": ["report", HERE],
    "report with figures": ["report", HERE, "--figures", NEW],
    "runs": ["runs", HERE],
    "resume": ["resume", HERE, "--quiet"],
    "resume with more rounds": ["resume", HERE, "--quiet", "--rounds", "7"],
    "export": ["export", HERE, "--client", "0", "--out", NEW],
    "join": ["join", HERE, "--data", f"{HERE}/clients.csv"],
    "run": ["run", f"{HERE}/config.toml", "--quiet", "--out", NEW],
    "predict": ["predict", HERE, f"{HERE}/clients.csv"],
    "inspect": ["inspect", HERE, "--out", NEW],
}
COMPARISON: dict[str, Sequence[str]] = {
    "report": ["report", HERE],
    "runs": ["runs", HERE],
    "resume": ["resume", HERE, "--quiet"],
    "export": ["export", HERE],
    "join": ["join", HERE, "--data", f"{HERE}/table.csv"],
    "inspect": ["inspect", HERE, "--out", NEW],
}
MODEL: dict[str, Sequence[str]] = {
    "predict": ["predict", HERE, f"{HERE}/rows.csv"],
    "predict to a file": ["predict", HERE, f"{HERE}/rows.csv", "--out", NEW],
    "predict as JSON": ["predict", HERE, f"{HERE}/rows.csv", "--json"],
    "export": ["export", HERE, "--client", "0", "--out", NEW],
    "join": ["join", HERE, "--data", f"{HERE}/rows.csv"],
    "inspect": ["inspect", HERE, "--out", NEW],
    "runs": ["runs", HERE],
}
SHORT = ["--rounds", "1", "--steps", "1", "--model", "linear", "--engine", "loop", "--quiet", "--out", NEW]
FEDERATION: dict[str, Sequence[str]] = {
    "inspect": ["inspect", HERE],
    "inspect to a folder": ["inspect", HERE, "--out", NEW],
    "run": ["run", "fedavg", "--data", HERE, *SHORT],
}
QUIET = frozenset({"report", "report with figures", "runs", "predict", "inspect"})
TABLE = "age,dose,site,ill\n" + "".join(
    f"{20 + 7 * i % 50},{'abc'[i % 3]},{'xyz'[i % 3]},{i // 3 % 2}\n" for i in range(90)
)


class Stopped(BaseException):
    """Stands for a kill."""


def made(place: Path) -> dict[str, Sort]:
    """Folders of runs, finished and interrupted, states in memory and in files; of a comparison; of a sweep."""
    found = {}
    for state in ("memory", "file"):
        settings = small("da-pfl", run={"rounds": 5, "eval_every": 1}, compute={"state": state})
        for kind in ("finished", "interrupted"):
            folder = place / f"{kind}, {state}"
            with contextlib.suppress(Stopped):
                run_settings(settings, out=folder, on_round=None if kind == "finished" else _stop)
            found[f"a run {kind}, states in {state}"] = Sort(folder, RUN, QUIET, _same)
    own = place / "mine.py"
    own.write_text(CODE + CAUTIOUS.partition("\n")[2])
    tables = {k: dict(v) for k, v in table_of(small(run={"rounds": 2})).items() if k in ("data", "model", "training")}
    plan = comparison_from(
        {**tables, "methods": [f"{own}:Cautious"], "seeds": [0], "run": {"rounds": 2}, "compute": {"engine": "loop"}},
        "",
    )
    compare(plan, out=place / "comparison", progress=False)
    found["a comparison"] = Sort(place / "comparison", COMPARISON, QUIET)
    tried = Sweep(small(run={"rounds": 2}, data={"validation": 0.2}), {"training.lr": (0.1, 0.2)})
    run_sweep(tried, place / "sweep")
    found["a sweep"] = Sort(place / "sweep", COMPARISON, QUIET)
    (place / "rows.csv").write_text(TABLE)
    rows = fedkin.federate(fedkin.load(place / "rows.csv", target="ill", client="site"), fedkin.Natural())
    ran = fedkin.run(fedkin.methods.FedAvg(), rows, "mlp", rounds=1, compute=fedkin.Compute("loop"))
    model = export(ran, 0, place / "model")
    (model / "rows.csv").write_text(TABLE)
    (model / "load.py").write_text(CODE)
    found["a model of a table"] = Sort(model, MODEL, frozenset(MODEL))
    digits = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=3, samples_per_client=30)
    for name, federation in (("a federation of a table", rows), ("a federation of images", digits)):
        federation.save(place / name)
        found[name] = Sort(place / name, FEDERATION, frozenset(FEDERATION))
    return found


def _stop(report: Any, line: Any) -> None:
    if report.round == 3:
        raise Stopped


def _same(folder: Path, command: str, file: Path) -> None:
    """Asserts that a run that goes on from tensors that were damaged gives the lines of the whole one."""
    if command == "resume" and file.suffix not in (".json", ".jsonl", ".toml"):
        whole = next(p for p in (folder.parent.parent / "whole").iterdir() if p.name == "finished, memory")
        assert lines_in(folder) == lines_in(whole), f"{command}, {file.name}: other lines"


def run(seed: int, seconds: float) -> None:
    """Damages folders for some seconds.

    Raises:
        AssertionError: what holds for every folder and command did not hold; the message has the seed.
    """
    tries(made, seed, seconds=seconds)
