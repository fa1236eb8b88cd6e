"""False uploads in the simulator, for research: some clients train like the others and send something else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.core import Bundle, ConfigError
from fedkin.core.grammar import chosen
from fedkin.core.seeds import generator
from fedkin.core.settings import ATTACKS, Attackers

_TIMES = 100.0  # how much too long a scaled update is


@dataclass(frozen=True)
class Attack:
    """Attack on updates, for research.

    Every tensor of floating-point numbers ``w`` in an upload becomes, with ``s`` the tensor that it was made from,

    - ``sign-flip``: ``s - (w - s)``, the update turned round;
    - ``scale``: ``s + 100 (w - s)``;
    - ``random``: ``s + sigma g``, with g standard normal and sigma the root mean square of ``w - s``: noise of the
      update's length, drawn anew for every client and round.

    ``s`` is what the client was sent under the same name; if nothing of that name and shape was sent, the one nearest
    to ``w`` of 0 (for an upload that is itself a change) and all that were, rows of stacks included (a method that
    sends the models of all clusters); of a stack of models that were sent one by one, each row has its own ``s``. What
    the client keeps to itself stays as it is.

    Attributes:
        kind: one of these, or ``none``.
        fraction: of the clients that attack, rounded down.
    """

    kind: str = "none"
    fraction: float = 0.0

    @classmethod
    def read(cls, text: str) -> Attack:
        """Return the attack that a setting names, such as ``sign-flip@fraction=0.2``."""
        kind, how = chosen(text, ATTACKS, "attack")
        return cls(kind, how.fraction) if isinstance(how, Attackers) else cls()

    def clients(self, total: int, seed: int) -> list[int]:
        """Return the attackers among ``total`` clients of a run with this seed, ascending.

        Raises:
            ConfigError: the fraction is less than one client.
        """
        count = math.floor(self.fraction * total + 1e-9)
        if self.kind != "none" and count == 0:
            raise ConfigError(
                f"the attacking fraction {self.fraction:g} of {total} clients is none; one would be 1/{total}"
            )
        return torch.randperm(total, generator=generator(seed, "attackers"))[:count].sort().values.tolist()

    def falsified(self, client: int, round: int, received: Bundle, upload: Bundle, seed: int) -> Bundle:
        """Return the upload that an attacker sends instead of ``upload``; the same in every call.

        Single numbers, such as an accuracy, stay as they are: outside their range the server would refuse the upload.
        """
        rng = generator(seed, "attack", round, client)
        return Bundle(
            {
                name: self._changed(w, _start(name, w, received), rng) if w.is_floating_point() and w.dim() else w
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
    """Return the received tensor from which an upload's tensor was probably trained, or zeros if none is nearer."""
    given = received.get(name)
    if given is not None and given.shape == w.shape:
        return given.to(w.dtype)
    candidates: list[Tensor] = []
    for t in received.values() if w.dim() else ():
        if t.is_floating_point() and t.shape[-w.dim() :] == w.shape:
            candidates += t.to(w.dtype).reshape(-1, *w.shape).unbind()
    if not candidates and w.dim() > 1 and len(w):
        return torch.stack([_start(name, row, received) for row in w])
    return min([*candidates, torch.zeros_like(w)], key=lambda s: float((w - s).norm()))
