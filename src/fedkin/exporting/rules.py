"""The rule by which a method predicts, in terms that a loader without fedkin understands."""

from __future__ import annotations

from typing import Any

from fedkin.core import ConfigError, Method


def rule(method: Method) -> dict[str, Any]:
    """Return the method's ``export_rule``, a rule of `fedkin.exporting.loader`.

    Raises:
        ConfigError: the method has none: a user-defined method with its own `predict`; or its kind is unknown.
    """
    if (found := method.export_rule) is None:
        raise ConfigError(
            f"{type(method).__name__} predicts with custom code, which a folder cannot contain; leave its `predict` as "
            "it is (one network, Bundle(model=...)) to export its models"
        )
    if found.get("kind") not in WORDS:
        raise ConfigError(
            f"export_rule of {type(method).__name__} has the kind {found.get('kind')!r}, which is none of "
            f"{', '.join(map(repr, WORDS))}"
        )
    return dict(found)


WORDS = {
    "model": "one network",
    "vote": "several networks that vote",
    "additive": "the sum of a common network's logits and those of a second model",
    "mixture": "the mixed probabilities of a federated model and of one that was trained on the client's data alone",
    "prototypes": "one network; the nearest class prototype in its feature space wins",
    "neighbours": "one network and the labels of the nearest training samples, which the folder holds as features",
    "two heads": "one network with two heads, whose logits are added",
}
"""Descriptions of the rules for people."""
