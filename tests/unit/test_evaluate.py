"""Scores, summaries, final figures and verdicts, with numbers worked out by hand."""

from functools import partial

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from fedkin.core.errors import DataError
from fedkin.core.refusals import Refused
from fedkin.core.samples import tally
from fedkin.evaluate import (
    Against,
    Conclusion,
    Harmed,
    adjusted_rand,
    against,
    details,
    difference,
    gain_over,
    judge,
    only_class,
    score,
    scores,
)
from fedkin.evaluate import verdict as verdict_on
from fedkin.evaluate.warnings import collapsed
from fedkin.record.figures import (
    BEST,
    TargetReached,
    best,
    final,
    final_by_client,
    over,
    span,
    stop_round,
    summarise,
    to_target,
    window,
)
from fedkin.record.lines import ClientLine
from madeup import answers, changed, client_line, round_line, rounds
from refusals import refuses
from toys import tallied

verdict = partial(verdict_on, reference="Local")


def client(correct: int, n: int, validation: float | None = None, f1: float | None = None, **more) -> ClientLine:
    """A line with the given counts; everything else empty."""
    held = {} if validation is None else {"n_validation": 10, "correct_validation": 10 * validation}
    known = {"n_test": n, "correct": correct, "macro_f1": f1, "test_classes": min(n, 1), **held}
    return ClientLine(1, 0, **{**known, **more})


# ---- one client
def of_matrix(client, test, validation, counts, **limits):
    """The line of a client with these confusion matrices, rows true."""
    held = torch.zeros_like(tallied(test)) if validation is None else tallied(validation)
    return scores(1, [client], tallied(test)[None], held[None], counts[None], **limits)[0]


def test_a_tally_counts_by_class():
    """Three samples of class 0, one taken for 2, one of class 1; the only class predicted by all clients with
    samples."""
    found = tally(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 2, 1]), 3)
    assert found.tolist() == [[3, 1, 0], [2, 1, 1], [2, 1, 0]]
    assert found.dtype == torch.int64
    parts = torch.stack([tallied(torch.tensor(m)) for m in ([[0, 2], [0, 1]], [[0, 0], [0, 0]], [[1, 0], [1, 0]])])
    assert only_class(parts[:2]) == 1
    assert only_class(parts[2:]) == 0
    assert only_class(parts) is None
    assert only_class(parts[1:2]) is None


def test_macro_f1_is_over_the_union_of_true_and_predicted_classes():
    """Five of class 0 (one taken for 7) and five of class 1 (all right): F1 = 8/9, 1 and 0 (class 7), mean 17/27.

    Accuracy is .9; the other seven classes, neither true nor predicted, have no part.
    """
    true = torch.tensor([0] * 5 + [1] * 5)
    predicted = torch.tensor([0] * 4 + [7] + [1] * 5)
    result = score(tally(true, predicted, 10), torch.ones(10, dtype=torch.int64))
    assert result.accuracy == pytest.approx(0.9)
    assert result.macro_f1 == pytest.approx(17 / 27)
    assert round(result.macro_f1, 5) == 0.62963


def test_classes_are_few_medium_many_or_unseen_by_training_counts():
    """Counts 0, 1, 29, 30, 80, 81: unseen, few, few, medium, medium, many; samples are grouped by their true class."""
    counts = torch.tensor([0, 1, 29, 30, 80, 81])
    test = torch.diag(torch.tensor([0, 1, 2, 3, 4, 5]))
    test[0, 5] = 2  # unseen class: two samples, both taken for the many class
    test[5, 3] = 5  # many class: five right, five taken for a medium class
    result = of_matrix(0, test, None, counts)
    assert result.unseen == (0, 2)
    assert result.few == (3, 3)
    assert result.medium == (7, 7)
    assert result.many == (5, 10)
    assert result.n_test == 2 + 3 + 7 + 10


def test_balanced_accuracy_and_the_constant_answer():
    """The mean recall of the classes tested; the constant answer is chosen in training and counted in test."""
    constant = of_matrix(0, torch.tensor([[0, 2, 0], [0, 23, 0], [0, 0, 0]]), None, torch.tensor([9, 80, 0]))
    assert (constant.accuracy, constant.balanced) == (0.92, 0.5)
    better = of_matrix(0, torch.tensor([[1, 1, 0], [4, 19, 0], [0, 0, 0]]), None, torch.tensor([9, 80, 0]))
    assert better.balanced == pytest.approx((1 / 2 + 19 / 23) / 2)
    assert better.accuracy == pytest.approx(20 / 25)
    assert of_matrix(0, torch.zeros(2, 2, dtype=torch.int64), None, torch.tensor([1, 1])).balanced is None
    test = torch.tensor([[6, 0], [4, 0]])
    assert of_matrix(0, test, None, torch.tensor([5, 7])).majority == 4
    assert of_matrix(0, test, None, torch.tensor([7, 7])).majority == 6  # the first of equals
    assert of_matrix(0, test, None, torch.tensor([0, 0])).majority is None  # counts that a client keeps to itself


@pytest.mark.parametrize("test", [torch.zeros(2, 3, dtype=torch.int64), -torch.ones(3, 2, dtype=torch.int64)])
def test_bad_parts_are_refused_by_name(test):
    """A wrong shape or a negative count names the client and the part."""
    with refuses(DataError, "client 5: the test part"):
        scores(1, [5], test[None], torch.zeros(1, 3, 2, dtype=torch.int64), torch.tensor([[1, 1]]))


def test_scores_of_many_are_those_of_each_alone():
    """To the last bit, whatever classes a client has: means over 1 to 12 classes, clients without samples or counts."""
    rng = np.random.default_rng(0)
    shares = rng.random((60, 12)) < rng.random((60, 1))
    test = torch.from_numpy(rng.integers(0, 9, (60, 12, 12)) * shares[:, :, None] * shares[:, None])
    validation, counts = test.flip(0), torch.from_numpy(rng.integers(0, 120, (60, 12)) * shares)
    together = scores(1, range(60), tallied(test), tallied(validation), counts)
    assert together == [of_matrix(i, test[i], validation[i], counts[i]) for i in range(60)]
    for i, one in enumerate(together):
        right, of = test[i].diagonal(), test[i].sum(1)
        there = of > 0
        assert one.balanced == (float((right[there] / of[there].double()).mean()) if there.any() else None)
    assert None in {one.balanced for one in together}


# ---- all clients
def test_summary_by_hand():
    """Clients 1/2 and 9/10: mean .7, pooled 10/12, std .2, worst decile = the worst one = .5."""
    summary = summarise([client(1, 2, 0.4, f1=0.3), client(9, 10, 0.8, f1=0.9)])
    assert summary.accuracy == pytest.approx(0.7)
    assert summary.pooled == pytest.approx(10 / 12)
    assert summary.std == pytest.approx(0.2)
    assert summary.worst_decile == pytest.approx(0.5)
    assert summary.macro_f1 == pytest.approx(0.6)
    assert summary.macro_f1_weighted == pytest.approx((2 * 0.3 + 10 * 0.9) / 12)
    assert summary.validation == pytest.approx(0.6)


@pytest.mark.parametrize(("clients", "worst"), [(20, 2), (21, 3), (30, 3), (10, 1), (9, 1)])
def test_worst_decile_is_the_mean_of_the_worst_ceil_tenth(clients, worst):
    """Accuracies 0/100, 1/100, ...: of 20 clients the mean of the 2 worst (.005), of 30 exactly 3, never 4."""
    summary = summarise([client(i, 100) for i in reversed(range(clients))])
    assert summary.worst_decile == pytest.approx(sum(range(worst)) / worst / 100)


def test_a_constant_answer_is_a_mean_over_clients():
    """Its share of the test part, and balanced by the classes that were tested; unknown counts are left out."""
    scores = [client(9, 10, balanced=0.5, majority=9), client(1, 2, balanced=0.75, majority=1)]
    assert summarise(scores).balanced == pytest.approx(0.625)
    assert summarise(scores).majority == pytest.approx(0.7)
    assert summarise([*scores, client(1, 2)]).majority == pytest.approx(0.7)
    scores = [client(1, 4, majority=n, test_classes=k) for n, k in ((3, 2), (4, 1), (0, 2))]
    assert summarise(scores).majority_balanced == pytest.approx(0.5)
    assert summarise([*scores, client(1, 2)]).majority_balanced == pytest.approx(0.5), "counts are not known"
    assert summarise([client(1, 2)]).majority_balanced is None
    test = torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]])
    assert of_matrix(0, test, None, torch.tensor([5, 7, 1])).test_classes == 2


def test_summaries_of_clients():
    """Class groups are pooled; clients without test samples are left out of figures of the test part and counted."""
    summary = summarise([client(1, 2, few=(1, 2)), client(3, 8, few=(3, 8))])
    assert summary.few == pytest.approx(0.4)
    assert summary.medium is summary.many is summary.unseen is None
    summary = summarise([client(0, 0, 0.2), client(1, 2, 0.6)])
    assert (summary.clients, summary.untested) == (1, 1)
    assert (summary.accuracy, summary.std) == (0.5, 0.0)
    assert summary.validation == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("labels", "groups", "expected"),
    [
        ([0, 0, 1, 1], [5, 5, 2, 2], 1.0),  # equal up to names
        ([0, 0, 1, 2], [0, 0, 1, 1], 4 / 7),  # Hubert and Arabie's formula: (1 - 1/3) / (3/2 - 1/3)
        ([0, 1, 0, 1], [0, 0, 1, 1], -0.5),  # (0 - 2/3) / (2 - 2/3)
        ([0, -1, 1, 1, 0], [0, 0, 1, 1, -1], 1.0),  # unknown clients do not count
    ],
)
def test_adjusted_rand_index(labels, groups, expected):
    """Known values, by Hubert and Arabie's formula."""
    assert adjusted_rand(torch.tensor(labels), torch.tensor(groups)) == pytest.approx(expected)


# ---- final figures
@pytest.mark.parametrize(
    ("total", "wanted"),
    [
        (1, [1]),
        (4, [4]),
        (5, [5]),
        (6, [5, 6]),
        (10, [9, 10]),
        (49, list(range(40, 50))),
        (50, list(range(41, 51))),
        (100, list(range(91, 101))),
    ],
)
def test_the_window_is_the_last_fifth_at_most_ten_rounds(total: int, wanted: list[int]):
    """t > 0.8 T: 8 of 10 is not in it, 9 is; with T = 49, 39.2 < t; from T = 50 on it has ten rounds."""
    assert window(range(1, total + 1), total) == wanted


def test_the_window_holds_evaluated_rounds_only():
    """The last fifth of the run: 85 to 100 of 100; the mean over 11 and 12 where 13 was not evaluated."""
    assert window(range(5, 101, 5), 100) == [85, 90, 95, 100]
    assert window(range(1, 61), 100) == [60]
    assert window([3, 3, 2], 3) == [3]
    assert window([], 7) == []
    lines = rounds(*(i / 100 for i in range(1, 13)))
    result = final([*lines, round_line(13, evaluated=False)])
    assert result.accuracy == pytest.approx(0.115)
    assert (result.rounds, span(result.rounds)) == ((11, 12), "rounds 11 to 12")


def one(number: int, round: int, correct: int, n: int = 10, **more) -> ClientLine:
    """A line of a client; half of the correct ones are of a class with few samples, and n/2 of those."""
    known = {"majority": n // 2, "test_classes": 2, "macro_f1": correct / n / 2, "balanced": correct / n / 4}
    return client_line(round, number, correct / n, n, few=(correct / 2, n / 2), **known, **more)


def test_final_figures_are_of_all_clients_where_some_are_missing_in_a_round():
    """Rounds 9 and 10 of ten. Client 0 has 2 and 4 of 10; 1 was there in round 10 alone, with 6 of 10, and has that in
    both; 2 was last evaluated in round 5, with 15 of 20. So round 9 has .2, .6, .75, round 10 .4, .6, .75."""
    lines = rounds(*[0.2] * 10, clients=3)
    own = [one(2, 4, 0, 20), one(2, 5, 15, 20, validation=0.5),
           one(0, 9, 2, accuracy_trained=0.2),
           one(0, 10, 4, accuracy_trained=0.6), one(1, 10, 6, validation=0.3)]  # fmt: skip
    assert final(lines, clients=lambda: own).accuracy == pytest.approx(0.2), "all were there in every round"
    lines[8], lines[9] = changed(lines[8], clients=1), changed(lines[9], clients=2)
    found = final(lines, clients=lambda: own)
    each = np.array([[0.2, 0.6, 0.75], [0.4, 0.6, 0.75]])
    assert found.accuracy == pytest.approx(each.mean())
    assert found.std == pytest.approx(each.std(1).mean())
    assert found.worst_decile == pytest.approx((0.2 + 0.4) / 2)
    assert (found.macro_f1, found.balanced) == (pytest.approx(each.mean() / 2), pytest.approx(each.mean() / 4))
    pooled = ((2 + 6 + 15) / 40 + (4 + 6 + 15) / 40) / 2
    assert (found.pooled, found.few, found.many) == (pytest.approx(pooled), pytest.approx(pooled), None)
    assert found.macro_f1_weighted == pytest.approx(pooled / 2)
    assert (found.validation, found.views["trained"]) == (pytest.approx(0.4), pytest.approx(0.4))
    assert (found.majority, found.majority_balanced) == (0.5, 0.5)
    assert found.accuracy == pytest.approx(np.mean([*final_by_client(own, 10).values()]))
    assert final(lines).accuracy == pytest.approx(0.2), "no lines of clients"


GONE = Refused("gone", stage="evaluate", client=1)


@pytest.mark.parametrize("told", [{"absent": (1,)}, {"refused": (GONE,)}])
def test_other_clients_are_missing_in_other_rounds(told: dict[str, object]):
    """Of three clients 2 was gone in the averaged rounds and 1 before them: two were there in each round."""
    lines = rounds(*[0.2] * 10, clients=2)
    own = [one(0, 9, 2), one(0, 10, 2), one(1, 8, 6), one(2, 9, 7), one(2, 10, 7)]
    lines[9] = replace(lines[9], **told)
    assert final(lines, clients=lambda: own).accuracy == pytest.approx(0.5)
    assert final(lines, 9, lambda: own).accuracy == pytest.approx(0.2), "none is known to be missing in round 9"


def test_the_best_round_is_chosen_on_validation():
    """Test is highest in round 3, validation in round 2; without validation there is none."""
    result = best(rounds(0.5, 0.6, 0.9, validation=[0.1, 0.8, 0.7]))
    assert result is not None
    assert (result.round, result.accuracy, result.figures.validation) == (2, 0.6, 0.8)
    assert best(rounds(0.5, 0.9)) is None


@pytest.mark.parametrize(
    ("validation", "after", "wanted"),
    [
        ([0.5, 0.5, 0.4, 0.6, 0.6, 0.5], 2, 3),  # an equal figure is not a gain
        ([0.5, 0.5, 0.6, 0.6, 0.5, 0.4], 3, 6),  # a gain begins the count again
        ([0.5, None, 0.5, None, 0.5, 0.6], 2, 5),  # without a figure an evaluation is not counted
        ([0.5, 0.4, 0.5, 0.6, 0.5, 0.7], 3, None),
        ([0.5, 0.4, 0.4, 0.4, 0.4, 0.4], None, None),
        ([None] * 6, 1, None),
    ],
)
def test_a_run_ends_after_evaluations_without_a_gain(validation, after, wanted):
    """The round that completes the evaluations in a row; test accuracy, which rises here, is not looked at."""
    assert stop_round(rounds(*[0.1 * t for t in range(6)], validation=validation), after) == wanted


def test_a_chosen_round_and_the_cost_of_a_target():
    """A client that was not evaluated in it keeps its last figure; .5 is first reached in round 3, with 45 bytes."""
    lines = rounds(0.5, 0.6, 0.9)
    assert final(lines, chosen=2).accuracy == 0.6
    assert final(lines, chosen=2).rounds == (2,)
    clients = [client_line(t, 0, t / 10) for t in (1, 2, 3)]
    clients += [client_line(3, 1, 0.7)]
    assert final_by_client(clients, chosen=2) == {0: 0.2, 1: 0.7}
    assert f"mean over clients {over(BEST)}" == "mean over clients in each run's best round on validation data"
    lines = rounds(0.1, None, 0.5, 0.7)
    lines[1] = replace(lines[1], figures=None)
    assert to_target(lines, 0.5) == TargetReached(round=3, rounds=3, bytes=45)
    assert to_target(lines, 0.8) is None


def test_a_client_s_final_figure_is_over_its_own_rounds():
    """Those in the run's window, else its last one."""
    lines = [client_line(t, 0, t / 10) for t in (10, 9, 8, 1)]
    lines += [client_line(t, 1, t / 20) for t in range(1, 10)]
    lines += [client_line(t, 2, t / 100) for t in (7, 6)]
    lines += [client_line(10, 3, None)]
    assert final_by_client(lines) == {0: pytest.approx(0.95), 1: pytest.approx(0.45), 2: pytest.approx(0.07)}
    lines = [client_line(t, 0, t / 10) for t in range(1, 8)]
    assert final_by_client(lines, total=10) == {0: pytest.approx(0.7)}
    assert final_by_client(lines) == {0: pytest.approx(0.65)}


# ---- against Local, and the verdict
def test_equal_means_of_other_sums_are_no_gain():
    """.1 + .2 is not .3 in floats: a client of equal figures has gained nothing, nor have two that even out."""
    assert gain_over(0.1 + 0.2, 0.3) == gain_over(0.3, 0.1 + 0.2) == 0.0
    assert gain_over(0.3 + 1e-9, 0.3) > 0
    equal = against({0: 0.3, 1: 0.5}, {0: 0.1 + 0.2, 1: 0.5})
    assert (equal.gains, equal.mean, equal.identical) == ({0: 0.0, 1: 0.0}, 0.0, True)
    even = [{0: 0 / 12 - 1 / 12}, {0: 3 / 12 - 2 / 12}]
    assert even[0][0] + even[1][0] != 0
    assert difference(even).mean == 0.0


def test_single_test_samples_are_paired_by_client_and_digest():
    """Client 0: samples 1 0 1 become 1 1 0, so 0, +1, -1; client 1 was tested on other samples, client 2 only once."""
    first = {0: answers(b"\xa0", 3, "x"), 1: answers(b"\x00", 3, "y"), 2: answers(b"\x00", 3, "z")}
    second = {0: answers(b"\xc0", 3, "x"), 1: answers(b"\x00", 3, "other")}
    even = dict.fromkeys(range(3), 0.5)
    result = against(even, even, answers=(first, second))
    assert {c: (one.net.tolist(), one.digest) for c, one in result.changed.items()} == {0: ([0, 1, -1], "x")}


def test_only_common_clients_are_compared():
    """Others are counted; nothing in common is an error; single clients are compared in the last round."""
    result = against({0: 0.5, 1: 0.5}, {1: 0.6, 2: 0.9})
    assert list(result.gains) == [1]
    assert result.left_out == 2
    with refuses(DataError, "same federation"):
        against({0: 0.5}, {1: 0.5})
    assert against({0: 0.5}, {0: 0.6}).single == {0: pytest.approx(0.1)}
    one = against({0: 0.5}, {0: 0.6}, single=({0: 0.7, 1: 0.1}, {0: 0.5, 1: 0.2}))
    assert (one.mean, one.single) == (pytest.approx(0.1), {0: pytest.approx(-0.2)})


def shifted(*gains: float) -> Against:
    """A comparison with these gains, Local at .5 everywhere."""
    return against(dict.fromkeys(range(len(gains)), 0.5), {i: 0.5 + g for i, g in enumerate(gains)})


def same(logits: tuple[str, str] = ("aa", "aa"), clients: int = 2) -> Against:
    """A comparison of clients with the same right answers for eight samples each, and with these digests of logits."""
    first, second = ({i: answers(b"\xf0", 8, f"{i}", one) for i in range(clients)} for one in logits)
    even = dict.fromkeys(range(clients), 0.5)
    return against(even, even, answers=(first, second))


def test_equal_accuracies_alone_are_no_collapse() -> None:
    """Of one seed each: other test samples are right in the first, nothing is known of them in the second, the same are
    right under other logits in the third, and logits are unknown in the fourth."""
    bits = [{0: answers(bytes([b]), 8, "x", "aa")} for b in (0b11110000, 0b00001111)]
    seeds = [against({0: 0.5}, {0: 0.5}, answers=(bits[0], bits[1])), shifted(0.0), same(("aa", "bb")), same(("", ""))]
    for one in seeds:
        for several in ([one], [same(), one]):
            assert not judge(several).collapsed
            assert "predicts exactly" not in verdict("M", several)
    assert judge([same(), same()]).collapsed
    assert verdict("M", [same(), same()]) == "M: predicts exactly as Local for every client"
    assert verdict("M", same(("aa", "bb"))) == "M: the same right answers as Local on 16 test samples"


def test_the_number_of_test_samples_with_the_same_right_answers() -> None:
    """Of every client, whatever the logits; none where one sample's answer differs, or is not known in a seed."""
    assert same(("aa", "bb")).same_answers == same().same_answers == 16
    bits = [{0: answers(bytes([b]), 8, "x")} for b in (0b11110000, 0b11010000)]
    assert against({0: 0.5}, {0: 0.4}, answers=(bits[0], bits[1])).same_answers == 0
    assert against({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}, answers=(bits[0], bits[0])).same_answers == 0
    assert judge([same(), same(("aa", "bb"))]).same_answers == 32
    assert judge([same(), shifted(0.0, 0.0)]).same_answers == 0


def test_a_safe_form_that_takes_nothing_has_not_collapsed() -> None:
    """All clients may choose their model alone: no fault of settings. Next to FedAvg it would be one."""
    chosen = "FedAvg-safe (best): predicts exactly as Local for every client: held-out samples showed no client a gain"
    assert verdict("FedAvg-safe (best)", same(), stays_alone=True) == chosen
    (caveat,) = collapsed(same(), "alone", safe=True)
    assert caveat.text == "held-out samples showed none a gain."
    assert "no effect" in collapsed(same(), "average", safe=True)[0].text
    (caveat,) = collapsed(same(), "alone", safe=False)
    assert caveat.text.endswith("no client learns from another. Check its settings.")


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (shifted(*[0.04] * 18, *[-0.05] * 2), "M: ahead of Local in this one run by 3.1 points (likely +1.8 to +4.4)"),
        (shifted(*[-0.1] * 9, -0.2), "M: behind Local in this one run by 11.0 points (likely -13.3 to -8.7)"),
        (same(), "M: predicts exactly as Local for every client"),
        (shifted(*[0.25, -0.25] * 3), "M: level with Local in this one run (+0.0 points, likely -28.7 to +28.7)"),
        (shifted(0.3), "M: too few figures to tell it from Local (+30.0 points)"),
        (shifted(0.4, *[-0.05] * 5), "M: level with Local in this one run (+2.5 points, likely -16.8 to +21.8)"),
        (shifted(0.0001, 0.0), "M: too few figures to tell it from Local (less than 0.1 points above)"),
    ],
)
def test_verdict_of_one_seed(comparison, expected):
    """Ahead, behind, identical, level, one client, a majority against the mean, tiny; better and worse need seeds.

    Student's quantiles: 2.093 for 20 clients (standard error 27.7 / sqrt(20) / 10 = 0.619 points), 2.262 for ten,
    2.571 for six.
    """
    assert verdict("M", comparison) == expected


def test_verdict_over_seeds_gives_the_interval_over_them():
    """Seed means of 2, 3 and 4 points on three clients that gain the same: a standard error of 1 / sqrt(3), times
    Student's 4.303 for three seeds."""
    text = verdict("M", [shifted(*[0.01 * n] * 3) for n in (2, 3, 4)])
    assert text == "M: better than Local by 3.0 points (likely +0.5 to +5.5 over 3 seeds)"


@pytest.mark.parametrize(
    ("harmed", "of", "expected"),
    [
        (Harmed(0, 5, 10), "clients", "; between 0 and 5 of 10 clients are harmed"),
        (Harmed(3, 12, 150), "client results", "; between 3 and 12 of 150 client results are harmed"),
        (Harmed(1, 1, 10), "clients", "; 1 of 10 clients is harmed"),
        (Harmed(0, 0, 10), "clients", "; 0 of 10 clients are harmed"),
        (None, "clients", ""),
    ],
)
def test_a_verdict_gives_the_range_of_harmed_clients(harmed, of, expected):
    """The range where it is known, its ends once where they are equal; no count where it is not known."""
    found = Conclusion(difference([{i: 0.04 + 0.01 * (i % 2) for i in range(6)}]), harmed, of)
    assert details(found) == expected
