"""Whether a run diverged: each respect on a case made for it, and what is not divergence."""

from __future__ import annotations

from typing import Any

import pytest

from fedkin.evaluate import diverged
from fedkin.evaluate.divergence import ADVICE, advice, not_finite, sentence

BAD = "model holds inf, expected finite numbers up to 1e+08; the training may diverge"


def uploads(t: int, good: int, bad: int, why: str = BAD) -> dict[str, Any]:
    """A round without an evaluation in which some uploads were used and others were not."""
    refused = {str(good + i): why for i in range(bad)}
    return {"round": t, "answered": list(range(good)), "refused": refused, "missing": {}, "evaluated": False}


def evaluated(t: int, lost: int, of: int, without_test: int = 0) -> dict[str, Any]:
    """An evaluated round in which some clients predict NaN."""
    found = {"round": t, "accuracy": 0.1, "evaluated": True, "clients": of, "clients_without_test": without_test}
    return {**found, **({"unpredicted": list(range(lost))} if lost else {})}


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


def test_rounds_without_uploads_say_nothing() -> None:
    """Nobody answered in round 3: rounds 2 and 4 are one stretch."""
    empty = {"round": 3, "answered": [], "refused": {}, "missing": {"0": "did not answer"}, "evaluated": False}
    assert diverged([uploads(1, 4, 0), uploads(2, 0, 4), empty, uploads(4, 0, 4)]) == 2


def test_other_refusals_are_no_sign_of_it() -> None:
    """A wrong shape, or an answer to an evaluation that cannot be used."""
    assert diverged([uploads(1, 0, 3, "model is torch.float32 [3], expected torch.float32 [4]")]) is None
    assert diverged([uploads(1, 1, 2, "evaluation: counts is not finite")]) is None


def test_uploads_that_secure_aggregation_kept_back() -> None:
    """They never leave the client: the answer is missing, for its numbers."""
    line = uploads(2, 1, 0) | {"missing": {"1": "its numbers cannot be added up: they are not finite", "2": "NaN"}}
    assert diverged([line]) == 2
    assert diverged([line | {"missing": {"1": "did not answer", "2": "came too late"}}]) is None


def test_models_that_predict_nothing() -> None:
    """A run without uploads (Local) can diverge: more than half of those evaluated, rounds 4 and 6; training
    rounds between evaluations do not break the stretch."""
    rounds = [evaluated(2, 2, 4), uploads(3, 4, 0), evaluated(4, 3, 4), uploads(5, 4, 0), evaluated(6, 4, 4)]
    assert diverged(rounds) == 4
    assert diverged(rounds[:1]) is None
    assert diverged([evaluated(1, 3, 4, without_test=2)]) is None


def test_of_both_respects_the_earlier_round_counts() -> None:
    """Uploads fail from round 3 on, models predict NaN from round 2 on; and the other way round."""
    both = [{**uploads(t, 4 * (t < 3), 4 * (t >= 3)), **evaluated(t, 4 * (t >= 2), 4)} for t in (1, 2, 3)]
    assert diverged(both) == 2
    other = [{**uploads(t, 4 * (t < 2), 4 * (t >= 2)), **evaluated(t, 4 * (t >= 3), 4)} for t in (1, 2, 3)]
    assert diverged(other) == 2


def test_an_accuracy_that_collapses_is_not_divergence() -> None:
    """Numbers are finite."""
    assert diverged([{"round": 1, "accuracy": 0.9}, {"round": 2, "accuracy": 0.0}]) is None
    assert diverged([{"round": 1, "accuracy": 0.9}, {"round": 2, "accuracy": float("nan")}]) == 2


@pytest.mark.parametrize(("reason", "said"), [(BAD, True), ("model holds NaN", True), ("no information", False)])
def test_reasons(reason: str, said: bool) -> None:
    """Whole words only."""
    assert not_finite(reason) is said


def test_the_sentence_says_what_to_try() -> None:
    assert sentence(12, []).startswith("training diverged from round 12 on")
    assert "smaller learning rate (--lr)" in sentence(12, [])


SENT = f"{BAD}; had been sent NaN or infinity in body, head"


def test_what_the_server_spoilt_is_no_matter_of_the_learning_rate() -> None:
    """Models predict NaN after round 2, and in round 3 most clients had been sent NaN; a round before, and one of
    attackers, say nothing."""
    rounds = [uploads(1, 4, 0), {**uploads(2, 3, 1), **evaluated(2, 4, 4)}, uploads(3, 0, 4, SENT)]
    assert diverged(rounds) == 2
    assert "what the server sends (body, head) is not finite" in sentence(2, rounds)
    assert "--lr" not in sentence(2, rounds)
    kept_back = {**uploads(3, 0, 0), "missing": {"0": SENT, "1": "did not answer"}}
    assert "body, head" in advice(2, [*rounds[:2], kept_back])


def test_clients_that_diverge_first_are_the_cause() -> None:
    """The server sent NaN to a half of them at most, or only in a later round."""
    mixed = {**uploads(3, 0, 2), "refused": {"0": BAD, "1": SENT}}
    assert advice(3, [uploads(1, 0, 4, SENT), uploads(2, 4, 0), mixed]) == ADVICE
    assert advice(3, [uploads(3, 0, 4), uploads(4, 0, 4, SENT)]) == ADVICE
