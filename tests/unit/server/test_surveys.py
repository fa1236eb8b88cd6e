"""Surveys before a round, and samples that say more than who takes part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkin.capabilities import Asks
from fedkin.core import Bundle, Client, Download, Method, Round, to_all, to_each
from fedkin.core.refusals import Reason
from fedkin.methods import FedAvg
from fedkin.server import Plan
from fedkin.testing.toys import network
from fedkin.testing.trial import Setting, TrialRun, lose, play
from toys import refused


def variant(survey: Any = None, **steps: Any) -> Method:
    """FedAvg that keeps what clients answered to a question, with other steps."""
    body = {n: FedAvg.__dict__[n] for n in ("distribute", "client_update")}
    can = (Asks("round", survey or _survey, _answer, _hear),)
    own = {"init": _init, "admit": _admit, "can": can, "aggregate": _merge}
    made: Method = type("Asking", (Method,), {**body, "after_training": False, **own, **steps})()
    return made


def _init(self: Method, r: Round) -> Bundle:
    return Bundle(model=r.w0, said=torch.empty(0))


def _admit(self: Method, s: Bundle, r: Round) -> Bundle:
    return s.but(said=torch.cat([s.said, torch.full((len(r.ids),), -1.0)]))


def _survey(self: Method, s: Bundle, r: Round) -> Download | None:
    return to_all(question=torch.tensor(10.0)) if r.index == 2 else None


def _answer(self: Method, c: Client) -> Bundle:
    return Bundle(said=c.received.question * c.id)


def _hear(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    said = s.said.clone()
    said[r.ids] = up.said
    return s.but(said=said)


def _merge(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    return s.but(model=r.mean(up.model))


def trial(method: Method, touch: Any = None, **changes: Any) -> TrialRun:
    return play(method, Setting(plan=Plan(3, 0.4), **changes), touch=touch)


def silent(ids: list[int]) -> Any:
    """Answers of these clients to a survey are lost."""

    def touch(messages: Any, pass_on: Any) -> Any:
        answers, missing = pass_on(messages)
        if any(m.step == "survey" for m in messages.values()):
            answers = {i: b for i, b in answers.items() if i not in ids}
            missing = {**missing, **dict.fromkeys(ids, Reason("gone"))}
        return answers, missing

    return touch


def said(t: TrialRun, round: int) -> list[float]:
    found: list[float] = t.moments[round].server.state.said.tolist()
    return found


def test_everybody_who_is_there_is_asked_before_the_round() -> None:
    """In round 2 all six answer, although two train: 24 bytes each way."""
    t = trial(variant())
    assert said(t, 1) == [-1] * 6
    assert said(t, 2) == [0, 10, 20, 30, 40, 50]
    assert len(t.reports[1].cohort) == 2
    plain, asked = trial(variant()).reports[:2]
    assert asked.bytes_down - plain.bytes_down == 24
    joining = 6 * 8  # round 1 carries the sizes of the newcomers
    assert asked.bytes_up - (plain.bytes_up - joining) == 24


def test_what_a_survey_brought_is_not_counted_again() -> None:
    """Six clients are sent the model to answer a question in round 2, two of them are to train it: it travels once. A
    client whose answer was lost is taken to have nothing; another model travels, though it has the same name."""
    p = 4 * network("mlp").size
    ask = {"survey": lambda self, s, r: to_all(model=s.model, question=torch.ones(())) if r.index == 2 else None}
    plain, asked = trial(variant(**ask)).reports[:2]
    assert (plain.bytes_down, asked.bytes_down) == (2 * p, 6 * (p + 4))
    lost = trial(variant(**ask), touch=silent(asked.cohort[:1])).reports[1]
    assert lost.cohort == asked.cohort
    assert lost.bytes_down == 6 * (p + 4) + p
    ask["survey"] = lambda self, s, r: to_all(model=s.model + 1, question=torch.ones(())) if r.index == 2 else None
    assert trial(variant(**ask)).reports[1].bytes_down == 6 * (p + 4) + 2 * p


def test_who_is_given_nothing_is_not_asked() -> None:
    """A mask over the rows leaves clients out."""

    def survey(self: Method, s: Bundle, r: Round) -> Download | None:
        return to_each(given=r.ids % 2 == 0, question=torch.ones(len(r.ids)))

    t = trial(variant(survey=survey))
    assert said(t, 3) == [0, -1, 2, -1, 4, -1]
    nobody = trial(variant(survey=lambda self, s, r: to_each(given=r.ids < 0, question=torch.ones(len(r.ids)))))
    assert said(nobody, 3) == [-1] * 6


def test_a_lost_answer_is_missing_and_the_round_goes_on() -> None:
    """Client 5 does not answer in round 2: the state keeps what it had, the report says so."""
    t = trial(variant(), touch=lose({2: [5]}))
    assert said(t, 2) == [0, 10, 20, 30, 40, -1]
    assert refused(t.reports[1], "query") == {5: "gone"}
    assert t.reports[1].answered


def test_a_bad_answer_is_refused_for_that_client_alone() -> None:
    """An answer that is no number, or of another form, does not reach `collect`; the others do."""

    def spoilt(messages: Any, pass_on: Any) -> Any:
        answers, missing = pass_on(messages)
        for i, bad in ((1, Bundle(said=torch.tensor(float("nan")))), (2, Bundle(other=torch.tensor(1.0)))):
            if i in answers and messages[i].step == "survey":
                answers[i] = bad
        return answers, missing

    t = trial(variant(), touch=spoilt)
    assert said(t, 2) == [0, -1, -1, 30, 40, 50]
    assert refused(t.reports[1], "query") == {1: "not-finite", 2: "names"}
    assert not refused(t.reports[1], "update")


def test_what_was_drawn_reaches_the_later_steps_in_the_order_of_ids() -> None:
    """ids 4, 1, 3 with rows 40, 10, 30: distribute sees 1, 3, 4 with 10, 30, 40; aggregate those that answered."""
    seen: dict[str, list[list[float]]] = {"distribute": [], "aggregate": [], "deliver": []}

    def sample(self: Method, s: Bundle, r: Round) -> Bundle:
        ids = torch.tensor([4, 1, 3])
        return Bundle(ids=ids, ten=10.0 * ids, many=torch.stack([ids, ids], 1))

    def looking(step: str, then: Any) -> Any:
        def look(self: Method, s: Bundle, r: Round, *up: Bundle) -> Any:
            rows: list[Tensor] = [r.ids.float(), *r.drawn.values()]
            seen[step].append([float(v) for row in rows for v in row.flatten()])
            return then(self, s, r, *up)

        return look

    steps = {"distribute": FedAvg.distribute, "deliver": FedAvg.distribute, "aggregate": _merge}
    t = trial(variant(sample=sample, **{n: looking(n, then) for n, then in steps.items()}), touch=lose({2: [3]}))
    assert seen["distribute"] == [[1, 3, 4, 10, 30, 40, 1, 1, 3, 3, 4, 4]] * 3
    assert seen["aggregate"][1] == [1, 4, 10, 40, 1, 1, 4, 4]
    assert all(row == [0, 1, 2, 3, 4, 5] for row in seen["deliver"])
    assert t.reports[0].cohort == [1, 3, 4]
