"""FedRoD: a generic model trained as if classes were balanced, and a personal head whose logits are added to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads, Views
from fedkin.core import Batch, Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_all
from fedkin.functional.retraining import require_head_last


@dataclass(frozen=True)
class FedRoD(Method):
    """A common model trained for balanced classes, and a personal head per client whose logits are added to it."""

    paper = "Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022"
    family = "personal part"
    tuned: ClassVar = {"gamma": "0..2"}

    gamma: float = 1.0
    """Power of the class counts in the balanced softmax; 0 is plain cross-entropy."""
    personal: Literal["own", "hyper"] = "own"
    """Each client trains its own head, or a common hypernetwork makes the head from the client's class shares."""
    hidden: int = 16
    """Hidden units of the hypernetwork."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "gamma", at_least=0)
        in_range(self, "hidden", at_least=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start, and a new hypernetwork for `personal` "hyper"."""
        require_head_last(r.net)
        if self.personal == "own":
            return Bundle(model=r.w0)
        return Bundle(model=r.w0, hyper=new_hyper(r.net.classes, r.net.head.stop, self.hidden, r.rng))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the generic model, and the hypernetwork if there is one, to every participant."""
        return to_all(**s)

    def client_update(self, c: Client) -> Work:
        """Train model and personal head on `two_heads`; keep the head and return the model (and hypernetwork)."""
        aux, extra = Bundle(log_prior=log_prior(c.counts(), self.gamma)), self._head(c)
        if self.personal == "hyper":
            aux, extra = aux.but(share=_share(c)), c.received.hyper
        v = yield Train(torch.cat([c.received.model, extra]), loss=two_heads, aux=aux)
        w, extra = v[: c.net.size], v[c.net.size :]
        head = extra if self.personal == "own" else made_head(extra, _share(c), c.net.head.stop)
        c.state = Bundle(head=head, trained=w)
        return Bundle(model=w) if self.personal == "own" else Bundle(model=w, hyper=extra)

    def _head(self, c: Client) -> Tensor:
        """Return the personal head ``[H]`` as the client has it now, or as the received hypernetwork makes it."""
        if self.personal == "hyper":
            return made_head(c.received.hyper, _share(c), c.net.head.stop)
        return c.state.get("head", torch.zeros(c.net.head.stop))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the models, and of the hypernetworks if there are any, weighted by samples."""
        return Bundle({name: r.mean(rows) for name, rows in up.items()})

    def personalize(self, c: Client) -> Bundle:
        """Return the generic model with the client's personal head."""
        return Bundle(model=c.received.model, head=self._head(c))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the generic model as "generic" and model and head after the last training as "trained"."""
        trained = Bundle(model=c.state.trained, head=c.state.head) if c.state else self.personalize(c)
        return {"generic": Bundle(model=c.received.model), "trained": trained}

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the sum of the generic and the personal logits ``[B, C]``; the generic ones where there is no head."""
        z, generic = net.features_and_logits(b.model, x)
        return generic + net.classify(b.head, z) if "head" in b else generic

    can = (
        RobustMeans(),
        PrivateSums(),
        Uploads("its model, and with it which classes it lacks", "its class counts, which are part of its loss"),
        Views(_views),
    )


def _share(c: Client) -> Tensor:
    return c.counts() / max(1, len(c.data))


def log_prior(counts: Tensor, gamma: float) -> Tensor:
    """Return ``gamma log n_c``, float32 ``[C]``: -inf for a class without samples, which drops out of the loss."""
    return gamma * counts.float().log() if gamma > 0 else torch.zeros(len(counts))


def two_heads(net: Net, v: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the balanced softmax of the generic logits plus the cross-entropy of their sum with the personal ones.

    ``v`` is a model ``[P]`` and behind it the personal head ``[H]`` or, if ``aux.share [C]`` is given, the
    hypernetwork. The personal term has no gradient in the model: its logits and its features are constants there.
    """
    w, head = v[: net.size], v[net.size :]
    if "share" in aux:
        head = made_head(head, aux.share, net.head.stop)
    z, generic = net.features_and_logits(w, batch.x)
    balanced = F.cross_entropy(generic + aux.log_prior, batch.y)
    return balanced + F.cross_entropy(generic.detach() + net.classify(head, z.detach()), batch.y)


def new_hyper(classes: int, size: int, hidden: int, rng: torch.Generator) -> Tensor:
    """Return a new hypernetwork as one vector.

    Its first layer ``[hidden, C + 1]`` is random, its second ``[size, hidden + 1]`` is zero, so that every head it
    makes is zero at first.
    """
    first = (2 * torch.rand(hidden * (classes + 1), generator=rng) - 1) / classes**0.5
    return torch.cat([first, torch.zeros(size * (hidden + 1))])


def made_head(hyper: Tensor, share: Tensor, size: int) -> Tensor:
    """Return the head ``[size]`` that a hypernetwork makes of class shares ``[C]``: two linear layers, ReLU between."""
    ins = len(share) + 1
    hidden = (len(hyper) - size) // (ins + size)
    first, second = hyper.split([hidden * ins, size * (hidden + 1)])
    units = F.relu(first.view(hidden, ins) @ F.pad(share, (0, 1), value=1.0))
    head: Tensor = second.view(size, hidden + 1) @ F.pad(units, (0, 1), value=1.0)
    return head
