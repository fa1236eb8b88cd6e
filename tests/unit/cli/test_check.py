"""fedkin check: the contract as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import Command
from fedkin.cli import check
from fedkin.core import ConfigError
from fedkin.engines import Stacked
from fedkin.methods import get_method
from fedkin.testing import RULES, RuleBroken, check_each
from owncode import CAUTIOUS

ENGINES = check._engines


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without worker processes, for speed; one test has them."""
    monkeypatch.setattr(check, "_engines", list)


def write(text: str) -> str:
    Path("mine.py").write_text(text)
    return "./mine.py:Cautious"


def test_each_rule_has_its_words() -> None:
    """What it asks, and what to do."""
    assert list(check.MEANS) == list(RULES)
    assert all(all(words) for words in check.MEANS.values())


def test_all_rules_hold(fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each rule, and exit code 0; with worker processes."""
    monkeypatch.setattr(check, "_engines", ENGINES)
    done = fedkin(f"check {write(CAUTIOUS)}@step=0.25")
    assert done.code == 0, done.out
    assert [done.out.count(f"\n {rule} ") for rule in RULES] == [1] * len(RULES)
    assert "BROKEN" not in done.out
    assert "Cautious (step=0.25) keeps all 13 rules." in done.out


BY_VALUE = """

def by_value(net, w, batch, aux):
    loss = fedkin.cross_entropy(net, w, batch, aux)
    return loss if loss > 0.1 else loss * 2
"""


def test_a_loss_that_cannot_be_stacked_is_a_remark(
    fedkin: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rule holds, since its clients are trained one by one; why is said once, and no log is printed."""
    monkeypatch.setattr(check, "_engines", lambda: [Stacked(device="cpu")])
    text = CAUTIOUS.replace("Train(c.received.model)", "Train(c.received.model, loss=by_value)")
    assert "by_value" in text
    name = write(text + BY_VALUE)
    done = fedkin(f"check {name} --rules", "same result")
    assert done.code == 0, done.out
    assert done.out.count("Remark on same result: by_value on this network is trained client by client") == 1
    assert caplog.records == []
    (line,) = json.loads(fedkin(f"check {name} --json --rules", "same result").out)
    assert line["result"] == "holds"
    assert [remark.partition(" ")[0] for remark in line["remarks"]] == ["by_value"]


def test_a_broken_rule(fedkin: Command) -> None:
    """The others are looked at all the same; the reason, what to do, exit code 1."""
    text = CAUTIOUS.replace("return fedkin.Bundle(model=s.model + ", "s.model.add_(")
    name = write(text + "        return s\n")
    done = fedkin(f"check {name} --json")
    assert done.code == 1
    found = {line["rule"]: line for line in json.loads(done.out)}
    assert list(found) == list(RULES)
    assert found["runs"]["result"] == "holds"
    assert found["pure steps"]["result"] == "broken"
    assert "aggregate wrote into 'model' of the server's state" in found["pure steps"]["reason"]
    done = fedkin(f"check {name}", "--rules", "runs", "pure steps")
    assert done.code == 1
    assert "What to do: make new tensors" in done.out
    assert "Cautious breaks 1 of 2 rules." in done.out


def test_a_method_that_does_not_run(fedkin: Command) -> None:
    """The reason names the line of the file; what would fail for this reason alone is not looked at."""
    name = write(CAUTIOUS.replace("r.mean(up.model)", "r.men(up.model)"))
    done = fedkin(f"check {name} --json")
    assert done.code == 1
    results = [line["result"] for line in json.loads(done.out)]
    assert results == ["holds", "broken", *["not checked"] * 11]
    assert "'Round' object has no attribute 'men' (mine.py, line 26)" in done.out
    assert "11 were not checked, since runs must hold first." in fedkin(f"check {name}").out


def test_findings_in_a_program() -> None:
    """One for each rule, as they come."""
    found = list(check_each(get_method("fedavg"), engines=[], rules=["declared", "runs"]))
    assert [(f.rule, f.holds, f.error) for f in found] == [("declared", True, None), ("runs", True, None)]
    with pytest.raises(ConfigError, match="unknown rule"):
        next(check_each(get_method("fedavg"), rules=["no"]))
    assert issubclass(RuleBroken, AssertionError)
