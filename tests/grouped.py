"""Settings of runs by their plain names, for tests that try many of them.

The rule of aggregation goes by ``rule``, an attack by ``kind`` and ``fraction``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedkin.experiment.settings import RunSettings, Setup

GROUPS = ("aggregation", "attack", "privacy", "compute")


def tables(how: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return tables of a config file: the settings of [run], and those of its groups in theirs."""
    usual, rest, found = Setup(), dict(how), dict[str, dict[str, Any]]()
    for name in ("run", *GROUPS):
        fields = [f.name for f in dataclasses.fields(getattr(usual, name))]
        if own := {field: rest.pop(field) for field in fields if field in rest}:
            found[name] = own
    assert not rest, f"no settings of a run: {rest}"
    return found


def grouped(how: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `fedkin.run` with single settings of its groups put into these."""
    usual, rest, found = Setup(), dict(how), dict[str, Any]()
    for name in GROUPS:
        kind = type(getattr(usual, name))
        own = {f.name: rest.pop(f.name) for f in dataclasses.fields(kind) if f.name in rest}
        if own:
            found[name] = kind(**own)
    return {**rest, **found}


def setup(**how: Any) -> Setup:
    """Return all settings of a run but its method: ``setup(rounds=3, engine="loop", secure=True)``."""
    fields = [f.name for f in dataclasses.fields(RunSettings)]
    run = {field: how.pop(field) for field in fields if field in how}
    return Setup(run=RunSettings(**run), **grouped(how))
