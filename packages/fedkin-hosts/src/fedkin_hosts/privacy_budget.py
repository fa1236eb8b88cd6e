"""What runs with privacy options took from one client's data, in a file on its own disk; and its owner's limits.

A server may lie about what it counts, or be lost. So every client counts for itself, over all runs, and writes down
what an answer takes before the answer leaves.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.capabilities import Uploads, has
from fedkin.core import ConfigError, Method, Net, RunFolderError
from fedkin.data import Card
from fedkin.data.columns import MAX_CATEGORIES
from fedkin.experiment.settings import Settings
from fedkin.privacy.budget import Privacy, Spent, composed, reports_at_joining
from fedkin.privacy.noise import noisy_choice, noisy_counts
from fedkin.storage.files import make_private
from fedkin.storage.lock import awaited
from fedkin_hosts.client_memory import checked_name, write_private

log = logging.getLogger("fedkin.site")
_FORMAT = 2
_DELTA = 1e-5  # a limit holds at this delta at least: a server could choose one with which any epsilon is small


class OverBudget(Exception):
    """An answer would take more from the data than their owner allows."""


class Withheld(Exception):
    """An answer that the owner does not allow."""


@dataclass(frozen=True)
class PrivacyLimits:
    """Limits that the owner of the data sets for all runs.

    Attributes:
        max_metadata_epsilon: of all class counts sent at joining and choices before evaluations, over all runs; then no
            class counts are sent exactly.
        min_noise_multiplier: least noise of private training; then there is no plain training.
        max_epsilon: of one sample over all runs, training and reports with noise together.
        only_masked: uploads leave with the masks of secure aggregation, or not at all.
        keep_scores: no results of evaluations leave.
        target: the column with the class, of a table. The values of a target are sent to the server by name, so a run
            that could choose any column would learn the values of each.

    Raises:
        ConfigError: a limit is not a number above 0.
    """

    max_metadata_epsilon: float | None = None
    min_noise_multiplier: float | None = None
    max_epsilon: float | None = None
    only_masked: bool = False
    keep_scores: bool = False
    target: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_metadata_epsilon", "min_noise_multiplier", "max_epsilon"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')} must be a number above 0, got {value}")

    @property
    def hides_counts(self) -> bool:
        """Whether exact class counts must not be sent in any way."""
        return self.max_metadata_epsilon is not None or self.max_epsilon is not None

    def check(self, settings: Settings) -> None:
        """Check a run against the limits by its settings alone.

        Raises:
            ConfigError: the run wants more than the owner allows.
        """
        said, noise = settings.privacy.metadata_epsilon, settings.privacy.noise_multiplier
        if self.max_metadata_epsilon is not None and said is not None and said > self.max_metadata_epsilon:
            raise ConfigError(
                f"the run asks for reports with metadata_epsilon = {said:g}; this node was started with "
                f"--max-metadata-epsilon {self.max_metadata_epsilon:g}"
            )
        if self.min_noise_multiplier is not None and (noise is None or noise < self.min_noise_multiplier):
            raise ConfigError(
                f"the run asks for {_training(noise)}; this node was started with --min-noise-multiplier "
                f"{self.min_noise_multiplier:g}"
            )
        if self.max_epsilon is not None and not noise:
            raise ConfigError(
                f"the run asks for {_training(noise)}, which has no epsilon; this node was started with --max-epsilon "
                f"{self.max_epsilon:g}"
            )
        if self.only_masked and not settings.aggregation.secure:
            raise ConfigError(
                "the run asks for uploads without masks (secure = false in [aggregation]); this node was started with "
                "--only-masked"
            )

    def check_method(self, method: Method) -> None:
        """Make sure that no exact figures that the owner keeps are in uploads.

        Raises:
            ConfigError: the method's uploads have some.
        """
        shown = has(method, Uploads)
        for figures, kept, flags in (
            ("scores", self.keep_scores, "--keep-scores"),
            ("counts", self.hides_counts, "--max-metadata-epsilon or --max-epsilon"),
        ):
            if kept and shown is not None and figures in shown.exact:
                raise ConfigError(
                    f"uploads of {type(method).__name__} hold exact {figures} ({shown.also}); this node was "
                    f"started with {flags}"
                )

    def check_card(self, card: Card) -> None:
        """Make sure that the classes of a table may be sent.

        Raises:
            ConfigError: the run takes another column for the class than the owner says, or, where the owner says
                nothing, one with more values than a column of texts may have.
        """
        if card.kind != "table":
            return
        if self.target is not None and card.target != self.target:
            raise ConfigError(
                f"the run takes column {card.target!r} for the class; this node was started with --target {self.target}"
            )
        if self.target is None and card.classes > MAX_CATEGORIES:
            raise ConfigError(
                f"the run takes column {card.target!r} for the class, which has {card.classes} different values here, "
                f"and all of them would be sent; more than {MAX_CATEGORIES} are sent only where the owner says so: "
                f"start the node with --target {card.target}"
            )

    def check_words(self, privacy: Privacy, method: Method, net: Net) -> None:
        """Check that clients may report at joining what they report in this run.

        Raises:
            ConfigError: exact counts, or something else that has no epsilon, although the owner set a limit.
        """
        if self.hides_counts and privacy.metadata_epsilon is None and reports_at_joining(method, net):
            raise ConfigError(
                f"clients of {type(method).__name__} say something exact of their data at joining; this node was "
                "started with --max-metadata-epsilon or --max-epsilon, so the run needs metadata_epsilon"
            )


def _training(noise: float | None) -> str:
    return "plain training" if noise is None else f"private training with noise_multiplier = {noise:g}"


@dataclass
class Used:
    """Privacy loss of one run.

    Attributes:
        counts: the class counts with noise that it sent at joining: drawn once, whatever happens. None: none were sent.
        choice: the choice with noise that it sent before an evaluation, likewise.
        released: the epsilon of both.
        steps: of private training at each noise and sampling rate.
        answers: number of answers that reported private training.
    """

    counts: tuple[int, ...] | None = None
    released: float = 0.0
    choice: int | None = None
    steps: dict[tuple[float, float], int] = field(default_factory=dict)
    answers: int = 0

    def spent(self, noise: float) -> dict[float, int]:
        """Return the number of steps at each sampling rate with this noise."""
        return {rate: n for (s, rate), n in sorted(self.steps.items()) if s == noise}


class Account:
    """All runs of one client.

    Args:
        folder: where the site keeps what is its own.
        client: what it is called.
        limit: epsilon that all runs together may reach, None: any.
        counts_limit: epsilon that the class counts and choices sent to all runs together may reach, None: any.
    """

    def __init__(
        self, folder: Path, client: str, limit: float | None = None, counts_limit: float | None = None
    ) -> None:
        # no run can be called so, as brackets and blanks are not for names of runs
        self.path = folder / checked_name(client, "client-id") / "account (all runs).json"
        self.limit, self.counts_limit = limit, counts_limit

    def load(self) -> dict[str, Used]:
        """Read the privacy loss of each run.

        Raises:
            RunFolderError: the file is damaged.
        """
        if not os.path.lexists(self.path):  # a link to a disk that is not mounted is no new account
            return {}
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["format"] != _FORMAT:
                raise ValueError(f"format {found['format']}")
            if found["digest"] != _digest(found["runs"]):
                raise ValueError("its digest does not fit")
            return {str(run): _used(line) for run, line in found["runs"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
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
            OverBudget: that would be more than the limit; nothing was drawn.
            OSError: they could not be written.
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
        """Return the choice among ``0 .. of - 1`` that a run is told, with the noise of its `metadata_epsilon`.

        It is drawn when it is first asked for, as in `release`; later the run is told the same, whatever is chosen.

        Raises:
            OverBudget: that would be more than the limit; nothing was drawn.
            OSError: it could not be written.
        """
        with self._locked():
            runs = self.load()
            mine = runs.setdefault(run, Used())
            if mine.choice is None:
                self._charge(runs, mine, epsilon, delta)
                mine.choice = noisy_choice(chosen, of, epsilon)
                self._save(runs)
        return mine.choice

    def spend(self, run: str, noise: float, spent: Spent, delta: float) -> Used:
        """Record the privacy loss of an answer before it leaves; return the run's total.

        Raises:
            OverBudget: that would be more than the limit; nothing was written.
            OSError: it could not be written.
        """
        with self._locked():
            runs = self.load()
            mine = runs.setdefault(run, Used())
            if not any(spent.values()):
                return mine
            for rate, n in spent.items():
                mine.steps[noise, rate] = mine.steps.get((noise, rate), 0) + n
            mine.answers += 1
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

    def _require(self, runs: Mapping[str, Used], delta: float) -> None:
        if self.limit is None:
            return
        delta = min(delta, _DELTA)
        if (whole := _total(runs, delta)) > self.limit:
            raise OverBudget(
                f"with this answer epsilon would be {whole:.4g} at delta {delta:g} over all runs of this client; this "
                f"node was started with --max-epsilon {self.limit:g}, so it says no more"
            )

    def _charge(self, runs: Mapping[str, Used], mine: Used, epsilon: float, delta: float) -> None:
        """Count a report with noise towards both limits, before it is drawn."""
        mine.released += epsilon
        self._require(runs, delta)
        self._require_reports(runs)

    def _require_reports(self, runs: Mapping[str, Used]) -> None:
        if self.counts_limit is None:
            return
        # as written: three times 0.1 is not more than 0.3
        whole = sum((Fraction(repr(used.released)) for used in runs.values()), Fraction())
        if whole > Fraction(repr(float(self.counts_limit))):
            raise OverBudget(
                f"with this report, of reports with noise, epsilon would be {float(whole):g} over all runs of this "
                f"client; this node was started with --max-metadata-epsilon {self.counts_limit:g}, so it tells no more"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep a second process with this folder from writing between reading and writing: one entry would be lost."""
        make_private(self.path.parent, tighten=False, sync=True)
        with awaited(self.path.with_suffix(".lock")):
            yield

    def _save(self, runs: Mapping[str, Used]) -> None:
        lines: dict[str, Any] = {
            run: {
                "counts": used.counts,
                "choice": used.choice,
                "told": used.released,
                "steps": [[noise, rate, n] for (noise, rate), n in sorted(used.steps.items())],
                "answers": used.answers,
            }
            for run, used in runs.items()
        }
        text = json.dumps({"format": _FORMAT, "digest": _digest(lines), "runs": lines}, indent=1) + "\n"
        write_private(self.path, text.encode())


def _digest(runs: Any) -> str:
    """Return a fingerprint of the entries, by which a damaged number is noticed."""
    return hashlib.blake2b(json.dumps(runs, sort_keys=True).encode(), digest_size=16).hexdigest()


def _used(line: Mapping[str, Any]) -> Used:
    steps: dict[tuple[float, float], int] = {}
    for noise, rate, n in line["steps"]:
        if not (math.isfinite(noise) and noise >= 0 and 0 < rate <= 1 and type(n) is int and n >= 0):
            raise ValueError(f"steps {[noise, rate, n]}")
        steps[float(noise), float(rate)] = n
    released = float(line["told"])
    if not 0 <= released < math.inf:
        raise ValueError(f"told {released}")
    counts = None if line["counts"] is None else tuple(int(n) for n in line["counts"])
    choice = None if line["choice"] is None else int(line["choice"])
    return Used(counts, released, choice, steps, int(line["answers"]))


def _total(runs: Mapping[str, Used], delta: float) -> float:
    """Return the total epsilon of all runs.

    Steps compose in Rényi divergence; the epsilons of reports with noise, which need no delta, are added."""
    steps: dict[tuple[float, float], int] = {}
    for used in runs.values():
        for how, n in used.steps.items():
            steps[how] = steps.get(how, 0) + n
    history = [(noise, rate, n) for (noise, rate), n in sorted(steps.items())]
    return composed(history, delta) + sum(used.released for used in runs.values())
