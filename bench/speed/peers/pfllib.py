"""FedAvg by a checkout of PFLlib: its server and client classes, on files in the form that its generators write.

The files are not compressed, which PFLlib's own are, since it reads a client's file anew in every round. It evaluates
once, in its first round, which is not timed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arrays, network, scored, settings, tell

_FILES = ("servers/serveravg.py", "servers/serverbase.py", "clients/clientavg.py", "clients/clientbase.py")


def write(s: dict[str, Any], place: Path) -> None:
    """The federation as PFLlib reads it: ``dataset/bench/{train,test}/CLIENT.npz``."""
    for part in ("train", "test"):
        folder = place / "dataset" / "bench" / part
        folder.mkdir(parents=True)
        x, y = (t.numpy() for t in arrays(s, part))
        for client in range(s["clients"]):
            np.savez(folder / f"{client}.npz", data=np.array({"x": np.array(x[client]), "y": np.array(y[client])}))


def arguments(s: dict[str, Any]) -> Namespace:
    """What its command line would give, as far as FedAvg reads it."""
    return Namespace(
        device="cpu", dataset="bench", num_classes=s["classes"], model=network(s), batch_size=s["batch"],
        local_learning_rate=s["lr"], learning_rate_decay=False, learning_rate_decay_gamma=0.99, local_epochs=1,
        global_rounds=s["rounds"] - 1, num_clients=s["clients"], join_ratio=s["cohort"] / s["clients"],
        random_join_ratio=False, algorithm="FedAvg", goal="bench", time_select=False, time_threthold=10000.0,
        save_folder_name="items", top_cnt=100, auto_break=False, eval_gap=10**9, client_drop_rate=0.0,
        train_slow_rate=0.0, send_slow_rate=0.0, dlg_eval=False, dlg_gap=100, batch_num_per_client=2, num_new_clients=0,
        fine_tuning_epoch_new=0, fine_tuning_epoch=0, privacy=False, dp_sigma=0.0, few_shot=0,
    )  # fmt: skip


def main() -> None:
    s = settings()
    place, system = Path(s["place"]), Path(s["checkout"]).resolve() / "system"
    write(s, place)
    (place / "system").mkdir()
    os.chdir(place / "system")  # PFLlib's paths are relative to it
    sys.path.insert(0, str(system))
    torch.set_num_threads(s["threads"])
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  PFLlib draws from it
    with contextlib.redirect_stdout(sys.stderr):
        from flcore.servers.serveravg import FedAvg

        server = FedAvg(arguments(s), 0)
        first = time.time()
        server.train()
    ends = [first]
    for seconds in server.Budget:
        ends.append(ends[-1] + seconds)
    files = b"".join((system / "flcore" / name).read_bytes() for name in _FILES)
    tell(ends, (), **scored(server.global_model, s), checkout=hashlib.sha256(files).hexdigest()[:12])


if __name__ == "__main__":
    main()
