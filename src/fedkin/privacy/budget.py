"""What a run promises single samples: noise on what clients report, private training, and the epsilon of both.

How much private training spent is counted by Opacus (extra ``dp``), in Rényi differential privacy.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from fedkin.capabilities.asks import sends_scores
from fedkin.capabilities.uploads import also_sent
from fedkin.core import ConfigError, Method, MethodError, Net
from fedkin.core.settings import Privacy
from fedkin.privacy.dp_sgd import Private, require_single_gradients
from fedkin.privacy.noise import reports_at_joining, require_counts, says

__all__ = [
    "Privacy",
    "Spent",
    "add",
    "composed",
    "epsilon",
    "privacy_summary",
    "private_of",
    "reports",
    "reports_at_joining",
    "require_covered",
    "require_privacy",
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


def require_privacy(privacy: Privacy, method: Method, net: Net) -> None:
    """Check that the options can keep their guarantees, before anything is trained.

    Raises:
        ConfigError: clients report more than the options cover, or Opacus is not installed.
        ModelError: the network cannot be trained privately.
    """
    if privacy.metadata_epsilon is not None:
        if sends_scores(method) == "exact":
            raise ConfigError(
                f"metadata_epsilon puts noise on what clients report at joining, but clients of {method.title} "
                "also send exact figures on their held-out samples; set send_numbers = false in the method, or "
                "leave metadata_epsilon out"
            )
        require_counts(method, net, nothing=sends_scores(method) == "noisy")
    if privacy.noise_multiplier is None:
        return
    require_covered(privacy, method)
    if importlib.util.find_spec("opacus") is None:
        raise ConfigError('noise_multiplier needs Opacus, which counts what it spends: pip install "fedkin[dp]"')
    if privacy.metadata_epsilon is None and (said := _said(method, net)):
        raise ConfigError(
            f"clients of {type(method).__name__} say their {', '.join(said)} at joining, which private training "
            "does not cover; also give metadata_epsilon, such as 1.0"
        )
    require_single_gradients(net)


def require_covered(privacy: Privacy, method: Method) -> None:
    """Check what `require_privacy` checks and needs no network.

    Raises:
        ConfigError: clients of this method report more of their samples than private training covers.
    """
    also, name = also_sent(method), type(method).__name__
    if privacy.noise_multiplier is None or also == "":
        return
    if also is None:
        raise ConfigError(
            f"{name} does not say what its clients send in addition to trained models, so no epsilon can be "
            'stated; if it is nothing, say also_sends = "" in the method (docs/robust-and-private.md)'
        )
    raise ConfigError(
        f"noise_multiplier makes the training of {name} private, but its clients also send {also}, which no "
        "noise covers; take another method (docs/robust-and-private.md has a list) or leave noise_multiplier out"
    )


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


def reports(method: Method, net: Net) -> bool:
    """Return whether `metadata_epsilon` puts noise on anything: a report at joining, or a choice."""
    return reports_at_joining(method, net) or sends_scores(method) == "noisy"


def _said(method: Method, net: Net) -> list[str]:
    """Return what clients report at joining.

    Raises:
        ConfigError: it does not follow from class counts, so that no option covers it.
    """
    try:
        return says(method, net)
    except MethodError as e:
        raise ConfigError(
            f"noise_multiplier makes the training of {type(method).__name__} private, but what its clients report at "
            f"joining is not covered by any noise: {e}; take another method (docs/robust-and-private.md has a list) or "
            "leave noise_multiplier out"
        ) from e


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
