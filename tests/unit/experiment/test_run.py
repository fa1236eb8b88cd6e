"""`run`: what a run gives, what it writes, and that it can be made again from what it wrote."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin import Bundle, Client, Federation, Method, Round, Train, Training, Work, run, to_all
from fedkin.core import ClientError, ConfigError, MethodError, ModelError, RunFolderError
from fedkin.core.refusals import DIVERGING
from fedkin.data import Dirichlet, federate, load, planted_groups
from fedkin.engines import Loop, Workers
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Compute, settings_from, table_of
from fedkin.methods import CAM, DAPFL, IFCA, FedAvg, FedPer, FedProx, FeSEM, Local, get_method
from fedkin.record.figures import final_by_client
from fedkin.record.result import Result
from fedkin.storage.toml import read_toml
from folders import FILES, content, lines_in, records, small
from owncode import CAUTIOUS
from toys import Averaging, refused

TRAINING = Training(steps=2, batch_size=5, lr=0.1)


def planted(clients: int = 6, groups: int = 2) -> Federation:
    """Clients of two true groups with 16 inputs and 4 classes."""
    return planted_groups(clients=clients, groups=groups, samples=30)


def play(method: Method | str, federation: Federation | None = None, **more: Any) -> Result:
    """Four rounds in this process."""
    how = {"model": "linear", "training": TRAINING, "rounds": 4, "participation": 0.7, "engine": "loop", **more}
    return run(method, federation or planted(), how.pop("model"), how.pop("training"), **how)


def assert_same(a: Result, b: Result) -> None:
    """Asserts equal lines, figures and server tensors."""
    assert (a.rounds, a.clients, a.relations, a.final, a.best) == (b.rounds, b.clients, b.relations, b.final, b.best)
    assert a.server.state.keys() == b.server.state.keys()
    for name, t in a.server.state.items():
        assert torch.equal(t, b.server.state[name]), name
    assert torch.equal(a.server.acks, b.server.acks)
    assert torch.equal(a.server.sizes, b.server.sizes)


# ---- the same run gives the same result -------------------------------------------------------------------------
@pytest.mark.parametrize("engine", [Loop(), Workers(1), Workers(2)], ids=["loop", "1 worker", "2 workers"])
@pytest.mark.parametrize("method", [DAPFL(), CAM(inner=IFCA(clusters=2))], ids=["da-pfl", "ifca-cam"])
def test_a_run_does_not_depend_on_its_engine(method: Method, engine: Any) -> None:
    """A run, made twice with one seed, on whatever engine, gives the same lines and the same tensors."""
    federation = planted()
    how: dict[str, Any] = {"dropout": 0.2, "late_joiners": "1@3", "seed": 3}

    there = {"model": "linear", "training": TRAINING, "rounds": 4, "participation": 0.7, **how}
    assert_same(play(method, federation, **how), run(method, federation, engine=engine, **there))


@pytest.mark.parametrize("method", [DAPFL(), CAM(inner=IFCA(clusters=2))], ids=["da-pfl", "ifca-cam"])
def test_a_run_on_stacks_is_the_loops_to_float_tolerance(method: Method) -> None:
    """engine="stacked" gives the same cohorts, bytes and predictions, and models that differ by rounding."""
    federation = planted()
    how: dict[str, Any] = {"dropout": 0.2, "late_joiners": "1@3", "seed": 3}
    a, b = play(method, federation, **how), play(method, federation, engine="stacked", **how)
    assert [line.cohort for line in a.rounds] == [line.cohort for line in b.rounds]
    assert a.final.accuracy == pytest.approx(b.final.accuracy)
    for name, t in a.server.state.items():
        torch.testing.assert_close(t, b.server.state[name], rtol=1e-5, atol=1e-5)


def test_engines_by_name_agree() -> None:
    """engine="workers" with one or two processes gives what engine="loop" gives."""
    loop = play(FedPer())
    for workers in (1, 2):
        assert_same(loop, play(FedPer(), engine=f"workers@n={workers}"))


@pytest.mark.parametrize(
    ("name", "method", "title"),
    [
        ("fedper", FedPer(), "FedPer"),
        ("FedPer", FedPer(), "FedPer"),
        ("fedprox@mu=0.5", FedProx(mu=0.5), "FedProx (mu=0.5)"),
        ("fedavg-safe", get_method("fedavg-safe"), "FedAvg-safe"),
    ],
)
def test_a_name_is_a_method(name: str, method: Method, title: str) -> None:
    """As on the command line, with its title there; the run is that of the object."""
    assert_same(named := play(name), play(method))
    assert named.title == title


def test_a_name_of_a_file_is_a_method(tmp_path: Path) -> None:
    """Its class is run with its defaults."""
    (tmp_path / "mine.py").write_text(CAUTIOUS, encoding="utf-8")
    assert play(f"{tmp_path}/mine.py:Cautious").title == "Cautious"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("fedrap", "unknown method 'fedrap'; did you mean 'fedrep'"),
        ("fedprox@nu=1", "nu.*did you mean 'mu'"),
        (FedAvg, "such as 'fedavg', or an object, such as FedAvg.., got <class .*FedAvg"),
        (None, "got None"),
    ],
)
def test_what_is_no_method_is_refused(wrong: Any, message: str) -> None:
    """In `run` and in `compare`; the error has what was given and what is probably meant."""
    with pytest.raises(ConfigError, match=message):
        run(wrong, planted())
    with pytest.raises(ConfigError, match=message):
        fedkin.compare(planted(), [wrong])


def test_another_seed_gives_another_run() -> None:
    """The seed decides cohorts and models."""
    one, other = play(FedAvg(), seed=0), play(FedAvg(), seed=1)

    assert [line.cohort for line in one.rounds] != [line.cohort for line in other.rounds]
    assert not torch.equal(one.server.state["model"], other.server.state["model"])


def test_global_random_state_and_threads_are_left_alone() -> None:
    """A run neither depends on torch's global random state nor changes it, nor the number of threads."""
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    one = play(FedAvg())
    torch.manual_seed(2)
    before = torch.get_rng_state()

    assert_same(one, play(FedAvg()))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


# ---- what is written --------------------------------------------------------------------------------------------
def test_the_folder_holds_what_the_result_holds(tmp_path: Path) -> None:
    """Every file of the run folder is there, and its lines are the result's."""
    result = run_settings(small("da-pfl"), out=tmp_path / "a")
    folder = tmp_path / "a"

    assert {p.name for p in folder.iterdir()} == FILES
    assert records(folder, "rounds") == result.rounds
    assert records(folder, "clients") == result.clients
    assert records(folder, "relations") == result.relations
    assert not isinstance(result.relations, list), "those of all rounds need not fit into memory"
    assert [line.round for line in result.rounds] == [1, 2, 3, 4]
    assert result.folder == folder


def test_timing_stands_apart(tmp_path: Path) -> None:
    """timing.jsonl has a line per round with positive seconds; the other files have none, so equal runs are equal."""
    run_settings(small(), out=tmp_path / "a")
    timing = records(tmp_path / "a", "timing")

    assert [line.round for line in timing] == [1, 2, 3, 4]
    for line in timing:
        seconds = [value for name, value in msgspec.structs.asdict(line).items() if name != "round"]
        assert len(seconds) >= 4
        assert all(value >= 0 for value in seconds)
        assert sum(seconds) > 0
    run_settings(small(), out=tmp_path / "b")
    assert lines_in(tmp_path / "a") == lines_in(tmp_path / "b")


def test_a_line_per_client_and_evaluated_round() -> None:
    """Clients are written down in evaluated rounds only: every so many rounds and in each of the last ten."""
    result = play(FedAvg(), rounds=14, eval_every=3)
    evaluated = [line.round for line in result.rounds if (line.figures is not None)]

    assert evaluated == [3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert [(c.round, c.client) for c in result.clients] == [(t, i) for t in evaluated for i in range(6)]
    assert result.rounds[0].figures is None or len(evaluated) == 4


@pytest.mark.parametrize("engine", ["loop", "workers", "stacked"])
def test_outcomes_of_test_samples_are_in_the_last_round(engine: Any) -> None:
    """As many bits as samples were right, and the digest of the client's test part: in the last round only, and the
    same samples for another method."""
    federation = planted()
    result, other = (play(m, federation, engine=engine, rounds=3) for m in (FedAvg(), Local()))
    last = [line for line in result.clients if line.round == 3]
    assert [line.test_part for line in last] == [c.test.digest().hex() for c in federation.clients]
    for line in last:
        bits = np.unpackbits(np.frombuffer(line.right, dtype=np.uint8))
        assert len(bits) == 8 * -(-line.n_test // 8)
        assert bits.sum() == bits[: line.n_test].sum() == line.correct
    assert {(c.right, c.test_part, c.logits) for c in result.clients if c.round < 3} == {(b"", "", "")}
    again = [line for line in other.clients if line.round == 3]
    assert [line.test_part for line in again] == [line.test_part for line in last]
    assert [line.right for line in again] != [line.right for line in last]


def test_another_split_has_other_digests() -> None:
    """The same data dealt by another seed: no client has the same test part."""
    one, other = (
        federate(load("digits"), Dirichlet(alpha=0.5), clients=4, samples_per_client=40, seed=seed) for seed in (0, 1)
    )
    digests = [{c.test_part for c in play(Local(), f, rounds=1).clients} for f in (one, one, other)]
    assert digests[0] == digests[1]
    assert digests[0].isdisjoint(digests[2])


def test_final_is_the_mean_over_the_last_fifth(tmp_path: Path) -> None:
    """Recomputed from the clients' lines: mean over clients, then over rounds 13 to 15 of 15."""
    result = play(FedAvg(), rounds=15, out=tmp_path / "a")
    by_round = {t: [c.accuracy for c in result.clients if c.round == t] for t in (13, 14, 15)}
    means = [sum(values) / len(values) for values in by_round.values()]
    assert result.final.accuracy == pytest.approx(sum(means) / 3, abs=1e-12)
    assert result.final.rounds == (13, 14, 15)
    assert result.last is not None
    assert (result.last[0], result.last[1].accuracy) == (15, pytest.approx(means[-1], abs=1e-12))
    assert result.diverged is None


@pytest.mark.parametrize("method", [FedAvg(), Local()], ids=["fedavg", "local"])
def test_a_run_that_diverged_says_since_when(method: Method) -> None:
    """With a step size of 1e30 the products of two layers overflow: FedAvg's uploads are refused, and the clients of
    Local, which upload nothing, predict NaN."""
    training = Training(steps=3, batch_size=5, lr=1e30)
    result = play(method, model="mlp", rounds=3, training=training, participation=1.0)

    assert result.diverged == 1
    assert {line.figures and line.figures.unpredicted for line in result.rounds} == {
        () if isinstance(method, FedAvg) else tuple(range(6))
    }


def test_the_best_round_is_chosen_on_validation() -> None:
    """Recomputed from the lines: the earliest round with the highest validation accuracy."""
    result = play(FedAvg(), rounds=8)
    top = max(line.figures.validation for line in result.rounds)
    first = next(line for line in result.rounds if line.figures.validation == top)

    assert result.best == first


def test_summary_has_the_figures_and_the_whole_config(tmp_path: Path) -> None:
    """summary.json names method, seed, figures, bytes, true groups, classes and the config it came from."""
    settings = small("ifca", {"clusters": 2}, data={"partition": "cluster-classes@groups=2"})
    result = run_settings(settings, out=tmp_path / "a")
    summary = read_json(tmp_path / "a" / "summary.json")

    assert summary == json.loads(json.dumps(result.summary))
    assert (summary["method"], summary["title"], summary["seed"], summary["rounds"]) == ("ifca", "IFCA", 0, 4)
    assert summary["final"]["accuracy"] == result.final.accuracy
    assert summary["config"] == table_of(settings)
    assert (result.run.groups, result.run.classes) == ((0, 0, 0, 1, 1, 1), tuple("0123456789"))
    assert summary["bytes_up"] == sum(line.bytes_up for line in result.rounds)
    assert summary["bytes_down"] == sum(line.bytes_down for line in result.rounds)
    assert summary["fedkin"] == fedkin.__version__
    assert str(tmp_path / "a" / "config.toml") in summary["command"]


def read_json(path: Path) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("name", ["fedavg", "da-pfl", "fesem-cam"])
def test_the_config_makes_the_run_again(name: str, tmp_path: Path) -> None:
    """A run from the config.toml of another has byte for byte the same lines."""
    first = run_settings(
        small(name, run={"dropout": 0.2, "late_joiners": "1@3", "seed": 5}, data={"partition": "cluster-dirichlet"}),
        out=tmp_path / "a",
    )
    table = read_toml(tmp_path / "a" / "config.toml")
    again = run_settings(settings_from(table), out=tmp_path / "b")

    assert lines_in(tmp_path / "a") == lines_in(tmp_path / "b")
    assert read_toml(tmp_path / "b" / "config.toml") == table
    assert_same(first, again)


# ---- bytes ------------------------------------------------------------------------------------------------------
def test_bytes_of_fedavg() -> None:
    """Four bytes per parameter down to each chosen client and up from each that answers; 8 bytes to join."""
    result = play(FedAvg(), dropout=0.4, rounds=6, late_joiners="2@3", seed=1)
    model = 4 * (16 * 4 + 4)

    assert any(line.refused for line in result.rounds)
    for line in result.rounds:
        assert line.bytes_down == len(line.cohort) * model
        assert line.bytes_up == len(line.answered) * model + 8 * len(line.joined)


def test_local_training_sends_nothing_but_its_size() -> None:
    """Local moves no bytes beside the 8 with which each client joins."""
    result = play(Local())

    assert sum(line.bytes_down for line in result.rounds) == 0
    assert result.bytes == 6 * 8


# ---- clusters, late joiners, drop-outs --------------------------------------------------------------------------
@pytest.mark.parametrize("method", [IFCA(clusters=2), CAM(inner=FeSEM(clusters=2))], ids=["ifca", "fesem-cam"])
def test_clusters_are_compared_with_the_true_groups(method: Method) -> None:
    """Where the true groups are known, evaluated lines have the adjusted Rand index of the clusters written down."""
    from sklearn.metrics import adjusted_rand_score

    federation = planted()
    result = play(method, federation, participation=1.0, rounds=5)
    labels = {line.round: line.clusters for line in result.relations}
    last = result.rounds[-1]

    assert federation.groups is not None
    assert last.figures.ari == pytest.approx(adjusted_rand_score(federation.groups.tolist(), labels[5]))
    assert sum(last.cluster_sizes) == 6
    assert result.final.ari is not None


def test_without_true_groups_there_is_no_index() -> None:
    """No groups, no adjusted Rand index; clusters are written down all the same."""
    result = run_settings(small("ifca"))

    assert all(line.figures is None or line.figures.ari is None for line in result.rounds)
    assert all(line.clusters and not line.weights for line in result.relations)


def test_weights_of_a_mixture_are_written_down() -> None:
    """DA-PFL's lines say for each client of the cohort whom its download was mixed from; each row sums to 1."""
    result = play(DAPFL())
    weights = [line for line in result.relations if line.weights]

    assert [line.round for line in weights] == [1, 2, 3, 4]
    for line, round in zip(weights, result.rounds, strict=True):
        assert list(line.weights) == list(round.cohort)
        assert all(sum(row.values()) == pytest.approx(1, abs=1e-5) for row in line.weights.values())
        assert all(j in round.cohort for row in line.weights.values() for j in row)


def test_late_joiners_appear_when_they_join() -> None:
    """Clients that join in round 3 are in no cohort and no client line before it, and evaluated from then on."""
    result = play(FedAvg(), late_joiners="2@3", participation=1.0)

    assert [line.joined for line in result.rounds] == [(0, 1, 2, 3), (), (4, 5), ()]
    assert [line.cohort for line in result.rounds] == [(0, 1, 2, 3)] * 2 + [(0, 1, 2, 3, 4, 5)] * 2
    assert {c.client for c in result.clients if c.round < 3} == {0, 1, 2, 3}
    assert {c.client for c in result.clients if c.round == 3} == set(range(6))


def test_final_accuracies_count_every_client_once_where_some_join_in_the_last_round() -> None:
    """Rounds 9 and 10 are averaged, and two of six clients are in the last one alone."""
    result = play(FedAvg(), late_joiners="2@10", participation=1.0, rounds=10)
    own = final_by_client(result.clients, 10)
    assert len(own) == 6
    assert result.final.accuracy == pytest.approx(sum(own.values()) / 6, abs=1e-12)
    there = [{c.client: c.accuracy for c in result.clients if c.round == t} for t in (9, 10)]
    assert result.final.worst_decile == pytest.approx(sum(min((own | line).values()) for line in there) / 2, abs=1e-12)
    rounds = [line.accuracy for line in result.rounds[8:]]
    assert result.final.accuracy != pytest.approx(sum(rounds) / 2, abs=1e-3), "what this test is about"


def test_dropouts_appear_as_missing() -> None:
    """Of the cohort, those who did not answer are listed as missing; they keep their state of before."""
    result = play(FedPer(), dropout=0.5, rounds=10)

    assert any(line.refused for line in result.rounds)
    for line in result.rounds:
        assert sorted([*line.answered, *refused(line)]) == list(line.cohort)
        assert set(refused(line).values()) <= {"expired"}


def test_weighting_changes_the_mean() -> None:
    """weighting="uniform" weighs every client the same; with unequal sizes that is another model."""
    federation = unequal()
    by_samples = play(FedAvg(), federation)
    uniform = play(FedAvg(), federation, weighting="uniform")

    assert not torch.equal(by_samples.server.state["model"], uniform.server.state["model"])


def test_an_upload_that_cannot_be_used_is_refused_and_named() -> None:
    """A training that diverges is refused in the lines with its reason; the run goes on with what is good."""
    result = play(FedAvg(), training=Training(steps=3, lr=1e12), rounds=2)

    assert tuple(refused(result.rounds[0])) == tuple(result.rounds[0].cohort)
    assert set(refused(result.rounds[0]).values()) <= DIVERGING
    assert math.isfinite(float(result.server.state["model"].abs().max()))


# ---- models -----------------------------------------------------------------------------------------------------
def small_network() -> nn.Module:
    """A network of one's own, found by its import path."""
    return nn.Sequential(nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 4))


def test_a_module_starts_from_its_values() -> None:
    """A module given as the model is the common start, value by value, and is itself left as it was."""
    module = small_network()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    seen: list[torch.Tensor] = []
    run(Kept(seen), planted(), module, TRAINING, rounds=1, compute=Compute(engine="loop"))

    wanted = torch.cat([before[n].reshape(-1) for n in ("2.weight", "2.bias", "0.weight", "0.bias")])
    assert torch.equal(seen[0], wanted)
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


@dataclass(frozen=True)
class Kept(Averaging, Method):
    """FedAvg that shows what a run starts from."""

    seen: list[torch.Tensor]

    def init(self, r: Round) -> Bundle:
        self.seen.append(r.w0)
        return Bundle(model=r.w0)


def test_a_factory_starts_from_the_seed() -> None:
    """A function that makes the network gives a start that the seed decides, whatever was drawn before."""
    torch.manual_seed(1)
    one = play(FedAvg(), model=small_network)
    torch.manual_seed(2)

    assert_same(one, play(FedAvg(), model=small_network))
    assert not torch.equal(one.server.state["model"], play(FedAvg(), model=small_network, seed=1).server.state["model"])


def test_an_import_path_is_the_function_it_names() -> None:
    """A model as "module:function" gives what the function itself gives."""
    assert_same(play(FedAvg(), model=small_network), play(FedAvg(), model=f"{__name__}:small_network"))


def test_the_head_can_be_named() -> None:
    """FedPer keeps the named module at the client: what it sends is all but this module's parameters."""
    last, first = play(FedPer(), model=small_network), play(FedPer(), model=small_network, head="0")

    assert last.server.state["body"].shape == (16 * 5 + 5,)
    assert first.server.state["body"].shape == (5 * 4 + 4,)


def test_a_network_of_wrong_width_is_refused() -> None:
    """A network with another number of outputs than the data have classes is a ModelError."""
    with pytest.raises(ModelError, match="4 outputs"):
        play(FedAvg(), model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 7)))


# ---- own data and methods ---------------------------------------------------------------------------------------
def unequal() -> Federation:
    """Three clients with 8, 16 and 40 samples of 16 inputs."""
    rng = torch.Generator().manual_seed(0)
    sizes = (8, 16, 40)
    return Federation.from_arrays(
        [(torch.randn(n, 16, generator=rng), torch.randint(4, (n,), generator=rng)) for n in sizes], classes=4
    )


def test_own_arrays_are_run_on() -> None:
    """A federation from arrays of one's own: every client appears, with its own test part."""
    federation = unequal()
    result = play(FedAvg(), federation)
    tests = [len(shard.test) for shard in federation.clients]

    assert [c.n_test for c in result.clients if c.round == 4] == tests
    assert result.server.sizes.tolist() == [len(shard.train) for shard in federation.clients]


def test_titles_tell_the_wrapped_method() -> None:
    """The display name of a wrapper tells what it wraps; a method of one's own goes by its class."""
    assert play(CAM(inner=FeSEM(clusters=2)), rounds=1).title == "FeSEM-CAM"
    assert play(CAM(inner=IFCA(clusters=2)), rounds=1).title == "IFCA-CAM"
    assert play(Kept([]), rounds=1).title == "Kept"
    assert play(Kept([]), rounds=1, title="Mine").title == "Mine"


def test_on_round_is_called_after_each_round() -> None:
    """The callback gets each round's report and line, in order."""
    seen: list[int] = []
    result = play(FedAvg(), on_round=lambda report, line: seen.append((report.round, line.round)))  # type: ignore[func-returns-value,arg-type]

    assert seen == [(t, t) for t in range(1, 5)]
    assert result.folder is None


def halved(w: torch.Tensor) -> torch.Tensor:
    """Half of it."""
    return w / 2


@dataclass(frozen=True)
class Scaled(Averaging, Method):
    """FedAvg with a function as a hyperparameter, which no file can hold."""

    scale: Any = halved
    among: tuple[int | None, ...] = (1, None)

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.model)
        c.state = Bundle(rounds=c.state.get("rounds", torch.tensor(0)) + 1)
        return Bundle(model=self.scale(w))


def test_a_method_of_ones_own_is_written_down(tmp_path: Path) -> None:
    """Fields that TOML has no form for are named in config.toml; the folder says that a program made it."""
    result = play(Scaled(), out=tmp_path / "a")
    table = read_toml(tmp_path / "a" / "config.toml")

    assert "Scaled" in table["made_by"]
    assert table["method"] == {"name": "Scaled", "scale": "halved", "among": [1, "NoneType"]}
    assert "command" not in result.summary


def test_a_programs_folder_is_resumed_by_the_program(tmp_path: Path) -> None:
    """resume() sends the user back to the program; run(..., resume=True) there goes on to the same result."""
    whole = play(Scaled(), out=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(report: Any, line: dict[str, Any]) -> None:
        if report.round == 2:
            raise Stop

    with pytest.raises(Stop):
        play(Scaled(), out=tmp_path / "a", on_round=stop)
    with pytest.raises(ConfigError, match=r"Scaled.*fedkin\.run\(.*resume=True\)"):
        resume(tmp_path / "a")

    assert_same(play(Scaled(), out=tmp_path / "a", resume=True), whole)
    assert lines_in(tmp_path / "a") == lines_in(tmp_path / "whole")


@pytest.mark.parametrize(("first", "every"), [(2, None), (13, 2)])
def test_a_program_gives_its_run_more_rounds(first: int, every: int | None, tmp_path: Path) -> None:
    """run(..., rounds=more, resume=True) goes on to what a run of so many rounds gives; resume() names this way."""
    whole = play(Scaled(), rounds=26, eval_every=every, out=tmp_path / "whole")
    play(Scaled(), rounds=first, eval_every=every, out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"fedkin\.run\(\.\.\., rounds=26, out=.*resume=True\)"):
        resume(tmp_path / "a", rounds=26)

    assert_same(play(Scaled(), rounds=26, out=tmp_path / "a", resume=True), whole)
    assert (tmp_path / "a" / "config.toml").read_bytes() == (tmp_path / "whole" / "config.toml").read_bytes()
    assert lines_in(tmp_path / "a") == lines_in(tmp_path / "whole")
    assert_same(play(Scaled(), rounds=26, out=tmp_path / "a", resume=True), whole)


def test_a_programs_run_gets_no_more_rounds_of_another_run(tmp_path: Path) -> None:
    """Other settings, data or fewer rounds are refused, and the folder stays as it was."""
    play(Scaled(), out=tmp_path / "a")
    before = lines_in(tmp_path / "a"), read_toml(tmp_path / "a" / "config.toml")
    for how, words in (
        ({"rounds": 6, "participation": 0.5}, "participation was 0.7 there and is 0.5 here"),
        ({"rounds": 6, "federation": planted_groups(clients=6, groups=2, samples=31)}, "the data have changed since"),
        ({"rounds": 3}, "a has 4 rounds, more than the 3 asked for"),
    ):
        with pytest.raises((RunFolderError, ConfigError), match=words):
            play(Scaled(), out=tmp_path / "a", resume=True, **how)
    assert before == (lines_in(tmp_path / "a"), read_toml(tmp_path / "a" / "config.toml"))


def test_a_programs_config_is_not_run_from_its_file(tmp_path: Path) -> None:
    """The config of a program's run says that only the program can make it again."""
    play(Kept([]), out=tmp_path / "a")

    with pytest.raises(ConfigError, match=r"made by a program with method Kept"):
        settings_from(read_toml(tmp_path / "a" / "config.toml"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": Training(steps=3)}, "config"),
        ({"seed": 1}, "config"),
        ({"federation": unequal()}, "config"),
        ({"head": "0"}, "config"),
        ({"model": nn.Sequential(nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 4))}, "config|network"),
    ],
    ids=["training", "seed", "data", "head", "values"],
)
def test_another_run_cannot_go_on_in_a_folder(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    """Resuming with another setting, other data, another head or other start values is refused, and changes nothing."""
    how = {"federation": planted(), "model": small_network, "out": tmp_path / "a"}
    play(FedAvg(), **how)
    before = content(tmp_path / "a")

    with pytest.raises(RunFolderError, match=named):
        play(FedAvg(), **{**how, **changes, "resume": True})
    assert content(tmp_path / "a") == before


def test_other_data_of_the_same_name_are_refused(tmp_path: Path) -> None:
    """A checkpoint of other data is refused by name, even if every setting is the same."""
    rng = torch.Generator().manual_seed(1)

    def made(shift: float) -> Federation:
        x = torch.randn(20, 16, generator=rng.manual_seed(1))
        return Federation.from_arrays([(x + shift, torch.arange(20) % 4)] * 3)

    play(FedAvg(), made(0), out=tmp_path / "a")

    with pytest.raises(RunFolderError, match=r"the data have changed"):
        play(FedAvg(), made(1e-3), out=tmp_path / "a", resume=True)


# ---- what is wrong is said before anything is written -------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"participation": 2}, "participation = 2"),
        ({"participation": 0}, "participation = 0"),
        ({"eval_every": 0}, "eval_every = 0"),
        ({"dropout": 1.5}, "dropout = 1.5"),
        ({"dropout": float("nan")}, "dropout"),
        ({"late_joiners": "soon"}, "late_joiners must look like 3@50.*'soon'"),
        ({"late_joiners": "6@2"}, "6 of 6 clients"),
        ({"engine": "cluster"}, "unknown engine 'cluster'"),
        ({"engine": "workers@n=-1"}, "workers@n=-1"),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())),
)
def test_settings_out_of_range(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A setting out of range is a ConfigError that tells it, and no folder is made."""
    with pytest.raises(ConfigError, match=message):
        play(FedAvg(), out=tmp_path / "a", **changes)
    assert not (tmp_path / "a").exists()


def test_data_that_are_not_shared_out_are_refused(tmp_path: Path) -> None:
    """The error says how to share them out, also that of a comparison, which leaves no folder."""
    with pytest.raises(
        ConfigError, match=r"must be a fedkin\.Federation, got a Dataset; share it out first: fedkin\.fed"
    ):
        run(FedAvg(), load("digits"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"must be a fedkin\.Federation, got an object of type list; share it out"):
        fedkin.compare(["fedavg", "ditto"], out=tmp_path / "c")  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_a_result_is_one_line() -> None:
    """Its repr has title, seed, rounds, data and accuracy."""
    result = play(FedAvg())
    data = f"'{planted().name}' of 6 clients"
    assert repr(result) == f"Result('FedAvg', seed 0, 4 rounds, {data}, accuracy {result.final.accuracy:.3f})"


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    """A second run into one folder is refused, tells how to go on, and leaves everything as it was."""
    play(FedAvg(), out=tmp_path / "a")
    before = content(tmp_path / "a")

    with pytest.raises(RunFolderError, match=r"exists already.*fedkin resume"):
        play(FedAvg(), out=tmp_path / "a")
    assert content(tmp_path / "a") == before


@dataclass(frozen=True)
class BadServer(Averaging, Method):
    """FedAvg whose server fails in round 3."""

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=up.model[99] if r.index == 3 else r.mean(up.model))


def test_server_code_that_fails_is_named() -> None:
    """An error in a step of the server becomes a MethodError with step, round and line, whose cause is the error."""
    line = BadServer.aggregate.__code__.co_firstlineno + 1
    with pytest.raises(MethodError, match=rf"^aggregate of BadServer failed in round 3: IndexError: .*{line}\)$") as e:
        play(BadServer())
    assert isinstance(e.value.__cause__, IndexError)


def test_client_code_that_fails_is_named() -> None:
    """An error in client code becomes a ClientError with step, client and round, on both engines."""
    for engine in ("loop", "workers"):
        with pytest.raises(ClientError, match=r"update of client 2 failed in round 3: ZeroDivisionError") as caught:
            play(Failing(), engine=engine, participation=1.0)
        assert (caught.value.step, caught.value.client, caught.value.round) == ("update", 2, 3)


@dataclass(frozen=True)
class Failing(Averaging, Method):
    """FedAvg whose client 2 fails in round 3."""

    def distribute(self, s: Bundle, r: Round) -> Any:
        return to_all(model=s.model, round=torch.tensor(r.index))

    def client_update(self, c: Client) -> Work:
        if c.id == 2 and int(c.received.round) == 3:
            1 / 0  # noqa: B018 - the fault that is looked for
        w = yield Train(c.received.model)
        return Bundle(model=w)


@pytest.mark.parametrize(
    ("name", "validation", "noted"),
    [("fedavg-safe", 0.0, True), ("fedavg-safe", 0.2, False), ("fedavg", 0.0, False), ("local-full", 0.0, False)],
)
def test_a_method_that_has_nothing_to_decide_by_is_noted(name: str, validation: float, noted: bool) -> None:
    """Its clients have no validation samples; references, which every comparison has, are not mentioned."""
    notes = run_settings(small(name, data={"validation": validation})).run.notes
    said = "FedAvg-safe decides at each client by its validation samples, and no client has any"
    assert [note.partition(", so")[0] for note in notes] == ([said] if noted else [])
