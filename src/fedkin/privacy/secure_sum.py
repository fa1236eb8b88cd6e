"""Secure aggregation, its arithmetic: uploads become whole numbers, and all that is read of them is their sum.

A client of a pool sends for each number x of its upload the whole number ``round(2^34 share x)``, with ``share`` its
part of the pool's weight. Their sum is 2^34 times the weighted mean. On real hosts masks are added that cancel in the
sum (`fedkin_hosts.masks`); a simulation adds up the same whole numbers without masks. Whole numbers have one sum, in
whatever order, so both give the same bits.

Range: numbers up to 1e8, so that a sum is below ``1e8 * 2^34 + m / 2 < 2^61`` and cannot wrap at 2^63. Precision: an
addend is rounded by at most 2^-35, so the mean of m clients is off by at most ``m 2^-35`` (100 clients: 3e-9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.capabilities import PrivateSums, has
from fedkin.capabilities.sums import one_pool
from fedkin.core import Bundle, Method, MethodError, Round
from fedkin.core.bundle import refusal
from fedkin.core.refusals import Reason

BITS = 34
"""Binary places of a whole number that stands for a fraction."""
LIMIT = 1e8
"""No number of an upload may be larger."""
LEAST = 3
"""Members of a pool at least: in a sum of two each would read the other."""
MOST = 0.5
"""Largest share of a pool's weight that a client accepts. With more, the sum is nearer to its upload than to all others
together, and a server could choose weights with which it is nothing else. A server on hosts lowers larger ones."""
NOT_SUMMABLE = Reason("not-summable", expected=f"{LIMIT:g}")


class OutOfRange(Exception):
    """A number of an upload is not finite or too large for the sum. The text may hold data: it stays on the client."""


@dataclass(frozen=True)
class SecureGroup:
    """Clients whose uploads are added up, as one of them sees the group.

    Attributes:
        members: their ids, ascending.
        weight: weight of this member.
        total: sum of the members' weights.
        weights: weight of every member, for messages to hosts.
    """

    members: tuple[int, ...]
    weight: float
    total: float
    weights: tuple[float, ...] = ()


def pooled(
    method: Method, s: Bundle, r: Round, least: int = LEAST, limit: Callable[[Tensor], Tensor] = lambda weights: weights
) -> tuple[Round, dict[int, SecureGroup], dict[int, Reason]]:
    """Return the round for those of ``r.ids`` that can be pooled, their pools, and why the others are left out.

    Args:
        least: members of a pool at least.
        limit: lowers weights ``[m]`` of a pool's members that are too large.
    """
    sums = has(method, PrivateSums)
    grouping = one_pool(method, s, r) if sums is None else sums.pools(method, s, r)
    weight, pools, out = grouping.weight.double(), dict[int, SecureGroup](), dict[int, Reason]()
    for group in grouping.group.unique().tolist():
        mine = grouping.group == group
        ids, weights = r.ids[mine].tolist(), tuple(limit(weight[mine]).tolist())
        if group < 0 or len(ids) < least:  # the uploads of an unknown group would not be used
            size = "unknown" if group < 0 else len(ids)
            out |= dict.fromkeys(ids, Reason("left-out", value=size, expected=str(least)))
        else:
            pools |= {i: SecureGroup(tuple(ids), w, sum(weights), weights) for i, w in zip(ids, weights, strict=True)}
    return r.among(torch.tensor(sorted(pools), dtype=torch.int64)), pools, out


def fixed(upload: Bundle, pool: SecureGroup) -> Bundle:
    """One member's addend: whole numbers, int64.

    Raises:
        OutOfRange: a number is not finite, or above `LIMIT`.
        MethodError: a tensor does not hold floating-point numbers.
    """
    summands, scale = Bundle(), pool.weight / pool.total * 2.0**BITS
    for name, t in upload.items():
        _require_floats(name, t)
        if t.numel() and not float(t.abs().max()) <= LIMIT:  # NaN wins every max
            raise OutOfRange(f"{name} holds {float(t.abs().max()):g}, at most {LIMIT:g} can be added up")
        summands[name] = (t.double() * scale).round().to(torch.int64)
    return summands


def require_alike(method: Method, sent: Mapping[int, tuple[Bundle, SecureGroup | None]]) -> None:
    """Raise `MethodError` if clients whose uploads are added up are sent different tensors: masks would not cancel."""
    for i, (body, pool) in sent.items():
        first = body if pool is None else sent[pool.members[0]][0]
        if body.keys() != first.keys() or not all(_equal(t, first[name]) for name, t in body.items()):
            raise MethodError(
                f"secure aggregation cannot be used with {type(method).__name__} as it is set: clients whose uploads "
                f"are added up must be sent the same tensors, and client {i} is sent others than the first of its sum"
            )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a.nan_to_num(), b.nan_to_num())


def summed(
    pools: Mapping[int, SecureGroup], replies: Mapping[int, Bundle], like: Bundle, bound: float
) -> tuple[dict[int, Bundle], dict[int, Reason]]:
    """Return the mean of each complete pool, once for each member, and why the other clients are refused.

    Args:
        pools: of each client that was asked.
        replies: addends, masked or not.
        like: example of a single upload.
        bound: a mean with a number larger than this is refused.

    Raises:
        MethodError: single uploads would not be floating-point numbers.
    """
    for name, t in like.items():
        _require_floats(name, t)
    whole = Bundle({name: torch.zeros_like(t, dtype=torch.int64) for name, t in like.items()})
    refused = {i: why for i, reply in replies.items() if (why := refusal(reply, whole, bound)) is not None}
    good: dict[int, Bundle] = {}
    for members in dict.fromkeys(pools[i].members for i in sorted(replies)):
        lost = [i for i in members if i not in replies or i in refused]
        left = [i for i in members if i in replies and i not in refused]
        if lost:
            refused |= dict.fromkeys(left, Reason("pool-broken", value=lost[0]))
            continue
        mean = _mean([replies[i] for i in members], like)
        if refusal(mean, like, bound) is not None:
            refused |= dict.fromkeys(left, Reason("pool-numbers", value=", ".join(map(str, members))))
        else:
            good |= dict.fromkeys(left, mean)
    return {i: good[i] for i in sorted(good)}, refused


def _mean(addends: list[Bundle], like: Bundle) -> Bundle:
    means = Bundle()
    for name, t in like.items():
        total = torch.zeros_like(t, dtype=torch.int64)
        for addend in addends:
            total += addend[name]  # wraps at 2^63, as masks have it: what is left of them is nothing
        means[name] = (total.double() / 2.0**BITS).to(t.dtype)
    return means


def _require_floats(name: str, t: Tensor) -> None:
    if not t.is_floating_point():
        raise MethodError(
            f"secure aggregation adds up floating-point numbers, {name!r} in an upload is {t.dtype}; "
            "a method that sends it cannot say secure_aggregation = True"
        )
