"""What runs with privacy options took from one client's data, in a file on its own disk; and its owner's limits.

A server may lie about what it counts, or be lost. So every client counts for itself, over all runs, and writes down
what an answer takes before the answer leaves.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from fedkin.capabilities import Uploads, has
from fedkin.core import ConfigError, Method, Net, RunFolderError
from fedkin.core.settings import Amount
from fedkin.data import Card
from fedkin.data.columns import MAX_CATEGORIES
from fedkin.experiment.settings import Settings
from fedkin.privacy.budget import Privacy, Spent, composed, reports_at_joining
from fedkin.privacy.noise import noisy_choice, noisy_counts
from fedkin.storage.files import make_private
from fedkin.storage.lock import awaited
from fedkin_hosts.client_memory import checked_name, write_private

log = logging.getLogger("fedkin.site")
_DELTA = 1e-5  # a limit holds at this delta at least: a server could choose one with which any epsilon is small

Steps: TypeAlias = tuple[
    Annotated[float, Meta(ge=0, le=1e300)], Annotated[float, Meta(gt=0, le=1)], Annotated[int, Meta(ge=0)]
]  # noise, sampling rate, number

_COUNTS = "--max-metadata-epsilon or --max-epsilon"


class OverBudget(Exception):
    """An answer would take more from the data than their owner allows."""


@dataclass(frozen=True, kw_only=True)
class PrivacyLimits:
    """Limits that the owner of the data sets for all runs; the fields are flags of ``fedkin node``.

    Raises:
        ConfigError: a limit is not a number above 0.
    """

    max_metadata_epsilon: float | None = None
    """Report class counts with noise only, as long as the epsilon of all reports with noise, over all runs of this
    client, stays within it."""
    min_noise_multiplier: float | None = None
    """Take part only in runs with private training and at least this noise_multiplier."""
    max_epsilon: float | None = None
    """Train no more once a sample's epsilon over all runs of this client would exceed this (delta 1e-5 or less)."""
    target: str | None = None
    """Column of a table that holds the class; a run that uses another column is refused. The server receives its
    distinct values. Default: any column with at most 50."""
    only_masked: bool = False
    """Take part only in runs with secure aggregation: no upload leaves without masks. A server still chooses the
    settings of all, so a sum may be of gradients of one sample of each client."""
    keep_scores: bool = False
    """Send no results of evaluations: they are exact numbers, of models that the server chooses."""

    def __post_init__(self) -> None:
        for name in ("max_metadata_epsilon", "min_noise_multiplier", "max_epsilon"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')} must be a number above 0, got {value}")

    @property
    def hides_counts(self) -> bool:
        """Whether exact class counts must not be sent in any way."""
        return self.max_metadata_epsilon is not None or self.max_epsilon is not None

    def check(self, settings: Settings) -> None:
        """Check a run against the limits by its settings alone; `ConfigError` if the run wants more than the owner
        allows."""
        reports, noise = settings.privacy.metadata_epsilon or 0.0, settings.privacy.noise_multiplier
        training = "plain training" if noise is None else f"private training with noise_multiplier = {noise:g}"
        most, least = self.max_metadata_epsilon or math.inf, self.min_noise_multiplier or -1.0
        masked = not self.only_masked or settings.aggregation.secure
        _require(
            (reports > most, f"the run asks for metadata_epsilon = {reports:g}", f"--max-metadata-epsilon {most:g}"),
            (
                (-1 if noise is None else noise) < least,
                f"the run asks for {training}",
                f"--min-noise-multiplier {least:g}",
            ),
            (
                not noise and self.max_epsilon,
                f"{training} of the run has no epsilon",
                f"--max-epsilon {self.max_epsilon}",
            ),
            (not masked, "the run asks for uploads without masks (secure = false in [aggregation])", "--only-masked"),
        )

    def check_method(self, method: Method) -> None:
        """Make sure that no exact figures that the owner keeps are in uploads; `ConfigError` if the method's uploads
        have some."""
        shown, uploads = has(method, Uploads) or Uploads(), f"uploads of {type(method).__name__} hold exact"
        scores, counts = self.keep_scores and "scores" in shown.exact, self.hides_counts and "counts" in shown.exact
        _require(
            (scores, f"{uploads} scores ({shown.also})", "--keep-scores"),
            (counts, f"{uploads} counts ({shown.also})", _COUNTS),
        )

    def check_card(self, card: Card) -> None:
        """Make sure that the classes of a table may be sent.

        Raises:
            ConfigError: the run takes another column for the class than the owner says, or, where the owner says
                nothing, one with more values than a column of texts may have.
        """
        takes, table = f"the run takes column {card.target!r} for the class", card.kind == "table"
        most = f"has {card.classes} different values here, and more than {MAX_CATEGORIES} are only sent"
        _require(
            (table and self.target not in (None, card.target), takes, f"--target {self.target}"),
            (
                table and self.target is None and card.classes > MAX_CATEGORIES,
                f"{takes}, which {most} by a node started with --target {card.target}",
                "no --target",
            ),
        )

    def check_reports(self, privacy: Privacy, method: Method, net: Net) -> None:
        """Raise `ConfigError` if clients report something exact at joining although the owner set a limit."""
        exact = privacy.metadata_epsilon is None and reports_at_joining(method, net)
        what = f"without metadata_epsilon, clients of {type(method).__name__} report something exact at joining"
        _require((self.hides_counts and exact, what, _COUNTS))


def _require(*limits: tuple[object, str, str]) -> None:
    """Raise `ConfigError` for the first of some limits that is exceeded: whether it is, by what, and its flag."""
    for exceeded, what, flag in limits:
        if exceeded:
            raise ConfigError(f"{what}; this node was started with {flag}")


class Used(msgspec.Struct):
    """Privacy loss of one run.

    Attributes:
        counts: the class counts with noise that it sent at joining: drawn once, whatever happens. None: none were sent.
        choice: the choice with noise that it sent before an evaluation, likewise.
        released: the epsilon of both.
        steps: of private training: noise, sampling rate, number.
        answers: number of answers that reported private training.
    """

    counts: tuple[int, ...] | None = None
    released: Amount = 0.0
    choice: int | None = None
    steps: tuple[Steps, ...] = ()
    answers: int = 0

    def add(self, noise: float, spent: Spent) -> None:
        """Count the steps of an answer."""
        self.steps = _sum((*self.steps, *((noise, rate, n) for rate, n in spent.items())))
        self.answers += 1

    def spent(self, noise: float) -> dict[float, int]:
        """Return the number of steps at each sampling rate with this noise."""
        return {rate: n for s, rate, n in self.steps if s == noise}


class _Book(msgspec.Struct):
    """The file of an account; ``digest`` reveals a damaged number."""

    format: Literal[3]
    digest: str
    runs: dict[str, Used]


class Account:
    """All runs of one client, and the epsilons that they may reach together: of one sample (``limit``), and of class
    counts and choices alone (``counts_limit``); None: any."""

    def __init__(
        self, folder: Path, client: str, limit: float | None = None, counts_limit: float | None = None
    ) -> None:
        # no run can be called so, as brackets and blanks are not for names of runs
        self.path = folder / checked_name(client, "client-id") / "account (all runs).json"
        self.limit, self.counts_limit = limit, counts_limit

    def load(self) -> dict[str, Used]:
        """Read the privacy loss of each run; `RunFolderError` if the file is damaged."""
        if not os.path.lexists(self.path):  # a link to a disk that is not mounted is no new account
            return {}
        try:
            result = msgspec.json.decode(self.path.read_bytes(), type=_Book)
            if result.digest != _digest(result.runs):
                raise ValueError("its digest does not fit")
            return result.runs
        except (ValueError, RecursionError) as e:
            raise RunFolderError(
                f"{self.path} is damaged ({e}), and private runs are refused until it is restored from a backup: it "
                "holds what they have taken from these data in all. Without a backup, move it away only if all of that "
                "may be taken a second time"
            ) from e

    def counts_of(self, run: str, classes: int) -> Tensor:
        """Return the class counts ``[C]`` that a run was sent; zeros if none were."""
        counts = self.load().get(run, Used()).counts
        return torch.tensor(counts) if counts and len(counts) == classes else torch.zeros(classes, dtype=torch.int64)

    def release(self, run: str, counts: Tensor, epsilon: float, delta: float) -> Tensor:
        """Return the class counts ``[C]`` that are sent to a run.

        Their noise cannot be repeated. It is drawn when they are first asked for and written down before anything
        leaves, since the mean of many draws would have no noise.

        Raises:
            ConfigError: others were sent to this run.
            OverBudget, OSError: that would be more than a limit, or could not be written; nothing is sent.
        """
        with self._locked():
            runs = self.load()
            mine = runs.setdefault(run, Used())
            if mine.counts is None:
                self._charge(runs, mine, epsilon, delta)
                mine.counts = tuple(noisy_counts(counts, epsilon).tolist())
                self._save(runs)
        if len(mine.counts) != len(counts):
            raise ConfigError(f"run {run} was sent counts of {len(mine.counts)} classes; now it has {len(counts)}")
        return torch.tensor(mine.counts)

    def choose(self, run: str, chosen: int, of: int, epsilon: float, delta: float) -> int:
        """Return the choice among ``0 .. of - 1`` that a run receives, with the noise of its `metadata_epsilon`; drawn
        once, with the errors of `release`."""
        with self._locked():
            runs = self.load()
            mine = runs.setdefault(run, Used())
            if mine.choice is None:
                self._charge(runs, mine, epsilon, delta)
                mine.choice = noisy_choice(chosen, of, epsilon)
                self._save(runs)
        return mine.choice

    def spend(self, run: str, noise: float, spent: Spent, delta: float) -> Used:
        """Record the privacy loss of an answer before it leaves; return the run's total. Errors: see `release`."""
        with self._locked():
            runs = self.load()
            mine = runs.setdefault(run, Used())
            if not any(spent.values()):
                return mine
            mine.add(noise, spent)
            self._require(runs, delta)
            self._save(runs)
        if mine.answers & (mine.answers - 1) == 0:  # after 1, 2, 4, 8, ... answers
            log.info("%s", self.words(run, delta))
        return mine

    def total(self, delta: float) -> float:
        """Epsilon of one sample over all runs."""
        return _total(self.load(), delta)

    def words(self, run: str, delta: float) -> str:
        """Return the privacy loss of a run and of all runs, in words."""
        runs = self.load()
        mine, released = _total({run: runs.get(run, Used())}, delta), sum(used.released for used in runs.values())
        counts = f", {released:g} of it for reports with noise (class counts, choices)" if released else ""
        return (
            f"privacy of a single sample at delta {delta:g}: epsilon {mine:.3g} in run {run}, "
            f"{_total(runs, delta):.3g} in all private runs of this client ({len(runs)}){counts}"
        )

    def _charge(self, runs: Mapping[str, Used], mine: Used, epsilon: float, delta: float) -> None:
        """Count a report with noise towards both limits, before it is drawn."""
        mine.released += epsilon
        self._require(runs, delta)

    def _require(self, runs: Mapping[str, Used], delta: float) -> None:
        """Raise `OverBudget` if the runs exceed a limit."""
        delta = min(delta, _DELTA)
        # as written: three times 0.1 is not more than 0.3
        reports = sum((Fraction(repr(used.released)) for used in runs.values()), Fraction())
        for whole, limit, what, flag in (
            (0.0 if self.limit is None else _total(runs, delta), self.limit, f"at delta {delta:g}", "--max-epsilon"),
            (reports, self.counts_limit, "by reports with noise", "--max-metadata-epsilon"),
        ):
            if limit is not None and whole > Fraction(repr(float(limit))):
                raise OverBudget(
                    f"with this answer epsilon would be {float(whole):.4g} {what} over all runs of this client; this "
                    f"node was started with {flag} {limit:g}, so it is not sent"
                )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep a second process with this folder from writing between reading and writing: one entry would be lost."""
        make_private(self.path.parent, tighten=False, sync=True)
        with awaited(self.path.with_suffix(".lock")):
            yield

    def _save(self, runs: dict[str, Used]) -> None:
        book = msgspec.json.encode(_Book(3, _digest(runs), runs))
        write_private(self.path, msgspec.json.format(book, indent=1) + b"\n")


def _digest(runs: Mapping[str, Used]) -> str:
    return hashlib.blake2b(msgspec.json.encode(runs, order="sorted"), digest_size=16).hexdigest()


def _sum(steps: Iterable[Steps]) -> tuple[Steps, ...]:
    """Return the steps with the numbers of those with equal noise and sampling rate added up."""
    counted = Counter[tuple[float, float]]()
    for noise, rate, n in steps:
        counted[float(noise), float(rate)] += n
    return tuple((noise, rate, n) for (noise, rate), n in sorted(counted.items()))


def _total(runs: Mapping[str, Used], delta: float) -> float:
    """Return the total epsilon of all runs.

    Steps compose in Rényi divergence; the epsilons of reports with noise, which need no delta, are added."""
    steps = _sum(line for used in runs.values() for line in used.steps)
    return composed(steps, delta) + sum(used.released for used in runs.values())
