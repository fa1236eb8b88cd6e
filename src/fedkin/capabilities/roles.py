"""What a method is among others in a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedkin.core import Method
from fedkin.core.capability import Capability, has

RoleName = Literal["alone", "alone-full", "average", "safe"]


@dataclass(frozen=True)
class Role(Capability):
    """What reports call the method and set others against.

    Attributes:
        name: ``alone``, training alone in the rounds of the others; ``alone-full``, in every round; ``average``, one
            model for all; ``safe``, another method mixed at each client with training alone.
    """

    name: RoleName


def role_of(method: Method) -> str:
    """Return the role of a method; "" for most."""
    return "" if (own := has(method, Role)) is None else own.name
