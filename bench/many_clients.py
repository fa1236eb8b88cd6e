"""What 10,000 clients cost beside 100: peak memory and time of a round.

    python bench/many_clients.py [--rounds 30] [--clients 100 10000] [--methods fedavg fedper ifca da-pfl] [--out FILE]

Fed-CAM's LeNet on 3x32x32 (62,006 parameters), 100 clients in each round, 20 training and 5 test samples for each
client (noise around a picture of its class), batch 10, 2 epochs, `workers` with one process per core. The federations
are written to disk once and read when a client is chosen; every run writes its folder, as runs do, and keeps states and
banks as ``--state`` says (default: auto). Rounds, with their checkpoints, are timed without evaluation; one evaluation
of all clients is timed apart, in a round after the others, and its memory counts. The first round, in which all clients
say what they have to say and banks are made, is told apart too.

Peak memory is the sum of the proportional set sizes (PSS) of the run's process and its workers, looked at every 0.05 s:
a page that several share is counted once, and mapped files are counted as far as they are in memory.

For each method both sizes are run one after the other, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import fedkin
from fedkin.core.machine import cores
from fedkin.data import is_shelf, write

LINES = Path(__file__).parent / "results" / "many_clients.jsonl"
METHODS = ["fedavg", "fedper", "ifca", "da-pfl"]
CLASSES, SHAPE, COHORT, TRAIN, TEST = 10, (3, 32, 32), 100, 20, 5


def federation(clients: int, place: Path) -> Path:
    """The folder of a federation, written if it is not there: two to five classes per client."""
    folder = place / f"clients-{clients}"
    if not is_shelf(folder):
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, shards(clients), classes=CLASSES, name=f"{clients} clients")
    return folder


def shards(clients: int) -> Iterator[fedkin.ClientData]:
    pictures = torch.randn(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(0))
    for k in range(clients):
        rng = torch.Generator().manual_seed(k + 1)
        own = torch.randperm(CLASSES, generator=rng)[: 2 + k % 4]

        def part(n: int, rng: torch.Generator = rng, own: torch.Tensor = own) -> fedkin.Samples:
            y = own[torch.randint(0, len(own), (n,), generator=rng)]
            return fedkin.Samples(pictures[y] + torch.randn(n, *SHAPE, generator=rng), y)

        yield fedkin.ClientData(part(TRAIN), part(0), part(TEST))


def measured(name: str, folder: Path, clients: int, rounds: int, state: str) -> dict[str, Any]:
    """One run in a process of its own."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(name, folder, clients, rounds, state, theirs)
    )
    process.start()
    assert process.pid is not None
    peak = Peak(process.pid)
    found: dict[str, Any] = ours.recv()
    found["peak_mib"] = round(peak.stop() / 2**20)
    process.join()
    return found


def _run(name: str, folder: Path, clients: int, rounds: int, state: str, pipe: Any) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        out, started = Path(place) / "run", time.perf_counter()
        data = fedkin.Federation.open(folder)
        training = fedkin.Training(epochs=2, batch_size=10, lr=0.01)
        method = fedkin.get_method(name)
        ends: list[float] = []

        def on_round(report: Any, line: Any) -> None:
            ends.append(time.perf_counter() - started)
            if report.round > rounds:
                raise Enough

        with contextlib.suppress(Enough):  # ten more rounds, so that the last ten, all evaluated, are not run
            fedkin.run(
                method, data, "cam-lenet", training, rounds=rounds + 11, participation=COHORT / clients,
                compute=fedkin.Compute(state=state), eval_every=rounds + 1, out=out, on_round=on_round,
            )  # fmt: skip
        lines = [json.loads(text) for text in (out / "timing.jsonl").read_text().splitlines()]
        on_disk = sum(f.stat().st_blocks * 512 for f in out.rglob("*") if f.is_file())
    later = lines[1:rounds]
    whole = [b - a for a, b in pairwise(ends[:rounds])]
    pipe.send(
        {
            "first_round_s": ends[0],
            "round_s": statistics.median(whole),
            "server_s": statistics.median(line["server"] for line in later),
            "exchange_s": statistics.median(line["exchange"] for line in later),
            "writing_s": statistics.median(w - line["whole"] for w, line in zip(whole, later, strict=True)),
            "evaluation_s": lines[rounds]["evaluation"],
            "disk_mib": round(on_disk / 2**20),
        }
    )


class Enough(Exception):
    """All that is to be measured has been."""


class Peak(threading.Thread):
    """The largest sum of proportional set sizes of a process and all its children, bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.most, self.over = pid, 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.05):
            self.most = max(self.most, sum(pss(pid) for pid in family(self.pid)))

    def stop(self) -> int:
        self.over.set()
        self.join()
        return self.most


def family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(p for child in children for p in family(int(child)))]


def pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def table() -> str:
    """The newest line of each method and number of clients; ratios to the smallest number."""
    lines = [json.loads(text) for text in LINES.read_text().splitlines()]
    newest = {(line["method"], line["clients"]): line for line in lines}
    heads = ["method", "clients", "s/round", "ratio", "server,s", "writing,s", "first,s", "evaluation,s", "peak,MiB"]
    heads.append("disk,MiB")
    rows = [" | ".join(heads).replace(",", ", "), "---" + " | --:" * (len(heads) - 1)]
    least = min(k for _, k in newest)
    for (name, k), line in sorted(newest.items(), key=lambda item: (METHODS.index(item[0][0]), item[0][1])):
        ratio = "" if k == least else f"{line['round_s'] / newest[name, least]['round_s']:.2f}x"
        seconds = [f"{line[part]:.2f}" for part in ("server_s", "writing_s", "first_round_s", "evaluation_s")]
        large = [f"{line[part]:,}" for part in ("peak_mib", "disk_mib")]
        rows.append(" | ".join([name, f"{k:,}", f"{line['round_s']:.2f}", ratio, *seconds, *large]))
    return "".join(f"| {row} |\n" for row in rows)


def machine() -> dict[str, Any]:
    return {"cores": cores(), "python": platform.python_version(), "torch": torch.__version__,
            "fedkin": fedkin.__version__, "load_before": os.getloadavg()[0]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--state", default="auto", choices=["auto", "memory", "file"])
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "fedkin-many-clients")
    parser.add_argument("--table", action="store_true", help="print the table and run nothing")
    args = parser.parse_args()
    if args.table:
        print(table(), end="")
        return
    args.data.mkdir(parents=True, exist_ok=True)
    folders = {k: federation(k, args.data) for k in args.clients}
    for name in args.methods:
        for k, folder in folders.items():
            line = {"method": name, "clients": k, "rounds": args.rounds, "state": args.state, **machine()}
            line |= measured(name, folder, k, args.rounds, args.state)
            print(json.dumps(line), flush=True)
            with LINES.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
