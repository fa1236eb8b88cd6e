"""PFedCS against numbers worked out by hand.

Formulas (AAAI 2025). ``U_kj = |Phi_k - Phi_j|_F^2`` over the classifier's weight, ``D_kj = U_kj/max_j U_kj``. Others
in the nearer of two groups are candidates; those with ``D_kj <= tau = avg + (t/beta)(min - avg)`` (Eq. 4) collaborate.
Over G = collaborators and k (Eqs. 6-8): ``p_j = lam (Dmax - D_kj)/(|G| (Dmax - Davg)) + (1 - lam) N_j/N_G`` and
``v_k = sum_j p_j g_j``. The client tunes v_k (Eqs. 9-10), which then teaches its own classifier: ``CE + KL(p^v, p^w)``
(Eqs. 11-12).

The six classifiers of the first case are [[1,0],[0,1]], [[1.1,0],[0,1]], [[1,.2],[0,.9]], [[0,1],[1,0]],
[[0,1.1],[1,.1]] and [[.2,1],[1,0]], of clients with 100, 300, 100, 200, 200 and 100 samples.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.stats import norm
from torch import Tensor, nn

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, Client, Net, Train, Training, distillation
from fedkin.core.seeds import generator
from fedkin.functional.pairs import differences_from
from fedkin.methods import PFedCS
from fedkin.methods.pfedcs import candidates, customised_weights, row_distances, threshold
from toys import ByHand, ClientData, apart, blobs, close, copies, federation, mlp, mlp_with_batchnorm, plane_net, run

HEADS = torch.tensor(
    [
        [1.0, 0.0, 0.0, 1.0],
        [1.1, 0.0, 0.0, 1.0],
        [1.0, 0.2, 0.0, 0.9],
        [0.0, 1.0, 1.0, 0.0],
        [0.0, 1.1, 1.0, 0.1],
        [0.2, 1.0, 1.0, 0.0],
    ]
)
SIZES = (100, 300, 100, 200, 200, 100)
U = [
    [0.0, 0.01, 0.05, 4.0, 4.02, 3.64],
    [0.01, 0.0, 0.06, 4.21, 4.23, 3.81],
    [0.05, 0.06, 0.0, 3.45, 3.45, 3.09],
    [4.0, 4.21, 3.45, 0.0, 0.02, 0.04],
    [4.02, 4.23, 3.45, 0.02, 0.0, 0.06],
    [3.64, 3.81, 3.09, 0.04, 0.06, 0.0],
]
D = [
    [0.0, 0.002488, 0.012438, 0.995025, 1.0, 0.905473],
    [0.002364, 0.0, 0.014184, 0.995272, 1.0, 0.900709],
    [0.014493, 0.017391, 0.0, 1.0, 1.0, 0.895652],
    [0.950119, 1.0, 0.819477, 0.0, 0.004751, 0.009501],
    [0.950355, 1.0, 0.815603, 0.004728, 0.0, 0.014184],
    [0.955381, 1.0, 0.811024, 0.010499, 0.015748, 0.0],
]


def server(method: PFedCS, heads: Tensor = HEADS, sizes: tuple[int, ...] = SIZES, total: int = 20) -> ByHand:
    """A server that holds these classifiers, all uploaded in round 1."""
    bias = heads.shape[1] == 6
    hand = ByHand(method, plane_net(bias=bias), [copies([1.0, 0.0], n) for n in sizes], total=total)
    hand.server = hand.server.but(heads=heads, uploaded=torch.ones(len(heads), dtype=torch.int64))
    return hand


def weights(method: PFedCS, t: int, k: int = 0, heads: Tensor = HEADS, sizes: tuple[int, ...] = SIZES) -> Tensor:
    hand = server(method, heads, sizes)
    r = hand.at("distribute", range(len(sizes)), t)
    return method.mixture(hand.server, r, torch.tensor([k]), torch.arange(len(sizes)))[0]


def squares(heads: Tensor) -> Tensor:
    """Squared distances of all classifiers, as the method takes them."""
    return differences_from(heads, torch.arange(len(heads)), 2)


def customised(d: Tensor, chosen: list[bool], k: int, sizes: Tensor, lam: float, reading: str) -> Tensor:
    """The weights of one client's row."""
    return customised_weights(d[None], torch.tensor([chosen]), torch.tensor([k]), sizes, lam, reading)[0]


# ---- 1: six clients in two groups ----------------------------------------------------------------------------------
def test_distances() -> None:
    """Squared Frobenius distances of six classifiers, and each row divided by its largest: D is not symmetric."""
    close(squares(HEADS), U)
    d = row_distances(HEADS, torch.arange(6))
    close(d, D)
    close((d - d.T).abs().max(), 0.1843971631205673)


def test_distances_with_the_bias() -> None:
    """A bias of (.5, -.5) on client 1 would move U_01 from .01 to .51; the method's distances do not see it."""
    heads = torch.cat([HEADS, torch.zeros(6, 2)], 1)
    heads[1, 4:] = torch.tensor([0.5, -0.5])
    close(squares(heads)[0], [0.0, 0.51, 0.05, 4.0, 4.02, 3.64])
    close(weights(PFedCS(beta=10), 1, heads=heads), weights(PFedCS(beta=10), 1))


@pytest.mark.parametrize("rule", ["gmm", "kmeans", "hier", "fixed"])
def test_candidates_by_four_rules(rule: str) -> None:
    """Row 0 has two near others and three far ones: every rule finds clients 1 and 2."""
    d = torch.tensor([0.002488, 0.012438, 0.995025, 1.0, 0.905473], dtype=torch.float64)
    assert candidates(d, rule).tolist() == [True, True, False, False, False]
    p = weights(PFedCS(beta=10, select=rule), 1)
    assert p.nonzero().flatten().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("t", "tau", "reading", "p"),
    [
        (1, 0.525025, "union", [0.377778, 0.522222, 0.1]),
        (1, 0.525025, "others", [0, 0.875, 0.125]),
        (1, 0.525025, "literal-norm", [0.428571, 0.5, 0.071429]),
        (5, 0.292786, "union", [0.377778, 0.522222, 0.1]),
        (5, 0.292786, "others", [0, 0.875, 0.125]),
        (5, 0.292786, "literal-norm", [0.428571, 0.5, 0.071429]),
        (10, 0.002488, "union", [0.625, 0.375, 0]),
        (10, 0.002488, "others", [0, 1.0, 0]),
    ],
)
def test_weights_in_stage_one(t: int, tau: float, reading: str, p: list[float]) -> None:
    """Client 0, beta = 10, lam = .5. Up to t = 5 clients 1 and 2 collaborate; at t = beta tau is the minimum and client
    1 alone is left. In "union" G = {0, 1, 2}: D = 0, .002488, .012438 and N = 100, 300, 100 give .377778, .522222,
    .1."""
    close(threshold(torch.tensor(D[0][1:], dtype=torch.float64), t, 10), tau, 1e-6)
    close(weights(PFedCS(beta=10, weights=reading), t), [*p, 0, 0, 0])


def test_literal_weights_at_the_end_of_stage_one() -> None:
    """At t = beta one collaborator is left, Dmax = Davg, and the printed weights are 0/0: here those of "union"."""
    p = weights(PFedCS(beta=10, weights="literal-norm"), 10)
    close(p, [0.625, 0.375, 0, 0, 0, 0], 1e-12)


def test_printed_weights_do_not_sum_to_one() -> None:
    """With Eqs. 7-8 over the collaborators alone and k inserted (D = 0) the weights are .75, .875, .125: sum 1.75, a
    classifier 75 % too long. Divided by it they are the reading "literal-norm"."""
    d, n = torch.tensor([0.0, 0.01 / 4.02, 0.05 / 4.02], dtype=torch.float64), torch.tensor([100.0, 300, 100])
    mean, largest = float(d[1:].mean()), float(d[1:].max())
    printed = 0.5 * (largest - d) / (2 * (largest - mean)) + 0.5 * n / 400
    close(printed, [0.75, 0.875, 0.125], 1e-6)
    got = customised(d, [False, True, True], 0, n, 0.5, "literal-norm")
    close(got, printed / 1.75, 1e-6)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_union_equals_the_normalised_literal_weights_at_the_ends(lam: float) -> None:
    """At lam = 0 and lam = 1 the two readings agree, which is why "union" changes least."""
    union, literal = (weights(PFedCS(beta=10, lam=lam, weights=w), 1) for w in ("union", "literal-norm"))
    close(union, literal, 1e-12)


@pytest.mark.parametrize(("t", "v"), [(1, [1.052222, 0.02, 0, 0.99]), (5, [1.052222, 0.02, 0, 0.99])])
def test_customised_classifier(t: int, v: list[float]) -> None:
    """v_0 = sum p_j g_j = [[1.052222, .02], [0, .99]] is what client 0 is sent; the weights are on record."""
    hand = server(PFedCS(beta=10))
    hand.t = t - 1
    if t > 1:
        sent = hand.download([0, 4])
        close(sent.rows.teacher[0], v)
        close(sent.weights.sum(1), [1, 1], 1e-12)
    r = hand.at("distribute", [0], t)
    close(hand.method.mixture(hand.server, r, torch.tensor([0]), torch.arange(6))[0].float() @ HEADS, v)


def test_customised_classifier_in_the_last_round_of_stage_one() -> None:
    """t = beta = 10: .375 g_1 + .625 g_0 = [[1.0375, 0], [0, 1]]; heads are no longer collected."""
    hand = server(PFedCS(beta=10))
    hand.t = 9
    sent = hand.download([0])
    close(sent.rows.teacher[0], [1.0375, 0, 0, 1])
    assert "collect" not in sent.shared


def test_one_collaborator_weighs_its_share_of_data_only() -> None:
    """|C| = 1: the farthest of G has similarity weight 0, so the collaborator weighs (1 - lam) N_j/(N_j + N_k)."""
    for lam in (0.0, 0.3, 1.0):
        close(weights(PFedCS(beta=10, lam=lam), 10)[1], (1 - lam) * 0.75, 1e-12)


# ---- 2-5: few clients and ties -------------------------------------------------------------------------------------
def test_two_clients() -> None:
    """g = (1, 0) and (0, 1): U = 2, D = 1, tau = 1; N = (30, 10), lam = .5: p = (.875, .125) = v_0."""
    heads = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    close(squares(heads), [[0, 2], [2, 0]])
    p = weights(PFedCS(beta=10), 3, heads=heads, sizes=(30, 10))
    close(p, [0.875, 0.125], 1e-12)
    close(p.float() @ heads, [0.875, 0.125, 0, 0])


def test_equidistant_clients() -> None:
    """All others equally far: all collaborate (a mixture of normals would find nobody), p = .625, .125 x 3."""
    heads = torch.eye(4)
    close(row_distances(heads, torch.tensor([0]))[0], [0, 1, 1, 1])
    assert threshold(torch.ones(3, dtype=torch.float64), 3, 10) == 1.0
    close(weights(PFedCS(beta=10), 3, heads=heads, sizes=(10,) * 4), [0.625, 0.125, 0.125, 0.125], 1e-12)


def test_nearly_equal_distances_are_one_group() -> None:
    """Distances within 1e-4: a mixture of two normals finds nobody in its nearer half, so all are candidates."""
    assert candidates(torch.tensor([0.5, 0.50005, 0.5001], dtype=torch.float64), "gmm").all()


@pytest.mark.parametrize("select", ["gmm", "kmeans", "hier", "fixed", "all"])
def test_identical_classifiers(select: str) -> None:
    """All classifiers equal, as after a common start: D = 0 and not 0/0; everybody weighs the same, .25."""
    close(row_distances(torch.ones(4, 4), torch.tensor([0]))[0], torch.zeros(4))
    close(weights(PFedCS(beta=10, select=select), 3, heads=torch.ones(4, 4), sizes=(10,) * 4), [0.25] * 4, 1e-12)


def test_one_client_has_no_teacher() -> None:
    """Alone: nobody to learn from, weight 1 on itself by the formula; the server sends no teacher."""
    d = row_distances(HEADS[:1], torch.tensor([0]))[0]
    close(d, [0.0])
    close(customised(d, [False], 0, torch.tensor([7]), 0.5, "union"), [1.0])
    hand = server(PFedCS(beta=10), HEADS[:1], (7,))
    hand.t = 1
    assert "teacher" not in hand.download([0]).row(0)


def test_fixed_distance_may_leave_nobody() -> None:
    """Others at .6, .8 and 1: tau = .9 * .8 + .1 * .6 = .78 in round 1 of 10, but nobody is within .5: v is the own."""
    d = torch.tensor([0.6, 0.8, 1.0], dtype=torch.float64)
    close(threshold(d, 1, 10), 0.78, 1e-12)
    assert not bool(candidates(d, "fixed").any())
    roots = d.sqrt()
    heads = torch.cat([torch.zeros(1, 4), torch.diag_embed(torch.cat([roots, roots[:1]]))[:3].float()])
    close(weights(PFedCS(beta=10, select="fixed"), 1, heads=heads, sizes=(10,) * 4), [1, 0, 0, 0], 1e-12)


def test_fixed_distance_is_relative_to_the_own_row() -> None:
    """D is divided by the row's own largest: in row 3 of the six, client 2 is at 3.45/4.21 = .819, in row 4 at
    3.45/4.23 = .816; with .818 only row 4 takes it. Classifiers at 5, 6, 8, 0 and 10 on a line: from the first, the
    second is at 1/25 and the third at 9/25 of its own largest distance; .3 takes the second. Of the largest of all,
    100, both would pass."""
    assert candidates(row_distances(HEADS, torch.tensor([3]))[0][[2]], "fixed", 0.818).tolist() == [False]
    assert candidates(row_distances(HEADS, torch.tensor([4]))[0][[2]], "fixed", 0.818).tolist() == [True]
    heads = torch.tensor([5.0, 6.0, 8.0, 0.0, 10.0])[:, None] * torch.tensor([1.0, 0.0, 0.0, 0.0])
    p = weights(PFedCS(beta=10, select="fixed", fixed=0.3, lam=0.0), 1, heads=heads, sizes=(10,) * 5)
    close(p, [0.5, 0.5, 0, 0, 0], 1e-12)


# ---- 6: threshold --------------------------------------------------------------------------------------------------
def test_threshold_never_falls_below_the_minimum() -> None:
    """At t = beta the printed avg + (t/beta)(min - avg) lies one rounding below the minimum in many of 20,000 random
    rows, and nobody would pass; the convex form never does."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(20_000, 5, generator=rng, dtype=torch.float64).square()
    rows /= 1.1 * rows.max(1, keepdim=True).values  # a row of relative distances without its largest
    mean, least = rows.mean(1), rows.min(1).values
    assert int((mean + 1.0 * (least - mean) < least).sum()) > 5000
    assert all(threshold(row, 10, 10) >= float(low) for row, low in zip(rows, least, strict=True))


def test_threshold_after_the_last_round_is_clamped() -> None:
    """d = .2, .4, 1, beta = 10, t = 15: printed .533333 + 1.5 (.2 - .533333) = .033333, below everybody; clamped .2."""
    d = torch.tensor([0.2, 0.4, 1.0], dtype=torch.float64)
    close(float(d.mean()) + 1.5 * (0.2 - float(d.mean())), 0.033333)
    close(threshold(d, 15, 10), 0.2, 1e-15)


# ---- 7: losses -----------------------------------------------------------------------------------------------------
def taught(student: list[float], teacher: list[float], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The loss and its gradient in the student's logits: a body that is 1, heads that are the logits, label 0."""
    net = Net(lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 3, bias=False)), (1,), 3)
    w = torch.tensor([*student, 1.0], requires_grad=True)
    aux = Bundle(teacher=torch.tensor(teacher), kappa=torch.tensor(1.0), temperature=torch.tensor(temperature))
    loss = distillation(net.training(), w, Batch(torch.ones(1, 1), torch.tensor([0])), aux)
    return loss.detach(), torch.autograd.grad(loss, w)[0]


def test_distillation_loss_and_gradient() -> None:
    """Student (3, 1, 0), teacher (1, 1, 0), label 0: CE .169846 + KL(p^v, p^w) .463214 = .63306; the gradient in the
    student's logits is 2 p^w - p^v - onehot. The other direction of KL would be .379738."""
    loss, grad = taught([3.0, 1.0, 0.0], [1.0, 1.0, 0.0])
    close(loss, 0.63306)
    close(grad[:3], [0.265271, -0.193928, -0.071342])
    p_w, p_v = F.softmax(torch.tensor([3.0, 1.0, 0.0]), 0), F.softmax(torch.tensor([1.0, 1.0, 0.0]), 0)
    close(p_w, [0.843795, 0.114195, 0.04201])
    close(p_v, [0.422319, 0.422319, 0.155362])
    close((p_w * (p_w / p_v).log()).sum(), 0.379738)
    apart(loss, 0.169846 + 0.379738, 0.05)


def test_temperature_scales_the_divergence() -> None:
    """CE + T^2 KL of logits divided by T: at T = 2, softmax(1.5, .5, 0) is taught by softmax(.5, .5, 0)."""
    p_w, p_v = F.softmax(torch.tensor([1.5, 0.5, 0.0]), 0), F.softmax(torch.tensor([0.5, 0.5, 0.0]), 0)
    wanted = 0.169846 + 4 * float((p_v * (p_v / p_w).log()).sum())
    close(taught([3.0, 1.0, 0.0], [1.0, 1.0, 0.0], 2.0)[0], wanted)


def test_teacher_gives_no_gradient_to_the_body() -> None:
    """The gradient in the body's one weight is <2 p^w - p^v - onehot, student's head>: .265271 * 3 - .193928; were the
    teacher's probabilities not detached, its own logits would add to it."""
    _, grad = taught([3.0, 1.0, 0.0], [1.0, 1.0, 0.0])
    close(grad[3], 0.265271 * 3 - 0.193928, 1e-5)


# ---- 8: one client step --------------------------------------------------------------------------------------------
def scalar_net() -> Net:
    """z = a x, logits = g z: the flat vector is [g_1, g_2, a]."""
    return Net(lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)), (1,), 2)


def client_step(method: PFedCS) -> tuple[list[Train], Client, Bundle]:
    """One client with the sample (x, y) = (2, 0), a = .5, g = (.3, -.1), v = (.8, .2), steps of .1."""
    hand = ByHand(method, scalar_net(), [copies(2.0, 1)], training=Training(lr=0.1, batch_size=10))
    hand.kept[0] = Bundle(head=torch.tensor([0.3, -0.1]))
    received = Bundle(body=torch.tensor([0.5]), teacher=torch.tensor([0.8, 0.2]), collect=torch.tensor(True))
    client = hand.client(0, received)
    asked: list[Train] = []
    work, got = method.client_update(client), None
    while True:
        try:
            asked.append(work.send(got))
        except StopIteration as end:
            return asked, client, end.value
        got = hand.train(asked[-1], client)


def test_one_client_step() -> None:
    """z = 1. Tuning: v += .1 (1 - p^v) -> (.83543437, .16456563). Then p^v = .66169766, p^w = .59868766;
    g_1 += .1 (1 + p^v - 2 p^w) -> .34643223, a += .1 * 2 * (g_1 - g_2) (1 + p^v - 2 p^w) -> .53714579; with the teacher
    not detached a would be .52901016."""
    asked, client, up = client_step(PFedCS(beta=10))
    assert len(asked) == 2
    close(asked[1].aux.teacher, [0.83543437, 0.16456563])
    close(up.head, [0.34643223, -0.14643223])
    close(up.body, [0.53714579])
    apart(up.body, [0.52901016], 0.005)
    assert torch.equal(client.state.head, up.head)


def test_one_client_step_without_tuning() -> None:
    """rho = 0: the untuned v teaches, p^v = sigmoid(.6): g -> (.3448281, -.1448281); one request only."""
    asked, _, up = client_step(PFedCS(beta=10, rho=0))
    assert len(asked) == 1
    close(up.head, [0.3448281, -0.1448281])


@pytest.mark.parametrize(
    ("rho", "teacher_lr", "v", "g", "a"),
    [
        (2, None, [0.86926460, 0.13073540], 0.34792988, 0.53834391),
        (3, None, [0.90159719, 0.09840281], 0.34932821, 0.53946256),
        (1, 0.5, [0.97717185, 0.02282815], 0.35246126, 0.54196901),
        (2, 0.5, [1.11617790, -0.11617790], 0.35768553, 0.54614842),
    ],
)
def test_one_client_step_with_more_tuning(
    rho: int, teacher_lr: float | None, v: list[float], g: float, a: float
) -> None:
    """rho epochs of one step each: v += eta_v (1 - p^v), with p^v = sigmoid(v_1 - v_2) = .64565631, .66169766 and
    .67667415 at eta_v = .1. The teacher's step size is its own: g and a still move by .1 (1 + p^v - 2 p^w)."""
    asked, _, up = client_step(PFedCS(beta=10, rho=rho, teacher_lr=teacher_lr))
    close(asked[1].aux.teacher, v)
    close(up.head, [g, 0.2 - g])
    close(up.body, [a])


def test_one_client_step_at_another_temperature() -> None:
    """T = 2: p^v = sigmoid(.67086874/2) = .58309, p^w = sigmoid(.2) = .54983; the gradient of T^2 KL in the logits is
    T (p^w - p^v): g_1 += .1 (1 - .59868766 + 2 (.58309 - .54983))."""
    asked, _, up = client_step(PFedCS(beta=10, temperature=2.0))
    assert len(asked) == 2
    close(up.head, [0.34678064, 0.2 - 0.34678064])


def test_bodies_are_averaged_by_samples() -> None:
    """Bodies 1 and 5 of clients with 30 and 10 samples: 80/40 = 2."""
    hand = ByHand(PFedCS(beta=1), scalar_net(), [copies(1.0, 30), copies(1.0, 10)])
    up = Bundle(body=torch.tensor([[1.0], [5.0]]))
    close(hand.method.aggregate(hand.server, hand.at("aggregate", range(2), 3), up).body, [2.0])


def test_without_a_teacher_training_is_plain() -> None:
    """kappa = 0 switches the teacher off: g_1 += .1 (1 - .59868766)."""
    _, _, up = client_step(PFedCS(beta=10, kappa=0.0))
    close(up.head, [0.3 + 0.040131234, -0.1 - 0.040131234])


def test_the_teacher_never_replaces_the_own_classifier() -> None:
    """Training starts from the client's own head on the common body, also when a teacher has come."""
    asked, _, _ = client_step(PFedCS(beta=10))
    close(asked[-1].start, [0.3, -0.1, 0.5])


def test_tuning_leaves_the_body_alone_and_sees_it_in_eval_mode() -> None:
    """Eqs. 9-10 train v alone, on features of the frozen body with its running statistics, which do not move."""
    net, shard = mlp_with_batchnorm(), federation()[1]
    hand = ByHand(PFedCS(beta=10), net, [shard.train])
    body, teacher = net.w0[net.body].clone(), torch.randn(net.head.stop, generator=torch.Generator().manual_seed(0))
    body[-12:-6] += 0.3  # running means that batch statistics would not reproduce
    before = body.clone()
    client = hand.client(0, Bundle(body=body, teacher=teacher))
    request = next(hand.method.client_update(client))
    assert len(request.start) == net.head.stop
    w = torch.cat([net.w0[net.head], body])
    close(request.per_sample.z, net.features_and_logits(w, shard.train.x)[0])
    hand.train(request, client)
    assert torch.equal(body, before)


# ---- 9 and the rest ------------------------------------------------------------------------------------------------
def test_mixture_of_normals_agrees_with_an_independent_one() -> None:
    """On rows with two clear groups the candidates are those of scikit-learn's mixture (ten starts); the least distance
    is a candidate on every random row."""
    from sklearn.mixture import GaussianMixture

    rng = torch.Generator().manual_seed(5)
    for i in range(12):
        near = 0.05 + 0.02 * torch.rand(4 + i % 5, generator=rng, dtype=torch.float64)
        far = 0.8 + 0.1 * torch.rand(6, generator=rng, dtype=torch.float64)
        d = torch.cat([near, far])[torch.randperm(len(near) + 6, generator=rng)]
        model = GaussianMixture(2, n_init=10, random_state=0).fit(d[:, None].numpy())
        theirs = model.predict(d[:, None].numpy()) == int(model.means_.argmin())
        assert candidates(d, "gmm").tolist() == theirs.tolist()
    for row in torch.rand(200, 9, generator=rng, dtype=torch.float64):
        assert bool(candidates(row, "gmm")[row.argmin()])


def test_mixture_is_deterministic_and_free_of_seeds() -> None:
    """The same heads give the same weights in every call and for every seed of the run; only "random" draws."""
    hand = server(PFedCS(beta=10))
    a, b = (
        hand.method.mixture(hand.server, hand.at("x", range(6), 3).but(seed=s), torch.tensor([0]), torch.arange(6))
        for s in (0, 7)
    )
    assert torch.equal(a, b)


def test_random_collaborators() -> None:
    """random(3): three others, drawn anew in every round by (seed, round, client); fewer others: all of them."""
    sets = set()
    for t in range(1, 9):
        p = weights(PFedCS(beta=10, select="random", lam=0.0), t, k=2)
        assert torch.equal(p, weights(PFedCS(beta=10, select="random", lam=0.0), t, k=2))
        assert int((p > 0).sum()) == 4
        assert float(p[2]) > 0
        sets.add(tuple(p.nonzero().flatten().tolist()))
    assert len(sets) > 1
    few = weights(PFedCS(beta=10, select="random", lam=0.0), 1, heads=HEADS[:3], sizes=(10, 10, 10))
    close(few, [1 / 3] * 3, 1e-12)


def test_selecting_all_uses_no_threshold() -> None:
    """Select all: every other collaborates in every round, lam = 0 gives the shares of samples."""
    for t in (1, 10):
        close(weights(PFedCS(beta=10, select="all", lam=0.0), t), [n / 1000 for n in SIZES], 1e-12)


def test_stages_and_what_travels() -> None:
    """beta = 2 of 4: no teacher in round 1, heads collected in round 1 only (round 2 is the last that mixes), and from
    round 3 on bodies alone."""
    hand = ByHand(PFedCS(beta=2), total=4)
    seen = []
    for _ in range(4):
        sent = hand.download(range(5)).row(0)
        up = hand.play()
        seen.append((sorted(sent), sorted(up)))
    assert seen == [
        (["body", "collect"], ["body", "head"]),
        (["body", "teacher"], ["body"]),
        (["body"], ["body"]),
        (["body"], ["body"]),
    ]


@pytest.mark.parametrize(("total", "last"), [(20, 10), (7, 3)])
def test_stage_one_is_half_of_the_run_by_default(total: int, last: int) -> None:
    """Without beta, stage 1 ends with round T // 2: classifiers are collected before it, mixed up to it."""
    hand, sent = server(PFedCS(), total=total), []
    for hand.t in (last - 2, last - 1, last):
        sent.append(sorted(hand.download([0]).row(0)))
    assert sent == [["body", "collect", "teacher"], ["body", "teacher"], ["body"]]


def test_pool_of_classifiers() -> None:
    """The newest classifier of each client that has sent one. A client without one gets no teacher."""
    hand = ByHand(PFedCS(beta=9, select="all"))
    hand.play([0, 1])
    hand.play([2, 3])
    sent = hand.download([0, 3, 4])
    assert ["teacher" in sent.row(i) for i in range(3)] == [True, True, False]
    assert sent.weights[1].nonzero().flatten().tolist() == [0, 1, 2, 3]


def test_no_nan_from_a_common_start() -> None:
    """All clients start with the same classifier; nothing is 0/0 in any round or reading."""
    for reading in ("union", "others", "literal-norm"):
        result = run(PFedCS(beta=3, weights=reading), mlp(), federation(), participation=1.0)
        assert all(torch.isfinite(t).all() for t in result.state.values())
        for report in result.reports:
            if report.weights is not None:
                close(report.weights.sum(1), torch.ones(5), 1e-12)


def test_two_evaluation_points() -> None:
    """Evaluated is the client's head on the new common body; the view "trained" is its own model after training, before
    any training the same."""
    hand = ByHand(PFedCS(beta=4))
    up = hand.play([0, 2])
    for i, body in ((2, up.body[1]), (4, hand.server.body)):
        client = hand.client(i, hand.method.deliver(hand.server, hand.at("evaluate", [i])).row(0))
        head = client.state.get("head", hand.net.w0[hand.net.head])
        assert torch.equal(hand.used(i).model, torch.cat([head, hand.server.body]))
        assert torch.equal(views_of(hand.method, client)["trained"].model, torch.cat([head, body]))
    apart(up.body[1], hand.server.body, 1e-3)


def test_gram_trick_in_float32_would_lose_the_distance() -> None:
    """Two heads of 5,120 weights that differ by 1e-4: |d|^2 = 5.12e-5 from differences; |a|^2 + |b|^2 - 2ab in float32
    is off by more than a tenth of it."""
    rng = torch.Generator().manual_seed(2)
    a = torch.randn(5120, generator=rng)
    b = a + 1e-4 * torch.randn(5120, generator=rng).sign()
    exact = float((a.double() - b.double()).square().sum())
    close(squares(torch.stack([a, b]))[0, 1], exact, 1e-12)
    gram = float(a @ a + b @ b - 2 * (a @ b))
    assert abs(gram - exact) > 0.1 * exact
    assert math.isclose(exact, 5.12e-5, rel_tol=0.05)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("select", "reading", "seed"),
    [
        ("gmm", "union", 4),
        ("kmeans", "others", 5),
        ("hier", "literal-norm", 5),
        ("all", "union", 4),
        ("fixed", "others", 4),
        ("random", "union", 5),
    ],
)
def test_an_independent_program_gives_the_same(select: str, reading: str, seed: int) -> None:
    """Both stages in float64 with loops over clients, EM and weights in numpy; eight of ten unequal clients in each of
    seven rounds, and every mixture's weights."""
    beta, lam = 6, 0.7
    sizes, w0 = (18, 46, 28, 60, 22, 34, 52, 16, 24, 38), mlp().w0.double()
    tasks = [([0.8, 0.15, 0.05], 0), ([0.8, 0.15, 0.05], 1), ([0.8, 0.15, 0.05], 2), ([0.4, 0.4, 0.2], 0)]
    shards = []
    for i, n in enumerate(sizes):
        mix, turn = tasks[i % 4]
        data = [blobs(m, mix, 1000 * seed + 10 * i + k, turn) for k, m in enumerate((n, 5, 8))]
        shards.append(ClientData(*data))
    training = Training(epochs=1, batch_size=5, lr=0.3, momentum=0.5)
    tuning = Training(epochs=2, batch_size=5, lr=0.4, momentum=0.5)
    method = PFedCS(
        beta=beta, lam=lam, select=select, rho=2, teacher_lr=0.4, kappa=1.5, temperature=2.0, weights=reading,
        fixed=0.3, random_size=4,
    )  # fmt: skip
    found = run(method, mlp(), shards, rounds_=7, participation=0.8, training=training)
    body, heads = w0[plain.HEAD :], [w0[: plain.HEAD]] * 10
    cache: dict[int, Tensor] = {}
    last: dict[int, Tensor] = {}
    taught = untaught = grouped = narrowed = other = 0
    for t, cohort in plain.cohorts(found):
        rows, ends = found.reports[t - 1].weights, []
        teachers: dict[int, Tensor] = {}
        for row, k in enumerate(cohort):
            if t > beta or k not in cache or len(cache) < 2:
                continue
            u = {j: float((cache[k][:18] - cache[j][:18]).square().sum()) for j in cache}
            away = {j: u[j] / max(u.values()) for j in sorted(cache) if j != k}
            near = _drawn(away, t, k) if select == "random" else sorted(_nearer(away, select))
            r = t / beta
            bound = (1 - r) * sum(away.values()) / len(away) + r * min(away.values())
            chosen = near if select in ("all", "random") else [j for j in near if away[j] <= bound * (1 + 1e-12)]
            grouped, narrowed = grouped + (len(near) < len(away)), narrowed + (len(chosen) < len(near))
            other += any(away[j] <= bound for j in away if j not in near)
            p = _shares(away, chosen, k, sizes, lam, reading)
            assert abs(sum(p.values()) - 1) < 1e-12
            assert plain.distance(rows[row], torch.tensor([p.get(j, 0.0) for j in range(10)])) < 2e-6
            teachers[k] = sum(share * cache[j] for j, share in p.items())
        for k in cohort:
            data, w = shards[k].train, torch.cat([heads[k], body])
            v = teachers.get(k)
            taught, untaught = taught + (v is not None), untaught + (v is None and 1 < t <= beta)
            if v is not None:
                speed, z = torch.zeros_like(v), plain.features(w, data.x.double())
                for index in plain.drawn(data, k, t, tuning, 0):
                    on = lambda h, z=z[index], y=data.y[index]: F.cross_entropy(_classified(h, z), y)  # noqa: E731
                    speed = 0.5 * speed + plain.gradient(on, v)
                    v = v - 0.4 * speed
            speed = torch.zeros_like(w)
            for index in plain.drawn(data, k, t, training, int(v is not None)):
                x, y = data.x[index].double(), data.y[index]

                def goal(w: Tensor, x: Tensor = x, y: Tensor = y, v: Tensor | None = v) -> Tensor:
                    own = plain.logits(w, x)
                    if v is None:
                        return F.cross_entropy(own, y)
                    theirs = F.softmax(_classified(v, plain.features(w, x)).detach() / 2, 1)
                    apart_by = (theirs * (theirs.log() - F.softmax(own / 2, 1).log())).sum(1).mean()
                    return F.cross_entropy(own, y) + 1.5 * 4 * apart_by

                speed = 0.5 * speed + plain.gradient(goal, w)
                w = w - 0.3 * speed
            heads[k], last[k] = w[: plain.HEAD], w[plain.HEAD :]
            ends.append((sizes[k], w))
        body = sum(n * w[plain.HEAD :] for n, w in ends) / sum(n for n, _ in ends)
        if t < beta:
            cache |= {k: heads[k] for k in cohort}
    assert taught > 8
    assert untaught > 0
    assert (grouped > 8) == (select != "all")
    if select not in ("all", "random"):
        assert narrowed > 8
        assert other > 0 or select in ("kmeans", "fixed")
    assert plain.distance(found.state.body, body) < 2e-6
    for k in cache:
        assert plain.distance(found.state.heads[k], cache[k]) < 2e-6
    assert len(last) > 6
    for k, trained in last.items():
        assert plain.distance(found.clients[k].head, heads[k]) < 2e-6
        assert plain.distance(found.clients[k].trained, trained) < 2e-6


def _classified(h: Tensor, z: Tensor) -> Tensor:
    return z @ h[:18].view(3, 6).T + h[18:]


def _drawn(away: dict[int, float], t: int, k: int) -> list[int]:
    """Four of the others, by the library's draw for this round and client."""
    order = torch.randperm(len(away), generator=generator(0, "server", "", "distribute", t, k))
    return [sorted(away)[place] for place in order[:4].tolist()]


def _nearer(away: dict[int, float], select: str) -> list[int]:
    """Those in the group with the lower mean: by the best split, by Ward's tree, or by EM that starts at that split."""
    ids = sorted(away, key=lambda j: away[j])
    d = np.array([away[j] for j in ids])
    if select == "fixed":
        return [j for j in ids if away[j] <= 0.3]
    if select == "all" or len(ids) < 2 or np.ptp(d) <= 1e-12 * max(1, d[-1]):
        return ids
    if select == "hier":
        label = fcluster(linkage(d[:, None], "ward"), 2, "maxclust")
        return [j for j, own in zip(ids, label, strict=True) if own == label[0]]
    cuts = [c for c in range(1, len(d)) if d[c - 1] < d[c]]
    cut = min(cuts, key=lambda c: d[:c].var() * c + d[c:].var() * (len(d) - c))
    if select == "kmeans":
        return ids[:cut]
    member = np.stack([np.arange(len(d)) < cut, np.arange(len(d)) >= cut]).astype(float)
    before = -np.inf
    for _ in range(100):
        n = member.sum(1)
        mean = member @ d / n
        spread = [max(1e-6, member[g] @ (d - mean[g]) ** 2 / n[g]) ** 0.5 for g in range(2)]
        joint = np.stack([n[g] / len(d) * norm.pdf(d, mean[g], spread[g]) for g in range(2)])
        member, now = joint / joint.sum(0), np.log(joint.sum(0)).mean()
        if abs(now - before) < 1e-3:
            break
        before = now
    low = int(mean[1] < mean[0])
    return [j for j, m in zip(ids, member.T, strict=True) if m[low] > m[1 - low]] or ids


def _shares(
    away: dict[int, float], chosen: list[int], k: int, sizes: Sequence[int], lam: float, reading: str
) -> dict[int, float]:
    """Eqs. 7-8 over the collaborators and k, over the collaborators, or over these with k inserted and the sum put
    right."""
    if not chosen:
        return {k: 1.0}
    d = {**away, k: 0.0}
    all_of_them = [*chosen, k]
    over = all_of_them if reading == "union" else chosen
    most, mean = max(d[j] for j in over), sum(d[j] for j in over) / len(over)
    if reading == "literal-norm" and most <= mean:
        return _shares(away, chosen, k, sizes, lam, "union")
    p = {}
    for j in chosen if reading == "others" else all_of_them:
        alike = (most - d[j]) / (len(over) * (most - mean)) if most > mean else 1 / len(over)
        p[j] = lam * alike + (1 - lam) * sizes[j] / sum(sizes[i] for i in over)
    whole = sum(p.values()) if reading == "literal-norm" else 1.0
    return {j: share / whole for j, share in p.items()}
