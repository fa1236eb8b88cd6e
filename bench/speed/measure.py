"""The measurements: whole rounds of ours, single steps, the start of the first round, pairs with other programs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from bench.speed.drive import Ran, environment, run
from bench.speed.workloads import Workload

import fedkin
from fedkin.core.machine import cores

_TRIED = 4  # rounds in which a setting of a peer is tried, at most


@dataclass(frozen=True)
class Ours:
    """How fedkin is run: what is given to `fedkin.run`, if it is given at all."""

    engine: str | None = None
    gradient: str | None = None

    def run(self, w: Workload, folder: Path, *, paper: bool = False, **settings: Any) -> Ran:
        """FedAvg, or the workload's own method."""
        method = w.paper if paper else "fedavg"
        fields = dict(w.fields) if paper else {}
        given = {name: value for name, value in vars(self).items() if value is not None}
        settings = {"evaluate": False, "written": False, **given, **settings}
        return run("ours", sys.executable, w, folder, method=method, fields=fields, **settings)


@dataclass(frozen=True)
class Peer:
    """Another program.

    Attributes:
        name: of its script and its goals.
        python: the interpreter of the environment that it is installed in.
        tries: settings of which the fastest is taken.
        more: further settings of its script.
        evaluates: whether its script can evaluate every round.
    """

    name: str
    python: str
    tries: Sequence[dict[str, Any]]
    more: dict[str, Any] = field(default_factory=dict)
    evaluates: bool = True

    def run(self, w: Workload, folder: Path, tried: dict[str, Any], **more: Any) -> Ran:
        return run(self.name.replace("-", "_"), self.python, w, folder, **tried, **self.more, **more)


def threads() -> list[dict[str, Any]]:
    """One thread, or one per core."""
    return [{"threads": n} for n in sorted({1, cores()})]


def pfl_research(python: str) -> list[Peer]:
    """In one process, as it comes; and beside it in one process per core, which has to be set up by hand."""
    found = [Peer("pfl-research", python, [{"processes": 1, **one} for one in threads()])]
    if cores() > 1:
        found.append(Peer("pfl-research", python, [{"processes": cores(), "threads": 1}]))
    return found


def flower(python: str) -> Peer:
    """Clients on a core each, two clients on a core, and one client at a time on all cores."""
    n = cores()
    tries: list[dict[str, Any]] = [
        {"client_cpus": 1, "threads": 1},
        {"client_cpus": 0.5, "threads": 1},
        {"client_cpus": n, "threads": n},
    ]
    return Peer("flower", python, tries if n > 1 else tries[:2], {"cpus": n})


def blazefl(python: str) -> Peer:
    """One process on all cores, a pool of processes, or of threads, which need a Python without a global lock."""
    n = cores()
    tries: list[dict[str, Any]] = [
        {"mode": "one", "parallel": 1, "threads": n},
        {"mode": "processes", "parallel": n, "threads": 1},
        {"mode": "threads", "parallel": n, "threads": 1},
    ]
    return Peer("blaze-fl", python, tries)


def pfllib(checkout: str, python: str) -> Peer:
    return Peer("pfllib", python, threads(), {"checkout": str(Path(checkout).resolve())}, evaluates=False)


def plain() -> Peer:
    """FedAvg written by hand, for which nothing has to be installed."""
    return Peer("plain", sys.executable, threads())


# ---- ours alone -----------------------------------------------------------------------------------------------------
def whole(w: Workload, folder: Path, ours: Ours, *, paper: bool, evaluate: bool, repeats: int) -> dict[str, Any]:
    """Whole rounds with a run folder, as `fedkin run` has one: some runs for the times, then one for the memory.

    Without repeats the times are those of the run whose memory was looked at, which disturbs it.
    """
    how = {"paper": paper, "evaluate": evaluate, "written": True}
    runs = [ours.run(w, folder, **how) for _ in range(repeats)]
    watched = ours.run(w, folder, **how, watch=True)
    runs = runs or [watched]
    processes = min(cores(), w.cohort)
    parts = [part for ran in runs for part in ran.more["parts"]]
    return {
        "method": w.paper if paper else "fedavg",
        "evaluate": evaluate,
        "round_s": [round(s, 5) for ran in runs for s in ran.round_s],
        "outside": outside(parts, processes),
        "parts_s": {name: round(statistics.median(part[name] for part in parts), 5) for name in parts[0]},
        "evaluation_s": statistics.median(part["evaluation"] for part in parts),
        "memory_mb": watched.memory_mb,
        "first_s": min(ran.first_s for ran in runs),
        "accuracy": runs[-1].accuracy,
    }


def outside(parts: Sequence[dict[str, float]], processes: int) -> float:
    """The median share of a round that is not local training, a process that waits for the others' end included.

    A round's evaluation and the writing of its folder are not part of it.
    """
    return statistics.median(1 - part["training"] / (processes * part["round"]) for part in parts)


def steps(w: Workload, folder: Path) -> list[dict[str, Any]]:
    """Milliseconds of a step of one client, alone on one core, for each way of taking gradients."""
    kinds: list[dict[str, Any]] = [{"gradient": kind} for kind in gradients()] or [{}]
    alone: dict[str, Any] = {"clients": 1, "cohort": 1, "engine": "loop", "written": True}
    found = []
    for kind in kinds:
        ran = Ours().run(w, folder, **alone, **kind)
        seconds = [part["training"] / w.steps for part in ran.more["parts"]]
        found.append({**kind, "step_ms": 1000 * statistics.median(seconds), "least_ms": 1000 * min(seconds)})
    return found


def gradients() -> list[str]:
    """The ways of taking gradients that `fedkin.Compute` names."""
    return _words(get_type_hints(fedkin.Compute).get("gradient"))


def _words(hint: Any) -> list[str]:
    found: list[str] = []
    for part in get_args(hint):
        found += [part] if isinstance(part, str) else _words(part)
    return found


def first_round() -> float:
    """Seconds from `fedkin run` with 100 clients to its first round: the run folder is made right before it."""
    with tempfile.TemporaryDirectory() as place:
        flags = ["--rounds", "1", "--clients", "100", "--min-samples", "1", "--quiet", "--out", f"{place}/run"]
        command, started = [sys.executable, "-m", "fedkin", "run", "fedavg", *flags], time.time()
        subprocess.run(command, check=True, env=environment(Path(place)))
        return (Path(place) / "run" / "config.toml").stat().st_mtime - started


def fastest(w: Workload, folder: Path, peer: Peer) -> tuple[list[tuple[dict[str, Any], Ran]], dict[str, Any]]:
    """The settings of a peer with what a few rounds took, once each; and the fastest one."""
    tried = [(one, peer.run(w, folder, one, rounds=min(w.rounds, _TRIED) + 2)) for one in peer.tries]
    return tried, min(tried, key=lambda pair: pair[1].median_s)[0]


def seconds_to(ran: Ran, target: float) -> float | None:
    """Seconds from the start of the first round to the end of the first one with this accuracy; None: there is none."""
    ends, accuracies = ran.more["times"], ran.more["accuracies"]
    return next((ends[i + 1] - ends[0] for i, found in enumerate(accuracies) if found >= target), None)


def to_target(w: Workload, folder: Path, ours: Ours, peer: Peer, pairs: int, target: float) -> dict[str, Any] | None:
    """Seconds to an accuracy on all clients' test samples by both, evaluated each round; None: one does not reach it.

    The peer runs in the setting that is fastest without evaluation.
    """
    _, best = fastest(w, folder, peer)
    found = []
    for _ in range(max(1, pairs)):
        ran = (ours.run(w, folder, evaluate=True, target=target), peer.run(w, folder, best, target=target))
        seconds = [seconds_to(one, target) for one in ran]
        if None in seconds:
            return None
        found.append(seconds)
    ratios = [theirs / mine for mine, theirs in found if mine and theirs]
    return {
        "peer": peer.name,
        "setting": best,
        "target": target,
        "pairs": [[round(s or 0.0, 3) for s in pair] for pair in found],
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
    }


# ---- beside others --------------------------------------------------------------------------------------------------
def beside(w: Workload, folder: Path, ours: Ours, peer: Peer, pairs: int) -> dict[str, Any]:
    """FedAvg by both, one after the other, again and again; the peer in the fastest of its settings.

    Its settings are tried once each, for a few rounds. Both programs' memory is looked at in runs of their own, which
    count for nothing else, unless no pairs are asked for.
    """
    tried, best = fastest(w, folder, peer)
    watched = (ours.run(w, folder, watch=True), peer.run(w, folder, best, watch=True))
    ran = [(ours.run(w, folder), peer.run(w, folder, best)) for _ in range(pairs)] or [watched]
    ratios = [theirs.median_s / mine.median_s for mine, theirs in ran]
    last = ran[-1]
    return {
        "peer": peer.name,
        "setting": best,
        "tried": [{**one, "round_s": round(found.median_s, 5)} for one, found in tried],
        "pairs": [[round(mine.median_s, 5), round(theirs.median_s, 5)] for mine, theirs in ran],
        "cpu_s": [[round(mine.cpu_s, 2), round(theirs.cpu_s, 2)] for mine, theirs in ran],
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "first_s": [statistics.median(pair[side].first_s for pair in ran) for side in (0, 1)],
        "memory_mb": [program.memory_mb for program in watched],
        "accuracy": [last[0].accuracy, last[1].accuracy],
        "loss": last[1].loss,
        "peer_versions": {**last[1].more["versions"], **{k: v for k, v in last[1].more.items() if k == "checkout"}},
    }
