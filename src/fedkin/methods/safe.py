"""A mixture of any method's prediction and that of a model trained alone, in a share that each client chooses.

The rule by which it chooses is in `fedkin.functional.safe_share`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.capabilities import (
    Asks,
    Capability,
    Grouped,
    Logs,
    Presets,
    PrivateSums,
    RobustMeans,
    Role,
    Uploads,
    Views,
)
from fedkin.capabilities.asks import asks
from fedkin.capabilities.logs import numbers_of
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.presets import TABLES, presets_of
from fedkin.capabilities.views import client_notes, trains_to_predict, views_of
from fedkin.core import Bundle, Client, ConfigError, Download, Method, Net, Round, Train, Work, to_all, to_each
from fedkin.core.method import in_range, through, untrained
from fedkin.core.refusals import Reason, outside
from fedkin.core.rows import grow, put
from fedkin.core.samples import Samples
from fedkin.core.sides import chunked
from fedkin.functional.safe_share import (
    BOUNDS,
    FLAT,
    GRID,
    LEAST,
    choose,
    choose_alone,
    choose_few,
    counted,
    left_out,
    numbers,
    posterior,
    prior_of,
    probabilities,
    shared,
    tested,
)

_REPORTS = ("likelihood", "hits", "held", "choice")


@dataclass(frozen=True)
class Safe(Method):
    """Any method, mixed with a model that each client trains alone, so that clients which the method harms leave it."""

    paper = "Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619 (other rule)"
    family = "personal model"

    inner: Method
    """The method that is wrapped."""
    mode: Literal["best", "likely", "sure"] = "likely"
    """Share of the method: the largest predicted gain if going too far has a chance of at most 1/2 ("best") or 1/5
    ("likely"); or the others' choice if a sign test on the client's samples finds it better than alone ("sure")."""
    send_numbers: bool = True
    """Send nine numbers about the held-out samples in evaluated rounds, from which the clients' common prior is made;
    with metadata_epsilon one noisy choice in the last round. Otherwise each client chooses by its samples alone."""
    delta: float = 0.05
    """Mode "sure": maximum probability that a client leaves its model alone for one that is not more accurate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "delta", above=0, below=1)
        if isinstance(self.inner, Safe):
            raise ConfigError(f"{self.inner.title} is a safe form already; it cannot be wrapped a second time")
        if asks(self.inner, "evaluation") is not None:
            raise ConfigError(f"{self.inner.title} asks its clients before evaluations itself and cannot be wrapped")

    @property
    def title(self) -> str:
        """The wrapped method's title with "-safe", and the mode where it is not "likely"."""
        return f"{self.inner.title}-safe" + ("" if self.mode == "likely" else f" ({self.mode})")

    @property
    def summary(self) -> str:
        """What the method does in one sentence, with the wrapped method's title."""
        return f"{self.inner.title} mixed with a model trained alone, in a share that each client chooses."

    # ---- server -----------------------------------------------------------------------------------------------
    def init(self, r: Round) -> Bundle:
        """Return the wrapped method's state and empty banks of clients' numbers."""
        s = Bundle(self.inner.init(r).under("inner"))
        none = torch.empty(0, dtype=torch.int64)
        if not self.send_numbers:
            return s
        exact = {"likelihood": torch.empty(0, 4, dtype=torch.float64), "hits": torch.empty(0, 4, dtype=torch.int64)}
        reports = exact if r.metadata_epsilon is None else {"choice": none}
        # asked: the round that all reports are of; 0: the models have changed since
        return s.but(held=none, asked=torch.tensor(0), **reports)

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients to the wrapped method's state, and without numbers."""
        s = self._with(s, self.inner.admit(s.inside("inner"), r))
        zeros = {name: torch.zeros(s[name].shape[1:], dtype=s[name].dtype) for name in _REPORTS if name in s}
        return s.but(**{name: grow(s[name], len(r.roster), zero) for name, zero in zeros.items()})

    def _with(self, s: Bundle, inner: Bundle) -> Bundle:
        """Return the state with another one of the wrapped method."""
        return Bundle({**{name: t for name, t in s.items() if not name.startswith("inner.")}, **inner.under("inner")})

    def _question(self, s: Bundle, r: Round) -> Download:
        """Send what clients predict with by the wrapped method, to be compared with their models alone."""
        noisy = {} if r.metadata_epsilon is None else {"noisy": torch.tensor(True)}
        return self.inner.deliver(s.inside("inner"), r).under("inner") | to_all(**noisy)

    def _collect(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Keep the clients' numbers."""
        if int(s.asked) != r.index:  # the first answers of a round: earlier numbers are of other models
            s = s.but(asked=torch.tensor(r.index), held=put(s.held, torch.arange(len(s.held)), torch.tensor(0)))
        return s.but(**{name: put(s[name], r.ids, up[name]) for name in _REPORTS if name in up})

    def sample(self, s: Bundle, r: Round) -> Tensor | Bundle:
        """Return the wrapped method's cohort."""
        return self.inner.sample(s.inside("inner"), r)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send what the wrapped method sends."""
        return self.inner.distribute(s.inside("inner"), r).under("inner")

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send what the wrapped method delivers, and the prior w and gains T, or in mode "sure" the others' lambda.

        Of noisy choices w alone can be made.
        """
        given, reporting = self.inner.deliver(s.inside("inner"), r).under("inner"), self._reporting(s)
        if len(reporting) < LEAST:
            return given
        if r.metadata_epsilon is not None:
            return given | to_all(prior=prior_of(s.choice[reporting], r.metadata_epsilon))
        record = (s.likelihood[reporting], s.hits[reporting], s.held[reporting])
        if self.mode == "sure":
            at = torch.searchsorted(reporting, r.ids).clamp(max=len(reporting) - 1)
            mine = torch.where(reporting[at] == r.ids, at, -1)
            others = left_out(*counted(*record), mine)
            return given | to_each(given=len(reporting) - (mine >= 0).int() >= LEAST, others=others)
        prior, table = shared(*record)
        return given | to_all(prior=prior, gains=table)

    def _reporting(self, s: Bundle) -> Tensor:
        """Return the clients of which there are numbers, ascending."""
        return s.held.nonzero().flatten() if self.send_numbers else torch.empty(0, dtype=torch.int64)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the wrapped method's next state, with the clients' numbers as they are."""
        s = s.but(asked=torch.tensor(0)) if self.send_numbers else s
        return self._with(s, self.inner.aggregate(s.inside("inner"), r, up.inside("inner")))

    def _impossible(self, r: Round, up: Bundle) -> Reason | None:
        """Return a reason if a client's numbers are impossible."""
        if "choice" in up:
            return outside("choice", int(up.choice), 0, len(GRID) - 1)
        return outside("hits", int(up.hits.abs().max()), 0, int(up.held))

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return the wrapped method's numbers and, of the clients that sent theirs, the mean lambda and the share at 0.

        As their numbers say; mode "sure" decides by samples that the server does not know.
        """
        numbers, reporting = numbers_of(self.inner, s.inside("inner")), self._reporting(s)
        if len(reporting) < LEAST or self.mode == "sure" or not int(s.asked) or "choice" in s:
            return numbers
        prior, table = shared(s.likelihood[reporting], s.hits[reporting], s.held[reporting])
        own = [choose(r, table, BOUNDS[self.mode]) for r in posterior(s.likelihood[reporting], prior)]
        return {**numbers, "evaluated_lambda": float(GRID[own].mean()), "evaluated_alone": own.count(0) / len(own)}

    # ---- client -----------------------------------------------------------------------------------------------
    def parts(self, held: Samples) -> tuple[Samples, Samples]:
        """Return a client's held-out samples that the wrapped method sees, and those by which lambda is chosen.

        A method that reads them has half: its model would be judged on samples that it was fitted to.
        """
        if needs_of(self.inner).validation:
            return held.every(2), held.every(2, first=1)
        return held.every(1, first=len(held)), held  # none of them

    def _inside(self, c: Client) -> Client:
        """Return the client as the wrapped method sees it."""
        return replace(c.inside("inner"), validation=self.parts(c.validation)[0])

    def describe(self, c: Client) -> Bundle:
        """Return the wrapped method's description of the client."""
        return self.inner.describe(c)

    def _answer(self, c: Client) -> Work:
        """Return the nine numbers (zeros where there are none).

        In a run with `metadata_epsilon` a noisy choice instead: of the lambda that the held-out samples like best.
        """
        b = yield from through(self.inner.personalize(self._inside(c)))
        held = self.parts(c.validation)[1].distinct()
        if len(held) < LEAST or "alone" not in c.state:
            held = held.every(1, first=len(held))  # none of them
        likelihood, hits = numbers(*self._predicted(c, b, held.x), held.y)
        if "noisy" in c.received or c.choice_noise is not None:  # a server cannot leave the noise out
            chosen = c.choice(int(posterior(likelihood, FLAT).argmax()), len(GRID)) if len(held) else 0
            return Bundle(choice=torch.tensor(chosen), held=torch.tensor(int(len(held) > 0)))
        return Bundle(likelihood=likelihood, hits=hits, held=torch.tensor(len(held)))

    def _predicted(self, c: Client, b: Bundle, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return p and q ``[n, C]``, probabilities of ``x [n, ...]`` by the wrapped method and by the model alone."""
        if not len(x):
            return torch.zeros(0, c.net.classes).double(), torch.zeros(0, c.net.classes).double()
        of_method = chunked(lambda part: self.inner.predict(c.net, b, part), x)
        alone = chunked(lambda part: c.net(c.state.alone, part), x)
        return probabilities(of_method.double()), probabilities(alone.double())

    def client_update(self, c: Client) -> Work:
        """Do what the wrapped method does; then train the model alone, on the batches that Local would draw."""
        inside = self._inside(c)
        up = yield from self.inner.client_update(inside)
        # last, so that the requests before it have the numbers that they have without it; on the batches of number 0
        own = yield Train(c.state.get("alone", c.w0), batches=0)
        c.state = Bundle(alone=own, **inside.state.under("inner"))
        return Bundle(up.under("inner"))

    def personalize(self, c: Client) -> Work:
        """Return the wrapped method's model, the model alone and lambda, chosen on the held-out samples."""
        return self._mixed(c, (yield from through(self.inner.personalize(self._inside(c)))))

    def _mixed(self, c: Client, b: Bundle) -> Bundle:
        seen = {name: b[name] for name in ("cluster", *client_notes(self.inner)) if name in b}
        own = {"alone": c.state.get("alone", c.w0), "share": GRID[self._choice(c, b)].float()}
        return Bundle({**b.under("inner"), **own, **seen})

    def _choice(self, c: Client, b: Bundle) -> int:
        """Return j of the client's lambda = G_j for a model ``b`` of the wrapped method."""
        if "alone" not in c.state:
            return len(GRID) - 1  # it has trained nothing that it could fall back on
        held = self.parts(c.validation)[1].distinct()
        p, q = self._predicted(c, b, held.x)
        if self.mode == "sure":  # the others' lambda; none received: 1/2
            return tested(p, q, held.y, int(c.received.get("others", torch.tensor(2))), self.delta)
        if self.send_numbers and "prior" not in c.received and c.choice_noise is None:
            return choose_few(p, q, held.y)
        r, bound = posterior(numbers(p, q, held.y)[0], c.received.get("prior", FLAT)), BOUNDS[self.mode]
        return choose(r, c.received.gains, bound) if "gains" in c.received else choose_alone(r, bound)

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the wrapped method's views ("trained" as a mixture), the model alone, and its model "method".

        The last one is not there where the wrapped method trains before it predicts.
        """
        inside = self._inside(c)
        views = views_of(self.inner, inside).items()
        views_of_inner = {name: self._mixed(c, b) if name == "trained" else b.under("inner") for name, b in views}
        if not trains_to_predict(self.inner) and (plain := untrained(self.inner.personalize(inside))) is not None:
            views_of_inner["method"] = plain.under("inner")
        return {**views_of_inner, "alone": Bundle(alone=c.state.get("alone", c.w0))}

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the log of the mixture's probabilities ``[B, C]``; at lambda 0 and 1 the logits of the one model."""
        share = float(b.share) if "share" in b else 0.0 if "alone" in b else 1.0
        if share == 0:
            return net(b.alone, x)
        logits = self.inner.predict(net, b.inside("inner"), x)
        if share == 1:
            return logits
        return (share * probabilities(logits) + (1 - share) * probabilities(net(b.alone, x))).log()

    @property
    def can(self) -> tuple[Capability, ...]:
        """What the wrapped method can do, each under ``inner.``; the nine numbers; the mixture's views."""
        notes = {**client_notes(self.inner), "share": (0.0, 1.0)}
        stated: list[Capability] = [
            Role("safe"),
            Views(Safe._views, notes, trains=True),
            replace(needs_of(self.inner), validation=True),
            Presets({name: _of_inner(preset) for name, preset in presets_of(self.inner).items()}),
        ]
        if self.send_numbers:
            steps = (Safe._question, Safe._answer, Safe._collect)
            stated.append(Asks("evaluation", *steps, "exact" if self.mode == "sure" else "noisy", Safe._impossible))
        log = Logs()
        for one in self.inner.can:
            if isinstance(one, RobustMeans):
                stated.append(RobustMeans())
            elif isinstance(one, PrivateSums):
                stated.append(replace(one.inside(), unless=_NUMBERS if self.send_numbers else one.unless))
            elif isinstance(one, Uploads):
                stated.append(self._uploads(one))
            elif isinstance(one, Asks):
                stated.append(one.inside(Safe._inside, lambda m, r: r))
            elif isinstance(one, Grouped):
                stated.append(one.inside(lambda m, r: r))
            elif isinstance(one, Logs):
                log = one.inside()
        return (*stated, replace(log, numbers=Safe._numbers))

    def _uploads(self, own: Uploads) -> Uploads:
        if not self.send_numbers:
            return own.inside()
        nine = "nine numbers about held-out samples (none with send_numbers = false)"
        more = "; how many held-out samples it has and how much better than alone it predicts them"
        also = " and ".join(filter(None, (own.also, nine)))
        return replace(own.inside(), reveals=own.reveals + more, also=also)


_NUMBERS = (
    "its server must see single clients' nine numbers about held-out samples; set send_numbers = false, and each "
    "client chooses by its samples alone"
)


def _of_inner(preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a preset of a wrapped method as one of its wrapper: its fields in a table ``inner``."""
    tables = {name: table for name, table in preset.items() if name in TABLES}
    return {**tables, "inner": {name: value for name, value in preset.items() if name not in TABLES}}
