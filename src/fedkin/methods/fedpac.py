"""FedPAC: features are pulled to common class centroids, and each client's head is combined from all heads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.capabilities import Presets, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, head_loss, in_range, to_all, to_each
from fedkin.core.refusals import Reason, outside
from fedkin.core.rows import grow, put, squared_distances
from fedkin.functional.divisions import rows_or_mean
from fedkin.functional.prototypes import class_average, no_prototypes, prototype_loss
from fedkin.functional.retraining import require_head_last

_RIDGE = 1e-9  # times the largest squared length, added to the diagonal: of equal solutions the one with the least a'a
_SLACK = 1e-14  # times the same: a slope below this is rounding
_PATIENCE = 3  # steps that need not bring the solution nearer
_NEAREST = 16  # clients whose heads are combined at first


_PRESETS: Table = {
    "code": {  # JianXu95/FedPAC, options.py; the step size is that for Fashion-MNIST
        "head_lr": 0.1,
        "training": {"lr": 0.01, "batch_size": 50, "epochs": 5, "momentum": 0.5, "weight_decay": 5e-4},
    },
}


@dataclass(frozen=True)
class FedPAC(Method):
    """A common body with features aligned across clients; each head is the combination of heads with least error."""

    paper = "Xu, Tong, Huang: Personalized FL with Feature Alignment and Classifier Collaboration, ICLR 2023"
    family = "personal part"

    lam: float = 1.0
    """Weight of the pull of features towards their class's centroid."""
    head_epochs: int = 1
    """Epochs on the head, with the body as received; on top of those on the body, not part of them."""
    head_lr: float | None = None
    """Step size of the head's training. Default: as the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "lam", at_least=0)
        in_range(self, "head_epochs", at_least=1)
        if self.head_lr is not None:
            in_range(self, "head_lr", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start, no heads and no known centroids."""
        require_head_last(r.net)
        return Bundle(body=r.w0[r.net.body].clone(), heads=torch.empty(0, r.net.head.stop), **no_prototypes(r.net))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients with the head of the common start."""
        return s.but(heads=grow(s.heads, len(r.roster), r.w0[r.net.head]))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the body and the centroids to every participant, and to each its own head."""
        return to_all(prototypes=s.prototypes, known=s.known) | self.deliver(s, r)

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send the body to every client, and to each its own head; the mean head until it has taken part."""
        return to_all(body=s.body) | to_each(head=rows_or_mean(s.heads, s.heads, r.w0[r.net.head], r))

    def client_update(self, c: Client) -> Work:
        """Train the head, then the body on `prototype_loss`; return both and statistics of the features.

        Moments are those of the features on the received body, which is the same for all; centroids those on the
        trained one.
        """
        z = c.features(self._model(c.received))
        head = yield Train(
            c.received.head, loss=head_loss, per_sample=Bundle(z=z), epochs=self.head_epochs, lr=self.head_lr
        )
        aux = c.received.only(("prototypes", "known")).but(lam=torch.tensor(self.lam))
        w = yield Train(torch.cat([head, c.received.body]), loss=prototype_loss, aux=aux, only=c.net.body)
        c.state = Bundle(trained=w)
        moments, variance = label_moments(z, c.data.y, c.net.classes)
        means, counts = c.class_means(w)  # eval mode, final weights, all samples
        return Bundle(body=w[c.net.body], head=head, moments=moments, variance=variance, means=means, counts=counts)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean body, each participant's combined head, and the mean centroids, weighted by samples."""
        weights = head_weights(up.moments, up.variance)
        return Bundle(
            body=r.mean(up.body),
            heads=put(s.heads, r.ids, r.mix(weights, up.head)),
            prototypes=class_average(up.means, up.counts, s.prototypes),
            known=s.known | (up.counts > 0).any(0),
        )

    def _refuses(self, r: Round, up: Bundle) -> Reason | None:
        """Return a reason if a class count or the variance is negative."""
        why = outside("counts", float(up.counts.min()), 0, math.inf)
        return why or outside("variance", float(up.variance), 0, math.inf)

    def _model(self, given: Bundle) -> Tensor:
        return torch.cat([given.head, given.body])

    def personalize(self, c: Client) -> Bundle:
        """Return the common body with the client's combined head."""
        return Bundle(model=self._model(c.received))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=c.state.get("trained", self._model(c.received)))}

    can = (
        Uploads(
            "its model, its class counts, and its mean feature of each class",
            "its class counts, its mean feature of each class, and the variance of its features",
            frozenset({"counts"}),
            refuses=_refuses,
        ),
        Views(_views),
        Presets(_PRESETS),
    )


def label_moments(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of ``e_y z'`` over samples and the variance of this mean, for features ``z [n, d]``.

    Row k of the mean ``[C, d]`` is p_k mu_k: the share of class k times its mean feature. The variance ``[]`` is
    ``V / n``, V the trace of the samples' covariance, ``mean ||z||^2 - sum_k p_k^2 ||mu_k||^2``.
    """
    z = z.double()
    h = torch.zeros(classes, z.shape[1], dtype=torch.float64).index_add_(0, y, z) / len(z)
    trace = z.square().sum(1).mean() - h.square().sum()
    return h.float(), (trace.clamp(min=0) / len(z)).float()


def head_weights(moments: Tensor, variance: Tensor) -> Tensor:
    """Return the weights ``[m, m]`` of the participants' heads, float64, from moments ``[m, C, d]``, variances ``[m]``.

    Row i minimises ``sum_j a_j^2 V_j / n_j + ||sum_j a_j (h_j - h_i)||^2`` over the simplex: the variance and the
    squared bias of the mixture ``sum_j a_j h_j`` as an estimate of client i's moments.
    """
    apart, spread = squared_distances(moments.flatten(1)), variance.double()
    rows = torch.zeros_like(apart)
    for i, d in enumerate(apart):
        start = torch.zeros(len(d), dtype=torch.bool)
        start[(d + spread).topk(min(_NEAREST, len(d)), largest=False).indices] = True
        if i:  # the solution of the most similar client so far
            start |= rows[int(d[:i].argmin())] > 0
        rows[i] = _head_weights_of(d, apart, spread, start)
    return rows


def _head_weights_of(d: Tensor, apart: Tensor, spread: Tensor, start: Tensor) -> Tensor:
    """Return one row of `head_weights`, exact up to rounding, by block principal pivoting.

    With ``Q_jk = (h_j - h_i)' (h_k - h_i) + [j = k] V_j / n_j`` the weights are ``y / sum(y)``, where ``y >= 0``,
    ``Q y >= 1`` and one of the two is an equality for each j. In a step several y_j on the wrong side change it, or
    only the last one, where three steps have not reduced their number: then it ends (Judice, Pires, A block principal
    pivoting algorithm for large-scale strictly monotone linear complementarity problems, 1994). Only columns of the
    few y_j above 0 are ever needed.

    Args:
        d: squared distances of client i's moments to all ``[m]``; ``apart [m, m]``: of all pairs.
        spread: variances ``[m]``.
        start: a guess of the weights above 0, bool ``[m]``.
    """
    longest = float((d + spread).max()) or 1.0
    free, few, patience = start, len(d) + 1, _PATIENCE
    y = torch.zeros_like(d)
    for _ in range(10 * len(d) + 100):
        f = free.nonzero()[:, 0]
        near = apart[f]
        q = (d[f, None] + d[f] - near[:, f]) / 2
        q.diagonal().add_(spread[f] + _RIDGE * longest)
        y = torch.zeros_like(d)
        y[f] = torch.linalg.solve(q, torch.ones_like(d[f]))
        total = y.sum()
        slope = (d * total + d[f] @ y[f] - y[f] @ near) / 2
        wrong = torch.where(free, y < 0, slope < 1 - _SLACK * longest * total)
        count = int(wrong.sum())
        if not count:
            break
        few, patience = (count, _PATIENCE) if count < few else (few, patience - 1)
        if patience < 0:
            wrong[: int(wrong.nonzero()[-1])] = False
        else:  # of those to be above 0 the first ones: most others no longer need to be then
            some = slope.masked_fill(free, torch.inf).topk(min(len(f) // 2 + 8, len(d)), largest=False)
            wrong &= free | (slope <= some.values[-1])
        free = free ^ wrong
    y = y.clamp(min=0)
    return y / y.sum()
