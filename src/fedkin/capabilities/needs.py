"""What a run must have, or must let a method read."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.core import Method
from fedkin.core.capability import Capability, has


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
