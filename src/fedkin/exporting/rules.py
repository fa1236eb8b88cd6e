"""How a method predicts from what it gave a client, in words that a loader without fedkin understands."""

from __future__ import annotations

from typing import Any

from fedkin.core import ConfigError, Method
from fedkin.methods import CAM, Ensemble, FedProto, FedRoD


def rule(method: Method) -> dict[str, Any]:
    """The method's ``predict`` as a rule of `fedkin.exporting.loader`.

    Raises:
        ConfigError: a method of one's own that predicts by code of its own.
    """
    if isinstance(method, CAM):
        return {"kind": "additive", "inner": rule(method.inner)}
    if isinstance(method, Ensemble):
        return {"kind": "vote", "of": "logits" if method.vote == "logits" else "probabilities"}
    if isinstance(method, FedProto):
        return {"kind": "prototypes"}
    if isinstance(method, FedRoD):
        return {"kind": "two heads"}
    if type(method).predict is Method.predict:
        return {"kind": "model"}
    raise ConfigError(
        f"{type(method).__name__} predicts by code of its own, which a folder cannot hold; leave its `predict` as it "
        "is (one network, Bundle(model=...)) to export its models"
    )


WORDS = {
    "model": "one network",
    "vote": "several networks that vote",
    "additive": "the sum of a common network's logits and those of a second model",
    "prototypes": "one network; the nearest class prototype in its feature space wins",
    "two heads": "one network with two heads, whose logits are added",
}
"""What is behind the logits, for people."""
