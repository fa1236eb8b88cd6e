"""The comparisons of all methods, and the tables made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduce.catalogue import table
from reproduce.catalogue.table import behind, equal_rows, figures, goals
from reproduce.tables import HERE

from fedkin.experiment.compare import comparison_from
from fedkin.methods import METHODS
from fedkin.record.lines import TimingLine
from fedkin.record.result import Result
from fedkin.storage.toml import read_toml
from madeup import about, client_line, round_line


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("digits", {"oracle"}),
        pytest.param("fashion", {"oracle"}, marks=pytest.mark.thorough),
        pytest.param("writers", set(), marks=pytest.mark.thorough),
        pytest.param("heart", {"oracle"}, marks=pytest.mark.thorough),
        pytest.param("har", {"oracle"}, marks=pytest.mark.thorough),
    ],
)
def test_a_comparison_has_all_methods(name: str, out: set[str]) -> None:
    """All of the catalogue, in its order, but safe forms and, where no groups are known, Oracle. All five have the
    seeds, the held-out samples and the safe forms that the pages name."""
    path = HERE / "catalogue" / f"{name}.toml"
    plan = comparison_from(read_toml(path), path.name)
    assert list(plan.methods) == [m for m in METHODS if m not in out | {"fedavg-safe"}]
    assert (plan.seeds, plan.safe, plan.base.data.validation) == ((0, 1, 2, 3, 4), True, 0.2)


def of(title: str, seed: int, *accuracies: float) -> Result:
    """A run of one round, with these accuracies on 40 test samples each, of which the first ones are right."""
    bits = [np.packbits(np.arange(40) < round(40 * a)).tobytes() for a in accuracies]
    clients = [client_line(1, c, a, 40, right=bits[c], test_part=f"{c}") for c, a in enumerate(accuracies)]
    line = round_line(1, accuracy=float(np.mean(accuracies)), worst_decile=min(accuracies))
    role = "alone" if title == "Local" else ""
    return Result(run=about(title, seed, len(accuracies), role=role), config={}, rounds=[line], clients=clients)


def test_equal_rows_are_of_the_seeds_that_both_have() -> None:
    """A run that is still missing, of the reference or of a method, does not stop the table."""
    runs = [of("Local", 0, 0.5), of("A", 0, 0.5), of("A", 1, 0.7), of("B", 0, 0.4), of("C", 1, 0.5)]
    assert equal_rows(runs, "Local") == ["A"]
    assert equal_rows(runs, "FedAvg") == []


def test_goals_by_hand() -> None:
    """A gains and loses 25 points in one seed and gains 12.5 twice in the other; its safe form: 10, 0, 15, -2.5.

    B is below Local by 10 points, 4 of 40 test samples, which chance may explain, and its safe form is level. So
    methods gain (6.25 - 10) / 2 points, the better of each and Local 6.25 / 2, safe forms (5.625 + 0) / 2. The worst
    clients of the four runs have -25, 12.5, -10 and -10 points, those of safe forms 0, -2.5, 0 and 0.
    """
    runs = [of("Local", 0, 0.5, 0.5), of("Local", 1, 0.5, 0.5)]
    runs += [of("A", 0, 0.75, 0.25), of("A", 1, 0.625, 0.625), of("B", 0, 0.4, 0.4), of("B", 1, 0.4, 0.4)]
    runs += [of("A-safe (likely)", 0, 0.6, 0.5), of("A-safe (likely)", 1, 0.65, 0.475)]
    runs += [of("B-safe (likely)", s, 0.5, 0.5) for s in (0, 1)]
    # below by more than a point: one of A, four of B; of the safe forms one. The only loss beyond chance is A's
    assert list(goals("two", runs).values()) == ["two", "2", "2", "-1.9", "+3.1", "+2.8", *"5110", "8", "-8", "-1"]
    assert behind(runs) == ["A"]


def test_a_row_has_its_safe_form_and_the_least_seconds() -> None:
    """Local has no safe form; seconds are those of the seed that took the least."""
    runs = []
    for seed, taken in ((0, 30.0), (1, 4.0)):
        for run in (of("Local", seed, 0.5, 0.5), of("A", seed, 0.75, 0.55), of("A-safe (likely)", seed, 0.6, 0.6)):
            runs.append(replace(run, timing=[TimingLine(round=1, whole=taken, evaluation=0.5 * len(run.title))]))
    local, a = figures("toy", runs)
    assert (local["method"], local["safe: gain"], local["s"]) == ("Local", "", "6.5")
    assert (a["method"], a["safe: gain"], a["safe: worst 10 %"], a["s"]) == ("A", "+10.0 ± 0.0", "60.0 ± 0.0", "4.5")


def test_a_federation_s_rows_are_replaced(tmp_path: Path) -> None:
    """Those of others stay, in the order of the page."""
    path = tmp_path / "goals.csv"
    path.write_text("federation,gain\ndigits,1\nhar,2\n")
    table.renew(
        path, ("federation", "gain"), [{"federation": "har", "gain": "4"}, {"federation": "heart", "gain": "3"}]
    )
    assert path.read_text() == "federation,gain\ndigits,1\nheart,3\nhar,4\n"
