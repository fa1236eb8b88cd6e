"""What one round costs the server, for every method.

    python bench/server_cost.py [--only NAME ...] [--limit 180]
    python bench/server_cost.py --table

No client trains: uploads are what the contract's probe says they look like, with noise on every number, and the server
remembers every client from earlier rounds. The network has 62,006 parameters (`cam-lenet` on 3 x 32 x 32). Each pair
of (participants, clients) is a process of its own, on one thread and with a limit of time. Measured are the survey, the
draw of the cohort, the downloads, the aggregation, and once the admission of all clients; memory is what the process
takes at its peak in a round beyond what it held before (the new state is part of it: the steps are pure functions).
Lines go to `bench/results/server_cost.jsonl`, the last one of each pair counts; `--table` prints the table of
`docs/results/server-cost.md`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fedkin
from fedkin.core import Bundle, Download, Method, Net, Roster, Round, Training
from fedkin.core.seeds import generator
from fedkin.methods import CFL, METHODS, PFA, ClusteredSampling, FedAMP, FedFomo, FedGH, PFedCS
from fedkin.models.start import factory
from fedkin.server.upload_checks import described, probe

ROOT = Path(__file__).parents[1]
LINES = ROOT / "bench" / "results" / "server_cost.jsonl"
PAIRS = ((100, 100), (100, 1000), (100, 10000), (1000, 1000))
ROUND, TOTAL, CLASSES = 9, 20, 10
WIDTH = 0.01  # of the noise on models

CASES: dict[str, tuple[Method, int]] = {
    **{name: (make(), ROUND) for name, make in METHODS.items()},
    "fedamp, participants": (FedAMP(over="participants"), ROUND),
    "fedfomo, bank": (FedFomo(pool="bank"), ROUND),
    "pfedcs, kmeans": (PFedCS(select="kmeans"), ROUND),
    "pfedcs, hier": (PFedCS(select="hier"), ROUND),
    "clustered-sampling, condensed": (ClusteredSampling(linkage_input="condensed"), ROUND),
    "fedgh, batches of 32": (FedGH(server_batch=32), ROUND),
    "cfl, dividing": (CFL(after=0, eps1=1e9, eps2=0.0), ROUND),
    "pfa, grouping": (PFA(after=0), ROUND),
}


def noise(like: Tensor, rows: int) -> Tensor:
    """``[rows, ...]``: the tensor with noise, in 16 directions because more would take longer than what is measured."""
    rng = generator(0, "server cost")
    own, ways = torch.randn(rows, 16, generator=rng), torch.randn(16, like.numel(), generator=rng)
    out = torch.addmm(like.reshape(1, -1).float(), own, ways, alpha=WIDTH / 4)
    return out.view(rows, *like.shape).to(like.dtype)


def symmetric(k: int) -> Tensor:
    """Distances as of models with this noise."""
    near = torch.rand(k, k, dtype=torch.float64, generator=generator(0, "near"))
    return (near + near.T).mul_(0.01).add_(1.0).mul_(2 * 62_006 * WIDTH**2).fill_diagonal_(0)


def remembered(s: Bundle, r: Round) -> Bundle:
    """The state as if every client had taken part before."""
    k, rng = len(r.roster), generator(0, "labels")
    s = Bundle({name: t for name, t in s.items() if name != "own"})  # Fed-CAM after its warm-up
    for name, t in s.items():
        last = name.split(".")[-1]
        if last in ("bank", "updates", "features", "heads") and len(t) == k and k:
            s[name] = noise(torch.zeros(t.shape[1:]) if last == "updates" else t[0], k)
        elif last in ("seen", "asked", "fresh", "warm"):
            s[name] = torch.ones_like(t)
        elif last == "grouped":
            s[name] = torch.tensor(True)
        elif last in ("near", "unlike"):
            s[name] = symmetric(k)
        elif last == "long":
            s[name] = torch.full_like(t, WIDTH * 62_006**0.5)
        elif last == "uploaded":
            s[name] = torch.full_like(t, r.index - 1)
        elif last == "sigma":
            s[name] = torch.tensor(2 * 62_006 * WIDTH**2, dtype=torch.float64)
        elif last == "labels" and "splits" not in s and bool((t < 0).any()):
            centres = s.get(name.replace("labels", "centres"), torch.zeros(0))
            s[name] = torch.randint(len(centres), (k,), generator=rng) if len(centres) else t
        elif last == "owner":
            s[name] = torch.arange(k)
            s["models"] = noise(r.w0, k)
    return s


def joining(method: Method, net: Net, k: int) -> Roster:
    """What so many clients have said."""
    rng = generator(0, "joining")
    said, size = described(method, net, Training()), torch.randint(20, 600, (k,), generator=rng)
    shares = torch.rand(k, CLASSES, generator=rng).pow(8)
    counts = (shares / shares.sum(1, keepdim=True) * size[:, None]).long()
    values = {"counts": counts, "label": torch.arange(k) % CLASSES, "group": torch.arange(k) % 4}
    if "signature" in said:  # vectors of length 1
        values["signature"] = F.normalize(torch.randn(k, *said.signature.shape, generator=rng), dim=-1)
    return Roster(size, Bundle({name: values[name] for name in said if name != "size"}))


def uploads(method: Method, r: Round, sent: Download, *, survey: bool = False) -> Bundle:
    """What the participants answer, by the probe, with noise."""
    row = next((i for i in range(len(r.ids)) if sent.row(i)), 0)
    like = probe(method, r.net, Training(), sent.row(row), survey=survey)
    up, rng, m = Bundle(), generator(0, "uploads"), len(r.ids)
    for name, t in like.items():
        if name.split(".")[-1] == "cluster":
            up[name] = torch.randint(3, (m,), generator=rng)
        elif name in ("accuracy", "variance"):  # a variance is of the size of squared distances of its features
            scale = like.moments.numel() * WIDTH**2 if name == "variance" else 1.0
            up[name] = torch.rand(m, generator=rng, dtype=t.dtype) * scale
        elif name == "share":
            shares = torch.rand(m, *t.shape, generator=rng)
            up[name] = shares / shares.sum(1, keepdim=True)
        else:
            up[name] = noise(t, m) if t.is_floating_point() else t.expand(m, *t.shape).clone()
    if "ids" in sent.rows:
        up["ids"] = sent.rows.ids
    return up


def one_round(method: Method, s: Bundle, r: Round, all_ids: Tensor, timed: Callable[..., Any]) -> Bundle:
    """One round of the server; ``timed(step, f, *args)`` calls f and adds up what it took."""
    asked = timed("survey", method.survey, s, r.but(step="survey", ids=all_ids))
    if asked is not None:
        collect = r.but(step="collect", ids=all_ids)
        s = timed("survey", method.collect, s, collect, uploads(method, collect, asked, survey=True))
    drawn = timed("sample", method.sample, s, r.but(step="sample", ids=all_ids))
    drawn = drawn if isinstance(drawn, Bundle) else Bundle(ids=drawn)
    beside = Bundle({name: rows for name, rows in drawn.items() if name != "ids"})
    r = r.but(ids=drawn.ids, drawn=beside)
    sent = timed("distribute", method.distribute, s, r.but(step="distribute"))
    up = uploads(method, r, sent)
    del sent
    got: Bundle = timed("aggregate", method.aggregate, s, r.but(step="aggregate"), up)
    return got


def memory(name: str) -> int:
    """A figure of this process in bytes: VmRSS, or VmHWM, the peak since `forget`."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure(case: str, m: int, k: int) -> dict[str, Any]:
    torch.set_num_threads(1)  # a second one waits for work by spinning, which counts as processor time
    method, index = CASES[case]
    net = Net(factory("cam-lenet", (3, 32, 32), CLASSES), (3, 32, 32), CLASSES)
    all_ids = torch.arange(k)
    r = Round(index, TOTAL, net, joining(method, net, k), all_ids, cohort=m)
    steps: dict[str, list[float]] = {}
    peak = [0]

    def timed(step: str, f: Callable[..., Any], *args: Any) -> Any:
        forget()
        before, wall, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
        out = f(*args)
        took = steps.setdefault(step, [0.0, 0.0])
        took[0] += time.perf_counter() - wall
        took[1] += time.process_time() - cpu
        peak[0] = max(peak[0], memory("VmHWM") - before)
        return out

    empty = Roster(torch.zeros(0, dtype=torch.int64), Bundle())
    s = method.init(r.but(index=0, step="init", roster=empty, ids=all_ids[:0]))
    s = timed("admit", method.admit, s, r.but(step="admit"))
    admitted, found = steps.pop("admit"), []
    s = remembered(s, r)
    for _ in range(2):  # the first one warms up, which is nothing to a long one
        peak[0] = 0
        steps.clear()
        one_round(method, s, r, all_ids, timed)
        found.append((sum(v[1] for v in steps.values()), peak[0], {n: list(v) for n, v in steps.items()}))
        if found[0][0] > 5:
            break
    cpu, most, parts = min(found, key=lambda f: f[0])
    return {
        "case": case,
        "participants": m,
        "clients": k,
        "seconds": sum(v[0] for v in parts.values()),
        "cpu_seconds": cpu,
        "steps_cpu": {n: v[1] for n, v in parts.items()},
        "admission_cpu": admitted[1],
        "peak_extra_bytes": most,
        "state_bytes": s.nbytes,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "fedkin": fedkin.__version__,
    }


def run(case: str, m: int, k: int, limit: float) -> dict[str, Any]:
    """One pair in a process of its own, forked because importing torch anew takes longer than most rounds."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_report, args=(there, case, m, k))
    process.start()
    there.close()
    why = f"over {limit:g} s"
    if here.poll(limit):
        try:
            return dict(here.recv())
        except EOFError:
            why = "not enough memory"
    process.kill()
    process.join()
    return {"case": case, "participants": m, "clients": k, "failed": why}


def _report(pipe: Connection, case: str, m: int, k: int) -> None:
    pipe.send(measure(case, m, k))


def table() -> str:
    """Seconds of processor time and memory of the cases that take a second or more in some pair, and of others."""
    lines = [json.loads(text) for text in LINES.read_text().splitlines()]
    found = {(line["case"], line["participants"], line["clients"]): line for line in lines}
    heads = ["s, GB", *(f"{m:,} of {k:,}" for m, k in PAIRS)]
    out = ["| " + " | ".join(heads) + " |", "| --- |" + " --: |" * len(PAIRS)]
    small = []
    for case in CASES:
        each = [found.get((case, m, k)) for m, k in PAIRS]
        if all(x is not None and "failed" not in x and x["cpu_seconds"] < 1 for x in each):
            small.append([x["cpu_seconds"] for x in each if x is not None])
            continue
        out.append(f"| {case} | " + " | ".join(map(_cell, each)) + " |")
    most = (f"up to {max(column):.2f}" for column in zip(*small, strict=True))
    return "\n".join([*out, f"| the other {len(small)} cases | {' | '.join(most)} |"])


def _cell(line: dict[str, Any] | None) -> str:
    if line is None:
        return ""
    if "failed" in line:
        return str(line["failed"])
    seconds, gigabytes = line["cpu_seconds"], line["peak_extra_bytes"] / 1e9
    return f"{seconds:.2f}, {gigabytes:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for each pair")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table())
    else:
        for case in args.only:
            for m, k in PAIRS:
                line = run(case, m, k, args.limit)
                with LINES.open("a") as out:
                    out.write(json.dumps({"load": os.getloadavg()[0], **line}) + "\n")
                print(case, m, k, _cell(line), flush=True)


if __name__ == "__main__":
    main()
