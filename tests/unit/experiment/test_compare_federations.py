"""`compare` as programs call it: a federation, methods as names and objects, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin import Bundle, Compute, Federation, Method, Train, Training, to_all
from fedkin.core import ConfigError
from fedkin.methods import FedAvg, FedProx, Local, LocalFull
from fedkin.storage.toml import read_toml
from kills import Stop
from madeup import about

SMALL: dict[str, Any] = {
    "rounds": 2,
    "model": "linear",
    "training": Training(steps=2, batch_size=5, lr=0.1),
    "compute": Compute(engine="loop"),
}


@dataclass(frozen=True)
class Halfway(Method):
    """A method of a program alone."""

    step: float = 0.5
    """Fraction of the way."""

    def init(self, r: Any) -> Bundle:
        return Bundle(model=r.w0)

    def distribute(self, s: Any, r: Any) -> Any:
        return to_all(model=s.model)

    def client_update(self, c: Any) -> Any:
        return Bundle(model=(yield Train(c.received.model)))

    def aggregate(self, s: Any, r: Any, up: Any) -> Bundle:
        return Bundle(model=s.model + self.step * (r.mean(up.model) - s.model))


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Four clients of 30 samples."""
    rng = np.random.default_rng(0)
    clients = [(x := rng.normal(k, 1, (30, 5)), (x.sum(axis=1) > 5 * k).astype(int)) for k in range(4)]
    return Federation.from_arrays(clients, name="four wards")


@pytest.fixture(scope="module")
def compared(federation: Federation) -> fedkin.ComparisonResult:
    """A comparison with two seeds."""
    return fedkin.compare(federation, ["fedper", Halfway()], seeds=[0, 1], **SMALL)


def titles(found: fedkin.ComparisonResult) -> list[str]:
    return list(dict.fromkeys(run.title for run in found))


def test_a_run_of_a_comparison_is_that_of_the_program_alone(federation: Federation) -> None:
    """Every method with every seed, seed by seed, equal to `run` with the same arguments."""
    found = fedkin.compare(federation, ["fedper", Halfway(step=0.25)], seeds=(3, 1), **SMALL)
    assert [(run.title, run.seed) for run in found] == [
        (title, seed) for seed in (3, 1) for title in ("Local", "Local (full)", "FedAvg", "FedPer", "Halfway")
    ]
    alone = fedkin.run(Halfway(step=0.25), federation, seed=1, **SMALL)
    (same,) = [run for run in found if (run.title, run.seed) == ("Halfway", 1)]
    assert (same.rounds, same.clients) == (alone.rounds, alone.clients)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ([], ["Local", "Local (full)", "FedAvg"]),
        ("fedper", ["Local", "Local (full)", "FedAvg", "FedPer"]),
        (Halfway(), ["Local", "Local (full)", "FedAvg", "Halfway"]),
        ([FedAvg(), "local"], ["Local (full)", "FedAvg", "Local"]),
        ([Local(), LocalFull(), FedAvg()], ["Local", "Local (full)", "FedAvg"]),
        ([Halfway(0.1), Halfway(0.9)], ["Local", "Local (full)", "FedAvg", "Halfway (step=0.1)", "Halfway (step=0.9)"]),
        (["FedProx", FedProx(mu=1.0)], ["Local", "Local (full)", "FedAvg", "FedProx", "FedProx (mu=1.0)"]),
        (["fedprox@mu=1"], ["Local", "Local (full)", "FedAvg", "FedProx (mu=1)"]),
    ],
    ids=str,
)
def test_methods_are_names_or_objects(methods: Any, expected: list[str], federation: Federation) -> None:
    """The references are there once; objects of one title show their settings."""
    assert titles(fedkin.compare(federation, methods, **{**SMALL, "rounds": 1})) == expected


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"methods": ["ditto", "Ditto"]}, ConfigError, "Ditto is there twice"),
        ({"methods": [Halfway(), Halfway()]}, ConfigError, "Halfway is there twice"),
        ({"methods": ["fedavg", FedAvg()]}, ConfigError, "FedAvg is there twice"),
        ({"seeds": 3}, ConfigError, "seeds: expected a list, got 3"),
        ({"seeds": [1, 1]}, ConfigError, "that differ"),
        ({"seeds": []}, ConfigError, "that differ"),
        ({"rounds": 0}, ConfigError, "rounds = 0"),
        ({"round": 3}, ConfigError, "unknown setting round; did you mean 'rounds'"),
        ({"seed": 3}, TypeError, "'seed'"),
        ({"model": "liner"}, fedkin.FedkinError, "'liner'"),
    ],
    ids=str,
)
def test_what_is_wrong_leaves_no_folder(
    changes: dict[str, Any], kind: type, message: str, federation: Federation, tmp_path: Path
) -> None:
    """Bad settings are refused before anything is trained or written."""
    with pytest.raises(kind, match=message):
        fedkin.compare(federation, **{"methods": ["ditto"], "out": tmp_path / "c", **SMALL, **changes})
    assert not (tmp_path / "c").exists()


# ---- data and seeds -----------------------------------------------------------------------------------------------
def parts(found: fedkin.ComparisonResult) -> dict[int, Any]:
    return {run.seed: run.test_parts for run in found}


def test_a_federation_is_the_same_in_every_seed(compared: fedkin.ComparisonResult) -> None:
    """Clients and test samples stay and training differs; the report takes the clients for the same ones."""
    assert parts(compared)[0] == parts(compared)[1]
    assert compared.content.same is True
    one, other = (run for run in compared if run.title == "FedAvg")
    assert one.rounds != other.rounds


def test_data_that_are_shared_out_are_so_for_each_seed() -> None:
    """By a function of the seed as it likes, of a data set as `federate` does; each federation is made once."""
    asked = []

    def of_seed(seed: int) -> Federation:
        asked.append(seed)
        return fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(0.5), clients=3, seed=seed)

    drawn = parts(fedkin.compare(of_seed, seeds=(0, 5), **SMALL))
    assert asked == [0, 5]
    assert drawn[0] != drawn[5]
    ids = np.arange(120) % 3
    data = fedkin.Dataset(np.random.default_rng(0).normal(size=(120, 4)), ids % 2, client=ids)
    split = parts(fedkin.compare(data, seeds=(0, 5), **SMALL))
    expected = fedkin.federate(data, fedkin.Natural(), seed=5)
    assert split[5] == {k: (len(c.test), c.test.digest().hex()) for k, c in enumerate(expected.clients)}
    assert split[0] != split[5]


# ---- the folder ---------------------------------------------------------------------------------------------------
def test_a_folder_goes_on_from_the_program(federation: Federation, tmp_path: Path) -> None:
    """After an interruption, to the same runs; they are read as those of any comparison. No command goes on with what
    only a program has."""
    asked: dict[str, Any] = {"methods": [Halfway(0.1), Halfway(0.9)], "out": tmp_path / "c", **SMALL}

    def stop(name: str, seed: int, report: Any, line: dict[str, Any]) -> None:
        if (name, line.round) == ("Halfway-step=0.9-", 1):
            raise Stop

    with pytest.raises(Stop):
        fedkin.compare(federation, on_round=stop, **asked)
    with pytest.raises(fedkin.FedkinError, match="exists already"):
        fedkin.compare(federation, **asked)
    again = fedkin.compare(federation, resume=True, **asked)
    whole = fedkin.compare(federation, **{**asked, "out": None})
    assert [(r.title, r.rounds, r.final) for r in again] == [(r.title, r.rounds, r.final) for r in whole]
    assert {r.title for r in fedkin.read_runs(tmp_path / "c")} == set(titles(whole))
    assert read_toml(tmp_path / "c" / "compare.toml")["methods"][3:] == ["Halfway-step=0.1-", "Halfway-step=0.9-"]


# ---- what it returns ----------------------------------------------------------------------------------------------
def test_a_plan_gives_the_same_kind_of_result(tmp_path: Path) -> None:
    """With other methods and seeds than its own where these are given."""
    plan = fedkin.Comparison(
        ("ifca",),
        baseline="fedavg",
        base=fedkin.Settings().but(
            data=fedkin.DataSettings(data="digits", clients=3, samples_per_client=24),
            model=fedkin.ModelSettings("linear"),
            run=fedkin.RunSettings(rounds=1),
            compute=Compute(engine="loop"),
        ),
    )
    found = fedkin.compare(plan, ("fedper",), seeds=[4], out=tmp_path / "c")
    assert [(run.title, run.seed) for run in found][-1] == ("FedPer", 4)
    assert found.reference == "FedAvg"
    assert read_toml(tmp_path / "c" / "compare.toml")["methods"] == ["fedper"]


def test_the_table_is_shown_as_text_and_in_a_notebook(compared: fedkin.ComparisonResult) -> None:
    """A row for each method in both; the result itself is shown as the table."""
    rows = [line.split() for line in str(compared.table()).splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("Local", "FedAvg", "FedPer", "Halfway")] == [
        "Local", "Local", "FedAvg", "FedPer", "Halfway",
    ]  # fmt: skip
    assert compared._repr_html_() == compared.table()._repr_html_()
    assert compared._repr_html_().count("<tr>") == 6


def test_frames(compared: fedkin.ComparisonResult) -> None:
    """A row for each run with its final figures, or the frames of all runs."""
    runs = compared.to_frame()
    assert len(runs) == 10
    assert list(runs["accuracy"]) == [run.final.accuracy for run in compared]
    assert list(runs.columns[:3]) == ["method", "seed", "accuracy"]
    assert len(compared.to_frame("rounds")) == 20
    assert set(compared.to_frame("clients")["client"]) == {0, 1, 2, 3}
    with pytest.raises(ConfigError, match="got 'seeds'"):
        compared.to_frame("seeds")  # type: ignore[arg-type]


def test_figures_and_page(compared: fedkin.ComparisonResult, tmp_path: Path) -> None:
    """Files of their kinds; the page is one file with every method."""
    assert b"<svg" in compared.figure(tmp_path / "a.svg").read_bytes()
    assert compared.figure(tmp_path / "a.png", "gains").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="no figure 'gain'; did you mean 'gains'"):
        compared.figure(tmp_path / "b.svg", "gain")
    with pytest.raises(ConfigError, match=r"ends in \.svg or \.png, got .*b\.jpg"):
        compared.figure(tmp_path / "b.jpg")
    page = compared.report(str(tmp_path / "pages" / "found.html"))
    assert all(title in page.read_text(encoding="utf-8") for title in titles(compared))
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"a.svg", "a.png", "found.html"}


def test_texts_are_short(compared: fedkin.ComparisonResult, federation: Federation) -> None:
    """What print shows of results and settings has the method, the data, the rounds and the accuracy in a few lines."""
    run = compared.runs[-1]
    accuracy = f"{run.final.accuracy:.3f}"
    assert repr(run) == f"Result('Halfway', seed 1, 2 rounds, 'four wards' of 4 clients, accuracy {accuracy})"
    assert "5 methods, 2 seeds, 2 rounds, 'four wards' of 4 clients" in repr(compared)
    many = replace(compared, runs=[replace(run, run=about(f"M{i}")) for i in range(50)])
    for shown in (compared, many, run, federation, federation.clients[0], Halfway(), fedkin.DataSettings()):
        assert len(repr(shown)) < 400
        assert repr(shown).count("\n") < 4
    plan = fedkin.Comparison(("ifca",), base=fedkin.Settings().but(data=fedkin.DataSettings(data="digits", clients=3)))
    assert "clients=3" in repr(plan)
    assert len(repr(plan)) < 500
    settings = repr(plan.settings("ifca", 7))
    assert len(settings) < 500
    assert all(part in settings for part in ("clients=3", "seed=7", "'name': 'ifca'"))
