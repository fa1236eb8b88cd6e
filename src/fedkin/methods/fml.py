"""FML: a client's own model and its copy of a shared one, of any two kinds, learn from labels and from each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import Needs, Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Batch, Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_all

_PRESETS: Table = {
    # ZJU-DAI/Federated-Mutual-Learning, Args.py and Node.py
    "code": {"training": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 5, "batch_size": 128}},
}


@dataclass(frozen=True)
class FML(Method):
    """A model per client that never leaves, and a shared one that carries knowledge; each distils into the other."""

    paper = (
        "Shen, Zhang, Jia, Zhang, Lv, Kuang, Wu, Wu: Federated Mutual Learning, a collaborative machine learning "
        "method for heterogeneous data, models, and objectives, FITEE 24(10), 2023"
    )
    family = "personal model"

    meme: str = ""
    """Name of the shared network (fedkin list models), for example a smaller one. Default: of the run's kind."""
    own_ce: float = 0.5
    """Weight of the labels in the loss of a client's own model (the paper's alpha); the rest is the shared model's."""
    meme_ce: float = 0.5
    """Weight of the labels in the loss of the shared model (beta); the rest is the client's own model's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "own_ce", at_least=0, at_most=1)
        in_range(self, "meme_ce", at_least=0, at_most=1)

    def init(self, r: Round) -> Bundle:
        """Return a random start of the shared model."""
        return Bundle(meme=r.net.second.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the shared model to every participant."""
        return to_all(meme=s.meme)

    def client_update(self, c: Client) -> Work:
        """Train the client's own model and its copy of the shared one on `mutual_loss`; keep the one, return the other.

        Both are one vector, so that each step of one is taken with the other as it was before the step.
        """
        start, aux = torch.cat([self._own(c), c.received.meme]), Bundle(own_ce=torch.tensor(self.own_ce))
        z = yield Train(
            start,
            loss=mutual_loss,
            aux=aux.but(meme_ce=torch.tensor(self.meme_ce)),
            models=(c.net, c.net.second),
        )
        c.state = Bundle(model=z[: c.net.size])
        return Bundle(meme=z[c.net.size :])

    def _own(self, c: Client) -> Tensor:
        return c.state.get("model", c.w0)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the copies of the shared model, weighted by samples."""
        return Bundle(meme=r.mean(up.meme))

    def personalize(self, c: Client) -> Bundle:
        """Return the client's own model."""
        return Bundle(model=self._own(c))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the shared model as "meme"."""
        return {"meme": Bundle(meme=c.received.meme)}

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the logits ``[B, C]`` of a client's own model, or of the shared one."""
        return net.second(b.meme, x) if "meme" in b else net(b.model, x)

    can = property(
        lambda m: (
            RobustMeans(),
            PrivateSums(),
            Uploads("its copy of the shared model; its own model stays"),
            Views(FML._views),
            Needs(second=m.meme),
            Presets(_PRESETS),
        )
    )


def mutual_loss(net: Net, z: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the sum of both models' losses at ``z``: the client's own model ``[P]``, then the shared one.

    Own: ``alpha CE + (1 - alpha) KL(p_meme || p_own)``; shared: ``beta CE + (1 - beta) KL(p_own || p_meme)``. The
    predictions that a model learns from are constants in its loss.
    """
    own = net(z[: net.size], batch.x).log_softmax(1)
    meme = net.second(z[net.size :], batch.x).log_softmax(1)
    own_loss = aux.own_ce * F.nll_loss(own, batch.y) + (1 - aux.own_ce) * _divergence(meme, own)
    meme_loss = aux.meme_ce * F.nll_loss(meme, batch.y) + (1 - aux.meme_ce) * _divergence(own, meme)
    loss: Tensor = own_loss + meme_loss
    return loss


def _divergence(of: Tensor, learner: Tensor) -> Tensor:
    """Return the mean over samples of ``KL(of || learner)``, both log-probabilities ``[B, C]``; ``of`` is constant."""
    return F.kl_div(learner, of.detach(), reduction="batchmean", log_target=True)
