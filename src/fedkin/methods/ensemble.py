"""FedAvg+ and FedProx+: several global models, each trained by an independent federated run, that vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.capabilities import RobustMeans, Uploads
from fedkin.core import (
    Bundle,
    Client,
    Download,
    Method,
    Net,
    Round,
    Train,
    Work,
    in_range,
    to_all,
    to_each,
    uniform_cohort,
)


@dataclass(frozen=True)
class Ensemble(Method):
    """Several global models from independent runs of FedAvg or FedProx; all clients predict by their vote."""

    paper = "Ma, Zhou, Long, Jiang, Zhang: Structured FL through Clustered Additive Modeling, NeurIPS 2023 (baseline)"
    family = "one global model"
    tuned = property(lambda m: {"mu": "log:0.01..1"} if m.mu else {})  # FedAvg+ has no proximal term

    members: int = 5
    """Number of models; each has its own start, cohorts and batches."""
    mu: float = 0.0
    """Weight of the proximal term mu/2 ||w - w_received||^2: 0 is FedAvg+, FedProx+ has 0.95 in the paper."""
    vote: Literal["probabilities", "logits"] = "probabilities"
    """What the members' vote is the mean of: class probabilities (soft voting), or logits (the authors' program)."""

    @property
    def title(self) -> str:
        """FedAvg+, or FedProx+ where `mu` is above 0."""
        return "FedProx+" if self.mu else "FedAvg+"

    @property
    def summary(self) -> str:
        """What the method does in one sentence, with the name of the members' method."""
        return f"Several global models, each trained by {self.title[:-1]} on its own, that vote."

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "members", at_least=1)
        in_range(self, "mu", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return the members' independent random starts ``[members, P]``."""
        return Bundle(models=torch.stack([r.fresh(k) for k in range(self.members)]))

    def sample(self, s: Bundle, r: Round) -> Bundle:
        """Return the union of the members' cohorts, and which members drew each client."""
        # the first member sees the cohorts that every method of this seed sees
        runs = [r] + [r.but(stream=f"{r.stream}member {k}") for k in range(1, self.members)]
        member = torch.stack([torch.isin(r.ids, uniform_cohort(run)) for run in runs], dim=1)
        anywhere = member.any(1)
        return Bundle(ids=r.ids[anywhere], member=member[anywhere])

    def _member(self, r: Round) -> Tensor:
        """Return which members each client trains, bool ``[m, members]``; all members where nothing was drawn."""
        return r.drawn.get("member", torch.ones(len(r.ids), self.members, dtype=torch.bool))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant the models of the members that drew it."""
        member, down = self._member(r), to_all()
        for k in range(self.members):  # a client is sent the models it is to train, and no others
            down |= to_each(given=member[:, k], **{f"model{k}": s.models[k].expand(len(r.ids), -1)})
        return down

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send all members' models to every client."""
        return to_all(models=s.models)

    def client_update(self, c: Client) -> Work:
        """Train each received model, with mu/2 ||w - w_received||^2, and return all of them."""
        starts = {k: c.received[name] for k in range(self.members) if (name := f"model{k}") in c.received}
        trained = yield tuple(Train(w, center=w, mu=self.mu) for w in starts.values())
        models = torch.zeros(self.members, c.net.size)  # zeros where it was not drawn: sums over clients suffice
        models[list(starts)] = torch.stack(trained)
        return Bundle(models=models)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return for each member the mean of its participants' models, weighted by samples."""
        member, models = self._member(r), s.models.clone()
        for k in range(self.members):
            if bool((mine := member[:, k]).any()):  # without answers a member stays
                models[k] = r.among(r.ids[mine]).mean(up.models[mine, k])
        return Bundle(models=models)

    def personalize(self, c: Client) -> Bundle:
        """Return all members' models."""
        return Bundle(models=c.received.models)

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the log of the members' mean probability up to a constant, or their mean logits, ``[B, C]``."""
        z = torch.stack([net(w, x) for w in b.models])
        if self.vote == "logits" or len(z) == 1:
            return z.mean(0)
        return z.log_softmax(2).logsumexp(0)  # up to a constant the log of the mean probability

    can = (RobustMeans(), Uploads("its models, one for each member it was drawn for"))
