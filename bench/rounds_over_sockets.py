"""What a round over sockets costs without training: fedkin against Flower's own FedAvg, on the same link and nodes.

    python bench/rounds_over_sockets.py [--nodes 1 3 6] [--rounds 8] [--repeats N]
    python bench/rounds_over_sockets.py --table

A SuperLink in memory and `fedkin node`s on loopback, without TLS, everything on this machine. One after another, again
and again, each in runs of their own through the same SuperNodes:

- plain: a ServerApp with Flower's FedAvg as it comes and a ClientApp that sends back the 0.6 million float32 that it
  was sent, as one array; its process imports nothing but Flower;
- plain, torch: the same, and the ClientApp's process imports torch, as everybody's does who trains with it;
- fedkin: FedAvg with a network of 0.6 million parameters and one batch of training, whose seconds are subtracted.

A round is the time between two ends of rounds as the server sees them; the first, in which everything starts, is left
out. Nothing is evaluated. Lines go to `bench/results/rounds_over_sockets.jsonl`, one for each run; `--table` prints
medians over all rounds of all runs, and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import fedkin
from fedkin.deploy.link import Link, LinkSettings, start_link
from fedkin.deploy.offline import environment
from fedkin.deploy.programs import Program, last_lines, wait_until
from fedkin.deploy.submit import submit
from fedkin.experiment.settings import Settings, settings_from

LINES = Path(__file__).parent / "results" / "rounds_over_sockets.jsonl"
KINDS = ("plain", "plain, torch", "fedkin")
INPUTS = 2894  # the mlp has 200 x 2894 + 200 x 100 + 100 x 10 weights and 310 biases
NUMBERS = INPUTS * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10
SECONDS = 60.0  # a round that takes longer is a fault

PROJECT = """[project]
name = "plain"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "plain.apps:server"
clientapp = "plain.apps:client"
[tool.flwr.app.config]
rounds = 3
nodes = 1
torch = false
numbers = 1
ends = ""
"""
APPS = """
import time

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    if context.run_config["torch"]:
        import torch
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    import numpy
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    config = context.run_config
    arrays = ArrayRecord({"model": Array(numpy.random.rand(config["numbers"]).astype("float32"))})

    def ended(number, arrays):
        with open(config["ends"], "a") as file:
            file.write(f"{time.monotonic()}\\n")

    nodes = config["nodes"]
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=config["rounds"], evaluate_fn=ended)
"""


@contextmanager
def fleet(folder: Path, nodes: int) -> Iterator[Link]:
    """A link and nodes that are connected to it."""
    with ExitStack() as ends:
        link = start_link(LinkSettings(folder / "link", port=0, insecure_test=True))
        ends.callback(link.stop)
        for i in range(nodes):
            place = folder / f"n{i}"
            command = [sys.executable, "-m", "fedkin", "node", "--data", str(data(folder, i)), "--client-id", f"n{i}"]
            command += ["--link", link.address, "--folder", str(place), "--insecure-test"]
            program = Program(f"node {i}", command, environment(place / "flwr"), place / "node.log")
            ends.callback(program.stop)
            wait_until(lambda wanted=i + 1: online(link) == wanted, program, 120.0)
        yield link


def online(link: Link) -> int:
    return sum(node.get("status") == "online" for node in link.control.ask("supernode", "list")["nodes"])


def data(folder: Path, site: int) -> Path:
    """Ten samples for training, as many as a batch."""
    rng, path = np.random.default_rng(site), folder / f"site{site}.npz"
    x = rng.normal(size=(14, INPUTS)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(14) % 10)
    return path


# ---- the two programs -----------------------------------------------------------------------------------------------
def plain(link: Link, folder: Path, nodes: int, rounds: int, torch: bool) -> dict[str, Any]:
    """Seconds of each round of Flower's FedAvg."""
    app = folder / "app"
    (app / "plain").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "plain" / "__init__.py").write_text("")
    (app / "plain" / "apps.py").write_text(APPS)
    file = folder / "ends"
    config = f'rounds={rounds + 1} nodes={nodes} torch={str(torch).lower()} numbers={NUMBERS} ends="{file}"'
    command = ["run", str(app), "fedkin", "--run-config", config]
    flwr = [str(Path(sys.executable).parent / "flwr"), *command]
    subprocess.run(flwr, env=environment(link.settings.home), capture_output=True, check=True, timeout=60)
    watched(lambda: lines(file), rounds + 2, link)
    ends = [float(text) for text in file.read_text().split()][1:]  # its start is written, too
    return {"seconds": between(ends)}


def ours(link: Link, folder: Path, nodes: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round of fedkin's FedAvg; and of them, one client's in local training."""
    file = folder / "run" / "timing.jsonl"
    number = submit(settings(nodes, rounds), folder / "run", link.control)
    ends = watched(lambda: lines(file), rounds + 1, link)
    link.control.ask("stop", number)  # the last ten rounds, which are evaluated
    found = [json.loads(text) for text in file.read_text().splitlines()[1 : rounds + 1]]
    said = json.loads((folder / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert len(said["answered"]) == nodes, said
    return {"seconds": between(ends), "training_s": statistics.median(line["training"] for line in found) / nodes}


def settings(nodes: int, rounds: int) -> Settings:
    return settings_from(
        {
            "method": {"name": "fedavg"},
            "data": {"partition": "natural"},
            "training": {"steps": 1, "batch_size": 10},
            "run": {"rounds": rounds + 12, "eval_every": 1000},
            "hosts": {"min_clients": nodes, "min_connected": nodes, "reply_timeout": SECONDS},
        }
    )


def watched(count: Callable[[], int], wanted: int, link: Link) -> list[float]:
    """When each of so many lines was there."""
    ends: list[float] = []
    start = time.monotonic()
    while len(ends) < wanted:
        ends += [time.monotonic()] * (count() - len(ends))
        if time.monotonic() - (ends[-1] if ends else start) > SECONDS + 60:
            raise SystemExit(f"no round within a minute; the link's last words:\n{last_lines(link.superlink.log, 30)}")
        time.sleep(0.02)
    return ends[:wanted]


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def between(ends: list[float]) -> list[float]:
    return [round(b - a, 3) for a, b in pairwise(ends)]


# ---- measuring and telling ------------------------------------------------------------------------------------------
def measure(nodes: int, rounds: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as place, fleet(Path(place), nodes) as link:
        for repeat in range(repeats):
            for kind in KINDS:
                folder = Path(place) / f"{repeat}-{KINDS.index(kind)}"
                if kind == "fedkin":
                    found = ours(link, folder, nodes, rounds)
                else:
                    found = plain(link, folder, nodes, rounds, torch=kind != "plain")
                wait_until(lambda: idle(link), link.superlink, 60.0)
                write(kind, nodes, found)


def idle(link: Link) -> bool:
    return all(str(run["status"]).startswith("finished") for run in link.control.runs())


def write(kind: str, nodes: int, found: dict[str, Any]) -> None:
    model = [
        text.split(":")[1].strip() for text in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in text
    ]
    line = {
        "kind": kind,
        "nodes": nodes,
        **found,
        "load": round(os.getloadavg()[0], 1),
        "machine": f"{os.cpu_count()} cores, {(model or [platform.machine()])[0]}",
        "versions": {name: metadata.version(name) for name in ("fedkin", "flwr", "torch")},
        "python": platform.python_version(),
        "day": date.today().isoformat(),
    }
    LINES.parent.mkdir(exist_ok=True)
    with LINES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{nodes} nodes, {kind:<12} {statistics.median(found['seconds']):.2f} s {found}", flush=True)


def table() -> str:
    """Median seconds per round, without training, and the ratio of ours to both of Flower's, as Markdown."""
    found = [json.loads(text) for text in LINES.read_text(encoding="utf-8").splitlines()]
    rows = [
        "| nodes | plain Flower | with torch | fedkin | to plain | to torch |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for nodes in sorted({line["nodes"] for line in found}):
        medians, cells = [], []
        for kind in KINDS:
            runs = [line for line in found if (line["kind"], line["nodes"]) == (kind, nodes)]
            seconds = [s - line.get("training_s", 0.0) for line in runs for s in line["seconds"]]
            medians.append(statistics.median(seconds) if seconds else float("nan"))
            each = [statistics.median(line["seconds"]) for line in runs] or [float("nan")]
            cells.append(f"{medians[-1]:.2f} s ({min(each):.2f} to {max(each):.2f})")
        ratios = [f"{medians[2] / medians[i]:.2f}" for i in (0, 1)]
        rows.append(f"| {nodes} | {' | '.join(cells)} | {' | '.join(ratios)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 3, 6])
    parser.add_argument("--rounds", type=int, default=8, help="measured rounds of a run")
    parser.add_argument("--repeats", type=int, help="runs of each kind; default 3, and 2 with more than three nodes")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    print(f"fedkin {fedkin.__version__}, {NUMBERS} numbers", flush=True)
    for nodes in args.nodes:
        measure(nodes, args.rounds, args.repeats or (3 if nodes <= 3 else 2))


if __name__ == "__main__":
    main()
