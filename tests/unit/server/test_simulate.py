"""Clients on one machine: who is there, who answers, and what each keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.core import Bundle, ConfigError, Method, Training
from fedkin.core.refusals import Reason
from fedkin.engines import Job, Loop
from fedkin.methods import DAPFL, FedAvg, Local
from fedkin.server import Message, Simulation, join_rounds
from fedkin.testing.toys import federation, network
from refusals import refuses


def simulation(method: Method | None = None, **more: Any) -> Simulation:
    job = Job(method or Local(), network("mlp"), Training(epochs=1, batch_size=4, lr=0.1), federation(), seed=1)
    return Simulation(Loop().start(job), 6, **more)


def message(round: int, ack: int = 0, step: Any = "update") -> Message:
    return Message(step, round, round, ack, Bundle())


# ---- who comes when -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "rounds_"),
    [
        (None, [1, 1, 1, 1]),
        ("", [1, 1, 1, 1]),
        ("1@2", [1, 1, 1, 2]),
        ("3@50", [1, 50, 50, 50]),
        ("1@80,2@50", [1, 50, 50, 80]),
        (" 1@5 , 1@9 ", [1, 1, 5, 9]),
    ],
)
def test_late_joiners_have_the_highest_numbers(text: str | None, rounds_: list[int]) -> None:
    """3@50: three clients join in round 50; parts may come in any order."""
    assert join_rounds(4, text) == rounds_


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        *((t, "late_joiners must look like 3@50") for t in ("3", "@3", "a@3", "-1@3", "0@3", "3@1", "1@2,", "2@@3")),
        *((t, "of 4 clients join late; at least one must be there") for t in ("4@2", "3@2,1@3", "9@9")),
    ],
)
def test_other_late_joiners_are_refused(text: str, fact: str) -> None:
    """The message shows the form; all clients late would leave the first rounds empty."""
    with refuses(ConfigError, fact):
        join_rounds(4, text)


@pytest.mark.parametrize("joins", [[1, 1], [], [1, 1, 1, 1, 2, 1], [2, 1, 1, 1, 1, 1]])
def test_joins_must_fit_the_clients(joins: list[int]) -> None:
    """Clients are numbered in the order in which they come: one round for each, ascending."""
    with refuses(ConfigError, "joins must give the rounds of 6 clients in ascending order"):
        simulation(joins=joins)


def test_newcomers_are_available_from_their_round() -> None:
    """Said to be new once, with their sizes, after the filter of what goes out."""
    s = simulation(joins=join_rounds(6, "2@3"))
    assert [s.available(t) for t in (1, 2, 3)] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert {i: int(b.size) for i, b in s.joiners(0, 1).items()} == {0: 12, 1: 5, 2: 9, 3: 1}
    assert s.joiners(4, 2) == {}
    assert {i: int(b.size) for i, b in s.joiners(4, 3).items()} == {4: 7, 5: 6}

    def coarse(client: int, said: Bundle) -> Bundle:
        return said.but(counts=(said.counts > 0).to(torch.int64))

    found = simulation(DAPFL(), outgoing=coarse).joiners(0, 1)
    assert found[2].counts.tolist() == [1, 0, 0]
    assert found[2].size == 9


# ---- who answers --------------------------------------------------------------------------------------------------
def test_drop_outs_depend_on_seed_round_and_client_and_not_on_the_method() -> None:
    """Two methods lose the same clients in the same rounds; another seed loses others; about the share asked for."""

    def lost(method: Method, seed: int) -> list[list[int]]:
        s = simulation(method, dropout=0.4, seed=seed)
        return [sorted(s.exchange({i: message(t) for i in range(6)})[1]) for t in range(1, 31)]

    def asked_alone(seed: int, client: int) -> list[bool]:
        s = simulation(Local(), dropout=0.4, seed=seed)
        return [bool(s.exchange({client: message(t)})[1]) for t in range(1, 31)]

    same = lost(Local(), 1)
    net = network("mlp")
    s = simulation(FedAvg(), dropout=0.4, seed=1)
    sent = [{i: Message("update", t, t, 0, Bundle(model=net.w0)) for i in range(6)} for t in range(1, 31)]
    assert [sorted(s.exchange(m)[1]) for m in sent] == same
    assert lost(Local(), 2) != same
    assert asked_alone(1, 4) == [4 in missing for missing in same]
    assert sum(map(len, same)) / 180 == pytest.approx(0.4, abs=0.12)


def test_who_drops_out_keeps_its_state_and_is_evaluated() -> None:
    """A missing client is named; evaluation is the experimenter's."""
    s = simulation(dropout=0.999)
    answers, missing = s.exchange({0: message(1), 1: message(1)})
    assert answers == {}
    assert missing == {0: Reason("expired"), 1: Reason("expired")}
    assert s.states(torch.zeros(6, dtype=torch.int64))[0] == {}
    s = simulation(dropout=0.999)
    answers, missing = s.exchange({i: message(1, step="evaluate") for i in range(6)})
    assert (sorted(answers), missing) == ([0, 1, 2, 3, 4, 5], {})


# ---- what is kept -------------------------------------------------------------------------------------------------
def test_states_are_those_that_the_server_has_used() -> None:
    """Before the acknowledgement the old one; an evaluation changes neither."""
    s = simulation()
    s.exchange({2: message(1)})
    assert s.states(torch.zeros(6, dtype=torch.int64))[2] == {}
    acks = torch.tensor([0, 0, 1, 0, 0, 0])
    assert list(s.states(acks)[2]) == ["model"]
    assert list(s.states(acks)) == list(range(6))
    s = simulation()
    s.exchange({0: message(1)})
    pending = s.ledgers[0].pending
    before, _ = s.exchange({0: message(1, ack=0, step="evaluate")})
    after, _ = s.exchange({0: message(1, ack=1, step="evaluate")})
    assert s.ledgers[0].pending is pending
    assert s.ledgers[0].committed == {}
    w = s.states(torch.tensor([1, 0, 0, 0, 0, 0]))[0].model
    assert not torch.equal(w, network("mlp").w0)
    assert before[0].test[0].sum() == after[0].test[0].sum() == 4


# ---- many clients -------------------------------------------------------------------------------------------------
def test_answers_of_former_rounds_are_not_kept() -> None:
    """A message may come twice in its round and gets the same answer; after it the answer would only take room."""
    s = simulation()
    first, _ = s.exchange({0: message(1), 1: message(1)})
    again, _ = s.exchange({0: message(1)})
    assert again[0] is first[0]
    assert s.ledgers[1].answer is not None
    s.exchange({2: message(2)})
    assert [s.ledgers[i].answer is None for i in range(3)] == [True, True, False]
    assert s.ledgers[0].pending is not None
    s.exchange({0: message(2, ack=1, step="evaluate")})
    assert s.ledgers[2].answer is not None
