"""Whole rounds against the machine and against other programs.

    python -m bench.speed                                    # all workloads, ours alone: 20 minutes on two cores
    python -m bench.speed W1a W4 --plain --pfl-research /envs/pfl/bin/python --flower /envs/flower/bin/python \\
        --pfllib /src/PFLlib /envs/pfllib/bin/python
    python -m bench.speed --quick --plain                    # does everything work?
    python -m bench.speed --table                            # prints all tables

Peers are programs in other environments: pfl (pip install pfl==0.6.0), Flower (pip install 'flwr[simulation]==1.41.0'),
BlazeFL (Python 3.12 or later, pip install 'blazefl[contrib,reproducibility]==2.0.3'; 3.14t for its threads),
PFLlib (a checkout, and an environment with h5py, scikit-learn and matplotlib); all with the torch that fedkin has. What
is measured and how is told in docs/performance.md. Lines go to bench/results/speed.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # so that `python bench/speed/__main__.py` works, too

from bench.speed import federation, flops, machine, measure, table
from bench.speed.measure import Ours, Peer
from bench.speed.peak import fma_peak
from bench.speed.workloads import WORKLOADS, Workload

from fedkin.models.registry import get_model

PARTS = ("whole", "step", "pair", "start", "target")


class Book:
    """Writes lines down: what was measured, on which machine, with what."""

    def __init__(self, file: Path, quick: bool, note: str) -> None:
        self._file, self._quick, self._note = file, quick, note
        self.peak, self.fma = (0.0, 0.0), (0.0, 0.0)

    def measure_peak(self) -> None:
        """The best so far: others who use the machine can only make it look slower than it is."""
        now = machine.matmul_peak(256 if self._quick else 2048)
        self.peak = (max(self.peak[0], now[0]), max(self.peak[1], now[1]))
        now = fma_peak(2 if self._quick else 15)
        self.fma = (max(self.fma[0], now[0]), max(self.fma[1], now[1]))

    def write(self, kind: str, workload: str, **found: Any) -> dict[str, Any]:
        line = {
            "kind": kind, "workload": workload, **found, "peak_gflops": [round(p, 1) for p in self.peak],
            "fma_gflops": [round(p, 1) for p in self.fma],
            "quick": self._quick, "machine": machine.described(), "versions": machine.versions(),
            "day": date.today().isoformat(),
            **({"note": self._note} if self._note else {}),
        }  # fmt: skip
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line


def measured(w: Workload, args: argparse.Namespace, ours: Ours, peers: list[Peer], book: Book) -> None:
    """Everything that was asked for on one workload."""
    book.measure_peak()
    one = flops.of_step(get_model(w.model, w.shape, w.classes), w.shape, w.batch)
    print(
        f"\n{w.name}: {w.about}; {one / 1e9:.3g} GFLOP a step; peak {book.fma[0]:.0f} and {book.fma[1]:.0f} GFLOP/s, "
        f"of matrix products {book.peak[0]:.0f} and {book.peak[1]:.0f}",
        flush=True,
    )
    about = {"settings": w.described(), "cohort": w.cohort, "samples": w.samples, "step_flop": one}
    given = {"given": {name: value for name, value in vars(ours).items() if value is not None}}
    with tempfile.TemporaryDirectory(prefix="speed-") as place:
        folder = Path(place)
        federation.write(w, folder)
        if "step" in args.parts:
            for found in measure.steps(w, folder):
                say_step(book.write("step", w.name, **about, **found))
        for paper in (False, True) if "whole" in args.parts else ():
            if paper and w.paper is None:
                continue
            flop = one * w.steps * w.cohort * (w.trainings if paper else 1)
            for evaluate in (False, True):
                found = measure.whole(
                    w, folder, ours, paper=paper, evaluate=evaluate, repeats=0 if args.quick else min(2, w.rounds)
                )
                say_whole(book.write("whole", w.name, **about, **given, round_flop=flop, **found))
        for peer in peers if "pair" in args.parts else ():
            found = measure.beside(w, folder, ours, peer, 0 if args.quick else args.pairs)
            say_pair(book.write("pair", w.name, **about, **given, **found))
        for peer in (p for p in peers if p.evaluates) if "target" in args.parts and w.target else ():
            reached = measure.to_target(w, folder, ours, peer, 0 if args.quick else args.pairs, w.target)
            if reached is None:
                print(f"  {100 * w.target:.0f} % not reached beside {peer.name} in {w.rounds} rounds", flush=True)
            else:
                say_target(book.write("target", w.name, **about, **given, **reached))


def say_step(line: dict[str, Any]) -> None:
    floor = line["step_flop"] / (1e6 * table.limit(line)[0])
    kind = line.get("gradient", "autograd")
    print(
        f"  a step alone, {kind}: {line['step_ms']:.3g} ms, {100 * floor / line['step_ms']:.0f} % of one core",
        flush=True,
    )


def say_whole(line: dict[str, Any]) -> None:
    per = table.updates(line)
    memory = "" if line["memory_mb"] is None else f", {line['memory_mb']:.0f} MB"
    print(
        f"  {line['method']}, evaluation {'on' if line['evaluate'] else 'off'}: {per:.3g} client updates/s, "
        f"{per * line['samples']:,.0f} samples/s, {100 * table.share(line):.0f} % of peak, "
        f"{100 * line['outside']:.1f} % of a round outside training{memory}, "
        f"first round after {line['first_s']:.1f} s, accuracy {line['accuracy']:.3f}",
        flush=True,
    )
    if (line["workload"], line["method"], line["evaluate"]) == ("W4", "fedavg", False):
        clients = line["settings"]["clients"]
        print(f"  goal: outside training <= 5 % at 100 clients; {100 * line['outside']:.1f} % at {clients}", flush=True)


def say_pair(line: dict[str, Any]) -> None:
    goal = WORKLOADS[line["workload"]].goal(line["peer"], line["setting"])
    wanted = "" if goal is None else f" (goal {goal:g})"
    low, high = line["spread"]
    print(
        f"  {line['ratio']:.2f} times {line['peer']}{wanted}, {low:.2f} to {high:.2f} in {len(line['pairs'])} pairs; "
        f"its setting {line['setting']} of {line['tried']}; "
        f"accuracy {line['accuracy'][0]:.3f}, its {line['accuracy'][1]:.3f}",
        flush=True,
    )


def say_target(line: dict[str, Any]) -> None:
    mine, theirs = (statistics.median(pair[side] for pair in line["pairs"]) for side in (0, 1))
    print(
        f"  to {100 * line['target']:.0f} %: {mine:.2f} s, {line['peer']} {theirs:.2f} s: {line['ratio']:.2f} times",
        flush=True,
    )


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each program beside the other")
    parser.add_argument("--cores", type=int, help="how many cores all programs may use; default: all")
    parser.add_argument("--engine", help="given to fedkin.run")
    parser.add_argument("--gradient", help="given to fedkin.run")
    parser.add_argument("--plain", action="store_true", help="beside FedAvg written by hand in PyTorch")
    parser.add_argument("--pfl-research", metavar="PYTHON", help="an interpreter that has pfl")
    parser.add_argument("--flower", metavar="PYTHON", help="an interpreter that has flwr[simulation]")
    parser.add_argument("--blazefl", metavar="PYTHON", help="an interpreter that has blazefl[contrib,reproducibility]")
    parser.add_argument(
        "--pfllib", nargs=2, metavar=("CHECKOUT", "PYTHON"), help="a checkout, and an interpreter for it"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see whether everything works")
    parser.add_argument("--note", default="", help="said in every line, such as what else the machine was doing")
    parser.add_argument("--lines", type=Path, default=table.LINES, help="where lines go")
    parser.add_argument("--table", action="store_true", help="print the tables and write them into the page; no runs")
    return parser


def asked(args: argparse.Namespace) -> list[Peer]:
    """The programs beside ours."""
    found = [measure.plain()] if args.plain else []
    found += measure.pfl_research(args.pfl_research) if args.pfl_research else []
    found += [measure.flower(args.flower)] if args.flower else []
    found += [measure.blazefl(args.blazefl)] if args.blazefl else []
    return found + ([measure.pfllib(*args.pfllib)] if args.pfllib else [])


def main(words: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(words)
    unknown = [name for name in args.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    if args.table:
        print(table.tables(table.read(args.lines)))
        return
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # and so every program's
    ours, book = Ours(args.engine, args.gradient), Book(args.lines, args.quick, args.note)
    peers = asked(args)
    for name in args.workloads or WORKLOADS:
        measured(WORKLOADS[name].quick() if args.quick else WORKLOADS[name], args, ours, peers, book)
    if "start" in args.parts:
        seconds = [measure.first_round() for _ in range(1 if args.quick else 5)]
        book.write("start", "W4", first_s=[round(s, 3) for s in seconds])
        print(
            f"\ngoal: first round <= 3 s after `fedkin run` with 100 clients; {statistics.median(seconds):.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the program being measured ends, too
    main()
