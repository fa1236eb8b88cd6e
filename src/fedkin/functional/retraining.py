"""Training of a linear classifier on the server, from features or from gradients that clients sent.

A classifier is a matrix ``V [C, D]``: its weight, and its bias as the last column if it has one (D = d + 1, else d).
Features then carry a column of ones. The gradient of the mean cross-entropy is ``(softmax(x V') - onehot)' x / n``,
so neither training nor the matching of gradients needs autograd.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import ModelError, Net

_EPS = 1e-6  # added to the product of norms in every cosine, as the authors of CReFF do


def require_head_last(net: Net) -> None:
    """Check that the head alone, at its input, gives the network's logits, as methods assume that apply it alone.

    Raises:
        ModelError: it does not: something comes after it (a temperature, a normalisation, an activation), or another
            layer was named as the head.
    """
    with torch.no_grad():
        z, logits = net.features_and_logits(net.w0, net.inputs(2))
        alone = net.classify(net.w0[net.head], z)
    if alone.shape != logits.shape or not torch.allclose(alone, logits, rtol=1e-4, atol=1e-5):
        raise ModelError(
            f"this method applies the head {net.head_name!r} alone, but the network's logits are not the head's "
            "outputs: other operations follow it; take a network that ends with its head, or another method"
        )


def feature_size(net: Net) -> int:
    """Return d, the length of the head's input.

    Raises:
        ModelError: the head is not a linear layer, weight first.
    """
    weight = net.head_weight
    d, rest = divmod(weight.stop - weight.start, net.classes)
    fits = weight.start == 0 and rest == 0 and net.head.stop in (weight.stop, weight.stop + net.classes)
    if fits:
        head, z = net.w0[net.head], torch.linspace(-1, 1, 2 * d).view(2, d)
        try:
            fits = torch.allclose(net.classify(head, z), with_bias(net, z) @ as_matrix(net, head).T, atol=1e-4)
        except RuntimeError:
            fits = False
    if not fits:
        raise ModelError(f"the head {net.head_name!r} must be a linear layer: the server trains it by its formula")
    return int(d)


def as_matrix(net: Net, head: Tensor) -> Tensor:
    """Return the matrix ``[C, D]`` of a head ``[H]`` (a flat vector's ``net.head`` part)."""
    weight, bias = head[: net.head_weight.stop], head[net.head_weight.stop :]
    return torch.cat([weight.view(net.classes, -1), bias.view(net.classes, -1)], 1)


def as_head(net: Net, matrix: Tensor) -> Tensor:
    """Return the head ``[H]`` of a matrix ``[C, D]``."""
    d = net.head_weight.stop // net.classes
    return torch.cat([matrix[:, :d].reshape(-1), matrix[:, d:].reshape(-1)])


def with_bias(net: Net, z: Tensor) -> Tensor:
    """Return features ``[..., d]`` with a column of ones if the head has a bias: ``[..., D]``."""
    return F.pad(z, (0, 1), value=1.0) if net.head.stop > net.head_weight.stop else z


def random_head(net: Net, rng: torch.Generator) -> Tensor:
    """Return a new head ``[H]`` as ``nn.Linear`` starts: weight and bias uniform within 1/sqrt(d)."""
    bound = (net.head_weight.stop / net.classes) ** -0.5
    return torch.empty(net.head.stop).uniform_(-bound, bound, generator=rng)


def fit(
    matrix: Tensor, x: Tensor, y: Tensor, *, lr: float, batch: int, epochs: int = 1, rng: torch.Generator | None = None
) -> Tensor:
    """Return the classifier ``[C, D]`` after plain SGD on the mean cross-entropy of features ``x [n, D]``.

    Samples are taken in the given order or, with a generator, shuffled in every epoch; a last short batch is used.
    """
    out = matrix.clone()
    wanted = F.one_hot(y, len(matrix)).to(x.dtype)
    for _ in range(epochs if len(y) else 0):
        if rng is not None:
            order = torch.randperm(len(y), generator=rng)
            x, wanted = x[order], wanted[order]
        for a, t in zip(x.split(batch), wanted.split(batch), strict=True):
            error = (a @ out.T).softmax(1).sub_(t)
            out.addmm_(error.T, a, alpha=-lr / len(a))
    return out


def drawn_shares(y: Tensor, repeats: int, most: int, rng: torch.Generator) -> Tensor:
    """Return the weight of every sample in the mean over repeated draws of ``most`` samples (or all) of its class.

    Draws are without replacement; float64 ``[n]``, summing to 1 over each class.
    """
    share = torch.zeros(len(y), dtype=torch.float64)
    for c in y.unique().tolist():
        members = (y == c).nonzero().flatten()
        taken = min(most, len(members))
        for _ in range(repeats):
            order = torch.randperm(len(members), generator=rng)
            share[members[order[:taken]]] += 1 / (repeats * taken)
    return share


def class_gradients(matrix: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """Return the gradient of ``sum_i share_i CE_i`` over the samples of each class: ``[C, C, D]``.

    It is taken with respect to the classifier.

    Row c is that of class c, zero where the class has no samples. Sums are computed in float64.

    Args:
        matrix: the classifier ``[C, D]``; x: features ``[n, D]``; y: labels ``[n]``; share: float64 ``[n]``.
    """
    v, x = matrix.double(), x.double()
    error = ((x @ v.T).softmax(1) - F.one_hot(y, len(v))) * share[:, None]
    out = torch.zeros(len(v), *v.shape)
    for c in y.unique().tolist():
        out[c] = (error[y == c].T @ x[y == c]).to(out.dtype)
    return out


def gradient_distance(a: Tensor, g: Tensor, d: int) -> Tensor:
    """Return the distance D of two gradients ``[..., C, D]``, ``[...]``.

    D is 1 - cos of every row of the weight, plus 1 - cos of the bias.
    """
    rows = 1 - _cosine(a[..., :d], g[..., :d])
    bias = 1 - _cosine(a[..., d:].mT, g[..., d:].mT)
    return rows.sum(-1) + bias.sum(-1)


def matched_features(matrix: Tensor, z: Tensor, labels: Tensor, wanted: Tensor, *, steps: int, lr: float) -> Tensor:
    """Move features ``[a, M, d]`` until the gradients that they give the classifier point in the wanted directions.

    Plain gradient steps on ``sum_c D(g(z_c), wanted_c)``, where ``g(z_c)`` is the gradient of the mean cross-entropy of
    the M features of a class; classes do not influence one another.

    Args:
        matrix: the classifier ``[C, D]``; z: ``[a, M, d]``; labels: their classes ``[a]``; wanted: ``[a, C, D]``.
    """
    m, d = z.shape[1], z.shape[2]
    target = F.one_hot(labels, len(matrix)).to(z.dtype)[:, None]
    for _ in range(steps):
        x = F.pad(z, (0, matrix.shape[1] - d), value=1.0)
        p = (x @ matrix.T).softmax(2)
        error = p - target
        slope = _distance_slope(error.mT @ x / m, wanted, d)  # dD / dg, then on to z, directly and through p
        q = x @ slope.mT
        through = p * (q - (p * q).sum(2, keepdim=True))
        z = z - lr / m * (error @ slope[..., :d] + through @ matrix[:, :d])
    return z


def _cosine(a: Tensor, g: Tensor) -> Tensor:
    out: Tensor = (a * g).sum(-1) / (a.norm(dim=-1) * g.norm(dim=-1) + _EPS)
    return out


def _distance_slope(a: Tensor, g: Tensor, d: int) -> Tensor:
    rows = _cosine_slope(a[..., :d], g[..., :d])
    bias = _cosine_slope(a[..., d:].mT, g[..., d:].mT).mT
    return -torch.cat([rows, bias], -1)


def _cosine_slope(a: Tensor, g: Tensor) -> Tensor:
    """Return the derivative of `_cosine` with respect to ``a``; 0 towards the norm where ``a`` is 0."""
    size, wanted = a.norm(dim=-1, keepdim=True), g.norm(dim=-1, keepdim=True)
    below = size * wanted + _EPS
    along = (a * g).sum(-1, keepdim=True) * wanted * a / size.clamp(min=1e-30)
    out: Tensor = g / below - along / below.square()
    return out
