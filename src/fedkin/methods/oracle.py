"""Oracle clusters: FedAvg inside the true groups, which no server knows; the best that clustering could reach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, PrivateSums, RobustMeans, Uploads
from fedkin.core import Bundle, Client, ConfigError, Download, Method, Round, Train, Work, to_each
from fedkin.core.rows import grow


@dataclass(frozen=True)
class Oracle(Method):
    """A reference row: FedAvg inside the true groups of the federation, which a real server does not know."""

    title = "Oracle clusters"
    paper = "a reference row without a paper; FedAvg is McMahan et al., AISTATS 2017"
    family = "clusters"

    def init(self, r: Round) -> Bundle:
        """Return an empty state: the groups are learned as clients join."""
        return Bundle(models=torch.empty(0, r.net.size), groups=torch.empty(0, dtype=torch.int64))

    def describe(self, c: Client) -> Bundle:
        """Return the client's true group.

        Raises:
            ConfigError: the federation does not know it.
        """
        if c.group < 0:
            raise ConfigError(
                f"client {c.id} has no true group, and Oracle averages inside true groups: take a partition that makes "
                "them (cluster-dirichlet, cluster-classes), plant them (--plant labels), take data that bring them "
                "(partition natural, for example of synthetic), or give them: Federation(..., "
                "groups=torch.tensor([0, 1, ...]))"
            )
        return Bundle(group=torch.tensor(c.group))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add a model, at the common start, for each true group not seen before."""
        present = r.roster.described.group.unique()
        groups = torch.cat([s.groups, present[~torch.isin(present, s.groups)]])
        return Bundle(models=grow(s.models, len(groups), r.fresh(0)), groups=groups)

    def _row(self, s: Bundle, r: Round) -> Tensor:
        """Return the row of the model of each client's group, int64 ``[m]``."""
        mine = r.roster.described.group[r.ids, None] == s.groups
        return mine.to(torch.uint8).argmax(1)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant its group's model."""
        return to_each(model=s.models[self._row(s, r)])

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return each group's mean of the trained models, weighted by samples; FedAvg inside each group."""
        return s.but(models=r.group_mean(up.model, self._row(s, r), s.models))

    def _pools(self, s: Bundle, r: Round) -> Bundle:
        """Return one pool for each true group."""
        return Bundle(group=self._row(s, r), weight=r.weight)

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return the true group of each client, int64 ``[K]``."""
        empty = r.roster.size  # before any client has joined
        return r.roster.described.get("group", empty).clone()

    can = (
        RobustMeans(),
        PrivateSums(_pools),
        Uploads("its model and its true group", "its true group"),
        Grouped(_labels, of_models=True),
    )
