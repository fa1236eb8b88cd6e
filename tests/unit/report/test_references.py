"""Which kind of local training is which, in words; and the lists of verdicts against both."""

from __future__ import annotations

import json
import re

from fedkin.record.result import by_title
from fedkin.report import headline
from fedkin.report.content import content_of
from pages import comparison_page, run_page


def config(**run):
    return {"config": {"run": {"rounds": 100, **run}}}


def pair(made, **how):
    return by_title([made("Local", **config(**how)), made("Local (full)", **config(**how))])


def test_what_both_kinds_of_training_alone_are_is_said(made):
    """In which rounds a client trains; at full participation the choice of its model alone differs."""
    text = headline.which_is_which(pair(made, participation=0.2))
    assert all(fact in text for fact in ("20 % of the clients", "Under Local (full)", "all 100 rounds"))
    text = headline.which_is_which(pair(made, participation=1.0))
    assert "under both every client trains alone in all 100 rounds" in text
    assert "sampled for" not in text


def test_nothing_is_said_unless_both_were_run(made):
    """Folders without the settings do say it, without numbers, as do runs that ended early."""
    assert headline.which_is_which(by_title([made("Local"), made("M")])) == ""
    assert headline.which_is_which({}) == ""
    plain = by_title([made("Local"), made("Local (full)")])
    early = pair(made, participation=1.0)
    object.__setattr__(early["Local (full)"][0], "ended", "early")
    for groups in (plain, early):
        assert "in all rounds, since all clients take part" in headline.which_is_which(groups)


def test_the_page_of_a_run_says_what_its_local_is(folder):
    """Where it is compared with Local and not all clients take part in every round."""
    local = folder("local", title="Local", top=0.7)
    pages = [
        run_page(folder(name, title="M", **config(participation=share)), base)
        for name, share, base in (("a", 0.2, local), ("b", 1.0, local), ("c", 0.2, None))
    ]
    said = "Local: a client trains alone, and only in the rounds it is sampled for (20 % of the clients in each round)"
    assert [said in text for text in pages] == [True, False, False]


def test_the_page_has_a_list_against_each_and_the_remark_once(made, tmp_path):
    """M is set against Local, Local (full) and FedAvg; Local (full) itself against Local and FedAvg."""
    gains = {i: 0.01 * (i % 3) for i in range(8)}
    runs = [
        made(title, clients=8, top=top, gains=gains if title == "M" else None, **config(participation=0.2))
        for title, top in (("Local", 0.5), ("Local (full)", 0.6), ("FedAvg", 0.7), ("M", 0.8))
    ]
    text = comparison_page(tmp_path, runs)
    lists = {
        title: re.findall(r"<li>([^:]+): ", body)
        for title, body in re.findall(r"<h3>(Accuracy against [^<]+)</h3>\n<ul>\n(.*?)</ul>", text, re.DOTALL)
    }
    assert lists == {
        "Accuracy against Local": ["M", "FedAvg", "Local (full)"],
        "Accuracy against Local (full)": ["M", "FedAvg"],
        "Accuracy against FedAvg": ["M", "Local (full)"],
    }
    assert text.count("only in the rounds it is sampled for") == 1
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    columns = json.loads(found[1])["parts"][3]["columns"]
    found = [name.removeprefix("gain over ") for name in columns if name.startswith("gain over ")]
    assert found == ["Local", "Local (full)", "FedAvg"]


def test_training_alone_is_not_the_best_method(made, tmp_path):
    """Where Local (full) is highest, the heading says that no method is above it, whatever Local has."""
    runs = [made(t, clients=8, top=top) for t, top in (("Local", 0.5), ("Local (full)", 0.8), ("M", 0.7))]
    text = comparison_page(tmp_path, runs)
    assert "<h1>No method is above Local (full) on average. <span" in text
    assert "<li>Local (full): ahead of Local" in text
    assert "<li>M: ahead of Local" in text


def test_equal_reference_rows_are_no_collapse(made):
    """At full participation without validation data Local (full) is Local: no method is at fault. One that equals
    Local (full) does not learn from others."""
    alike = {"clients": 8, "answers": "d", "logits": "a1", **config(participation=1.0)}
    runs = [made(title, **alike) for title in ("Local", "Local (full)", "M")]
    (text,) = [w.text for w in content_of(runs).caveats if w.kind == "collapse"]
    assert text.startswith("M equals Local for every client, M equals Local (full) for every client: no client learns")


def test_clients_that_train_alone_are_not_what_collapsed(made):
    """Where Local equals FedAvg, the reference, it is FedAvg's settings that are wrong, not Local's."""
    alike = {"clients": 8, "answers": "d", "logits": "a1", **config(participation=1.0)}
    runs = [made(title, **alike) for title in ("FedAvg", "Local", "M")]
    said = " ".join(w.text for w in content_of(runs, "FedAvg").caveats if w.kind == "collapse")
    assert "M equals FedAvg for every client: what it does beyond that has no effect" in said
    assert "Local equals" not in said
