"""FedAvg as one writes it by hand in PyTorch: one process, one module, an optimiser, means of state dicts."""

from __future__ import annotations

import random

import torch
from common import Clock, arrays, epoch, network, scored, settings, tell


def main() -> None:
    s = settings()
    torch.manual_seed(0)
    torch.set_num_threads(s["threads"])
    module, draws = network(s), random.Random(0)
    x, y = (t.clone() for t in arrays(s, "train"))
    names = list(module.state_dict())
    w = {name: t.clone() for name, t in module.state_dict().items()}
    clock = Clock(s)
    clock.start()
    for _ in range(s["rounds"]):
        total = {name: torch.zeros_like(t) for name, t in w.items()}
        for client in draws.sample(range(s["clients"]), s["cohort"]):
            module.load_state_dict(w)
            epoch(module, x[client], y[client], s)
            trained = module.state_dict()
            for name in names:
                total[name] += trained[name]
        w = {name: t / s["cohort"] if t.is_floating_point() else w[name] for name, t in total.items()}
        module.load_state_dict(w)
        clock.round(module)
    tell(clock.ends, (), **scored(module, s), **clock.found)


if __name__ == "__main__":
    main()
