"""The comparisons of all methods, and the tables made of them."""

from __future__ import annotations

import pytest
from reproduce.catalogue.table import equal_rows
from reproduce.tables import HERE

from fedkin.experiment.compare import comparison_from
from fedkin.methods import METHODS
from fedkin.report.folder import Run
from fedkin.storage.toml import read_toml


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
    assert (plan.seeds, plan.safe, plan.data.validation) == ((0, 1, 2, 3, 4), True, 0.2)


def test_equal_rows_are_of_the_seeds_that_both_have() -> None:
    """A run that is still missing, of the reference or of a method, does not stop the table."""

    def of(title: str, seed: int, accuracy: float) -> Run:
        line = {"client": 0, "round": 1, "accuracy": accuracy}
        return Run(title, seed, [{"round": 1, "evaluated": True}], [line], [], {"rounds": 1})

    runs = [of("Local", 0, 0.5), of("A", 0, 0.5), of("A", 1, 0.7), of("B", 0, 0.4), of("C", 1, 0.5)]
    assert equal_rows(runs, "Local") == ["A"]
    assert equal_rows(runs, "FedAvg") == []
