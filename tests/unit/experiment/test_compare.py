"""`compare`: several methods on the same data, from the same start, with the same clients in each round."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedkin.core import ConfigError, DataError, ModelError, PartitionError, RunFolderError, Training
from fedkin.data import resolved
from fedkin.experiment.compare import Comparison, compare, comparison_from
from fedkin.experiment.listing import read_runs
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import Compute, DataSettings, ModelSettings, RunSettings, Settings, settings_from
from fedkin.methods import FedProx, get_method
from fedkin.storage.toml import read_toml
from folders import FILES, lines_in
from kills import Stop

DATA = DataSettings(clients=5, samples_per_client=24)
SMALL: dict[str, Any] = {
    "data": DATA,
    "model": ModelSettings("linear"),
    "training": Training(steps=2, batch_size=5, lr=0.1),
    "run": RunSettings(rounds=4, participation=0.6),
    "compute": Compute(engine="loop"),
}


def plan(*methods: str, **changes: Any) -> Comparison:
    """A comparison that takes a fraction of a second."""
    groups = {name: changes.pop(name) for name in {*SMALL, "aggregation", "privacy"} & {*changes}}
    return Comparison(methods, base=Settings().but(**{**SMALL, **groups}), **changes)


# ---- what is run --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "run"),
    [
        (("da-pfl",), ("local", "local-full", "fedavg", "da-pfl")),
        (("fedavg", "ifca"), ("local", "local-full", "fedavg", "ifca")),
        (("ifca", "local"), ("local-full", "fedavg", "ifca", "local")),
        (("fedavg", "local-full", "local"), ("fedavg", "local-full", "local")),
        ((), ("local", "local-full", "fedavg")),
    ],
)
def test_reference_rows_are_always_there(asked: tuple[str, ...], run: tuple[str, ...]) -> None:
    """They are put in front where they are missing; the order that was asked for stays."""
    assert plan(*asked).names == run


def test_a_run_per_method_and_seed() -> None:
    """Runs come seed by seed in the order of the names, with their titles."""
    runs = compare(plan("da-pfl", seeds=(3, 1)))

    assert [(r.title, r.seed) for r in runs] == [
        (title, seed) for seed in (3, 1) for title in ("Local", "Local (full)", "FedAvg", "DA-PFL")
    ]
    assert all(len(r.rounds) == 4 for r in runs)


def test_methods_see_the_same_data_and_the_same_clients() -> None:
    """With the default sampling every round's cohort, drop-outs and joiners are the same for all methods; so are the
    clients' test parts; another seed has others. Local (full) asks everybody."""
    how = SMALL["run"].but(rounds=6, dropout=0.3, late_joiners="1@3")
    runs = compare(plan("da-pfl", "fedper", "ifca", seeds=(0, 1), run=how))
    seen: dict[int, list[Any]] = {0: [], 1: []}
    everybody = [run for run in runs if run.title == "Local (full)"]
    for run in everybody:
        asked = [tuple(range(5 if t >= 3 else 4)) for t in range(1, 7)]
        assert [line.cohort for line in run.rounds] == asked
    for run in (run for run in runs if run.title != "Local (full)"):
        schedule = [(line.cohort, line.refused, line.joined) for line in run.rounds]
        tests = [(c.client, c.n_test, c.n_validation) for c in run.clients]
        seen[run.seed].append((schedule, tests))

    for same in seen.values():
        assert len(same) == 5
        assert all(other == same[0] for other in same)
    assert seen[0][0] != seen[1][0]


def test_methods_start_from_the_same_model() -> None:
    """Before a client has trained, all methods predict with the same model: with none answering, round 1 is equal."""
    how = SMALL["run"].but(rounds=1, dropout=0.999999)
    runs = compare(plan("da-pfl", "fedper", run=how))

    assert all(run.rounds[0].answered == () for run in runs)
    shared = [[(c.correct, c.n_test, c.n_validation) for c in run.clients] for run in runs]
    assert all(lines == shared[0] for lines in shared)


def test_a_run_of_a_comparison_is_the_run_alone() -> None:
    """The same settings outside a comparison give the same lines."""
    comparing = plan("da-pfl", own={"da-pfl": {"lam": 0.25}}, seeds=(2,))
    run = compare(comparing).runs[-1]
    alone = run_settings(comparing.settings("da-pfl", 2))

    assert comparing.settings("da-pfl", 2).method["lam"] == 0.25
    assert (run.rounds, run.clients, run.relations) == (alone.rounds, alone.clients, alone.relations)


def test_on_round_tells_where_the_comparison_is() -> None:
    """The callback gets method, seed and round in the order in which they are run."""
    seen = list[tuple[str, int, int]]()
    compare(plan(seeds=(0, 1)), on_round=lambda name, seed, report, line: seen.append((name, seed, line.round)))
    assert seen == [(n, s, t) for s in (0, 1) for n in ("local", "local-full", "fedavg") for t in range(1, 5)]


# ---- the folder ---------------------------------------------------------------------------------------------------
def test_a_folder_per_run_and_the_plan(tmp_path: Path) -> None:
    """The plan lies beside one run folder per method and seed, each of which can be run again by itself."""
    compare(plan("fedper", seeds=(0, 1)), out=tmp_path / "c")

    names = {f"{name}-seed{seed}" for name in ("local", "local-full", "fedavg", "fedper") for seed in (0, 1)}
    assert {p.name for p in (tmp_path / "c").iterdir()} == {"compare.toml", *names}
    for name in names:
        assert {p.name for p in (tmp_path / "c" / name).iterdir()} == FILES
    run_settings(settings_from(read_toml(tmp_path / "c" / "fedper-seed1" / "config.toml")), out=tmp_path / "again")
    assert lines_in(tmp_path / "again") == lines_in(tmp_path / "c" / "fedper-seed1")


def test_the_plan_survives_its_file() -> None:
    """Plan -> TOML -> plan are equal, fields of single methods and nested ones too."""
    one = plan(
        "da-pfl", "fesem-cam", seeds=(4, 5), own={"da-pfl": {"lam": 0.5}, "fesem-cam": {"inner": {"clusters": 2}}}
    )
    one = dataclasses.replace(one, base=one.base.but(data=resolved(one.base.data)))  # a file names the partition
    again = comparison_from(tomllib.loads(one.toml()), "file")

    assert again == one
    assert again.settings("fesem-cam", 4) == one.settings("fesem-cam", 4)
    assert again.settings("fesem-cam", 4).method["inner"]["clusters"] == 2  # type: ignore[attr-defined]
    other = plan("ifca", data=resolved(DATA))
    assert comparison_from(tomllib.loads(other.toml()), "file") == other
    assert plan("ifca", seeds=range(2)) == plan("ifca", seeds=[0, 1]) == plan("ifca", seeds=(0, 1))


def test_a_method_with_several_settings(tmp_path: Path) -> None:
    """Each is a row, a folder and a run of its own, equal to that of its settings; fields of the plan are added."""
    names = ("fedprox@mu=0.5", "fedprox@mu=5", "da-pfl@lam=0", "fedprox@mu=5-safe")
    one = plan(*names, own={"da-pfl@lam=0": {"sigma": 2.0}}, safe=False)
    one = dataclasses.replace(one, base=one.base.but(data=resolved(one.base.data)))
    assert comparison_from(tomllib.loads(one.toml()), "file") == one
    found = {run.title: run for run in compare(one, out=tmp_path / "c")}
    titles = ["FedProx (mu=0.5)", "FedProx (mu=5)", "DA-PFL (lam=0)", "FedProx (mu=5)-safe"]
    assert list(found) == ["Local", "Local (full)", "FedAvg", *titles]
    assert {run.folder.name for run in found.values() if run.folder} >= {f"{name}-seed0" for name in names}
    method = read_toml(tmp_path / "c" / "da-pfl@lam=0-seed0" / "config.toml")["method"]
    assert (method["name"], method["lam"], method["sigma"]) == ("da-pfl@lam=0", 0.0, 2.0)
    for mu, title in ((0.5, titles[0]), (5.0, titles[1])):
        (alone,) = [r for r in compare(plan("fedprox", own={"fedprox": {"mu": mu}})) if r.title == "FedProx"]
        assert (alone.rounds, list(alone.clients)) == (found[title].rounds, list(found[title].clients))
    assert found[titles[0]].final != found[titles[1]].final
    assert {run.title for run in read_runs(tmp_path / "c")} == set(found)


def test_settings_in_a_name_are_not_tuned() -> None:
    """Neither of the method, nor of one that it wraps, nor of its safe form."""
    comparing = plan("fedprox@mu=0.5", "fedprox", "fesem-cam@lam=0.1", safe=True, tune=2)
    common = {"training.lr", "training.momentum"}
    space = {name: set(comparing.sweep(name).space) - common for name in comparing.names}
    assert space["fedprox"] == {"method.mu"}
    assert space["fedprox-safe"] == {"method.inner.mu"}
    assert space["fedprox@mu=0.5"] == space["fedprox@mu=0.5-safe"] == set()
    assert "method.inner.lam" not in space["fesem-cam@lam=0.1"]
    assert comparing.settings("fedprox@mu=0.5-safe", 0).method["inner"]["mu"] == 0.5  # type: ignore[attr-defined]


def test_whole_numbers_in_a_plan_are_the_same_run(tmp_path: Path) -> None:
    """A plan made by a program with 1 where a float is meant can be resumed from its file."""
    comparing = plan(run=RunSettings(rounds=2, participation=1, dropout=0))  # type: ignore[arg-type]
    compare(comparing, out=tmp_path / "c")
    before = lines_in(tmp_path / "c" / "local-seed0")
    compare(comparison_from(read_toml(tmp_path / "c" / "compare.toml"), "file"), out=tmp_path / "c", resume=True)

    assert lines_in(tmp_path / "c" / "local-seed0") == before


@pytest.mark.parametrize("kill", [("local", 0, 1), ("fedavg", 0, 2), ("da-pfl", 0, 4), ("fedavg", 1, 3)], ids=str)
def test_an_interrupted_comparison_goes_on(kill: tuple[str, int, int], tmp_path: Path) -> None:
    """Finished runs are kept as they are, the interrupted one goes on, the others are begun; all as if nothing was."""
    comparing = plan("da-pfl", seeds=(0, 1))
    whole = compare(comparing, out=tmp_path / "whole")

    def stop(name: str, seed: int, report: Any, line: dict[str, Any]) -> None:
        if (name, seed, line.round) == kill:
            raise Stop

    with pytest.raises(Stop):
        compare(comparing, out=tmp_path / "c", on_round=stop)
    finished = [p.parent for p in (tmp_path / "c").glob("*/summary.json")]
    before = {p: p.stat().st_mtime_ns for folder in finished for p in folder.iterdir()}
    again = compare(comparing, out=tmp_path / "c", resume=True)

    assert [(r.title, r.seed, r.rounds, r.clients, r.final) for r in again] == [
        (r.title, r.seed, r.rounds, r.clients, r.final) for r in whole
    ]
    for folder in (tmp_path / "whole").iterdir():
        if folder.is_dir():
            assert lines_in(tmp_path / "c" / folder.name) == lines_in(folder)
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_resuming_a_finished_comparison_changes_nothing(tmp_path: Path) -> None:
    """Not one file is written again."""
    compare(plan("fedper"), out=tmp_path / "c")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "c").rglob("*") if p.is_file()}
    compare(plan("fedper"), out=tmp_path / "c", resume=True)

    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "c").rglob("*") if p.is_file()} == before


def test_a_kill_between_folder_and_config_is_nothing(tmp_path: Path) -> None:
    """A run folder in which not even the config was whole is begun anew."""
    comparing = plan()

    def stop(*args: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        compare(comparing, out=tmp_path / "c", on_round=stop)
    (tmp_path / "c" / "local-full-seed0").mkdir()
    (tmp_path / "c" / "local-full-seed0" / ".config.toml.5.new").write_text("[met")
    runs = compare(comparing, out=tmp_path / "c", resume=True)
    assert [len(run.rounds) for run in runs] == [4, 4, 4]
    assert not list((tmp_path / "c").rglob(".*"))


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    """A new comparison does not write into it; one in which no run has begun is kept when it cannot go on."""
    stopped = plan(model=ModelSettings("linear", "tail"))
    (tmp_path / "compare.toml").write_text(stopped.toml())
    with pytest.raises(RunFolderError, match=r"exists already.*fedkin resume"):
        compare(plan(), out=tmp_path)
    with pytest.raises(ModelError):
        compare(stopped, out=tmp_path, resume=True)
    assert (tmp_path / "compare.toml").read_text() == stopped.toml()


# ---- what is wrong ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"data": DataSettings(data="digitz")}, DataError, "no data called 'digitz'"),
        ({"data": DataSettings(partition="dirichlet@alpha=-1")}, ConfigError, "alpha.*-1"),
        ({"data": DataSettings(clients=5000)}, PartitionError, "5000"),
        ({"model": ModelSettings("mpl")}, ModelError, "no model 'mpl'"),
        ({"model": ModelSettings("linear", "tail")}, ModelError, "'tail'"),
        ({"run": RunSettings(late_joiners="never")}, ConfigError, "'never'"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_bad_settings_leave_no_folder(changes: dict[str, Any], kind: type, message: str, tmp_path: Path) -> None:
    """Whatever is wrong with the settings of all runs is told before a folder is left behind."""
    with pytest.raises(kind, match=message):
        compare(plan("fedper", **changes), out=tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


FAILS = """from dataclasses import dataclass
import fedkin
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        if self.training:
            raise RuntimeError("oh")
        return self.linear(x.flatten(1))

@dataclass(frozen=True)
class Mine(fedkin.Method):
    def init(self, r):
        return fedkin.Bundle(model=r.w0)
    def distribute(self, s, r):
        return fedkin.to_all(model=s.model)
    def client_update(self, c):
        w = yield fedkin.Train(c.received.model)
        return fedkin.Bundle(model=w)
    def aggregate(self, s, r, up):
        return fedkin.Bundle(model=r.maen(up.model))
"""


@pytest.mark.parametrize(
    "case", ["settings of the data", "a method's code", "a network's code", "a later seed's method"]
)
def test_a_comparison_that_fails_at_its_start_leaves_no_folder(case: str, tmp_path: Path) -> None:
    """Also where the fault is in what the rounds do: a method without what it needs, code of the user's own. What was
    asked for is run before the references, and there is nothing that could be resumed with the same fault."""
    (tmp_path / "mine.py").write_text(FAILS)
    own = f"{tmp_path / 'mine.py'}"
    model = {"model": ModelSettings(f"{own}:Net")} if case.startswith("a network") else {}
    method = "oracle" if case.startswith("settings") else "fedper" if model else f"{own}:Mine"
    seeds = {"seeds": (3, 4)} if "later" in case else {}
    with pytest.raises(Exception, match=r"no true group|maen|oh"):
        compare(plan(method, **model, **seeds), out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_references_are_run_last_and_stand_first(tmp_path: Path) -> None:
    """In each seed; the runs are returned in the order of the table."""
    made: dict[tuple[str, int], None] = {}
    runs = compare(plan("fedper", seeds=(3, 4)), on_round=lambda name, seed, *_: made.setdefault((name, seed)))
    assert [name for name, _ in made] == ["fedper", "local", "local-full", "fedavg"] * 2
    assert [(run.title, run.seed) for run in runs] == [
        (title, seed) for seed in (3, 4) for title in ("Local", "Local (full)", "FedAvg", "FedPer")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, r"differ, got \[\]"),
        ({"seeds": (1, 1)}, r"differ, got \[1, 1\]"),
        ({"seeds": 3}, "seeds: expected a list, got 3"),
        ({"seeds": ("0",)}, r"seeds: \[0\] expected `int`, got \('0',\)"),
        ({"methods": "ditto"}, "methods: expected a list, got 'ditto'"),
        ({"methods": (get_method("fedprox@mu=1"),)}, r"methods: \[0\] expected `str`, got \(FedProx\(mu=1.0"),
        ({"methods": FedProx}, "methods: expected a list, got <class .*FedProx'>$"),
        ({"methods": ("fedavgg",)}, "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ({"methods": ("ditto", "FedAvg", "Ditto")}, "ditto and ditto are one method"),
        (
            {"methods": ("fedprox@mu=1", "fedprox@mu=1.0")},
            "fedprox@mu=1 and fedprox@mu=1.0 are one method with equal settings; leave one out",
        ),
        ({"methods": ("fedprox", "fedprox@mu=0.01")}, "fedprox and fedprox@mu=0.01 are one method with equal settings"),
        (
            {"own": {"ifca": {"clusters": 2}}},
            "ifca is not compared; there are local, local-full",
        ),
        ({"own": {"fedavg": {"lam": 2}}}, r"\[method\.fedavg\]: unknown setting lam"),
        ({"methods": ("da-pfl",), "own": {"da-pfl": {"lam": -2}}}, "lam of DAPFL must be at least 0, got -2"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    """A plan is checked when it is made."""
    with pytest.raises(ConfigError, match=message):
        Comparison(**{"methods": (), "base": Settings().but(**SMALL), **changes})


def test_every_method_that_cannot_be_compared_is_named() -> None:
    """In one message, a line for each."""
    with pytest.raises(
        ConfigError, match=r"^optimizer = 'adam': SCAFFOLD cannot.*\noptimizer = 'adam': PFedMe cannot[^\n]*$"
    ):
        plan("scaffold", "ditto", "pfedme", training=Training(optimizer="adam"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "a comparison needs a list of names"),
        ({"methods": "da-pfl"}, "methods expected a list"),
        ({"methods": []}, "a comparison needs a list of names"),
        ({"methods": [1]}, r"methods\[0\] expected `str`, got `int`"),
        ({"methods": ["ifca"], "seeds": 3}, "seeds expected a list, got `int`"),
        ({"methods": ["ifca"], "seeds": [True]}, r"seeds\[0\] expected `int`, got `bool`"),
        ({"methods": ["ifca"], "seed": 3}, "unknown setting seed"),
        ({"methods": ["ifca"], "run": {"seed": 3}}, r"seeds = \[0, 1\], not a seed in \[run\]"),
        ({"methods": ["ifca"], "data": "digits"}, "data = 'digits'"),
        ({"methods": ["ifca"], "run": {"round": 3}}, r"unknown setting \[run\] round; did you mean 'rounds'"),
        ({"methods": ["ifca"], "method": {"clusters": 3}}, "method expected a table, got `int`"),
        ({"methods": ["ifca"], "method": 3}, "method expected a table, got `int`"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_file_is_named(table: dict[str, Any], message: str) -> None:
    """The error names the file, the entry and what is expected."""
    with pytest.raises(ConfigError, match=f"^my.toml: .*{message}|^my.toml: {message}"):
        comparison_from(table, "my.toml")
