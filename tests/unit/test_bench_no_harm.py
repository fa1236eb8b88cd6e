"""The safe rule as a statistic: harmed clients and kept gains on small planted federations, and the page's tables."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import ClientData, Samples

ROOT = Path(__file__).parents[2]
BENCH = runpy.run_path(str(ROOT / "bench" / "no_harm.py"))
RUNS = runpy.run_path(str(ROOT / "bench" / "no_harm_runs.py"))


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, int, str], dict[str, Any]]:
    """Eight draws of twenty clients of each kind, by federation, held-out samples and rule."""
    lines = [x for kind in BENCH["PLANTED"] for x in BENCH["summary"](kind, 20, 8, held=(10, 100), truth=4000)]
    return {(x["federation"], x["held"], x["rule"]): x for x in lines}


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("rule", ["best", "likely", "sure"])
def test_few_clients_are_harmed(rule: str, n: int, seen: dict[tuple[str, int, str], dict[str, Any]]) -> None:
    """The method harms from none to all of the clients; under the rules at most 5 % of 160 lose half a point (best:
    at most 2.5 % in the recorded table), none where no client gains, and none under the sign test but by chance."""
    harmed = {kind: seen[kind, n, rule]["harmed"] for kind in BENCH["PLANTED"]}
    assert seen["no client gains", n, "method"]["harmed"] == 1.0
    assert max(harmed.values()) <= (0.05 if rule != "sure" else 0.01), harmed
    assert harmed["no client gains"] == 0
    assert seen["anything", n, "method"]["harmed"] > 0.5


def test_gains_are_kept(seen: dict[tuple[str, int, str], dict[str, Any]]) -> None:
    """With ten samples each, where all gain, nine tenths of the method's gain, more than by itself; where one is
    unlike, more than the method; with a hundred samples where half lose, nine tenths of the oracle's."""
    gain = {key: x["gain"] for key, x in seen.items()}
    for rule in ("best", "likely"):
        assert gain["all gain", 10, rule] > 0.9 * gain["all gain", 10, "method"] > 0.09
        assert gain["all gain", 10, rule] > gain["all gain", 10, "by itself"]
        assert gain["one unlike the others", 10, rule] > gain["one unlike the others", 10, "method"] + 0.01
        assert gain["half gain, half lose", 100, rule] > 0.85 * gain["half gain, half lose", 100, "oracle"] > 0.04
    assert gain["all gain", 100, "sure"] > 0.05 > gain["all gain", 10, "sure"]


# ---- what breaks it ------------------------------------------------------------------------------------------------
def test_liars_move_those_whose_samples_say_nothing() -> None:
    """Two of six claim that lambda = 1 alone is right: the four whose models are equal take more of the method than 0.
    Honest clients that the method harms stay alone although five of twenty claim it: ten samples each say otherwise."""
    even = torch.full((10, 2), 0.5).double()
    samples = [(even, even, torch.zeros(10, dtype=torch.int64))] * 6
    none, two = (BENCH["chosen"](samples, torch.zeros(6, 5), liars)["likely"].tolist() for liars in (0, 2))
    assert none == [0] * 6
    assert min(two) > 0
    lines = BENCH["summary"]("no client gains", 20, 4, held=(10,), truth=500, liars=5)
    harmed = {x["rule"]: x["harmed"] for x in lines}
    assert (harmed["likely"], harmed["best"], harmed["method"]) == (0, 0, 1)
    _, _, gain = next(BENCH["outcomes"]("all gain", 6, 0, (10,), 10, liars=2))
    assert len(gain) == 4


# ---- recorded runs -------------------------------------------------------------------------------------------------
def test_a_sure_loss_passes_a_sign_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five samples that only the model alone gets right are a loss at 5 % (1 / 32), four are none (1 / 16), and five
    against one are none (7 / 64)."""
    right = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]]).bool()
    monkeypatch.setitem(RUNS["surely_lost"].__globals__, "rights", lambda *_: right)
    test = Samples(torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64))
    client = ClientData(test, test, test)
    assert RUNS["surely_lost"](None, None, None, client).tolist() == [False, True, False, False]
