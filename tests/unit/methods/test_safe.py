"""The safe form of methods in runs: folders, hosts, exports, comparisons, names, and what refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedkin.capabilities.asks import asks
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.sums import require_secure
from fedkin.cli.flags import compare_flags
from fedkin.core import Aggregation, Bundle, Client, ClientData, ConfigError, Method, Samples, Training
from fedkin.core.refusals import outside
from fedkin.data import SiteData
from fedkin.engines import Loop, Stacked, Workers
from fedkin.engines.drive import drive
from fedkin.experiment.compare import Comparison, compare, comparison_from
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Compute, DataSettings, RunSettings, Settings, method_of, title_of
from fedkin.experiment.sweep import Sweep
from fedkin.exporting import export_all, load_export
from fedkin.exporting.joining import join
from fedkin.functional.safe_share import BOUNDS, GRID, choose_alone, posterior, prior_of
from fedkin.methods import CAM, IFCA, PFA, FedAvg, FedFomo, FedRoD, Safe, canonical, get_method
from fedkin.privacy.budget import Privacy, require_covered, require_privacy
from fedkin.server import Plan, join_rounds
from fedkin.storage.toml import read_toml
from fedkin.testing.toys import federation as toys
from fedkin.testing.toys import samples
from fedkin.testing.trial import Setting, difference, play, tensors
from fedkin_hosts.allowed_code import Allowed, NotAllowed, settings_of
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.privacy_budget import PrivacyLimits
from fedkin_hosts.tensors import bundle, wire_message
from folders import assert_equal_folders, records, small
from grouped import described
from hosttoys import Direct, on_hosts, same_server, settings, simulated, sites, taken_home
from owncode import CAUTIOUS
from thorough import thorough_except

HELD = {"clients": 6, "samples_per_client": 40, "validation": 0.25}


def held_out(n: int) -> tuple[ClientData, ...]:
    """The contract's six clients with a number of held-out samples each, so that all send numbers."""
    return tuple(
        ClientData(s.train, samples(0, i, "validation", n), s.test, group=s.group) for i, s in enumerate(toys())
    )


# ---- engines and folders -------------------------------------------------------------------------------------------
WRAPPED: dict[str, Method] = {
    "fedavg": FedAvg(),
    "fedavg-ft": get_method("fedavg-ft"),
    "fedrod": FedRoD(),
    "pfa": PFA(after=1, clusters=2),
    "ifca-cam": CAM(inner=IFCA(clusters=2), warmup=1),
    "fedfomo": FedFomo(),
}


MODES = ("best", "likely", "sure")
IN_TEST = {name: MODES[i % 3] for i, name in enumerate(WRAPPED)}
"""Each wrapped method in one mode, each mode with two methods; `make test-all` takes all pairs."""


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=() if IN_TEST[name] == mode else pytest.mark.thorough)
        for name in WRAPPED
        for mode in MODES
    ],
)
def test_engines_agree_where_clients_share_a_prior(name: str, mode: Any) -> None:
    """With numbers of six clients: two processes give the loop's bits, stacks its numbers; training that a prediction
    needs is done before the evaluation, too."""
    method = Safe(inner=WRAPPED[name], mode=mode)
    setting = Setting(shards=held_out(12), joins=join_rounds(6, "1@2"), plan=Plan(3, 0.7, seed=1))
    one = play(method, setting, Loop())
    assert one.server.state.held.gt(0).sum() >= 5
    assert difference(tensors(one), tensors(play(method, setting, Workers(2)))) is None
    stacked = Stacked(device="cpu")
    assert difference(tensors(one), tensors(play(method, setting, stacked)), stacked.tolerance) is None


@pytest.mark.parametrize("name", ["fedala", "fedrep", "fedbabu", "per-fedavg"])
def test_evaluations_have_the_same_views_before_and_after_training(name: str) -> None:
    """FedALA trains only clients with a model of their own before they predict: what is shown must not depend on it,
    or the server refuses the evaluation. The plain model is shown where the method never trains to predict."""
    trial = play(Safe(inner=get_method(name)), Setting(shards=held_out(6), plan=Plan(3, 0.5, seed=1)))
    assert not any(report.refused for report in trial.reports)
    shown = {view for b in trial.reports[-1].evaluation.values() for view in b}
    assert ("method.test" in shown) == (name == "fedrep")


def test_a_run_that_gets_more_rounds_is_the_longer_run(tmp_path: Path) -> None:
    """Clients are asked in evaluated rounds, of which the longer run has others; drop-outs, so that some numbers are
    missing in each; banks in memory and in files."""
    for state in ("memory", "file"):
        run = {"dropout": 0.2, "late_joiners": "1@4", "eval_every": 4}

        def of(rounds: int, run: dict[str, Any] = run, state: str = state) -> Settings:
            return small("fedavg-safe", run={**run, "rounds": rounds}, data=HELD, compute={"state": state})

        run_settings(of(13), out=tmp_path / f"{state}-a")
        resume(tmp_path / f"{state}-a", rounds=24)
        run_settings(of(24), out=tmp_path / f"{state}-long")
        assert_equal_folders(tmp_path / f"{state}-a", tmp_path / f"{state}-long", 13)
        noted = [line for line in records(tmp_path / f"{state}-a", "rounds") if line.figures and line.figures.notes]
        assert len(noted) > 5


def test_the_record_shows_both_parts(tmp_path: Path) -> None:
    """Accuracies of the method and of the model alone by client and on average, and what clients took."""
    run_settings(small("fedavg-safe", data=HELD, run={"participation": 1.0}), out=tmp_path / "a")
    plain = run_settings(small("fedavg", data=HELD, run={"participation": 1.0}))
    local = run_settings(small("local", data=HELD, run={"participation": 1.0}))
    lines = records(tmp_path / "a", "clients")
    assert [line.views["method"] for line in lines] == [line.accuracy for line in plain.clients]
    assert [line.views["alone"] for line in lines] == [line.accuracy for line in local.clients]
    last = records(tmp_path / "a", "rounds")[-1]
    assert set(last.figures.notes) == {"evaluated_lambda", "evaluated_alone"}
    assert last.figures.views["method"] == plain.rounds[-1].accuracy


# ---- exports and joining clients -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "mode"), [("fedavg-safe", "best"), ("fedproto-safe", "likely"), ("ifca-safe", "sure")]
)
def test_a_mixture_goes_home(name: str, mode: str, tmp_path: Path) -> None:
    """What is exported predicts what the evaluation said, by the wrapped method's own rule."""
    run_settings(
        small(name, {"mode": mode}, data={**HELD, "partition": "dirichlet@alpha=100"}, run={"rounds": 8}),
        out=tmp_path / "run",
    )
    shares, lines = [], {line.client: line for line in records(tmp_path / "run", "clients") if line.round == 8}
    for i, place in enumerate(export_all(tmp_path / "run", tmp_path / "out")):
        model = load_export(place)
        assert model.card.test.as_evaluated is True
        assert model.card.test.correct == lines[i].correct
        shares.append(float(load_file(place / "model.safetensors")["share"]))
        assert lines[i].notes["share"] == shares[-1]
    assert set(shares) <= {0.0, 0.25, 0.5, 0.75, 1.0}
    assert mode == "sure" or any(0 < share < 1 for share in shares)


def test_a_client_that_joins_after_the_end(tmp_path: Path) -> None:
    """It has trained nothing alone at first, and predicts by the method; later by a mixture under the others' prior."""
    run_settings(small("fedavg-safe", data=HELD), out=tmp_path / "run")
    run_settings(small("fedavg", data=HELD), out=tmp_path / "plain")
    x = torch.rand(40, 64, generator=torch.Generator().manual_seed(0)).view(40, 1, 8, 8)
    path = tmp_path / "new.npz"
    import numpy as np

    np.savez(path, x=x.numpy(), y=(torch.arange(40) % 10).numpy())
    safe, plain = (join(tmp_path / name, str(path), (0, 3)) for name in ("run", "plain"))
    assert safe.accuracy[0] == plain.accuracy[0]
    assert set(safe.accuracy) == {0, 3}


# ---- hosts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", thorough_except(["fedavg-safe", "fedavg-ft-safe", "ifca-cam-safe"], ["fedavg-safe"]))
def test_hosts_equal_the_simulator(name: str, tmp_path: Path) -> None:
    """Six hosts with held-out samples, of which all send numbers: the same state, the same lines, the same models."""
    s = settings(name, data={"clients": 6, "validation": 0.3}, hosts={"min_clients": 6})
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path, 6))), simulated(s)
    assert int((theirs.server.state.held > 4).sum()) == 6
    assert same_server(ours, theirs)
    assert ours.rounds == theirs.rounds
    assert ours.clients == theirs.clients
    assert {line.notes["share"] for line in ours.clients} <= {0.0, 0.25, 0.5, 0.75, 1.0}
    last = {line.client: line for line in ours.clients}
    card = load_export(taken_home(tmp_path, "c2")).card
    assert card.test.correct == last[2].correct


def test_a_host_that_keeps_its_scores_sends_no_numbers(tmp_path: Path) -> None:
    """Numbers about held-out samples are figures of an evaluation: --keep-scores keeps them; the others' prior remains,
    and the model that it keeps is a mixture."""
    s = settings("fedavg-safe", data={"clients": 6, "validation": 0.3}, hosts={"min_clients": 6})
    post = Direct(sites(tmp_path, 6))
    post.sites[101] = ClientService(
        "c1", SiteData("digits", share=1), tmp_path / "disks", PrivacyLimits(keep_scores=True)
    )
    ours = on_hosts(s, tmp_path, post)
    assert [int(n) > 0 for n in ours.server.state.held] == [True, False, True, True, True, True]
    assert {line.client for line in ours.clients} == {0, 2, 3, 4, 5}
    assert all({"evaluate-query", "evaluate"} == {one.stage for one in line.refused} for line in ours.rounds)
    assert "share" in load_file(taken_home(tmp_path, "c1") / "model.safetensors")


def chosen_by(folder: Path, epsilon: float, name: str = "fedavg-safe", **limits: Any) -> tuple[Direct, Any]:
    """Six hosts in a run with noise on their choices, c1 with limits."""
    hosts = {"min_clients": 6}
    s = settings(name, data={"clients": 6, "validation": 0.3}, hosts=hosts, privacy={"metadata_epsilon": epsilon})
    post = Direct(sites(folder, 6))
    post.sites[101] = ClientService("c1", SiteData("digits", share=1), folder / "disks", PrivacyLimits(**limits))
    return post, on_hosts(s, folder, post)


def test_the_noise_on_choices_is_the_hosts_own(tmp_path: Path) -> None:
    """Equal runs on other disks report other choices, each drawn once: it is written down before it leaves, with its
    epsilon, and the host tells the same again whatever its samples like then."""
    told = []
    for i in range(3):
        post, ours = chosen_by(tmp_path / str(i), 0.1)
        told.append(ours.server.state.choice.tolist())
        assert {round for _, kind, round in post.log if kind == "consult"} == {len(ours.rounds)}
        for site, said in zip(post.sites.values(), told[-1], strict=True):
            ((run, used),) = site.account.load().items()
            assert (used.choice, used.released, used.counts) == (said, 0.1, None)
            again = ClientService(site.client, SiteData("digits", share=0), tmp_path / str(i) / "disks")
            assert {again.account.choose(run, j, 5, 0.1, 1e-5) for j in range(5)} == {said}
            assert again.account.load() == {run: used}
    assert len({tuple(said) for said in told}) > 1


def test_a_choice_counts_towards_the_owners_limit(tmp_path: Path) -> None:
    """DA-PFL's counts take 0.3 of 0.5, so that no choice leaves c1, which is evaluated all the same; of 0.6 it does. A
    host that keeps its scores sends one only under a limit of its own."""
    for limits, name, sent, released in (
        ({"max_metadata_epsilon": 0.5}, "da-pfl-safe", False, 0.3),
        ({"max_metadata_epsilon": 0.6}, "da-pfl-safe", True, 0.6),
        ({"keep_scores": True}, "fedavg-safe", False, 0.0),
        ({"keep_scores": True, "max_metadata_epsilon": 0.3}, "fedavg-safe", True, 0.3),
    ):
        folder = tmp_path / f"{name} {limits}"
        post, ours = chosen_by(folder, 0.3, name, **limits)
        used = list(post.sites[101].account.load().values())
        assert ours.server.state.held.tolist() == [1, int(sent), 1, 1, 1, 1]
        assert sum(u.released for u in used) == released
        assert (1 in {line.client for line in ours.clients}) == ("keep_scores" not in limits)
        assert ("budget" in str(ours.rounds[-1].refused)) == (released == 0.3 and not sent)


def test_a_share_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A lambda beyond 1 in the evaluation of one host: it is refused and named, the others' are recorded."""
    s = settings("fedavg-safe", run={"rounds": 1}, data={"clients": 3, "validation": 0.3}, hosts={"min_clients": 3})

    def touch(post: Direct, who: str, of: WireMessage) -> WireMessage:
        answer = post.ask(who, of)
        if (who, of.head["kind"]) != ("c1", "evaluate"):
            return answer
        lie = bundle(answer).but(**{"note.share": torch.tensor(1.5).double()})
        return wire_message({n: v for n, v in answer.head.items() if n != "tensors"}, lie)

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path, 3), touch=touch))
    assert ours.rounds[0].refused == (outside("note.share", 1.5, 0, 1).at("evaluate", 1),)
    assert {line.client: 0 <= line.notes["share"] <= 1 for line in ours.clients} == {0: True, 2: True}


# ---- privacy -------------------------------------------------------------------------------------------------------
def test_numbers_are_not_sent_where_uploads_are_hidden() -> None:
    """Secure aggregation and both privacy options require send_numbers = false, and then only what the method does."""
    telling, silent = Safe(inner=FedAvg()), Safe(inner=FedAvg(), send_numbers=False)
    with pytest.raises(ConfigError, match="nine numbers about held-out samples; set send_numbers = false"):
        require_secure(telling)
    require_secure(silent)
    with pytest.raises(ConfigError, match="secure aggregation cannot be used with IFCA"):
        require_secure(Safe(inner=IFCA(), send_numbers=False))
    with pytest.raises(ConfigError, match=r"nine numbers about held-out samples \(none with send_numbers = false\)"):
        require_covered(Privacy(noise_multiplier=1.0), telling)
    require_covered(Privacy(noise_multiplier=1.0), silent)
    net = Setting().network()
    with pytest.raises(ConfigError, match="figures on their held-out samples; set send_numbers = false"):
        require_privacy(Privacy(metadata_epsilon=1.0), Safe(inner=get_method("da-pfl"), mode="sure"), net)
    with pytest.raises(ConfigError, match="say nothing of their classes"):
        require_privacy(Privacy(metadata_epsilon=1.0), silent, net)
    for made in (telling, Safe(inner=get_method("da-pfl")), Safe(inner=get_method("da-pfl"), send_numbers=False)):
        require_privacy(Privacy(metadata_epsilon=1.0), made, net)
    plan = Comparison(
        ("fedavg",),
        safe=True,
        base=Settings().but(data=DataSettings(validation=0.2), privacy=Privacy(metadata_epsilon=1.0)),
    )
    noise = {name: plan.settings(name, 0).privacy.metadata_epsilon for name in plan.names}
    assert noise == {"local": None, "local-full": None, "fedavg": None, "fedavg-safe": 1.0}
    assert method_of(plan.settings("fedavg-safe", 0)) == telling


@pytest.mark.parametrize("name", ["fedavg-safe", "da-pfl-safe"])
def test_with_noise_clients_send_one_choice_in_the_last_round(name: str, tmp_path: Path) -> None:
    """Until then they decide by themselves, as without numbers; with hardly any noise the choices are those that the
    clients' samples like best, and in the last round the prior is made of them. Every engine; never an exact number."""

    def of(epsilon: float, engine: str = "loop", **fields: Any) -> Settings:
        data, run = {**HELD, "partition": "dirichlet@alpha=10"}, {"rounds": 6, "participation": 1.0, "eval_every": 2}
        privacy = {"metadata_epsilon": epsilon} if name == "da-pfl-safe" or not fields else {}
        lr, compute = {"lr": 0.3}, {"engine": engine}
        return small(name, fields, data=data, run=run, training=lr, privacy=privacy, compute=compute)

    found = run_settings(of(50.0), out=tmp_path / "a")
    s = found.server.state
    assert not {"likelihood", "hits"} & s.keys()
    assert s.held.tolist() == [1] * 6
    silent = run_settings(of(50.0, send_numbers=False))
    shares = [[line.notes["share"] for line in run.clients] for run in (found, silent)]
    assert shares[0][:-6] == shares[1][:-6]
    likelihood = run_settings(of(50.0).but(privacy=Privacy())).server.state.likelihood  # of the same models
    assert s.choice.tolist() == torch.nn.functional.pad(likelihood, (1, 0)).argmax(1).tolist()
    rows = posterior(likelihood, prior_of(s.choice, 50.0))
    assert shares[0][-6:] == [float(GRID[choose_alone(row, BOUNDS["likely"])]) for row in rows]
    assert shares[0][-6:] != shares[1][-6:]
    for made in ({"engine": "workers@n=2"}, {"engine": "stacked"}):
        again = run_settings(of(50.0).but(compute=Compute(**made)))
        assert torch.equal(again.server.state.choice, s.choice)
        assert [line.notes["share"] for line in again.clients] == shares[0]
    assert set(run_settings(of(0.01)).server.state.choice.tolist()) != set(s.choice.tolist())
    with pytest.raises(ConfigError, match="clients report a choice with noise in the last of them alone"):
        resume(tmp_path / "a", rounds=9)


def test_a_server_cannot_leave_the_noise_out() -> None:
    """A client of a run with `metadata_epsilon` reports a choice through the noise, however it is asked; one with too
    few samples reports that. A choice that is none is refused."""
    net, held = Setting().network(), held_out(12)[0]
    seen: list[tuple[int, int]] = []

    def noise(chosen: int, of: int) -> int:
        seen.append((chosen, of))
        return 3

    def asked(samples: Samples, **more: Any) -> Bundle:
        received = Bundle({"inner.model": net.w0})
        state = Bundle(alone=net.w0 + 0.5)
        c = Client(0, held.train, samples, net, Training(), received, state, **more)
        return drive(
            asks(Safe(inner=FedAvg()), "evaluation").answer(Safe(inner=FedAvg()), c),
            lambda _: pytest.fail("no training"),
        )

    answer = asked(held.validation, choice_noise=noise)
    assert {n: t.tolist() for n, t in answer.items()} == {"choice": 3, "held": 1}
    assert len(seen) == 1
    assert 0 <= seen[0][0] < seen[0][1] == 5
    assert {n: t.tolist() for n, t in asked(held.validation.every(4), choice_noise=noise).items()} == {
        "choice": 0,
        "held": 0,
    }
    assert asked(held.validation).keys() == {"likelihood", "hits", "held"}
    for said, reason in ((5, "choice is 5, expected 0 to 4"), (-1, "choice is -1, expected 0 to 4"), (4, None)):
        up = Bundle(choice=torch.tensor(said), held=torch.tensor(1))
        safe = Safe(inner=FedAvg())
        assert asks(safe, "evaluation").refuses(safe, None, up) == (reason and outside("choice", said, 0, 4))


def test_secure_aggregation_sums_the_wrapped_methods_uploads() -> None:
    """The model alone leaves nothing behind in the sums: the server ends with FedAvg's bits."""
    setting = Setting(plan=Plan(3, 1.0, seed=1, aggregation=Aggregation(secure=True)), shards=held_out(6))
    safe, plain = (play(m, setting).server.state for m in (Safe(inner=FedAvg(), send_numbers=False), FedAvg()))
    assert torch.equal(safe["inner.model"], plain.model)
    assert set(safe) == {"inner.model"}


@pytest.mark.parametrize("method", [FedFomo(), get_method("local-full")], ids=["fedfomo", "local-full"])
def test_who_says_that_it_reads_validation_data_does(method: Method) -> None:
    """Other validation samples change what it learns; of all others a test of traps says that they do not. A wrapper
    reads what its method reads."""
    trials = [play(method, Setting(shards=held_out(n))) for n in (1, 9)]
    learned = [{name: t for name, t in tensors(trial, rounds=()).items() if "state" in name} for trial in trials]
    assert needs_of(method).validation
    assert difference(*learned) is not None
    assert not needs_of(CAM(inner=IFCA())).validation
    assert needs_of(Safe(inner=FedAvg())).validation


# ---- names and settings --------------------------------------------------------------------------------------------


def test_names() -> None:
    """Any method's name with the suffix, however it is written; Fed-CAM's as well."""
    assert get_method("DA-PFL-safe") == Safe(inner=get_method("da-pfl"))
    assert (canonical("FedProx Safe"), canonical("pfa-cam_safe")) == ("fedprox-safe", "pfa-cam-safe")
    assert get_method("cfl-cam-safe").title == "CFL-CAM-safe"
    for name in ("nothing-safe", "fedavg-safe-cam", "fedavg-safe-safe", "-safe"):
        with pytest.raises(ConfigError):
            get_method(name)


def test_flags_reach_the_innermost_method() -> None:
    """In --set and in sweeps fields go by their own names, however deep the method is wrapped."""
    plan, _ = compare_flags(["ifca-cam-safe", "--set", "ifca-cam-safe.clusters=4", "ifca-cam-safe.mode=best"])
    assert method_of(plan.settings("ifca-cam-safe", 0)) == Safe(inner=CAM(inner=IFCA(clusters=4)), mode="best")
    swept = Sweep(described("ifca-cam-safe"), {"method.clusters": (2, 4)})
    assert method_of(swept.settings({"method.clusters": 4}, 0)) == Safe(inner=CAM(inner=IFCA(clusters=4)))


def test_a_comparison_with_safe_forms(tmp_path: Path) -> None:
    """Each method is followed by its safe form with the method's fields; the local references have none; the plan
    reads back, and its runs can be made."""
    (tmp_path / "own.py").write_text(CAUTIOUS)
    own = f"{tmp_path / 'own.py'}:Cautious"
    sets = ["fedprox.mu=0.5", "fedprox-safe.mode=best", "Cautious.step=0.25", "Cautious-safe.mode=sure"]
    common = ["--clients", "6", "--rounds", "2", "--model", "linear", "--engine", "loop"]
    plan, _ = compare_flags(["fedprox", own, "--safe", "--set", *sets, *common])
    assert [n.rpartition(":")[2] for n in plan.names] == [
        *("local", "local-full", "fedavg", "fedavg-safe", "fedprox", "fedprox-safe", "Cautious", "Cautious-safe")
    ]
    assert method_of(plan.settings("fedprox-safe", 0)) == Safe(
        inner=get_method("fedprox").__class__(mu=0.5), mode="best"
    )
    runs = {run.title: run for run in compare(plan, out=tmp_path / "c")}
    assert set(runs) >= {"FedProx-safe (best)", "Cautious-safe (sure)", "FedAvg-safe"}
    table = read_toml(tmp_path / "c" / "compare.toml")
    again = comparison_from(table, "compare.toml")
    assert again.safe is True
    titles = [[method_of(p.settings(name, 0)).title for name in p.names] for p in (plan, again)]
    assert titles[0] == titles[1]
    assert {"FedProx-safe (best)", "Cautious-safe (sure)"} <= set(titles[0])
    assert type(method_of(again.settings(again.names[-1], 0)).inner).__name__ == "Cautious"
    assert again.settings(again.names[-1], 0).method["inner"]["step"] == 0.25
    with pytest.raises(ConfigError, match="safe must be true or false, got 1"):
        comparison_from({"methods": ["fedavg"], "safe": 1}, "x")


def test_safe_forms_send_nothing_where_uploads_are_hidden() -> None:
    """In a comparison with secure aggregation: a setting of each run, not of the plan."""
    plan = Comparison(
        ("fedper",),
        safe=True,
        base=Settings().but(aggregation=Aggregation(secure=True), run=RunSettings(participation=1.0)),
    )
    assert plan.settings("fedper-safe", 0).method["send_numbers"] is False
    plan = Comparison(("fedper",), safe=True, base=Settings().but(privacy=Privacy(noise_multiplier=1.0)))
    assert plan.settings("fedper-safe", 0).method["send_numbers"] is False
    assert Comparison(("fedper",), safe=True).settings("fedper-safe", 0).method["send_numbers"] is True


def test_a_user_defined_method_in_a_run(tmp_path: Path) -> None:
    """Named with the suffix: the folder has the file and its fingerprint, and the run goes on."""
    (tmp_path / "own.py").write_text(CAUTIOUS)
    s = small(f"{tmp_path / 'own.py'}:Cautious-safe", {"inner": {"step": 0.75}, "mode": "best"}, data=HELD)
    assert s.method["inner"]["step"] == 0.75
    run_settings(s, out=tmp_path / "run")
    config = read_toml(tmp_path / "run" / "config.toml")
    assert config["method"]["name"].endswith("own.py:Cautious-safe")
    assert len(config["code"]["method"]) == 32
    assert (tmp_path / "run" / "own.py").read_text() == CAUTIOUS
    assert resume(tmp_path / "run", rounds=6).summary["rounds"] == 6


def test_what_was_only_imported_is_refused_under_its_safe_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suffix does not lead past the owner's list of allowed modules."""
    (tmp_path / "safe_of_a_team.py").write_text("import os\nfrom fedkin.methods import FedAvg\n" + CAUTIOUS)
    monkeypatch.syspath_prepend(str(tmp_path))
    allowed = Allowed(("safe_of_a_team",))
    for name in ("os.system", "FedAvg"):
        with pytest.raises(
            NotAllowed, match=r"goes through another module|is defined in module|is no class or function"
        ):
            settings_of({"method": {"name": f"safe_of_a_team:{name}-safe"}}, allowed)
    with pytest.raises(NotAllowed, match="this node uses built-in methods"):
        settings_of({"method": {"name": "safe_of_a_team:Cautious-safe"}})
    assert title_of(settings_of({"method": {"name": "safe_of_a_team:Cautious-safe"}}, allowed)) == "Cautious-safe"
