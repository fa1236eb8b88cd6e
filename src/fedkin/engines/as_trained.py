"""Check of methods that declare `RobustMeans.alone`: their programs do not look at trained vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name

from fedkin.core import MethodError, Train
from fedkin.engines.drive import drive
from fedkin.engines.tasks import Job, Task
from fedkin.engines.turns import Turn


class SealedVector(Tensor):
    """Trained vector that can be passed on, and refuses everything else, its shape included."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise MethodError(f"it uses {resolve_name(func) or func} on one")


def require_as_trained(job: Job, task: Task) -> int:
    """Run a client's program without training, on vectors that cannot be read; return the bytes of its upload.

    Raises:
        MethodError: the program reads or changes a trained vector, or returns or keeps something else than vectors as
            they were trained.
    """
    turn, handed = Turn(job, task), list[tuple[Tensor, int]]()
    before, name = list(turn.client.state.values()), type(job.method).__name__
    declared = f"{name} has RobustMeans(alone=True), but client_update does not pass on trained vectors as they are"

    def train(request: Train) -> Tensor:
        handed.append((torch.empty(0).as_subclass(SealedVector), request.start.nbytes))
        return handed[-1][0]

    try:
        reply = drive(turn.program(), train)
    except MethodError as e:
        raise MethodError(f"{declared}: {e}") from e
    kept = [t for t in turn.client.state.values() if all(t is not old for old in before)]
    if any(all(t is not vector for vector, _ in handed) for t in (*reply.values(), *kept)):
        raise MethodError(f"{declared}: it returns or keeps another tensor")
    return sum(size for t in reply.values() for vector, size in handed if t is vector)
