"""Settings of methods that would leave them standing still, divide by zero or say nothing are refused by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedkin.core import ConfigError
from fedkin.methods import METHODS
from refusals import refuses

# fmt: off
REFUSED: dict[str, dict[str, object]] = {
    "da-pfl": {"lam": -0.1, "eps": 0.0, "floor": (0.0, 1.5), "sigma": (0.0, math.nan, "mean"), "variant": "nope"},
    "fedprox": {"mu": (-1.0, math.inf), "straggler_fraction": 1.1},
    "ifca": {"clusters": 0, "init_min_share": 0.5},
    "fesem": {"clusters": 0, "lam": -1e-9},
    "cfic": {"memory": (1.0, -0.1), "beta": -1.0, "beta_decay": 0.0},
    "pfedcs": {"lam": 1.01, "rho": -1, "random_size": 0, "kappa": -0.5, "fixed": -0.5, "temperature": 0.0, "beta": -1,
               "teacher_lr": 0.0},
    "ifca-cam": {"warmup": -1},
    "apfl": {"mixing": (-0.1, 1.1, math.nan)},
    "cfl": {"eps1": -1, "eps2": -1, "after": -1, "gamma": (-1, 1.0)},
    "creff": {"features": 0, "repeats": 0, "real_batch": 0, "matching_steps": -1, "matching_lr": 0, "crt_epochs": 0,
              "crt_lr": 0, "crt_batch": 0},
    "ditto": {"lam": (-1.0, math.nan), "personal_epochs": 0},
    "fedala": {"layers": 0, "share": (0.0, 1.1), "mix_lr": 0.0, "first_epochs": 0},
    "fedamp": {"sigma": (0.0, "mean"), "server_step": 0.0, "lam": -1.0, "self_weight": 1.5, "step_decay": 0.0,
               "decay_every": 0, "variant": "cosine", "over": "all"},
    "fedavg-ft": {"tune_epochs": -1, "tune_lr": (0.0, math.inf), "part": "body"},
    "fedbabu": {"finetune_epochs": -1, "finetune_lr": 0.0, "part": "tail"},
    "feddbe": {"kappa": -1},
    "fedem": {"components": 0},
    "fedfomo": {"peers": -1, "epsilon": 1.5, "epsilon_decay": -0.1, "norm": "max", "fallback": "none",
                "affinity": "softmax", "pool": "all"},
    "fedgh": {"server_lr": -1, "server_batch": 0, "clip": 0},
    "fednova": {"server_momentum": 1},
    "fedadam": {"server_lr": 0.0, "beta1": 1.0, "beta2": -0.1, "tau": 0.0},
    "fedpac": {"lam": -1.0, "head_epochs": 0, "head_lr": 0.0},
    "fedproto": {"lam": -1.0},
    "fedrep": {"head_epochs": 0, "body_epochs": 0, "final_head_epochs": -1},
    "fedrod": {"gamma": -1.0, "hidden": 0, "personal": "none"},
    "fedsoft": {"clusters": 0, "lam": -1.0, "sigma": 0.0, "tau": 0, "per_cluster": 0},
    "fml": {"own_ce": 2, "meme_ce": -0.5},
    "knn-per": {"neighbours": 0, "weight": (1.5, -0.1), "scale": 0.0},
    "moon": {"mu": -1.0, "temperature": 0.0},
    "pacfl": {"threshold": 91, "vectors": 0},
    "per-fedavg": {"inner_lr": -0.1, "outer_lr": (0.0, "fast"), "delta": 0.0, "adapt_steps": -1, "order": "second"},
    "pfa": {"clusters": 0, "channels": 0, "after": -1},
    "pfedgraph": {"spread": 0.0, "lam": -0.1},
    "pfedme": {"lam": 0.0, "inner_steps": 0, "inner_lr": 0.0, "outer_lr": 0.0, "beta": 0.0},
    "scaffold": {"server_lr": 0},
    "fedavg-safe": {"delta": (0.0, 1.0), "mode": "never"},
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_out_of_its_range_is_refused_by_name(name: str) -> None:
    """One field at a time, all others as they come; the message has the range and the value."""
    for field, values in REFUSED[name].items():
        for value in values if isinstance(values, tuple) else (values,):
            with refuses(ConfigError, field, value):
                replace(METHODS[name](), **{field: value})
    with refuses(ConfigError, "floor of DAPFL must be above 0 and at most 1, got 1.5"):
        replace(METHODS["da-pfl"](), floor=1.5)
