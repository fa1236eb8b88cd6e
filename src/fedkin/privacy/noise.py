"""Noise on what clients say of themselves, and where random numbers that protect somebody come from."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from fedkin.core import Bundle, Client, ConfigError, Method, MethodError, Net, Samples, Training
from fedkin.core.seeds import generator

_LEAST = 1e-6  # smallest epsilon: noise of a million samples hides everything that a client could have


class Source(Protocol):
    """Random numbers."""

    def below(self, n: int) -> int:
        """Return an integer drawn uniformly from ``0 .. n - 1``, for n of any size."""

    def uniform(self, n: int) -> Tensor:
        """Float64 ``[n]`` in [0, 1)."""

    def normal(self, n: int) -> Tensor:
        """Float64 ``[n]``, standard normal."""


class Keyed:
    """Numbers that a generator gives: repeatable, so they are no protection. For simulations."""

    def __init__(self, rng: torch.Generator) -> None:
        self._rng = rng

    def below(self, n: int) -> int:
        """Return a uniformly drawn integer from 0 to n - 1."""
        bits = n.bit_length()
        words = -(-bits // 32)
        while True:
            draw = 0
            for word in torch.randint(1 << 32, (words,), generator=self._rng).tolist():
                draw = draw << 32 | int(word)
            draw >>= 32 * words - bits
            if draw < n:
                return draw

    def uniform(self, n: int) -> Tensor:
        """Return float64 ``[n]``, uniform in [0, 1)."""
        return torch.rand(n, generator=self._rng, dtype=torch.float64)

    def normal(self, n: int) -> Tensor:
        """Return float64 ``[n]``, standard normal."""
        return torch.randn(n, generator=self._rng, dtype=torch.float64)


class Secret:
    """Numbers that cannot be foreseen: from the operating system's generator, not from a run's seed. For real hosts."""

    def below(self, n: int) -> int:
        """Return a uniformly drawn integer from 0 to n - 1."""
        return secrets.randbelow(n)

    def uniform(self, n: int) -> Tensor:
        """Return float64 ``[n]``, uniform in [0, 1)."""
        if n == 0:
            return torch.zeros(0, dtype=torch.float64)
        raw = torch.frombuffer(bytearray(secrets.token_bytes(8 * n)), dtype=torch.int64)
        return ((raw >> 11) & ((1 << 53) - 1)).double() * 2.0**-53

    def normal(self, n: int) -> Tensor:
        """Half the sum of four, so that the pattern of representable numbers does not give one away.

        Holohan, Braghin: Secure Random Sampling in Differential Privacy, ESORICS 2021.
        """
        length = (-2 * torch.log1p(-self.uniform(4 * n))).sqrt()  # Box and Muller
        return (length * (2 * torch.pi * self.uniform(4 * n)).cos()).view(4, n).sum(0) / 2


def discrete_laplace(n: int, scale: Fraction, source: Source) -> Tensor:
    """Whole numbers ``[n]``, int64, with ``P(x)`` proportional to ``exp(-|x| / scale)``: exactly, without rounding.

    Only whole random numbers and comparisons are used, so the tails are correct as well.
    Canonne, Kamath, Steinke: The Discrete Gaussian for Differential Privacy, NeurIPS 2020, Algorithm 2.
    """
    return torch.tensor([_one(scale.numerator, scale.denominator, source) for _ in range(n)], dtype=torch.int64)


def _one(t: int, s: int, source: Source) -> int:
    """One draw at scale t/s."""
    while True:
        u = source.below(t)
        if not _decays(u, t, source):
            continue
        v = 0
        while _decays(1, 1, source):
            v += 1
        size = (u + t * v) // s
        negative = source.below(2) == 1
        if not (negative and size == 0):  # zero must not be twice as likely
            return -size if negative else size


def _decays(a: int, b: int, source: Source) -> bool:
    """True with probability ``exp(-a/b)``, for a <= b (the same paper, Algorithm 1)."""
    k = 1
    while source.below(b * k) < a:
        k += 1
    return k % 2 == 1


def checked_epsilon(value: float) -> Fraction:
    """Return epsilon as the exact number that is written: 0.1 is one tenth.

    Raises:
        ConfigError: it is not a number of at least a millionth.
    """
    if not _LEAST <= value < float("inf"):
        raise ConfigError(f"metadata_epsilon must be a number of at least {_LEAST:g}, such as 1, got {value}")
    return Fraction(repr(float(value)))


def noisy_counts(counts: Tensor, epsilon: float, source: Source | None = None) -> Tensor:
    """Class counts ``[C]`` with discrete Laplace noise of scale 1/epsilon; negative ones become 0.

    One sample more or less changes one count by 1, so these are epsilon-differentially private for it, and so is
    whatever is computed from them. A sample whose label is changed moves two counts: 2 epsilon.

    Args:
        source: of the noise. Default: the operating system's, which cannot be repeated.
    """
    noise = discrete_laplace(len(counts), 1 / checked_epsilon(epsilon), source or Secret())
    return (counts + noise).clamp(min=0)


def noisy_choice(chosen: int, of: int, epsilon: float, source: Source | None = None) -> int:
    """Return a choice among ``0 .. of - 1`` by randomised response.

    It is ``exp(epsilon)`` times as likely the true one as each other, so it is epsilon-differentially private for all
    that the choice was made from, all samples together. Exact, as `discrete_laplace` is.
    Kairouz, Bonawitz, Ramage: Discrete Distribution Estimation under Local Privacy, ICML 2016.

    Args:
        source: of the noise. Default: the operating system's, which cannot be repeated.
    """
    exact, source = checked_epsilon(epsilon), source or Secret()
    while True:  # the true one is always taken, each other with probability exp(-epsilon)
        drawn = source.below(of)
        if drawn == chosen or _fades(exact, source):
            return drawn


def _fades(x: Fraction, source: Source) -> bool:
    """True with probability ``exp(-x)``, for x >= 0."""
    rest = x % 1
    return all(_decays(1, 1, source) for _ in range(int(x))) and _decays(rest.numerator, rest.denominator, source)


@dataclass(frozen=True)
class KeyedReports:
    """What each client of a simulation reports of itself with noise: the same whenever it is requested.

    Attributes:
        epsilon: of each report.
        seed: the run's.
    """

    epsilon: float
    seed: int

    def counts(self, client: int, counts: Tensor) -> Tensor:
        """Return the client's class counts as `noisy_counts` gives them."""
        return noisy_counts(counts, self.epsilon, Keyed(generator(self.seed, "told", client)))

    def choice(self, client: int, chosen: int, of: int) -> int:
        """Return the client's choice as `noisy_choice` gives it."""
        return noisy_choice(chosen, of, self.epsilon, Keyed(generator(self.seed, "chosen", client)))


class Hidden(Samples):
    """Data of which class counts alone can be read: what a client says at joining may be made of its noisy counts."""

    def __init__(self, counts: Tensor) -> None:
        """Keep the class counts ``[C]`` that stand for the client's own."""
        object.__setattr__(self, "_counts", counts)

    def counts(self, classes: int) -> Tensor:
        """Return the class counts ``[C]`` that were given."""
        return self._counts

    def __getattr__(self, name: str) -> Tensor:
        raise MethodError("describe reads the client's data; with metadata_epsilon it may use c.counts() and no more")


def says(method: Method, net: Net) -> list[str]:
    """Return the names of what a client reports at joining in addition to its number of samples.

    Raises:
        MethodError: it does not follow from class counts.
    """
    described: list[Bundle] = []
    for group in (0, 1):  # the only thing, except data, in which two clients with equal counts differ
        hidden = Hidden(torch.arange(net.classes))
        made_up = Client(0, hidden, hidden, net, Training(), Bundle(), Bundle(), group=group)
        described.append(method.describe(made_up))
    for name, t in described[0].items():
        if name not in described[1] or not torch.equal(t, described[1][name]):
            raise MethodError(f"it says its {name} at joining, which does not follow from class counts")
    return sorted(described[0])


def reports_at_joining(method: Method, net: Net) -> bool:
    """Return whether a client reports anything at joining in addition to its number of samples."""
    try:
        return bool(says(method, net))
    except MethodError:
        return True
