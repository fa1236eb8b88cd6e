"""How a method predicts from what it gave a client, in words that a loader without fedkin understands."""

from __future__ import annotations

from typing import Any

from fedkin.core import ConfigError, Method


def rule(method: Method) -> dict[str, Any]:
    """The method's ``export_rule``, a rule of `fedkin.exporting.loader`.

    Raises:
        ConfigError: it has none: a user-defined method with its own `predict`.
    """
    if (found := method.export_rule) is None:
        raise ConfigError(
            f"{type(method).__name__} predicts by code of its own, which a folder cannot hold; leave its `predict` as "
            "it is (one network, Bundle(model=...)) to export its models"
        )
    return dict(found)


WORDS = {
    "model": "one network",
    "vote": "several networks that vote",
    "additive": "the sum of a common network's logits and those of a second model",
    "prototypes": "one network; the nearest class prototype in its feature space wins",
    "two heads": "one network with two heads, whose logits are added",
}
"""What is behind the logits, for people."""
