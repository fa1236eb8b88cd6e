"""What a run promises single samples: noise on what clients report, private training, and the epsilon of both.

How much private training spent is counted by Opacus (extra ``dp``), in Rényi differential privacy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from fedkin.core.settings import Privacy
from fedkin.privacy.dp_sgd import Private
from fedkin.privacy.noise import reports_at_joining

__all__ = [
    "Privacy",
    "Spent",
    "add",
    "composed",
    "epsilon",
    "privacy_summary",
    "private_of",
    "reports_at_joining",
    "sentence",
    "total",
    "written",
]

Spent = Mapping[float, int]
"""Steps taken at each sampling rate."""


def _table(privacy: Privacy) -> dict[str, Any]:
    """Return the options that are set, for the record of a run."""
    dp = (
        {}
        if privacy.noise_multiplier is None
        else {n: getattr(privacy, n) for n in ("noise_multiplier", "max_grad_norm", "delta")}
    )
    return dp if privacy.metadata_epsilon is None else {"metadata_epsilon": privacy.metadata_epsilon, **dp}


def private_of(privacy: Privacy, *, secret: bool) -> Private | None:
    """Return how clients train; ``secret`` on real hosts, where others know the seed."""
    return (
        None if privacy.noise_multiplier is None else Private(privacy.noise_multiplier, privacy.max_grad_norm, secret)
    )


def privacy_summary(privacy: Privacy, spent: Mapping[int, Spent]) -> dict[str, Any]:
    """Return the entry of a run's summary.

    Args:
        spent: private training by client: steps at each sampling rate.
    """
    out = _table(privacy)
    if privacy.noise_multiplier is not None:
        each = {i: epsilon(s, privacy.noise_multiplier, privacy.delta) for i, s in _different(spent).items()}
        worst = max(each, key=lambda i: each[i], default=None)
        largest = 0.0 if worst is None else each[worst]
        out |= {
            "epsilon": None if math.isinf(largest) else largest,
            "client": worst,
            "steps": 0 if worst is None else sum(spent[worst].values()),
        }
    return out


def epsilon(spent: Spent, noise: float, delta: float) -> float:
    """Epsilon of private training, for one sample more or less; infinite without noise.

    Mironov, Talwar, Zhang: Rényi Differential Privacy of the Sampled Gaussian Mechanism, arXiv 1908.10530, as Opacus'
    `RDPAccountant` has it.
    """
    return composed([(noise, rate, steps) for rate, steps in sorted(spent.items())], delta)


def composed(history: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon of all steps of a history ``(noise, sampling rate, steps)``: what `epsilon` is for one noise."""
    taken = [(noise, rate, steps) for noise, rate, steps in history if steps]
    if not taken:
        return 0.0
    if any(noise == 0 for noise, _, _ in taken):
        return math.inf
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import get_privacy_spent

    orders = RDPAccountant.DEFAULT_ALPHAS
    rdp = sum(_per_step(noise, rate) * steps for noise, rate, steps in taken)
    with warnings.catch_warnings():
        # it says when a larger range of orders might give a smaller epsilon; the one it gives is true all the same
        warnings.simplefilter("ignore")
        return max(0.0, float(get_privacy_spent(orders=orders, rdp=rdp, delta=delta)[0]))  # a large delta: below 0


@lru_cache(4096)
def _per_step(noise: float, rate: float) -> Any:
    """Rényi divergence of one step at each of the accountant's orders: an array; it takes a tenth of a second."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)


def total(rounds: Iterable[Mapping[int, Iterable[tuple[float, int]]]]) -> dict[int, dict[float, int]]:
    """Return the total private training of a run, from that of its rounds: pairs of sampling rate and steps."""
    out: dict[int, dict[float, int]] = {}
    for line in rounds:
        for client, pairs in line.items():
            add(out.setdefault(client, {}), dict(pairs))
    return out


def add(to: dict[float, int], spent: Spent) -> None:
    """Add the steps of ``spent`` to those in ``to``."""
    for rate, steps in spent.items():
        to[rate] = to.get(rate, 0) + steps


def written(spent: Mapping[int, Spent]) -> dict[int, tuple[tuple[float, int], ...]]:
    """Return the private training of a round for its line: pairs of sampling rate and steps by client."""
    return {i: tuple(sorted(s.items())) for i, s in sorted(spent.items())}


def sentence(summary: Mapping[str, Any]) -> str:
    """Return a run's `privacy_summary` in words; "" without any option."""
    parts = []
    if "metadata_epsilon" in summary:
        parts.append(f"each report with noise: epsilon {summary['metadata_epsilon']:g}")
    if "noise_multiplier" in summary:
        if summary["epsilon"] is None:
            parts.append("training: no noise, so no epsilon")
        else:
            parts.append(f"training: epsilon up to {summary['epsilon']:.3g} at delta {summary['delta']:g}")
    return "; ".join(parts) + (" (for one sample more or less)" if parts else "")


def _different(spent: Mapping[int, Spent]) -> dict[int, Spent]:
    """One client of each amount: many spend the same."""
    first = {tuple(sorted(s.items())): i for i, s in sorted(spent.items(), reverse=True)}
    return {i: spent[i] for i in sorted(first.values())}
