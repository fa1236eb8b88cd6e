"""PFA: FedAvg first; then clients with similar activations on its model go on in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedkin.capabilities import Asks, Grouped, Needs, Presets, PrivateSums, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_all, to_each
from fedkin.core.rows import group_mean, grow, put
from fedkin.core.sides import chunked
from fedkin.functional.grouping import kmeans, nearest
from fedkin.functional.linkage import agglomerate, by_first_member
from fedkin.functional.pairs import differences_from

_RELU = {F.relu, F.relu_, F.relu6, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}  # nn.ReLU calls F.relu


_PRESETS: Table = {
    "code": {"training": {"epochs": 5, "batch_size": 32, "lr": 0.01, "momentum": 0.5}},
}


@dataclass(frozen=True)
class PFA(Method):
    """FedAvg for a while; then groups of clients on whose data the model's channels are inactive alike go on apart."""

    paper = "Liu, Guo, Chen: PFA, Privacy-preserving Federated Adaptation for Effective Model Personalization, WWW 2021"
    family = "clusters"
    tuned: ClassVar = {"clusters": "int:2..5"}

    clusters: int = 3
    """Number of groups."""
    after: int | None = None
    """Rounds of FedAvg before the groups are made. Default: half of the rounds."""
    channels: int = 20
    """Number of channels of which a client sends the sparsity, drawn once; all if the network has fewer."""
    grouping: Literal["average", "kmeans"] = "average"
    """Groups by average linkage on the distances of sparsities, or by K-means."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "clusters", at_least=1)
        in_range(self, "channels", at_least=1)
        if self.after is not None:
            in_range(self, "after", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start and the channels to measure, drawn once."""
        count = len(sparsity(r.net, r.w0, torch.zeros(1, *r.net.shape)))
        chosen = torch.randperm(count, generator=r.rng)[: self.channels].sort().values
        return Bundle(
            model=r.fresh(0),  # fixed once there are groups, so that late clients are measured on the same one
            channels=chosen,
            centres=torch.empty(0, r.net.size),
            centroids=torch.empty(0, len(chosen)),
            labels=torch.empty(0, dtype=torch.int64),
        )

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients without a group."""
        return s.but(labels=grow(s.labels, len(r.roster), torch.tensor(-1)))

    def _question(self, s: Bundle, r: Round) -> Download | None:
        """Ask clients without a group for their sparsity once the phase of FedAvg has ended."""
        asked = s.labels[r.ids] < 0
        if r.index <= (r.total // 2 if self.after is None else self.after) or not bool(asked.any()):
            return None
        m = len(r.ids)
        return to_each(given=asked, model=s.model.expand(m, -1), channels=s.channels.expand(m, -1))

    def _answer(self, c: Client) -> Bundle:
        """Return the sparsity of the chosen channels on the client's training data, ``[channels]``."""
        return Bundle(sparsity=sparsity(c.net, c.received.model, c.data.x)[c.received.channels])

    def _collect(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Make the groups from the first answers; assign later clients to the nearest mean sparsity."""
        if len(s.centres):  # a late client: the group with the nearest mean sparsity
            return s.but(labels=put(s.labels, r.ids, nearest(up.sparsity, s.centroids)))
        labels = self._group(up.sparsity, r)
        groups, even = int(labels.max()) + 1, torch.ones(len(labels))
        return s.but(
            labels=put(s.labels, r.ids, labels),
            centroids=group_mean(up.sparsity, even, labels, torch.zeros(groups, len(s.channels))),
            centres=s.model.expand(groups, -1).clone(),
        )

    def _group(self, points: Tensor, r: Round) -> Tensor:
        if self.grouping == "average":
            apart = differences_from(points, torch.arange(len(points)), 2).sqrt_()
            return agglomerate(apart, self.clusters, "average")
        return by_first_member(kmeans(points, torch.ones(len(points)), self.clusters, r.rng))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common model; once there are groups, each client its group's."""
        if len(s.centres) == 0:
            return to_all(model=s.model)
        labels = s.labels[r.ids]
        return to_each(model=torch.where(labels[:, None] < 0, s.model, s.centres[labels]))

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean model, or each group's mean once there are groups, weighted by samples."""
        if len(s.centres) == 0:
            return s.but(model=r.mean(up.model))
        known = s.labels[r.ids] >= 0  # clients that have not answered yet train the common model without effect
        if not bool(known.any()):
            return s
        r = r.among(r.ids[known])
        return s.but(centres=r.group_mean(up.model[known], s.labels[r.ids], s.centres))

    def _pools(self, s: Bundle, r: Round) -> Bundle:
        """Return one pool, or one for each group once there are groups."""
        labels = s.labels[r.ids]
        return Bundle(group=labels if len(s.centres) else torch.zeros_like(labels), weight=r.weight)

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return the group of each client, int64 ``[K]``; -1 for clients without one."""
        return s.labels

    def _count(self, s: Bundle, r: Round) -> int:
        """Return the number of groups."""
        return self.clusters

    can = property(
        lambda m: (
            RobustMeans(),
            PrivateSums(PFA._pools),
            Uploads(
                "how often some of the common model's channels are inactive on its data, and its model",
                "how often channels are silent on its training samples",
            ),
            Asks("round", PFA._question, PFA._answer, PFA._collect),
            Grouped(PFA._labels, PFA._count),
            Needs(total="it makes groups after half of the rounds where after is not set" if m.after is None else ""),
            Presets(_PRESETS),
        )
    )


# ---- sparsity of channels -------------------------------------------------------------------------------------------


def sparsity(net: Net, w: Tensor, x: Tensor) -> Tensor:
    """Return each channel's mean share of zeros over the samples ``x [n, *shape]``, float32 ``[C]`` in 0..1, eval mode.

    The channels are those of the last ReLU whose output has positions (a map H x W or a sequence), before any pooling;
    in a network without one the units of the last ReLU; without any ReLU the head's inputs, where values that are
    not positive count as zeros.
    """
    shares = chunked(lambda part: channel_shares(net, w, part), x)
    return shares.double().sum(0).div(max(1, len(x))).float()


def channel_shares(net: Net, w: Tensor, x: Tensor) -> Tensor:
    """Return the share of zeros of each channel for each sample, float32 ``[n, C]``; see `sparsity`."""
    seen = _Watch()
    with seen:
        z, _ = net.features_and_logits(w, x)
    if seen.maps is not None:
        return seen.maps
    return _share(z <= 0) if seen.units is None else seen.units


class _Watch(TorchFunctionMode):
    """Mode that sees every call of a ReLU, as module or function, and keeps the shares of zeros of the last ones.

    It keeps shares, not outputs: a later operation may write to an output in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maps: Tensor | None = None
        self.units: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        # nn.ReLU6 is a hardtanh from 0
        if func in _RELU or (func is F.hardtanh and (kwargs or {}).get("min_val") == 0):
            if out.dim() > 2:
                self.maps = _share(out == 0)
            elif out.dim() == 2:
                self.units = _share(out == 0)
        return out


def _share(silent: Tensor) -> Tensor:
    """Return the share of true entries of ``[n, C, ...]`` in each channel, ``[n, C]``."""
    return silent.float().flatten(2).mean(2) if silent.dim() > 2 else silent.float()
