"""False uploads in the simulator, for research: some clients train like the others and send something else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from fedkin.core import Bundle, ConfigError
from fedkin.core.seeds import generator

AttackKind: TypeAlias = Literal["none", "sign-flip", "scale", "random"]
_TIMES = 100.0  # how much too long a scaled update is


@dataclass(frozen=True)
class Attack:
    """What attackers make of their uploads, and which clients they are.

    Every tensor of floating-point numbers ``w`` in an upload becomes, with ``s`` the tensor that it was made from,

    - ``sign-flip``: ``s - (w - s)``, the update turned round;
    - ``scale``: ``s + 100 (w - s)``;
    - ``random``: ``s + sigma g``, with g standard normal and sigma the root mean square of ``w - s``: noise of the
      update's length, drawn anew for every client and round.

    ``s`` is what the client was sent under the same name; if nothing of that name and shape was sent, the one nearest
    to ``w`` of all that were, rows of stacks included (a method that sends the models of all clusters); else 0. What
    the client keeps to itself stays as it is.

    Attributes:
        kind: what is done; ``none``: nothing.
        share: of the clients, rounded down; drawn by the seed.
        seed: of the run.

    Raises:
        ConfigError: an unknown kind, a share outside [0, 1), an attack without attackers or the other way round.
    """

    kind: AttackKind = "none"
    share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(AttackKind):
            raise ConfigError(f"attack must be one of {', '.join(map(repr, get_args(AttackKind)))}, got {self.kind!r}")
        if not 0 <= self.share < 1:
            raise ConfigError(f"attackers must be a share of the clients in [0, 1), such as 0.2, got {self.share}")
        if (self.kind == "none") != (self.share == 0):
            raise ConfigError(
                f"attack = {self.kind!r} with attackers = {self.share:g}: give both, what attackers do and their share "
                "of the clients, or neither"
            )

    def clients(self, total: int) -> list[int]:
        """The attackers among ``total`` clients, ascending.

        Raises:
            ConfigError: the share is less than one client.
        """
        count = math.floor(self.share * total + 1e-9)
        if self.kind != "none" and count == 0:
            raise ConfigError(f"attackers = {self.share:g} of {total} clients is none; one would be 1/{total}")
        return torch.randperm(total, generator=generator(self.seed, "attackers"))[:count].sort().values.tolist()

    def falsified(self, client: int, round: int, received: Bundle, upload: Bundle) -> Bundle:
        """What an attacker sends instead of ``upload``; the same whenever it is asked for."""
        rng = generator(self.seed, "attack", round, client)
        return Bundle(
            {
                name: self._changed(w, _start(name, w, received), rng) if w.is_floating_point() else w
                for name, w in upload.items()
            }
        )

    def _changed(self, w: Tensor, start: Tensor, rng: torch.Generator) -> Tensor:
        update = w - start
        if self.kind == "random":
            sigma = update.double().square().mean().sqrt().to(w.dtype) if w.numel() else 0.0
            return start + sigma * torch.randn(w.shape, generator=rng, dtype=w.dtype)
        return start + (-1.0 if self.kind == "sign-flip" else _TIMES) * update


def _start(name: str, w: Tensor, received: Bundle) -> Tensor:
    """What an upload's tensor was made from, as far as what was sent tells."""
    given = received.get(name)
    if given is not None and given.shape == w.shape:
        return given.to(w.dtype)
    candidates: list[Tensor] = []
    for t in received.values() if w.dim() else ():
        if t.is_floating_point() and t.shape[-w.dim() :] == w.shape:
            candidates += t.to(w.dtype).reshape(-1, *w.shape).unbind()
    return min(candidates, key=lambda s: float((w - s).norm()), default=torch.zeros_like(w))
