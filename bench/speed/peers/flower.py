"""FedAvg by Flower's simulation: `run_simulation` with its Ray backend, and Flower's own FedAvg strategy.

`run_simulation` keeps messages in this process's memory; `flwr run`, which is to replace it, sends the same messages
through a SuperLink. How many clients run at once follows from ``client_resources``.
"""

from __future__ import annotations

import os
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.pop("RAY_ADDRESS", None)  # a cluster of other machines

from common import Clock, network, scored, settings, tell
from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def main() -> None:
    s = settings()
    clock = Clock(s)
    last: dict[str, Any] = {}
    evaluated, server = network(s), ServerApp()

    @server.main()
    def play(grid: Grid, context: Context) -> None:
        def ended(number: int, weights: ArrayRecord) -> None:
            last["weights"] = weights
            if not number:
                clock.start()
                return
            if s.get("target"):
                evaluated.load_state_dict(weights.to_torch_state_dict())
            clock.round(evaluated)

        strategy = FedAvg(
            fraction_train=s["cohort"] / s["clients"], fraction_evaluate=0.0, min_train_nodes=s["cohort"],
            min_available_nodes=s["clients"],
        )  # fmt: skip
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(network(s).state_dict()), num_rounds=s["rounds"], evaluate_fn=ended,
            train_config=ConfigRecord({"settings": s["place"] + "/settings.json", "threads": s["threads"]}),
            timeout=600.0,
        )  # fmt: skip

    resources = {"num_cpus": s["client_cpus"], "num_gpus": 0.0}
    how = {"client_resources": resources, "init_args": {"num_cpus": s["cpus"], "include_dashboard": False}}
    run_simulation(server, app, num_supernodes=s["clients"], backend_config=how)
    module = network(s)
    module.load_state_dict(last["weights"].to_torch_state_dict())
    tell(clock.ends, ("flwr", "ray"), **scored(module, s), **clock.found)


if __name__ == "__main__":
    main()
