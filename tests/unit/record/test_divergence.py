"""Whether a run diverged: each respect on a case made for it, and what is not divergence."""

from __future__ import annotations

from msgspec.structs import replace

from fedkin.core.refusals import Code, Refused
from fedkin.record.divergence import ADVICE, advice, diverged, sentence
from fedkin.record.lines import Figures, RoundLine
from madeup import round_line


def uploads(t: int, good: int, bad: int, why: Code = "not-finite") -> RoundLine:
    """A round without an evaluation in which some uploads were used and others were not."""
    refused = {good + i: why for i in range(bad)}
    return round_line(t, evaluated=False, answered=tuple(range(good)), refused=refused)


def evaluated(t: int, lost: int, of: int, untested: int = 0) -> RoundLine:
    """An evaluated round in which some clients predict NaN."""
    return round_line(t, accuracy=0.1, clients=of, untested=untested, unpredicted=tuple(range(lost)))


def both(t: int, good: int, bad: int, lost: int) -> RoundLine:
    """A round with uploads and an evaluation of four clients."""
    return replace(uploads(t, good, bad), figures=evaluated(t, lost, 4).figures)


def test_the_first_of_the_failed_rounds_at_the_end() -> None:
    """More than half of the uploads are refused in rounds 3 to 5; a failed round before a good one does not count."""
    good, bad = (4, 0), (1, 3)
    rounds = [uploads(t, *kind) for t, kind in enumerate((bad, good, bad, bad, bad), start=1)]
    assert diverged(rounds) == 3
    assert diverged(rounds[:2]) is None
    assert diverged([]) is None


def test_half_of_the_uploads_is_not_enough() -> None:
    """Attackers below one half, or a few clients, are not a diverged run: the others' uploads are used."""
    assert diverged([uploads(1, 2, 2)]) is None
    assert diverged([uploads(1, 2, 3)]) == 1
    assert diverged([uploads(1, 2, 3, "too-large")]) == 1


def test_rounds_without_uploads_say_nothing() -> None:
    """Nobody answered in round 3: rounds 2 and 4 are one stretch."""
    assert diverged([uploads(1, 4, 0), uploads(2, 0, 4), uploads(3, 0, 1, "gone"), uploads(4, 0, 4)]) == 2


def test_other_refusals_are_no_sign_of_it() -> None:
    """A wrong shape; an answer to a question or an evaluation that cannot be used; uploads that did not arrive."""
    assert diverged([uploads(1, 0, 3, "shape")]) is None
    assert diverged([uploads(1, 1, 3, "late")]) is None
    for stage in ("query", "evaluate"):
        assert diverged([round_line(1, refused=dict.fromkeys(range(3), "not-finite"), stage=stage)]) is None


def test_uploads_that_secure_aggregation_kept_back() -> None:
    """They never leave the client, for its numbers."""
    assert diverged([uploads(2, 1, 2, "not-summable")]) == 2


def test_models_that_predict_nothing() -> None:
    """A run without uploads (Local) can diverge: more than half of those evaluated, rounds 4 and 6; training
    rounds between evaluations do not break the stretch."""
    rounds = [evaluated(2, 2, 4), uploads(3, 4, 0), evaluated(4, 3, 4), uploads(5, 4, 0), evaluated(6, 4, 4)]
    assert diverged(rounds) == 4
    assert diverged(rounds[:1]) is None
    assert diverged([evaluated(1, 3, 4, untested=2)]) is None


def test_of_both_respects_the_earlier_round_counts() -> None:
    """Uploads fail from round 3 on, models predict NaN from round 2 on; and the other way round."""
    assert diverged([both(t, 4 * (t < 3), 4 * (t >= 3), 4 * (t >= 2)) for t in (1, 2, 3)]) == 2
    assert diverged([both(t, 4 * (t < 2), 4 * (t >= 2), 4 * (t >= 3)) for t in (1, 2, 3)]) == 2


def test_an_accuracy_that_collapses_is_not_divergence() -> None:
    """Numbers are finite."""
    assert diverged([RoundLine(t, figures=Figures(accuracy=a)) for t, a in ((1, 0.9), (2, 0.0))]) is None


def test_the_sentence_says_what_to_try() -> None:
    assert sentence(12, []).startswith("training diverged from round 12 on")
    assert "smaller learning rate (--lr)" in sentence(12, [])


def spoilt(t: int, good: int, clients: int) -> RoundLine:
    """A round in which clients had been sent NaN."""
    why = tuple(Refused("sent-not-finite", "body, head", stage="update", client=i) for i in range(clients))
    return replace(uploads(t, good, 0), refused=why)


def test_what_the_server_spoilt_is_no_matter_of_the_learning_rate() -> None:
    """Models predict NaN after round 2, and in round 3 most clients had been sent NaN; a round before, and one of
    attackers, say nothing."""
    rounds = [uploads(1, 4, 0), both(2, 3, 1, 4), spoilt(3, 0, 4)]
    assert diverged(rounds) == 2
    assert "what the server sends (body, head) is not finite" in sentence(2, rounds)
    assert "--lr" not in sentence(2, rounds)


def test_clients_that_diverge_first_are_the_cause() -> None:
    """The server sent NaN to a half of them at most, or only in a later round."""
    mixed = replace(spoilt(3, 0, 1), refused=(*spoilt(3, 0, 1).refused, *uploads(3, 1, 1).refused))
    assert advice(3, [spoilt(1, 0, 4), uploads(2, 4, 0), mixed]) == ADVICE
    assert advice(3, [uploads(3, 0, 4), spoilt(4, 0, 4)]) == ADVICE
