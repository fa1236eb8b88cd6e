"""What a run must have, or must let a method read."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.core import ConfigError, Method
from fedkin.core.capability import Capability, has
from fedkin.core.settings import Optimizer


@dataclass(frozen=True)
class Needs(Capability):
    """What the method's steps read or presume. What is not stated here is not there for them.

    Attributes:
        total: reason why the steps depend on the number of rounds of the run, ``r.total``; "" if they do not. The
            rounds of a run of such a method are not the first rounds of a longer run.
        sgd: reason why clients must train by SGD, such as a formula for the length of its steps; "" if they need not.
        validation: steps read clients' validation samples, which then cannot judge its models without bias.
        second: name of a second network that clients train next to the run's, `fedkin.core.net.Net.second`; "" for
            another one of the run's kind; None: none.
    """

    total: str = ""
    sgd: str = ""
    validation: bool = False
    second: str | None = None


NOTHING = Needs()


def needs_of(method: Method) -> Needs:
    """Return what a method needs; nothing where it states nothing."""
    return has(method, Needs) or NOTHING


def require_optimizer(method: Method, optimizer: Optimizer) -> None:
    """Raise `ConfigError` unless the method and all that it wraps can train by an optimizer."""
    if optimizer != "sgd" and (why := needs_of(method).sgd):
        raise ConfigError(
            f"{type(method).__name__} cannot train by optimizer = {optimizer!r}: {why}; "
            'set optimizer = "sgd", or take another method'
        )
    for value in vars(method).values():
        if isinstance(value, Method):
            require_optimizer(value, optimizer)
