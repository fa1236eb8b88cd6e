"""Share of a federated method in a client's predictions: from nine numbers of each client to a share for each.

A client predicts with ``p = lambda p_method + (1 - lambda) p_alone``. The likelihood of its held-out samples, which
trained neither model, is one for lambda; the clients share its prior. From top to bottom: the numbers that a client
sends (`numbers`), what the server makes of those of all clients (`counted`, `posteriors`, `prior_of`, `gains`,
`left_out`), and how a client chooses (`too_far`, `choose`, `choose_alone`, `choose_few`, `tested`).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

GRID = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
"""Values G_0 .. G_4 of lambda: the share of the method in the mixture."""
FLAT = torch.full((5,), 1 / 5, dtype=torch.float64)
"""Prior of a client that decides by itself."""
EPS = 0.01  # each probability is mixed with this much of the uniform one, so that one sample cannot decide
LEAST = 5  # minimum number of samples of a client that sends numbers, and of clients that share a prior
STEPS = 50  # of the shared prior's fixed-point iteration
SHRINK = 10  # samples without gain by which each mean gain is shrunk
FEW = 8  # held-out samples below which a client stays alone where no prior is shared
BOUNDS = {"best": 1 / 2, "likely": 1 / 5}  # chance of going too far that a client accepts
_TIE = 1e-9


# ---- what a client sends --------------------------------------------------------------------------------------------
def numbers(p: Tensor, q: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-likelihood ratios l float64 ``[4]`` and gains in hits h int64 ``[4]`` of lambda = G_1 .. G_4 over 0.

    Args:
        p: class probabilities of the method's model on held-out samples ``[n, C]``, float64.
        q: those of the client's model alone.
        y: true classes ``[n]``.
    """
    mixed = mixtures(p, q)
    true = (1 - EPS) * mixed[:, torch.arange(len(y)), y] + EPS / p.shape[1]
    # l_j = sum_i log(((1-eps)(G_j p_i + (1-G_j) q_i) + eps/C) / ((1-eps) q_i + eps/C))
    likelihood = (true / true[0]).log().sum(1)
    hits = (mixed.argmax(2) == y).sum(1)  # the first class wins a tie
    return likelihood[1:], hits[1:] - hits[0]


def probabilities(logits: Tensor) -> Tensor:
    """Return the softmax of ``logits [n, C]``, 0 where a model that has diverged gives none."""
    p = logits.softmax(1)
    return torch.where(p.isnan(), 0.0, p)


def mixtures(p: Tensor, q: Tensor) -> Tensor:
    """Return the probabilities of all mixtures of ``p [n, C]`` and ``q [n, C]``, ``[5, n, C]``."""
    share = GRID[:, None, None]
    return share * p + (1 - share) * q


# ---- what the server makes of it ------------------------------------------------------------------------------------
def counted(likelihood: Tensor, hits: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the numbers of K clients with each n limited to twice the median, l and h scaled along with it; float64.

    Args:
        likelihood: l ``[K, 4]``.
        hits: h ``[K, 4]``.
        n: held-out samples ``[K]``, above 0.
    """
    size = n.double()
    share = (2 * size.quantile(0.5) / size).clamp(max=1)
    return likelihood * share[:, None], hits * share[:, None], size * share


def posterior(likelihood: Tensor, prior: Tensor) -> Tensor:
    """Return the posterior r of lambda, ``[..., 5]``: r_j ~ w_j exp(l_j), l_0 = 0.

    Args:
        likelihood: l ``[..., 4]``.
        prior: w ``[5]``.
    """
    return (F.pad(likelihood, (1, 0)) + prior.log()).softmax(-1)


def posteriors(likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Return the prior w ``[5]`` that K clients share, and the posterior of each ``[K, 5]``, from l ``[K, 4]``."""
    prior = FLAT
    for _ in range(STEPS):
        r = posterior(likelihood, prior)
        prior = (r.sum(0) + FLAT) / (len(likelihood) + 1)  # w_j = (sum_k r_kj + 1/J) / (K + 1)
    return prior, posterior(likelihood, prior)


def shared(likelihood: Tensor, hits: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the prior w ``[5]`` and the gains T ``[5, 4]`` that all clients are answered.

    Args:
        likelihood: l ``[K, 4]``.
        hits: h ``[K, 4]``.
        n: held-out samples ``[K]``, above 0.
    """
    likelihood, hits, n = counted(likelihood, hits, n)
    prior, r = posteriors(likelihood)
    return prior, gains(r, hits, n)


def prior_of(choices: Tensor, epsilon: float) -> Tensor:
    """Return the prior w ``[5]`` of K clients that each reported one choice by randomised response.

    A client's choice is the lambda of its largest likelihood; the one that it reports is ``exp(epsilon)`` times as
    likely the true one as each other. w is fitted as in `posteriors`, by EM.

    Args:
        choices: positions in the grid, int64 ``[K]``.
        epsilon: of the noise.
    """
    likely = torch.full((len(GRID), len(GRID)), math.exp(-epsilon), dtype=torch.float64).fill_diagonal_(1.0)[choices]
    prior = FLAT
    for _ in range(STEPS):
        r = prior * likely
        prior = ((r / r.sum(1, keepdim=True)).sum(0) + FLAT) / (len(choices) + 1)
    return prior


def gains(r: Tensor, hits: Tensor, n: Tensor) -> Tensor:
    """Return T ``[5, 4]``: gain in accuracy at lambda = G_1 .. G_4 of clients whose own lambda is G_c.

    Args:
        r: posteriors ``[K, 5]``.
        hits: h ``[K, 4]``.
        n: held-out samples ``[K]``.
    """
    return (r.T @ hits) / (SHRINK + r.T @ n)[:, None]  # T_cj = sum_k r_kc h_kj / (10 + sum_k r_kc n_k)


def left_out(likelihood: Tensor, hits: Tensor, n: Tensor, without: Tensor) -> Tensor:
    """Return the lambda that all others' numbers recommend to each of some clients, int64 ``[m]``, 1 to 4.

    It is argmax_{j>0} sum_c w_c T_cj with w and T computed without the client; ties: the smallest.

    Args:
        likelihood: l ``[K, 4]``.
        hits: h ``[K, 4]``.
        n: held-out samples ``[K]``.
        without: the row of each of these clients ``[m]``; -1: it has none, and all K are the others.
    """
    ahead = F.pad(likelihood, (1, 0))
    e = (ahead - ahead.amax(1, keepdim=True)).exp()  # exp(l_kj) up to a factor for each k, which cancels
    others = torch.arange(len(n)) != without[:, None]
    prior = FLAT.expand(len(without), -1)
    for _ in range(STEPS):
        inverse = others / (prior @ e.T)  # r_kj = w_j e_kj / sum_i w_i e_ki, for all who are left out at once
        prior = (prior * (inverse @ e) + FLAT) / (others.sum(1, keepdim=True) + 1)
    inverse = others / (prior @ e.T)
    of_hits = prior[:, :, None] * (inverse @ (e[:, :, None] * hits[:, None, :]).flatten(1)).unflatten(
        1, (len(GRID), -1)
    )
    table = of_hits / (SHRINK + prior * (inverse @ (e * n[:, None])))[:, :, None]
    return 1 + _first_largest((prior[:, None, :] @ table)[:, 0])


def _first_largest(values: Tensor) -> Tensor:
    """Return the first position in ``values [..., a]`` whose value is within 1e-9 of the largest."""
    return (values >= values.amax(-1, keepdim=True) - _TIE).int().argmax(-1)


# ---- how a client chooses -------------------------------------------------------------------------------------------
def too_far(r: Tensor) -> Tensor:
    """Return H ``[..., 5]``: the chance that the best lambda is below G_j / 2, by the posterior ``r [..., 5]``.

    Log-likelihood is concave in lambda; to second order it falls below that of lambda = 0 at twice its maximum. A grid
    point stands for an interval of 1/4.
    """
    r0, r1, r2 = r[..., 0], r[..., 1], r[..., 2]
    return torch.stack([torch.zeros_like(r0), r0, r0 + r1 / 2, r0 + r1, r0 + r1 + r2 / 2], -1)


def choose(r: Tensor, table: Tensor, bound: float) -> int:
    """Return j of the lambda = G_j with the largest predicted gain among those with H_j <= bound; ties: the smallest.

    Args:
        r: the client's posterior ``[5]``.
        table: T ``[5, 4]``.
        bound: of H, see `BOUNDS`.
    """
    predicted = F.pad(r @ table, (1, 0))  # A_j = sum_c r_c T_cj
    return int(_first_largest(torch.where(too_far(r) <= bound + _TIE, predicted, -torch.inf)))


def choose_alone(r: Tensor, bound: float) -> int:
    """Return j of the largest lambda = G_j <= mean + 1/8 with H_j <= bound: the choice without the others' gains.

    Args:
        r: the client's posterior ``[5]``, under the flat prior if nothing is known of the others.
        bound: of H, see `BOUNDS`.
    """
    fits = (r @ GRID + 1 / 8 + _TIE >= GRID) & (too_far(r) <= bound + _TIE)
    return int(fits.nonzero().max())


def choose_few(p: Tensor, q: Tensor, y: Tensor) -> int:
    """Return j of the lambda = G_j with the most hits on held-out samples, if it has more than lambda = 0 by over one
    standard error of the difference, else 0; the choice of a client of a federation that is too small to share a prior.

    With b samples that only the mixture gets right and c that only the model alone does, that is b - c > sqrt(b + c).

    Args:
        p, q, y: as in `numbers`.
    """
    right = mixtures(p, q).argmax(2) == y
    gained, lost = (right & ~right[0]).sum(1), (right[0] & ~right).sum(1)
    j = int(_first_largest((gained - lost).double()))
    return j if len(y) >= FEW and int(gained[j] - lost[j]) > math.sqrt(int(gained[j] + lost[j])) else 0


def tested(p: Tensor, q: Tensor, y: Tensor, j: int, delta: float) -> int:
    """Return j if the mixture at lambda = G_j passes the sign test against lambda = 0 on held-out samples, else 0.

    Args:
        p, q, y: as in `numbers`.
        j: position in the grid, chosen without these samples.
        delta: size of the test.
    """
    right = mixtures(p, q)[[0, j]].argmax(2) == y
    b, c = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
    return j if passes(b, c, delta) else 0


def passes(b: int, c: int, delta: float) -> bool:
    """Return whether P(Bin(b + c, 1/2) >= b) <= delta: the sign test on samples that only one of two models gets right.

    Args:
        b: held-out samples that only the mixture classifies correctly.
        c: those that only the client's model alone does.
        delta: size of the test.
    """
    m = b + c
    return math.fsum(math.comb(m, i) / 2**m for i in range(b, m + 1)) <= delta
