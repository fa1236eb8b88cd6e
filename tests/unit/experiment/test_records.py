"""`lines_of`: from a round's report to the lines that are written down."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from fedkin.core import Bundle
from fedkin.core.refusals import Reason
from fedkin.data import Federation, planted_groups
from fedkin.experiment.records import lines_of, unevaluated
from fedkin.record.lines import RelationLine, RoundLine
from fedkin.server import RoundReport
from toys import tallied


def federation() -> Federation:
    """Four clients of two true groups, three classes."""
    return planted_groups(clients=4, groups=2, samples=12, classes=3)


def report(**changes: Any) -> RoundReport:
    """A round of two clients without evaluation."""
    plain: dict[str, Any] = {
        "round": 7,
        "cohort": [1, 3],
        "answered": [3],
        "abandoned": False,
        "joined": [],
        "absent": [],
        "refused": (Reason("expired").at("update", 1),),
        "bytes_down": 80,
        "bytes_up": 40,
        "weights": None,
        "clusters": None,
        "notes": {},
        "evaluation": {},
        "seconds": {"round": 1.0},
    }
    return RoundReport(**{**plain, **changes})


def evaluated(right: int, wrong: int, **more: torch.Tensor) -> Bundle:
    """An evaluation with so many right and wrong answers of class 0."""
    test, validation = torch.zeros(3, 3, dtype=torch.int64), torch.zeros(3, 3, dtype=torch.int64)
    test[0, 0], test[0, 1] = right, wrong
    validation[2, 2] = 1
    return Bundle(counts=torch.tensor([4, 0, 5]), test=tallied(test), validation=tallied(validation), **more)


def test_a_plain_round() -> None:
    """Who was asked, who answered, who is missing, and the bytes; no seconds, no accuracy, no client lines."""
    lines = lines_of(report(), federation())
    (missing,) = lines.round.refused
    plain = RoundLine(7, cohort=(1, 3), answered=(3,), bytes_up=40, bytes_down=80, refused=(missing,))
    assert (lines.round, missing.client, missing.stage) == (plain, 1, "update")
    assert (lines.clients, lines.relations) == ([], [])


def test_an_evaluated_round() -> None:
    """Each client's line has its own accuracy; the round's has their mean over clients."""
    evaluation = {0: evaluated(3, 1), 2: evaluated(1, 3)}
    lines = lines_of(report(evaluation=evaluation), federation())
    line = lines.round

    assert [(c.round, c.client, c.accuracy) for c in lines.clients] == [(7, 0, 0.75), (7, 2, 0.25)]
    assert (line.accuracy, line.figures.validation, line.figures.clients) == (0.5, 1.0, 2)
    assert (lines.clients[0].correct, lines.clients[0].n_test) == (3, 4)


def test_every_client_s_line_has_the_constant_answer() -> None:
    """Class 2 is the most frequent in training and none of the test samples are of it; where training counts are not
    told, the line says nothing of it, whatever else is written down."""
    hidden = Bundle({**evaluated(3, 1), "counts": torch.zeros(3, dtype=torch.int64)})
    lines = lines_of(report(evaluation={0: evaluated(3, 1), 1: hidden}), federation())
    assert [c.majority for c in lines.clients] == [0, None]
    assert lines.round.figures.majority == 0.0
    assert [c.balanced for c in lines.clients] == [0.75, 0.75]


def test_samples_by_class_are_said_once_for_each_client() -> None:
    """The first line of a client has its training samples by class, later ones have not; unasked, none has."""
    told = {2}
    first = lines_of(report(evaluation={0: evaluated(3, 1), 2: evaluated(1, 3)}), federation(), told)
    assert [c.labels for c in first.clients] == [(4, 0, 5), ()]
    assert told == {0, 2}
    again = lines_of(report(evaluation={0: evaluated(3, 1)}), federation(), told)
    unasked = lines_of(report(evaluation={0: evaluated(3, 1)}), federation())
    assert not any(c.labels for c in (*again.clients, *unasked.clients))


def test_outcomes_of_test_samples() -> None:
    """Bits as bytes, digests as hexadecimal digits; a client that tells none has none."""
    told = {
        "right": torch.tensor([0b11011111, 0b10000000]),
        "test_digest": torch.arange(16),
        "logits_digest": torch.arange(8),
    }
    outcomes = {name: t.to(torch.uint8) for name, t in told.items()}
    evaluation = {0: evaluated(8, 2).but(**outcomes), 1: evaluated(1, 1)}
    one, other = lines_of(report(evaluation=evaluation), federation()).clients
    assert (one.right, one.test_part) == (b"\xdf\x80", "000102030405060708090a0b0c0d0e0f")
    assert one.logits == "0001020304050607"
    assert (other.right, other.test_part, other.logits) == (b"", "", "")


def test_the_only_class_that_is_predicted_is_of_finite_logits() -> None:
    """One class for every test sample of all clients; not where samples have no prediction and count as class 0."""
    every = {0: evaluated(3, 0), 2: evaluated(1, 0)}
    assert lines_of(report(evaluation=every), federation()).round.figures.only_class == 0
    lost = {**every, 2: evaluated(1, 0, unpredicted=torch.tensor(1))}
    for other in (lost, {**every, 2: evaluated(0, 1)}, {0: evaluated(2, 1)}):
        assert lines_of(report(evaluation=other), federation()).round.figures.only_class is None


def test_further_views_have_names_of_their_own() -> None:
    """What a method shows beside its model stands as accuracy_NAME, per client and as the mean over clients."""
    view, right = tallied(torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 0]])), tallied(torch.diag(torch.tensor([1, 0, 0])))
    none = torch.zeros(3, 3, dtype=torch.int64)
    evaluation = {
        0: evaluated(1, 0, **{"before.test": view, "before.validation": view}),
        1: evaluated(1, 0, **{"before.test": right, "before.validation": view}),
        2: evaluated(1, 0, **{"before.test": none, "before.validation": view}),
    }
    lines = lines_of(report(evaluation=evaluation), federation())

    assert [c.of("accuracy_before") for c in lines.clients] == [0.5, 1.0, None]
    assert lines.round.figures.of("accuracy_before") == 0.75
    assert lines.round.accuracy == 1.0


def test_weights_are_sparse_rows_of_the_cohort() -> None:
    """A mixture is written as its entries that are not zero, rounded to six digits, by the cohort's ids."""
    weights = torch.tensor([[0.0, 0.0, 1 / 3, 2 / 3], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    lines = lines_of(report(weights=weights), federation())

    assert lines.relations == [RelationLine(7, {1: {2: 0.333333, 3: 0.666667}, 3: {0: 1.0}})]


def test_clusters_have_sizes_and_an_index() -> None:
    """Clusters are written as labels; sizes count the known ones; the index compares with the true groups."""
    clusters = torch.tensor([0, 2, 0, -1])
    lines = lines_of(report(clusters=clusters, evaluation={0: evaluated(1, 0)}), federation())

    assert lines.relations == [RelationLine(7, clusters=(0, 2, 0, -1))]
    assert lines.round.cluster_sizes == (2, 0, 1)
    assert lines.round.figures.ari == 1.0  # clients 0 and 2 against client 1, as in the true groups


def test_sizes_of_clusters_have_an_entry_for_each() -> None:
    """Four clusters, the last two empty: four numbers; also while no client's cluster is known."""
    lines = lines_of(report(clusters=torch.tensor([0, 1, 0, 0]), cluster_count=4), federation())
    assert lines.round.cluster_sizes == (3, 1, 0, 0)
    unknown = lines_of(report(clusters=torch.full((4,), -1), cluster_count=4), federation())
    assert unknown.round.cluster_sizes == (0, 0, 0, 0)


def test_what_clients_choose_at_an_evaluation_stands_apart() -> None:
    """The server used {0, 2} and {1, 3}, which are the true groups; at the evaluation three choose 1, the fourth
    is not evaluated. Clients' lines say the choice; the round's index is the server's, with the other beside it."""
    evaluation = {i: evaluated(1, 0, cluster=torch.tensor(c)) for i, c in ((0, 1), (1, 1), (2, 1))}
    lines = lines_of(report(clusters=torch.tensor([0, 1, 0, 1]), cluster_count=2, evaluation=evaluation), federation())
    assert lines.relations == [RelationLine(7, clusters=(0, 1, 0, 1))]
    assert lines.round.cluster_sizes == (2, 2)
    assert (lines.round.figures.ari, lines.round.figures.ari_evaluated) == (1.0, 0.0)
    assert [line.cluster for line in lines.clients] == [1, 1, 1]
    plain = lines_of(report(clusters=torch.tensor([0, 1, 0, 1]), evaluation={0: evaluated(1, 0)}), federation())
    assert plain.round.figures.ari_evaluated is None
    assert plain.clients[0].cluster is None


def test_clusters_of_those_who_have_joined() -> None:
    """While late joiners are away, labels are compared with the groups of those who are there."""
    lines = lines_of(report(clusters=torch.tensor([5, 1]), evaluation={0: evaluated(1, 0)}), federation())

    assert lines.round.figures.ari == 1.0


def test_unknown_clusters_have_no_sizes_and_no_index() -> None:
    """As long as no client is grouped, sizes are empty and the index is None."""
    clusters = torch.full((4,), -1)
    lines = lines_of(report(clusters=clusters, evaluation={0: evaluated(1, 0)}), federation())

    assert lines.round.cluster_sizes == ()
    assert lines.round.figures.ari is None


def test_there_is_no_index_without_groups_or_without_evaluation() -> None:
    """The index stands in evaluated rounds of federations with true groups only."""
    clusters = torch.tensor([0, 1, 0, 1])
    ungrouped = Federation(federation().clients, 3)

    assert lines_of(report(clusters=clusters, evaluation={0: evaluated(1, 0)}), ungrouped).round.figures.ari is None


def test_notes_about_an_evaluation_stand_with_its_figures() -> None:
    """Without them the line is that of a round without an evaluation."""
    notes, evaluation = {"ratio": 1.5, "evaluated_share": 0.5}, {0: evaluated(3, 1)}
    line = lines_of(report(notes=notes, evaluation=evaluation, bytes_evaluation=9), federation()).round
    assert (line.notes, line.figures.notes) == ({"ratio": 1.5}, {"evaluated_share": 0.5})
    assert unevaluated(line) == lines_of(report(notes={"ratio": 1.5}), federation()).round


def test_lines_survive_json_unchanged() -> None:
    full = report(
        weights=torch.eye(4, dtype=torch.float64)[[1, 3]],
        clusters=torch.tensor([0, 1, 0, 1]),
        notes={"a": 0.1},
        evaluation={i: evaluated(i, 1) for i in range(4)},
    )
    lines = lines_of(full, federation())
    for line in (lines.round, *lines.clients, *lines.relations):
        assert msgspec.json.decode(msgspec.json.encode(line), type=type(line)) == line
