"""What a run promises single samples: noise on what clients say at joining, private training, and the epsilon of both.

How much private training spent is counted by Opacus (extra ``dp``), in Rényi differential privacy.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedkin.core import ConfigError, Method, Net
from fedkin.privacy.dp_sgd import Private, require_single_gradients
from fedkin.privacy.noise import checked_epsilon, require_counts, says, says_at_joining

__all__ = ["Privacy", "Spent", "add", "composed", "epsilon", "says_at_joining", "sentence", "total", "written"]

Spent = Mapping[float, int]
"""Steps taken at each sampling rate."""


@dataclass(frozen=True)
class Privacy:
    """The privacy options of a run.

    Attributes:
        describe_epsilon: of the class counts from which a client makes what it says at joining; None: exact counts.
        dp_noise: noise of private training in units of ``dp_clip``; None: plain training.
        dp_clip: longest gradient of a single sample.
        dp_delta: the chance with which epsilon may fail to hold.

    Raises:
        ConfigError: a number is out of range, or belongs to an option that is not taken.
    """

    describe_epsilon: float | None = None
    dp_noise: float | None = None
    dp_clip: float = 1.0
    dp_delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.describe_epsilon is not None:
            checked_epsilon(self.describe_epsilon)
        if not 0 < self.dp_delta < 1:
            raise ConfigError(f"dp_delta must be between 0 and 1, such as 1e-5, got {self.dp_delta}")
        if self.dp_noise is not None:
            Private(self.dp_noise, self.dp_clip)
        elif (self.dp_clip, self.dp_delta) != (1.0, 1e-5):
            raise ConfigError("dp_clip and dp_delta belong to private training; give dp_noise, too, such as 1.0")

    @property
    def asked(self) -> bool:
        """Whether any option is taken."""
        return self.describe_epsilon is not None or self.dp_noise is not None

    def table(self) -> dict[str, Any]:
        """The options that are taken, for the record of a run."""
        dp = {} if self.dp_noise is None else {n: getattr(self, n) for n in ("dp_noise", "dp_clip", "dp_delta")}
        return dp if self.describe_epsilon is None else {"describe_epsilon": self.describe_epsilon, **dp}

    def require(self, method: Method, net: Net) -> None:
        """Makes sure that the options can hold what they promise, before anything is trained.

        Raises:
            ConfigError: the method tells more than the options cover, or Opacus is not installed.
            ModelError: the network cannot be trained privately.
        """
        if self.describe_epsilon is not None:
            require_counts(method, net)
        if self.dp_noise is None:
            return
        self.require_method(method)
        if importlib.util.find_spec("opacus") is None:
            raise ConfigError('dp_noise needs Opacus, which counts what it spends: pip install "fedkin[dp]"')
        if self.describe_epsilon is None and (said := says(method, net)):
            raise ConfigError(
                f"clients of {type(method).__name__} say their {', '.join(said)} at joining, which dp_noise does not "
                "cover; give describe_epsilon, too, such as 1.0"
            )
        require_single_gradients(net)

    def require_method(self, method: Method) -> None:
        """What `require` can say without a network.

        Raises:
            ConfigError: clients of this method tell more of their samples than private training covers.
        """
        beside, name = method.beside_training, type(method).__name__
        if self.dp_noise is None or beside == "":
            return
        if beside is None:
            raise ConfigError(
                f"{name} does not say what its clients tell beside models that they trained, so no epsilon can be "
                'stated; if it is nothing, say beside_training = "" in the method (docs/robust-and-private.md)'
            )
        raise ConfigError(
            f"dp_noise makes the training of {name} private, but its clients also tell {beside}, which no noise "
            "covers; take another method (docs/robust-and-private.md has a list) or leave dp_noise out"
        )

    def private(self, *, secret: bool) -> Private | None:
        """How clients train; ``secret`` on real hosts, where the seed is known to others."""
        return None if self.dp_noise is None else Private(self.dp_noise, self.dp_clip, secret)

    def summary(self, spent: Mapping[int, Spent]) -> dict[str, Any]:
        """What a run's summary says.

        Args:
            spent: what private training took, by client.
        """
        out = self.table()
        if self.dp_noise is not None:
            each = {i: epsilon(s, self.dp_noise, self.dp_delta) for i, s in _different(spent).items()}
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
        return float(get_privacy_spent(orders=orders, rdp=rdp, delta=delta)[0])


@lru_cache(4096)
def _per_step(noise: float, rate: float) -> Any:
    """Rényi divergence of one step at each of the accountant's orders: an array; it takes a tenth of a second."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)


def total(spent: Sequence[Mapping[str, Any]]) -> dict[int, dict[float, int]]:
    """What private training took in all, from the lines of rounds."""
    out: dict[int, dict[float, int]] = {}
    for line in spent:
        for client, pairs in line.get("dp_steps", {}).items():
            add(out.setdefault(int(client), {}), dict(pairs))
    return out


def add(to: dict[float, int], spent: Spent) -> None:
    """Adds the steps of ``spent`` to those in ``to``."""
    for rate, steps in spent.items():
        to[rate] = to.get(rate, 0) + steps


def written(spent: Mapping[int, Spent]) -> dict[str, list[list[float]]]:
    """What private training took in a round, for its line: pairs of sampling rate and steps by client."""
    return {str(i): [[rate, steps] for rate, steps in sorted(s.items())] for i, s in sorted(spent.items())}


def sentence(summary: Mapping[str, Any]) -> str:
    """What a run's `Privacy.summary` says, in words; "" without any option."""
    parts = []
    if "describe_epsilon" in summary:
        parts.append(f"what clients say at joining: epsilon {summary['describe_epsilon']:g}")
    if "dp_noise" in summary:
        if summary["epsilon"] is None:
            parts.append("training: no noise, so no epsilon")
        else:
            parts.append(f"training: epsilon up to {summary['epsilon']:.3g} at delta {summary['dp_delta']:g}")
    return "; ".join(parts) + (" (for one sample more or less)" if parts else "")


def _different(spent: Mapping[int, Spent]) -> dict[int, Spent]:
    """One client of each amount: many spend the same."""
    first = {tuple(sorted(s.items())): i for i, s in sorted(spent.items(), reverse=True)}
    return {i: spent[i] for i in sorted(first.values())}
