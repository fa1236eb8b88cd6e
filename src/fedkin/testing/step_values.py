"""Values that the server's steps of a method may return: types, shapes and ranges."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.core import Bundle, Download, Round
from fedkin.testing.spy import RuleBroken


def check_step_value(step: str, r: Round, given: object) -> None:
    """Check the type, shape and range of what a step of the server returns.

    Args:
        step: `sample`, `relations`, or one that returns a download.
        r: the round of the step.
        given: its result.

    Raises:
        RuleBroken: it is something else than the step may return; the message names the step and the round.
    """
    m, k = len(r.ids), len(r.roster)
    where = f"{step} in round {r.index}"
    if step == "sample":
        given = _beside(where, given) if isinstance(given, Bundle) else given
        if not isinstance(given, Tensor) or given.dtype != torch.int64 or given.dim() != 1:
            raise RuleBroken(f"{where} must give int64 [m], gave {_kind(given)}")
        if not 1 <= len(given) <= m:
            raise RuleBroken(f"{where} chose {len(given)} of {m} available clients")
    elif given is None and step in ("question", "labels"):
        return
    elif step == "labels":
        if not isinstance(given, Tensor) or given.dtype != torch.int64 or tuple(given.shape) != (k,):
            raise RuleBroken(f"{where} must give None or int64 [{k}], a cluster for each client; gave {_kind(given)}")
        if bool((given < -1).any()):
            raise RuleBroken(f"{where} gave the cluster {int(given.min())}; -1 means not known")
    elif not isinstance(given, Download):
        raise RuleBroken(f"{where} must give what to_all or to_each make, gave {_kind(given)}")
    else:
        _download(where, m, k, given)


def _beside(where: str, drawn: Bundle) -> Tensor | None:
    """Return the ids of a sample that contains more than ids."""
    ids = drawn.get("ids")
    for name, rows in drawn.items():
        if ids is not None and (rows.dim() == 0 or len(rows) != len(ids)):
            raise RuleBroken(f"{where}: {name!r} is {_kind(rows)} for {len(ids)} ids; row i is for ids[i]")
    return ids


def _download(where: str, m: int, k: int, d: Download) -> None:
    """Check what ``m`` of ``k`` clients are sent."""
    for name, rows in d.rows.items():
        if rows.dim() == 0 or len(rows) != m:
            raise RuleBroken(f"{where}: {name!r} is {_kind(rows)} for {m} clients; row i is for r.ids[i]")
    for name, given in d.given.items():
        if given.dtype != torch.bool or tuple(given.shape) != (m,):
            raise RuleBroken(f"{where}: given of {name!r} must be bool [{m}], is {_kind(given)}")
    if both := set(d.rows) & set(d.shared):
        raise RuleBroken(f"{where} gives {sorted(both)} both to all and to each")
    if d.weights is None:
        return
    if not d.weights.is_floating_point() or tuple(d.weights.shape) != (m, k):
        raise RuleBroken(f"{where}: weights must be float [{m}, {k}], is {_kind(d.weights)}")
    gets = torch.stack([*d.given.values()]).any(0) if d.given else torch.ones(m, dtype=torch.bool)
    mine = d.weights[gets].double()
    off = (mine.sum(1) - 1).abs()
    if bool((mine < 0).any()) or bool((off > 1e-6).any()):
        raise RuleBroken(
            f"{where}: each receiver's weights must be 0 or more and sum to 1; "
            f"the least is {float(mine.min()):g}, a sum is {float(mine.sum(1)[off.argmax()]):g}"
        )


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
