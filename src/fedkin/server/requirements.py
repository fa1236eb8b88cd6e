"""What options need of the method, the network, the data and the machine: one table, and the one check of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from fedkin.capabilities.asks import sends_scores
from fedkin.capabilities.means import RobustMeans
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.sums import PrivateSums
from fedkin.capabilities.uploads import also_sent
from fedkin.core import ConfigError, Method, MethodError, Net
from fedkin.core.capability import has, wrapped
from fedkin.core.settings import Settings, leaf_groups
from fedkin.privacy.noise import says
from fedkin.privacy.secure_sum import LEAST

_LIST = "take another method (docs/robust-and-private.md has a list)"


@dataclass(frozen=True)
class Facts:
    """What the table reads; None for what is not known yet.

    Attributes:
        validation: some client has validation data.
    """

    settings: Settings
    method: Method
    net: Net | None = None
    clients: int | None = None
    validation: bool | None = None

    @cached_property
    def said(self) -> list[str] | str:
        """What clients report at joining, or why it does not follow from class counts."""
        try:
            # any network will do: what clients report depends on its classes alone
            return says(self.method, self.net or Net(lambda: nn.Sequential(nn.Linear(1, 2)), (1,), 2))
        except MethodError as e:
            return str(e)

    @property
    def reports(self) -> bool:
        """Whether noise would hide anything that clients report: at joining, or by a choice."""
        return bool(self.said) or sends_scores(self.method) == "noisy"

    @property
    def noisy(self) -> bool:
        """Whether noise on what clients report of themselves is asked for."""
        return self.settings.privacy.metadata_epsilon is not None


def _rule(f: Facts) -> str:
    reasons = (
        f"the server of {type(m).__name__} does not merge uploads by means and mixtures alone; use 'mean', or another "
        "method (a custom method declares RobustMeans() in can)"
        for m in wrapped(f.method)
        if has(m, RobustMeans) is None
    )
    return next(reasons, "")


def _sums(f: Facts) -> str:
    for m in wrapped(f.method):
        if (sums := has(m, PrivateSums)) is None:
            return (
                f"the server of {type(m).__name__} as it is set must see single uploads, or sends each client tensors "
                f"of its own; {_LIST}; a custom method declares PrivateSums() in can"
            )
        if sums.unless:
            return f"{type(m).__name__} as it is set: {sums.unless}"
    return ""


def _all_uploads(f: Facts) -> str:
    s = f.settings
    if s.aggregation.rule != "mean":
        return f"it hides single updates, which the rule {s.aggregation.rule!r} must see; choose one"
    if s.run.oversampling > 1:
        return (
            "it needs the uploads of all who were asked, so those who answer first cannot be chosen; leave out "
            f"oversampling = {s.run.oversampling:g}"
        )
    if f.clients is not None and s.run.cohort(f.clients) < LEAST:
        return (
            f"it needs at least {LEAST} uploads in a round; participation = {s.run.participation:g} of {f.clients} "
            f"clients gives {s.run.cohort(f.clients)} (on real hosts [hosts] min_clients is the number that the run "
            "waits for)"
        )
    return ""


def _sgd(f: Facts) -> str:
    reasons = (
        f'{type(m).__name__} cannot train by it: {why}; set optimizer = "sgd", or take another method'
        for m in wrapped(f.method)
        if (why := needs_of(m).sgd)
    )
    return next(reasons, "")


def _validation(f: Facts) -> str:
    if f.validation is False:
        return (
            "it goes by validation accuracy, and no client has validation data; give clients some (--validation 0.1; "
            "a saved federation must be saved again with some), or leave it out"
        )
    if f.noisy and sends_scores(f.method) == "noisy":
        return (
            f"clients of {type(f.method).__name__} report their choice in the last round, because of "
            "metadata_epsilon, and a run that ends early would have none; leave out one of the two"
        )
    return ""


def _replies(f: Facts) -> str:
    if f.clients is None:
        return ""
    own = type(f.method).sample is not Method.sample  # it may ask all
    asked = f.clients if own else min(f.clients, f.settings.run.sampled(f.clients))
    if f.settings.run.min_replies <= asked:
        return ""
    return f"a round asks {asked} of {f.clients} clients, so every round would be abandoned; raise participation"


def _batchnorm(f: Facts) -> str:
    if f.net is None or not f.net.batchnorm:
        return ""
    return (
        "batch normalisation cannot train on batches of one sample; take batches of 2 or more, or a network without it"
    )


def _counts(f: Facts) -> str:
    if sends_scores(f.method) == "exact":
        return (
            f"clients of {f.method.title} also send exact figures on their held-out samples; set send_numbers = false "
            "in the method, or leave metadata_epsilon out"
        )
    if isinstance(f.said, str):
        return f"it cannot protect clients of {type(f.method).__name__}: {f.said}; leave it out"
    if not f.reports:
        return (
            f"clients of {type(f.method).__name__} say nothing of their classes at joining, so there is nothing to "
            "protect; leave it out (fedkin list methods shows what the server learns)"
        )
    return ""


def _covered(f: Facts) -> str:
    also, name = also_sent(f.method), type(f.method).__name__
    if also is None:
        return (
            f"{name} does not say what its clients send in addition to trained models, so no epsilon can be stated; "
            'a custom method declares Uploads(also="") in can if it is nothing'
        )
    if also:
        return f"clients of {name} also send {also}, which no noise covers; {_LIST}"
    if importlib.util.find_spec("opacus") is None:
        return 'Opacus counts what it spends: pip install "fedkin[dp]"'
    if isinstance(f.said, str):
        return f"what clients of {name} report at joining is not covered by any noise: {f.said}; {_LIST}"
    if f.said and not f.noisy:
        return (
            f"clients of {name} say their {', '.join(f.said)} at joining, which private training does not cover; also "
            "give metadata_epsilon, such as 1.0"
        )
    return ""


TABLE: tuple[tuple[str, Callable[[Settings], object], Callable[[Facts], str]], ...] = (
    ("rule", lambda s: s.aggregation.rule != "mean", _rule),
    ("secure", lambda s: s.aggregation.secure, _sums),
    ("secure", lambda s: s.aggregation.secure, _all_uploads),
    ("optimizer", lambda s: s.training.optimizer != "sgd", _sgd),
    ("batch_size", lambda s: s.training.batch_size == 1, _batchnorm),
    ("min_replies", lambda s: s.run.min_replies > 1, _replies),
    ("stop_after", lambda s: s.run.stop_after is not None, _validation),
    ("metadata_epsilon", lambda s: s.privacy.metadata_epsilon is not None, _counts),
    ("noise_multiplier", lambda s: s.privacy.noise_multiplier is not None, _covered),
)
"""Setting, when it asks for something, and what is lacking; "" if nothing is."""


def require(
    settings: Settings,
    method: Method,
    net: Net | None = None,
    *,
    clients: int | None = None,
    validation: bool | None = None,
) -> None:
    """Check that a run can do what its settings ask for, as far as its parts are known.

    Raises:
        ConfigError: it cannot; the message names the setting, what stands against it and what to do.
    """
    facts = Facts(settings, method, net, clients, validation)
    for name, asked, lacking in TABLE:
        if asked(settings) and (why := lacking(facts)):
            raise ConfigError(f"{name} = {getattr(getattr(settings, leaf_groups()[name]), name)!r}: {why}")
