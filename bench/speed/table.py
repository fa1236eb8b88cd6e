"""Tables of the lines that were measured; `page` makes those of `docs/performance.md`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.speed.workloads import WORKLOADS

LINES = Path(__file__).parents[1] / "results" / "speed.jsonl"
_TITLES = {
    "fedavg": "FedAvg", "da-pfl": "DA-PFL", "pfedcs": "PFedCS", "ifca-cam": "IFCA-CAM", "plain": "by hand",
    "pfl-research": "pfl-research", "flower": "Flower", "pfllib": "PFLlib", "blaze-fl": "BlazeFL",
}  # fmt: skip
Line = dict[str, Any]


def read(path: Path = LINES) -> list[Line]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def tables(lines: Sequence[Line]) -> str:
    """All tables in Markdown, of the last line of each measurement, machine by machine, the last machine first.

    Lines of quick runs are left out.
    """
    lines = _last([line for line in lines if not line["quick"]])
    if not lines:
        return "Nothing has been measured yet."
    machines = {_of(line): [x for x in lines if _of(x) == _of(line)] for line in reversed(lines)}
    return "\n\n".join(_tables(found) for found in machines.values())


def _of(line: Line) -> tuple[str, int]:
    """Return what tells one machine from another: its processor and the number of its cores."""
    return line["machine"]["cpu"], line["machine"]["cores"]


def _tables(lines: Sequence[Line]) -> str:
    parts = [_machine(lines[-1]), _wholes(lines), _pairs(lines), _targets(lines), _steps(lines), _start(lines)]
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """The comparison with other programs, machine by machine."""
    lines = _last([line for line in read() if not line["quick"]])
    machines = {_of(line): [x for x in lines if _of(x) == _of(line)] for line in reversed(lines)}
    parts = []
    for (cpu, cores), found in machines.items():
        rows, fastest = [], dict[tuple[str, str], Line]()
        for line in _in_order(found, "pair"):
            key = (line["workload"], line["peer"])
            if key not in fastest or line["ratio"] < fastest[key]["ratio"]:
                fastest[key] = line
        for line in fastest.values():
            mine, theirs = (line["cohort"] / statistics.median(pair[side] for pair in line["pairs"]) for side in (0, 1))
            low, high = line["spread"]
            rows.append(
                f"| {line['workload']} | {_peer(line)} | {theirs:.3g} | {mine:.3g} | **{line['ratio']:.2f}** "
                f"({low:.2f} to {high:.2f}) |"
            )
        head = "| | program (its fastest setting) | its client updates/s | ours | times as fast |"
        parts += [f"{cores} cores of {cpu}:", _table(head, rows)]
    return "\n\n".join(parts)


def _peer(line: Line) -> str:
    setting = ", ".join(f"{name} {value}" for name, value in line["setting"].items())
    return f"{_TITLES[line['peer']]} ({setting})"


def _machine(line: Line) -> str:
    m, v, (one, all_) = line["machine"], line["versions"], line["peak_gflops"]
    memory = "" if m["memory_gb"] is None else f", {m['memory_gb']:g} GB"
    peak = f"matmul peak {one:.0f} GFLOP/s on one core and {all_:.0f} on all"
    if "fma_gflops" in line:
        fused = [round(found) for found in limit(line)]
        peak = f"peak of fused multiply-adds {fused[0]} GFLOP/s on one core and {fused[1]} on all, {peak}"
    return (
        f"{m['cores']} cores of {m['cpu']} ({m['vectors']}){memory}; {peak}; fedkin {v['fedkin']}, torch {v['torch']}, "
        f"Python {v['python']}; {line['day']}."
    )


def _several(line: Line) -> bool:
    """Return whether a peer used several processes: such a line does not replace that of one process."""
    return bool(line["setting"].get("processes", 1) > 1)


_KEYS: dict[str, Callable[[Line], Any]] = {
    "whole": lambda x: (x["method"], x["evaluate"]),
    "pair": lambda x: (x["peer"], _several(x)),
    "target": lambda x: (x["peer"], _several(x)),
    "step": lambda x: x.get("gradient", ""),
    "start": lambda x: None,
}
"""Lines of a kind and workload that agree in this are of one measurement."""


def _last(lines: Sequence[Line]) -> list[Line]:
    """Return the last line of each measurement, on whatever machine, in the order of the lines."""
    found = {(line["kind"], line["workload"], _KEYS[line["kind"]](line)): i for i, line in enumerate(lines)}
    return [lines[i] for i in sorted(found.values())]


def _in_order(lines: Sequence[Line], kind: str) -> list[Line]:
    """Return the lines of a kind in the order of the workloads."""
    order = list(WORKLOADS)
    return sorted((line for line in lines if line["kind"] == kind), key=lambda line: order.index(line["workload"]))


def _wholes(lines: Sequence[Line]) -> str:
    rows = []
    for line in _in_order(lines, "whole"):
        per, goal = updates(line), WORKLOADS[line["workload"]].share
        wanted = "" if goal is None or line["evaluate"] else f"{100 * goal:.0f} %"
        memory = "–" if line["memory_mb"] is None else f"{line['memory_mb']:.0f} MB"
        outside = "–" if line["evaluate"] else f"{100 * line['outside']:.1f} %"
        rows.append(
            f"| {line['workload']} | {_TITLES[line['method']]} | {'on' if line['evaluate'] else 'off'} | {per:.3g} | "
            f"{per * line['samples']:,.0f} | {100 * share(line):.0f} % | {wanted} | {outside} | {memory} | "
            f"{line['first_s']:.1f} s |"
        )
    head = (
        "| | method | evaluation | client updates/s | samples/s | share of peak | goal | outside training | memory | "
        "first round |"
    )
    return _table(head, rows)


def updates(line: Line) -> float:
    """Client updates per second of a line."""
    return float(line["cohort"] / statistics.median(line["round_s"]))


def limit(line: Line) -> tuple[float, float]:
    """GFLOP/s that one core and all of them can do; lines from before there was a measurement have matrix products'."""
    one, all_ = line.get("fma_gflops", line["peak_gflops"])
    return float(one), float(all_)


def share(line: Line) -> float:
    """What local training's operations are of what the cores could do in the time of a whole round."""
    return float(line["round_flop"] / (statistics.median(line["round_s"]) * 1e9 * limit(line)[1]))


def _pairs(lines: Sequence[Line]) -> str:
    rows = []
    for line in _in_order(lines, "pair"):
        mine, theirs = (statistics.median(pair[side] for pair in line["pairs"]) for side in (0, 1))
        goal = WORKLOADS[line["workload"]].goal(line["peer"], line["setting"])
        low, high = line["spread"]
        rows.append(
            f"| {line['workload']} | {_peer(line)} | {line['cohort'] / theirs:.3g} | "
            f"{line['cohort'] / mine:.3g} | **{line['ratio']:.2f}** ({low:.2f} to {high:.2f}) | "
            f"{'' if goal is None else f'{goal:g}'} | {line['first_s'][1]:.1f} s, {line['first_s'][0]:.1f} s | "
            f"{_memory(line)} | {100 * line['accuracy'][1]:.1f} %, {100 * line['accuracy'][0]:.1f} % |"
        )
    head = (
        "| | peer (its fastest setting) | its client updates/s | ours | times as fast | goal | "
        "first round: its, ours | memory: its, ours | accuracy: its, ours |"
    )
    return _table(head, rows)


def _targets(lines: Sequence[Line]) -> str:
    rows = []
    for line in _in_order(lines, "target"):
        mine, theirs = (statistics.median(pair[side] for pair in line["pairs"]) for side in (0, 1))
        low, high = line["spread"]
        rows.append(
            f"| {line['workload']} | {100 * line['target']:.0f} % | {_peer(line)} | "
            f"{theirs:.2f} s | {mine:.2f} s | **{line['ratio']:.2f}** ({low:.2f} to {high:.2f}) |"
        )
    return _table(
        "| | accuracy | peer (its fastest setting) | its time, evaluated each round | ours | times as fast |", rows
    )


def _memory(line: Line) -> str:
    mine, theirs = line["memory_mb"]
    return "–" if mine is None or theirs is None else f"{theirs:.0f} MB, {mine:.0f} MB"


def _steps(lines: Sequence[Line]) -> str:
    rows = []
    for line in _in_order(lines, "step"):
        floor, former = (line["step_flop"] / (1e6 * peak) for peak in (limit(line)[0], line["peak_gflops"][0]))
        rows.append(
            f"| {line['workload']} | {line.get('gradient', 'autograd')} | {line['step_flop'] / 1e9:.3g} | "
            f"{floor:.3g} | {line['step_ms']:.3g} | {100 * floor / line['step_ms']:.0f} % | "
            f"{100 * former / line['step_ms']:.0f} % |"
        )
    head = (
        "| | gradient | GFLOP per step | at the peak, ms | a step, ms | share of one core's peak | of matrix products |"
    )
    return _table(head, rows)


def _start(lines: Sequence[Line]) -> str:
    found = [line for line in lines if line["kind"] == "start"]
    if not found:
        return ""
    seconds = found[-1]["first_s"]
    spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
    return (
        f"`fedkin run` with 100 clients begins its first round {statistics.median(seconds):.2f} s ({spread}) after the "
        "command (goal: 3 s)."
    )


def _table(head: str, rows: Sequence[str]) -> str:
    line = "| --- " * (head.count("|") - 1) + "|"
    return "\n".join([head, line, *rows]) if rows else ""
