"""DA-PFL against numbers worked out by hand.

Formulas (arXiv 2403.09284). Eqs. 5-6: over the e classes that two clients share, with all 2e counts centred by their
common mean, ``c = (e/K)(2 - cos)``. Eq. 7: ``theta_ij = c_ij (1 - exp(-(|w_i - w_j|^2 + eps)/sigma))``. Eqs. 8-9:
``alpha`` is theta over the others, divided by its row sum, and ``w_i^g = sum_j alpha_ij w_j``. Eq. 10: client i
minimises ``F_i(w) + lam/2 |w - w_i^g|^2`` from its own last model.
"""

import math
from statistics import median

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.presets import preset, presets_of
from fedkin.core import Bundle, Samples, Training
from fedkin.methods import DAPFL
from fedkin.methods.dapfl import affinity
from toys import (
    ByHand,
    ClientData,
    apart,
    close,
    copies,
    draw,
    federation,
    logit_net,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    two_quadratics,
    vector_net,
)

FIRST = [80, 50, 20]
B = [[80, 50, 20, 0], [20, 50, 80, 0], [0, 0, 0, 60], [10, 0, 0, 30]]
MODELS = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
C = [[0.5, 1.0, 0.4], [1.0, 0.5, 0.8], [0.4, 0.8, 0.5]]
STATIC = [[0, 0.7142857142857143, 0.28571428571428575], [0.5555555555555556, 0, 0.4444444444444445], [1 / 3, 2 / 3, 0]]


def mixture(method: DAPFL, models: list[list[float]], c: list[list[float]] = C) -> torch.Tensor:
    return method.mixture(torch.tensor(models), torch.tensor(c, dtype=torch.float64))


def given(method: DAPFL, models: list[list[float]] = MODELS, c: list[list[float]] = C) -> torch.Tensor:
    """What `distribute` sends to three clients with these last models and this affinity."""
    hand = ByHand(method, vector_net(0.0, 0.0), [copies([0.0, 0.0], 4)] * len(models))
    hand.server = hand.server.but(bank=torch.tensor(models))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DAPFL, "affinity", lambda *_: torch.tensor(c, dtype=torch.float64))
        return hand.download(range(len(models))).rows.model


def known(hand: ByHand) -> torch.Tensor:
    """The affinity of all its clients."""
    return hand.method.affinity(hand.server, hand.at("distribute", range(len(hand.data))))


def counted(row: list[int]) -> Samples:
    """Samples with these class counts."""
    return Samples(torch.zeros(sum(row), 1), torch.arange(len(row)).repeat_interleave(torch.tensor(row)))


# ---- affinity ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("order", "value"),
    [
        ([80, 50, 20], 1.0),
        ([80, 20, 50], 1.5),
        ([50, 80, 20], 1.5),
        ([50, 20, 80], 2.5),
        ([20, 80, 50], 2.5),
        ([20, 50, 80], 3.0),
    ],
)
def test_affinity_of_six_orders(order: list[int], value: float) -> None:
    """The six orders of (80, 50, 20) against (80, 50, 20): centred (30, 0, -30), cos 1, 1/2, -1/2 or -1; c = 2 - cos,
    as all three of three classes are common."""
    close(affinity(torch.tensor([FIRST, order]))[0, 1], value, 1e-12)


def test_static_weights_of_figure_1() -> None:
    """Fig. 1's groups 1-4 have affinities 1, 1.5, 2.5, 3 to client 0 and so V2 weights .125, .1875, .3125, .375."""
    groups = [FIRST, [80, 50, 20], [80, 20, 50], [20, 80, 50], [20, 50, 80]]
    alpha = DAPFL(variant="v2").mixture(torch.zeros(5, 1), affinity(torch.tensor(groups)))
    close(alpha[0], [0, 0.125, 0.1875, 0.3125, 0.375], 1e-12)


@pytest.mark.parametrize(
    ("single", "floor", "wanted"),
    [
        (
            "floor",
            0.9,
            [[0.75, 2.25, 0.45, 0.45], [2.25, 0.75, 0.45, 0.45], [0.45, 0.45, 0.45, 0.45], [0.45, 0.45, 0.45, 0.5]],
        ),
        ("floor", 1.0, [[0.75, 2.25, 0.5, 0.5], [2.25, 0.75, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]),
        (
            "formula",
            0.9,
            [[0.75, 2.25, 0.225, 0.75], [2.25, 0.75, 0.225, 0.75], [0.225, 0.225, 0.25, 0.75], [0.75, 0.75, 0.75, 0.5]],
        ),
        (
            "formula",
            1.0,
            [[0.75, 2.25, 0.25, 0.75], [2.25, 0.75, 0.25, 0.75], [0.25, 0.25, 0.25, 0.75], [0.75, 0.75, 0.75, 0.5]],
        ),
    ],
)
def test_affinity_with_few_common_classes(single: str, floor: float, wanted: list[list[float]]) -> None:
    """Four clients and classes: c_01 = 3/4 * 3; pairs with at most one common class get ``floor`` times the smallest
    computed entry of the whole matrix, diagonal included (.5; with the formula for one common class .25)."""
    close(affinity(torch.tensor(B), single=single, floor=floor), wanted, 1e-12)


def test_affinity_divided_by_its_row_sums() -> None:
    """The normalisation of the authors' program on the same four clients."""
    c = affinity(torch.tensor(B))
    wanted = [
        [0.1923076923076923, 0.5769230769230769, 0.11538461538461538, 0.11538461538461538],
        [0.5769230769230769, 0.1923076923076923, 0.11538461538461538, 0.11538461538461538],
        [0.25, 0.25, 0.25, 0.25],
        [0.24324324324324323, 0.24324324324324323, 0.24324324324324323, 0.27027027027027023],
    ]
    close(c / c.sum(1, keepdim=True), wanted, 1e-12)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ([[50, 50], [50, 50]], [[1, 1], [1, 1]]),
        ([[50, 50], [30, 70]], [[1, 1], [1, 1]]),
        ([[100, 100, 100], [10, 10, 10]], [[1, 3], [3, 1]]),
        ([[80, 50, 20], [8, 5, 2]], [[1, 2.592803287899349], [2.592803287899349, 1]]),
    ],
)
def test_affinity_of_special_counts(counts: list[list[int]], wanted: list[list[float]]) -> None:
    """No spread counts as cos 1 (equal clients; (50, 50) about its own mean). Counts, not shares: ten times the data
    with equal shares gives cos -1, c = 3, the maximum; (80, 50, 20) against (8, 5, 2) gives 2.592803."""
    close(affinity(torch.tensor(counts)), wanted, 1e-12)


def test_affinity_of_one_common_class_by_the_formula() -> None:
    """One common class of two: u and v are opposite, so c = 1/2 * 3; the client's own entry is (classes it has)/2."""
    close(affinity(torch.tensor([[40, 0], [10, 70]]), single="formula"), [[0.5, 1.5], [1.5, 1.0]], 1e-12)


def test_affinity_without_any_common_class() -> None:
    """Nothing to compute (each client has one class of its own): all entries equal, so the mixture is uniform."""
    c = affinity(torch.tensor([[9, 0, 0], [0, 4, 0], [0, 0, 7]]))
    close(c, torch.ones(3, 3))
    close(DAPFL().mixture(torch.zeros(3, 2), c), [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]], 1e-12)


def test_affinity_from_proportions_ignores_size() -> None:
    """Class shares instead of counts: (80, 50, 20) and (8, 5, 2) have the same shares, cos 1, so c = 1, not 2.59."""
    y = torch.arange(3)
    data = [
        Samples(torch.zeros(n, 4), y.repeat_interleave(torch.tensor(s))) for n, s in ((150, FIRST), (15, [8, 5, 2]))
    ]
    close(known(ByHand(DAPFL(counts="proportions"), mlp(), data)), torch.ones(2, 2), 1e-9)
    close(known(ByHand(DAPFL(), mlp(), data))[0, 1], 2.592803287899349, 1e-9)


def test_least_affinity_is_that_of_all_that_have_joined() -> None:
    """Of the four clients of B, 0 to 2 take part: their own least entry is .75, that of all four .5, so pairs without
    overlap get .45. Before client 3 joins it is .75, and they get .675."""
    hand = ByHand(DAPFL(), logit_net(4), [counted(row) for row in B], present=3)
    for known, none in ((3, 0.675), (4, 0.45)):
        hand.join(known)
        c = hand.method.affinity(hand.server, hand.at("distribute", [0, 1, 2]))
        close(c, [[0.75, 2.25, none], [2.25, 0.75, none], [none] * 3], 1e-12)


def test_least_affinity_outlives_later_newcomers() -> None:
    """Client 3 of B, whose own entry is the least, joins first: newcomers with larger ones leave it at .5."""
    data = [counted(B[i]) for i in (3, 2, 0, 1)]
    hand = ByHand(DAPFL(), logit_net(4), data, present=2)
    hand.join(4)
    c = hand.method.affinity(hand.server, hand.at("distribute", [1, 2, 3]))
    close(c, [[0.45, 0.45, 0.45], [0.45, 0.75, 2.25], [0.45, 2.25, 0.75]], 1e-12)


def test_settings_of_the_affinity() -> None:
    """``single`` and ``floor`` of the method are those of its affinity; ``dynamic`` and ``v1-uniform`` have none, so
    that with equal models each of four clients is sent a third of each of the others."""
    data = [counted(row) for row in B]
    c = known(ByHand(DAPFL(single="formula", floor=1.0), logit_net(4), data))
    close(c[:2], [[0.75, 2.25, 0.25, 0.75], [2.25, 0.75, 0.25, 0.75]], 1e-12)
    for variant in ("dynamic", "v1-uniform"):
        sent = ByHand(DAPFL(variant=variant), logit_net(4), data).download(range(4))
        close(sent.weights, [[0.0 if i == j else 1 / 3 for j in range(4)] for i in range(4)], 1e-12)


# ---- mixture -------------------------------------------------------------------------------------------------------
def test_mixture_and_download() -> None:
    """Models (0,0), (1,0), (0,2): squared distances 1, 4, 5; f = .632121, .981684, .993262; theta = c f."""
    alpha = [
        [0, 0.6168267701860456, 0.38317322981395446],
        [0.44305542863599345, 0, 0.5569445713640065],
        [0.33073295628189886, 0.6692670437181012, 0],
    ]
    close(mixture(DAPFL(), MODELS), alpha, 1e-8)
    close(given(DAPFL()), [[0.6168267701860456, 0.7663464596279089], [0, 1.113889142728013], [0.6692670437181012, 0]])


def test_mixture_by_affinity_alone() -> None:
    """V2: alpha = c over the others divided by its row sum, whatever the models are."""
    close(mixture(DAPFL(variant="v2"), MODELS), STATIC, 1e-12)


def test_mixture_of_the_authors_program() -> None:
    """Distances not squared (1, 2, sqrt 5), self included with factor 1: row 0 = .338298, .427690, .234012."""
    code = preset(DAPFL, "code")
    alpha = [
        [0.338298095703698, 0.4276903626137169, 0.23401154168258506],
        [0.3423125324791844, 0.27076522642575973, 0.38692224109505585],
        [0.22165724619287622, 0.4579046089754144, 0.32043814483170935],
    ]
    down = [
        [0.4276903626137169, 0.4680230833651701],
        [0.27076522642575973, 0.7738444821901117],
        [0.4579046089754144, 0.6408762896634187],
    ]
    close(mixture(code, MODELS), alpha, 1e-8)
    close(given(code), down)


def test_equal_models_in_the_authors_program() -> None:
    """Their program sets the factor to 1 wherever 1 - exp(-d) is 0 in float32. Clients 0 and 1 never trained: models
    (0,0), (0,0), (0,2), so f = 1 between the two and 1 - e^-2 = .864665 to client 2. Row 0 of c f is .5, 1, .345866,
    sum 1.845866. With factor 1 on the diagonal alone the weights would be .591, 0, .409."""
    alpha = [
        [0.27087558397454264, 0.5417511679490853, 0.18737324807637204],
        [0.45626021036498854, 0.22813010518249427, 0.3156096844525171],
        [0.2249391343891922, 0.4498782687783844, 0.32518259683242345],
    ]
    models = [[0.0, 0.0], [0.0, 0.0], [0.0, 2.0]]
    close(mixture(preset(DAPFL, "code"), models), alpha, 1e-8)
    close(given(preset(DAPFL, "code"), models)[0], [0.0, 2 * 0.18737324807637204])
    close(mixture(DAPFL(distance="l2", include_self=True), models)[0], [0.591110, 0, 0.408890], 1e-6)


def test_first_round_in_the_authors_program() -> None:
    """All models equal: every factor is 1, so alpha is c divided by its row sums 1.9, 2.3, 1.7, diagonal included."""
    close(mixture(preset(DAPFL, "code"), [[0.3, -1.0]] * 3), [[v / sum(row) for v in row] for row in C], 1e-12)


def test_equal_models_are_those_at_distance_zero_in_float32() -> None:
    """exp(-1e-8) is 1 in float32, exp(-1e-7) is not: models 0 and 1e-8 have factor 1, 1e-7 of both about 1e-7."""
    alpha = mixture(preset(DAPFL, "code"), [[0.0], [1e-8], [1e-7]], [[1.0] * 3] * 3)
    close(alpha, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], 1e-6)
    assert bool((alpha[0, 2] > 0) & (alpha[2, 1] > 0))


def test_equal_models_among_large_ones() -> None:
    """Distances by inner products of rows of 10,007 are off by 1e-6; two equal rows have factor 1 all the same."""
    rows = torch.randn(5, 10_007, generator=torch.Generator().manual_seed(0))
    rows[4] = rows[0]
    alpha = preset(DAPFL, "code").mixture(rows, torch.ones(5, 5, dtype=torch.float64))
    close(alpha, [[0.2] * 5] * 5, 1e-12)


def test_clients_that_never_trained_are_the_common_start() -> None:
    """In round 1 every mixture is of copies of w0."""
    hand = ByHand(DAPFL(), vector_net(2.0, -3.0), [copies([0.0, 0.0], 4)] * 3)
    close(hand.download(range(3)).rows.model, [[2.0, -3.0]] * 3)


def test_running_statistics_are_no_part_of_distances() -> None:
    """Models that differ in their running statistics alone are equal: all three mix as in round 1."""
    net = mlp_with_batchnorm()
    hand = ByHand(DAPFL(variant="dynamic"), net, [federation()[0].train] * 3)
    bank = net.w0.repeat(3, 1)
    bank[2, net.buffers] += 5.0
    hand.server = hand.server.but(bank=bank)
    close(hand.download(range(3)).weights, [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]], 1e-6)


def test_mixture_ignores_scaling_of_rows() -> None:
    """Any positive factor on a row of c cancels in alpha; so does the factor 1/sum_j c_ij of Eq. 7."""
    factors = torch.tensor([[7.0], [0.01], [3.0]], dtype=torch.float64)
    c = torch.tensor(C, dtype=torch.float64)
    scaled = DAPFL().mixture(torch.tensor(MODELS), c * factors)
    close(scaled, DAPFL().mixture(torch.tensor(MODELS), c), 1e-14)


def test_min_max_normalisation_would_change_the_method() -> None:
    """Min-max scaling of c to [0, 1] is the one normalisation that changes alpha: the least pair gets weight 0."""
    lo, hi = 0.4, 1.0
    minmax = [[(v - lo) / (hi - lo) for v in row] for row in C]
    other = mixture(DAPFL(), MODELS, minmax)
    close(other, [[0, 1, 0], [0.48838976686337504, 0, 0.511610233136625], [0, 1, 0]], 1e-8)
    apart(mixture(DAPFL(), MODELS), other, 0.3)


@pytest.mark.parametrize("method", [DAPFL(), DAPFL(variant="v2")])
def test_identical_models_mix_by_affinity(method: DAPFL) -> None:
    """All models equal, as in round 1: f = 1 - exp(-1e-8) everywhere, so alpha is V2's and not 0/0; in float32
    1 - exp(-1e-8) is 0."""
    close(mixture(method, [[0.3, -1.0]] * 3), STATIC, 1e-8)
    assert float(1 - torch.exp(torch.tensor(-1e-8))) == 0.0


def test_one_participant_is_its_own_mixture() -> None:
    """m = 1: alpha = [1], so the pull is towards the client's own model."""
    close(mixture(DAPFL(), [[0.3, -1.0]], [[0.75]]), [[1.0]])
    close(given(DAPFL(), [[0.25, -1.0]], [[0.75]]), [[0.25, -1.0]])


def test_two_identical_and_one_far() -> None:
    """Distance 0 between the first two, 2 to the third: f = 1e-8 against 1 - exp(-4), so they ignore each other."""
    alpha = mixture(DAPFL(), [[0.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    wanted = [[0, 2.5466433228471583e-08, 0.9999999745335668], [1.2733216776370598e-08, 0, 0.9999999872667832]]
    close(alpha, [*wanted, [1 / 3, 2 / 3, 0]], 1e-13)


def test_close_models_keep_their_distances() -> None:
    """Models 1e-3 apart around a common (1000, 1000): d = 1e-6 and 4e-6, so alpha_0 is about (1, 4)/5 for equal c."""
    base = torch.tensor([1024.0, 1024.0])
    step = 2.0**-10
    rows = torch.stack([base, base + torch.tensor([step, 0.0]), base + torch.tensor([0.0, 2 * step])])
    alpha = DAPFL(variant="dynamic", eps=1e-30).mixture(rows, torch.ones(3, 3, dtype=torch.float64))
    f1, f4 = 1 - torch.exp(torch.tensor([-(step**2), -4 * step**2], dtype=torch.float64))
    close(alpha[0, 1:], torch.stack([f1, f4]) / (f1 + f4), 1e-9)


def test_sigma_from_the_median_distance() -> None:
    """sigma = median of the squared distances 1, 4, 5: the pair at the median has f = 1 - 1/e."""
    alpha = mixture(DAPFL(sigma="median"), MODELS, [[1.0] * 3] * 3)
    f = 1 - torch.exp(-torch.tensor([1.0, 4.0], dtype=torch.float64) / 4)
    close(alpha[0, 1:], f / f.sum(), 1e-8)


# ---- the client's step ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("prox", "momentum", "path"),
    [("loss", 0.0, [0.5, 0.9, 1.22]), ("after", 0.5, [0.5, 1.1, 1.655]), ("loss", 0.5, [0.5, 1.15, 1.745])],
)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_three_steps_of_local_training(prox: str, momentum: float, path: list[float], steps: int) -> None:
    """L = 1/2 (w - 4)^2 from 0 with w^g = 1, lam = 1, lr .1. Plain: the pull is in the gradient, which momentum sees;
    after: w -= lr lam (w_before - w^g) beside the momentum step."""
    hand = ByHand(
        DAPFL(prox=prox),
        vector_net(0.0),
        [copies(4.0, 3)],
        training=Training(steps=steps, lr=0.1, momentum=momentum),
        loss=quadratic,
    )
    client = hand.client(0, Bundle(model=torch.tensor([1.0])))
    w = hand.train(next(hand.method.client_update(client)), client)
    close(w, [path[steps - 1]])


@pytest.mark.parametrize(("epochs", "wanted"), [(1, 0.5), (2, 1.0449955), (3, 1.5025908250)])
def test_pull_of_the_authors_program_keeps_its_step_size(epochs: int, wanted: float) -> None:
    """Preset ``code`` with its training, one step per epoch, L = 1/2 (w - 4)^2 from 0, w^g = 1, lr .1: the step of SGD
    falls to .09 and .081, that of the pull stays .1. With weight decay 1e-4 and momentum .5: w = 0 + .4 + .1 = .5;
    v = -2 - 3.5 + .00005, w = .5 + .09 * 5.49995 + .1 * .5 = 1.0449955. A falling pull would give 1.0399955."""
    training = Training(**{**presets_of(DAPFL())["code"]["training"], "epochs": epochs, "lr": 0.1})
    hand = ByHand(preset(DAPFL, "code"), vector_net(0.0), [copies(4.0, 3)], training=training, loss=quadratic)
    client = hand.client(0, Bundle(model=torch.tensor([1.0])))
    close(hand.train(next(hand.method.client_update(client)), client), [wanted])


@pytest.mark.parametrize("prox", ["loss", "after"])
def test_local_training_ends_at_the_minimum_of_eq_10(prox: str) -> None:
    """argmin 1/2 (w - 4)^2 + 1/2 (w - 1)^2 = 2.5, in both places of the pull: it has a gradient."""
    hand = ByHand(
        DAPFL(prox=prox), vector_net(0.0), [copies(4.0, 3)], training=Training(steps=200, lr=0.1), loss=quadratic
    )
    client = hand.client(0, Bundle(model=torch.tensor([1.0])))
    close(hand.train(next(hand.method.client_update(client)), client), [2.5], 1e-5)


def test_training_starts_from_the_own_model() -> None:
    """Eq. 10 goes on from the client's last model, not from the mixture it was sent."""
    hand = ByHand(DAPFL(), vector_net(0.0), [copies(4.0, 3)])
    hand.kept[0] = Bundle(model=torch.tensor([-7.0]))
    request = next(hand.method.client_update(hand.client(0, Bundle(model=torch.tensor([1.0])))))
    close(request.start, [-7.0])
    close(request.center, [1.0])


def test_all_mixtures_are_of_the_same_old_bank() -> None:
    """Two clients pulled at each other: both mixtures are of the models before the round. L_i = 1/2 (w - a_i)^2 with
    a = (0, 8), lr .5, lam 1, one step: round 1 from 0 gives (0, 4); round 2 has centres (4, 0), so
    w_0 = 0 - .5 (0 + (0 - 4)) = 2 and w_1 = 4 - .5 ((4 - 8) + (4 - 0)) = 4."""
    hand = ByHand(
        DAPFL(), vector_net(0.0), [copies(0.0, 3), copies(8.0, 5)], training=Training(steps=1, lr=0.5), loss=quadratic
    )
    close(hand.play().model, [[0.0], [4.0]])
    close(hand.play().model, [[2.0], [4.0]])
    close(hand.server.bank, [[2.0], [4.0]])


def test_clients_left_out_keep_their_model() -> None:
    """A client that does not take part keeps its model, is not mixed with, and is evaluated with what it holds."""
    hand = ByHand(DAPFL(), vector_net(0.0), [copies(8.0, 3)] * 3, training=Training(steps=1, lr=0.5), loss=quadratic)
    hand.play([0, 1])
    sent = hand.download([0, 2])
    close(sent.weights, [[0, 0, 1], [1, 0, 0]])
    close(hand.used(2).model, [0.0])
    close(hand.used(0).model, [4.0])


# ---- V1 ------------------------------------------------------------------------------------------------------------
def test_v1_is_ditto() -> None:
    """V1 is Ditto: a = (0, 8), n = (30, 10), lam 1, lr .5, two steps. (w, v_1, v_2) after two rounds: (1.5, 0, 4) and
    (1.875, .75, 4.75); the client's own freshly trained copy as anchor would give v = (0, 7)."""
    hand = two_quadratics(DAPFL(variant="v1"))
    for w, own in ((1.5, [0.0, 4.0]), (1.875, [0.75, 4.75])):
        hand.play()
        close(hand.server.model, [w])
        close([float(b.model) for b in hand.kept], own)


# ---- another program ------------------------------------------------------------------------------------------------
CODE = {"distance": "l2", "include_self": True, "equal": "one", "prox": "after"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"variant": "v2"}, {"variant": "v1-uniform"}, {"variant": "dynamic"}, {"sigma": "median"}, CODE],
    ids=["full", "v2", "v1-uniform", "dynamic", "median", "code"],
)
def test_an_independent_program_gives_the_same(settings: dict) -> None:
    """Eqs. 3-10 with loops over pairs and classes in float64, five clients of which some have no class in common, three
    in each of six rounds."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5, epoch_decay=0.9)
    rows = [[4, 6, 0], [7, 7, 7], [16, 0, 9], [0, 0, 14], [3, 13, 5]]
    shards = [_data(row, i) for i, row in enumerate(rows)]
    found = run(DAPFL(lam=3.0, **settings), mlp(), shards, rounds_=6, training=training)
    variant, code = settings.get("variant", "full"), settings == CODE
    c, w0 = _affinities(rows), mlp().w0.double()
    models = [w0 for _ in rows]
    for t, cohort in plain.cohorts(found):
        d = {(i, j): float((models[i] - models[j]).square().sum()) for i in cohort for j in cohort}
        sigma = 1.0 if "sigma" not in settings or t == 1 else median(d[i, j] for i in cohort for j in cohort if i < j)
        targets = {}
        for i in cohort:
            theta = {j: 1.0 for j in cohort if code or j != i}
            for j in theta:
                if variant in ("full", "v2"):
                    theta[j] *= c[i][j]
                if variant in ("full", "dynamic") and not code:
                    theta[j] *= -math.expm1(-(d[i, j] + 1e-8) / sigma)
                if code and d[i, j]:
                    theta[j] *= 1 - math.exp(-math.sqrt(d[i, j]))
            targets[i] = sum(x * models[j] for j, x in theta.items()) / sum(theta.values())
        for i, to in targets.items():
            models[i] = _pulled(models[i], to, shards[i].train, i, t, training, after=code)
    assert (3, [1, 3, 4]) in [(t, list(cohort)) for t, cohort in plain.cohorts(found)]  # without the least affinity
    assert plain.distance(found.state.bank, torch.stack(models)) < 2e-6
    for i in {i for _, cohort in plain.cohorts(found) for i in cohort}:
        assert plain.distance(found.clients[i].model, models[i]) < 2e-6


def _data(counts: list[int], client: int) -> ClientData:
    """A client whose training part has these class counts; the classes are elsewhere on every client."""
    y = torch.arange(3).repeat_interleave(torch.tensor(counts))
    part = Samples(draw(3, 4, seed=50)[y] + draw(3, 4, seed=60 + client)[y] + draw(len(y), 4, seed=70 + client), y)
    return ClientData(part, part, part)


def _affinities(rows: list[list[int]]) -> list[list[float]]:
    """Eqs. 3-6, one pair after another; less than two classes in common: .9 times the least that is computed."""
    known: dict[tuple[int, int], float] = {}
    for i, mine in enumerate(rows):
        for j, other in enumerate(rows):
            pairs = [(a, b) for a, b in zip(mine, other, strict=True) if a > 0 and b > 0]
            if len(pairs) < 2:
                continue
            mean = sum(a + b for a, b in pairs) / (2 * len(pairs))
            length = math.hypot(*(a - mean for a, _ in pairs)) * math.hypot(*(b - mean for _, b in pairs))
            cos = sum((a - mean) * (b - mean) for a, b in pairs) / length if length else 1.0
            known[i, j] = len(pairs) / len(mine) * (2 - cos)
    off = {pair: value for pair, value in known.items() if pair[0] != pair[1]}
    assert off[1, 4] == 1  # a flat client
    assert min(known.values()) < min(off.values())  # the least is on the diagonal
    n = range(len(rows))
    return [[known.get((i, j), 0.9 * min(known.values())) for j in n] for i in n]


def _pulled(w: Tensor, to: Tensor, data: Samples, client: int, t: int, training: Training, *, after: bool) -> Tensor:
    """Eq. 10 by SGD; ``after``: the pull is a step of its own, of constant size."""
    lr, velocity, steps = training.lr, torch.zeros_like(w), 0
    for index in plain.drawn(data, client, t, training):
        x, y, before = data.x[index].double(), data.y[index], w

        def objective(v: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return plain.loss(v, x, y) + (0.0 if after else 3.0 / 2 * (v - to).square().sum())

        velocity = training.momentum * velocity + plain.gradient(objective, w)
        w, steps = w - lr * velocity, steps + 1
        if after:
            w = w - training.lr * 3.0 * (before - to)
        if steps == math.ceil(len(data) / training.batch_size):
            lr = lr * training.epoch_decay
    return w
