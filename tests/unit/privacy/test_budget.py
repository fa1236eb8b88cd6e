"""What a run promises single samples: the epsilon it states, where it states none, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fedkin
from fedkin.capabilities import Uploads
from fedkin.core import ConfigError, Training
from fedkin.core.settings import Privacy, Settings
from fedkin.data import planted_groups
from fedkin.experiment.compare import Comparison
from fedkin.experiment.settings import RunSettings
from fedkin.methods import CFIC, DAPFL, METHODS, Ditto, FedAvg
from fedkin.privacy.budget import composed, epsilon, sentence, total, written
from fedkin.record.lines import RoundLine
from folders import assert_same_run
from refusals import refuses
from toys import Averaging

opacus = pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedkin[dp]'")
HOW: dict[str, Any] = {"rounds": 4, "engine": "loop", "eval_every": 4}


def play(method: fedkin.Method, **more: Any) -> fedkin.Result:
    """Four rounds on four clients of 30 samples (21 to train on), batches of 7."""
    federation = planted_groups(clients=4, groups=2, samples=30)
    return fedkin.run(method, federation, training=Training(batch_size=7, lr=0.1), **{"model": "linear", **HOW, **more})


@dataclass(frozen=True)
class Own(Averaging, fedkin.Method):
    """A user-defined FedAvg that does not say what its clients send in addition to models."""


@dataclass(frozen=True)
class Telling(Averaging, fedkin.Method):
    """A user-defined FedAvg whose clients say the mean of their inputs when they join."""

    def describe(self, c: fedkin.Client) -> fedkin.Bundle:
        return fedkin.Bundle(mean=c.data.x.mean(0))

    can = (Uploads(""),)


# ---- the accountant ------------------------------------------------------------------------------------------------
def test_epsilon_is_the_accountants() -> None:
    """Noise 1, every 12th sample, 12 steps: 3.17 at delta 1e-5; steps with several noises compose as one history."""
    from opacus.accountants import RDPAccountant

    assert epsilon({1 / 12: 12}, 1.0, 1e-5) == pytest.approx(3.17, abs=0.005)
    assert epsilon({1.0: 4}, 100.0, 0.5) == 0.0  # the accountant's bound is negative
    history = [(1.0, 0.1, 20), (2.0, 0.1, 30), (0.7, 0.25, 4)]
    accountant = RDPAccountant()
    accountant.history = history
    assert composed([*history, (0.0, 0.5, 0)], 1e-6) == accountant.get_epsilon(1e-6)
    assert composed([*history, (0.0, 0.5, 1)], 1e-6) == math.inf


def test_whole_batches_by_hand() -> None:
    """At rate 1 the order a costs T a / 2 s^2; of all a the best is 1/2 + sqrt(...): T = 4, s = 4, delta = 1e-5.

    min over a of a/8 + log((a-1)/a) - (log delta + log a)/(a-1), over the accountant's orders.
    """
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    by_hand = min(a / 8 + math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in orders)
    assert epsilon({1.0: 4}, 4.0, 1e-5) == pytest.approx(by_hand, rel=1e-12)


def test_epsilon_of_different_rates_is_of_all_steps() -> None:
    """Steps at several rates add up; none cost nothing; without noise there is no epsilon."""
    both = epsilon({0.1: 5, 0.5: 5}, 1.0, 1e-5)
    assert max(epsilon({0.1: 5}, 1.0, 1e-5), epsilon({0.5: 5}, 1.0, 1e-5)) < both
    assert both < epsilon({0.5: 10}, 1.0, 1e-5)
    assert epsilon({}, 1.0, 1e-5) == epsilon({0.1: 0}, 1.0, 1e-5) == 0
    assert epsilon({0.1: 5}, 0.0, 1e-5) == math.inf


def test_the_line_of_a_round_brings_its_steps_back() -> None:
    spent = {3: {1 / 7: 4, 0.5: 1}, 0: {0.1: 2}}
    lines = [
        msgspec.json.decode(msgspec.json.encode(RoundLine(1, private=written(s))), type=RoundLine)
        for s in (spent, {3: {1 / 7: 6}}, {})
    ]
    assert total(line.private for line in lines) == {0: {0.1: 2}, 3: {1 / 7: 10, 0.5: 1}}


# ---- a run ---------------------------------------------------------------------------------------------------------
def test_a_run_states_its_epsilon() -> None:
    """Four rounds of three steps at rate 1/3 for everybody: the summary has the epsilon of 12 steps, and says so."""
    result = play(FedAvg(), noise_multiplier=1.5, delta=1e-4)
    found = result.summary["privacy"]
    wanted = epsilon({7 / 21: 12}, 1.5, 1e-4)
    assert found == {
        "noise_multiplier": 1.5,
        "max_grad_norm": 1.0,
        "delta": 1e-4,
        "epsilon": wanted,
        "client": 0,
        "steps": 12,
    }
    assert sentence(found) == f"training: epsilon up to {wanted:.3g} at delta 0.0001 (for one sample more or less)"
    assert result.rounds[0].private == dict.fromkeys(range(4), ((7 / 21, 3),))


def test_everything_that_trains_is_counted() -> None:
    """Ditto trains two models, so it spends what twice the rounds do; fine-tuning to predict is training, too."""
    assert play(Ditto(), noise_multiplier=1.0).summary["privacy"]["steps"] == 24
    tuned = play(fedkin.methods.FedAvgFT(tune_epochs=2), noise_multiplier=1.0).summary["privacy"]["steps"]
    assert tuned == 12 + 4 * 6  # HOW evaluates in each of the last ten rounds


def test_both_options_together() -> None:
    """DA-PFL's clients say counts at joining: with noise on these training can be private, too; both are told."""
    found = play(DAPFL(), metadata_epsilon=0.5, noise_multiplier=1.0).summary["privacy"]
    assert (found["metadata_epsilon"], found["steps"]) == (0.5, 12)
    text = sentence(found)
    assert text.startswith("each report with noise: epsilon 0.5; training: epsilon up to ")
    assert sentence({}) == ""
    assert "no noise, so no epsilon" in sentence(play(FedAvg(), noise_multiplier=0.0).summary["privacy"])


def test_without_options_nothing_changes() -> None:
    """No line and no summary speaks of privacy, and noise on counts moves nothing but what follows from them."""
    plain = play(DAPFL())
    assert "privacy" not in plain.summary
    assert plain.rounds[0].private == {}
    assert all(line.right for line in plain.clients if line.round == len(plain.rounds))
    noisy = play(DAPFL(), metadata_epsilon=1000.0)
    assert noisy.rounds == plain.rounds
    assert not any(line.right or line.test_part or line.logits or line.labels for line in noisy.clients)
    assert play(DAPFL(), metadata_epsilon=0.05).relations != plain.relations


def test_equal_runs_have_equal_files_and_resume_counts_on(tmp_path: Path) -> None:
    """Private runs repeat bit by bit, on any engine; one that was interrupted does not forget what it spent."""
    method, how = CFIC(), {"metadata_epsilon": 0.5, "noise_multiplier": 1.0, "participation": 0.5}
    a = play(method, out=tmp_path / "a", **how)
    play(method, out=tmp_path / "b", engine="workers@n=2", **how)

    def stop(report: Any, line: dict[str, Any]) -> None:
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(method, out=tmp_path / "c", on_round=stop, **how)
    c = play(method, out=tmp_path / "c", resume=True, **how)
    assert c.summary["privacy"] == a.summary["privacy"]
    for other in ("b", "c"):
        assert_same_run(tmp_path / other, tmp_path / "a")


def test_a_run_cannot_be_resumed_with_other_options(tmp_path: Path) -> None:
    """Less noise in its second half would make the first half's promise untrue."""
    play(FedAvg(), out=tmp_path / "a", noise_multiplier=1.0)
    with pytest.raises(fedkin.FedkinError):
        play(FedAvg(), out=tmp_path / "a", resume=True, noise_multiplier=0.5)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "facts"),
    [
        (DAPFL(), {}, ("DAPFL", "counts at joining", "metadata_epsilon")),
        (CFIC(register="lazy"), {}, ("label, with its first model",)),
        (Ditto(coupled_steps=True), {}, ("coupled_steps",)),
        (METHODS["ifca-cam"](), {}, ("CAM", "the cluster it chose")),
        (Telling(), {}, ("joining", "reads the client's data")),
        (Telling(), {"metadata_epsilon": 1.0}, ("metadata_epsilon", "Telling")),
        (Own(), {}, ("Own", 'also=""')),
    ],
)
def test_refusals_say_why(method: fedkin.Method, options: dict[str, Any], facts: tuple[str, ...]) -> None:
    """Settings of a method and what it wraps have a say in it."""
    with refuses(ConfigError, *facts):
        play(method, noise_multiplier=1.0, **options)


def test_opacus_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refuses(ConfigError, "Opacus", "fedkin[dp]"):
        play(FedAvg(), noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 0.0}, "max_grad_norm"),
        ({"noise_multiplier": 1.0, "delta": 0.0}, "delta"),
        ({"metadata_epsilon": 0.0}, "metadata_epsilon"),
    ],
)
def test_numbers_out_of_range(options: dict[str, float], fact: str) -> None:
    with refuses(ConfigError, fact):
        play(DAPFL(), **options)


# ---- a comparison --------------------------------------------------------------------------------------------------
def test_a_comparison_gives_noise_to_those_who_say_something() -> None:
    """The reference rows, in every comparison, say nothing at joining; DA-PFL's clients do."""
    plan = Comparison(
        ("da-pfl",), base=Settings().but(run=RunSettings(rounds=1), privacy=Privacy(metadata_epsilon=0.5))
    )
    noise = {name: plan.settings(name, 0).privacy.metadata_epsilon for name in plan.names}
    assert noise == {"local": None, "local-full": None, "fedavg": None, "da-pfl": 0.5}
    for name, privacy in (
        ("fedper", Privacy(metadata_epsilon=0.5)),
        ("ifca", Privacy(noise_multiplier=1.0)),
        ("da-pfl", Privacy(noise_multiplier=1.0)),
    ):
        with pytest.raises(ConfigError):
            Comparison((name,), base=Settings().but(privacy=privacy))
