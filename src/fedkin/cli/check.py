"""``fedkin check``: check that a method keeps the contract."""

from __future__ import annotations

import json
import logging
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedkin.cli import screen
from fedkin.cli.flags import HELP_FLAGS, options
from fedkin.core import ConfigError
from fedkin.core.errors import counted
from fedkin.methods import get_method, get_title
from fedkin.report.tables import Grid
from fedkin.testing import RULES, RuleResult, check_each
from fedkin.testing import usual_engines as _engines
from fedkin.user_code.reference import CodeRef

MEANS = {
    "declared": (
        "a frozen dataclass of plain, documented fields; no function that is nearly called like a step; known names",
        "make every field a documented plain value with a type, and call steps by their names",
    ),
    "runs": (
        "four rounds of six clients, all finite, all predict",
        "fix the line that the reason names; docs/own-method.md describes arguments and results of each step",
    ),
    "same result": (
        "on every engine and a second time, bit for bit (stacked: to rounding)",
        "draw from r.rng and c.rng only; keep nothing in globals or in the method itself; if Stacked alone differs, a "
        "choice (topk, argmax, a threshold) between numbers that are equal but for rounding magnifies it: make a tie "
        "of such numbers",
    ),
    "resume": (
        "stopped after any round, it ends the same",
        "keep everything in the bundles: the server's state, and c.state",
    ),
    "own data": ("a client's answers depend on its own data alone", "keep nothing of clients in globals"),
    "odd federations": (
        "drop-outs, late joiners, one client, one sample, one class",
        "ask r.ids, r.roster and len(c.data); expect neither all clients nor all classes",
    ),
    "own memory": ("no two stored tensors share memory", "store copies: clone() what you keep twice"),
    "pure steps": ("no step writes into what it is given", "make new tensors instead of changing given ones in place"),
    "banks": ("no row is read after put has changed it", "use what put returns, and nothing read before"),
    "failed answers": (
        "a lost, refused or doubled upload changes nothing else",
        "count in aggregate what arrived (r.ids); a client's state changes with its upload only",
    ),
    "robust": (
        "if it has RobustMeans: another rule of aggregation works",
        "merge by r.mean, r.group_mean and r.mix, or omit RobustMeans from can",
    ),
    "secure aggregation": (
        "if it has PrivateSums: the means of its pools suffice",
        "use uploads in means as pools() says only, or omit PrivateSums from can",
    ),
    "distribution": (
        "a row for each receiver, weights sum to 1",
        "row i is for r.ids[i]; see the reason for the shape",
    ),
}
"""Rule -> its requirement and the most frequent fix; `fedkin.testing` describes all of them."""


@dataclass(frozen=True)
class CheckFlags:
    """Checks to run, and their output."""

    rules: tuple[str, ...] = ()
    """Only these rules, such as runs resume. Default: all."""
    json: bool = False
    """Write the findings as JSON, and nothing else, to standard output."""


def check_command(args: list[str]) -> int:
    """Run ``fedkin check METHOD [flags]``."""
    if args and args[0] in HELP_FLAGS:
        args.insert(0, "METHOD")
    if not args or args[0].startswith("-"):
        raise ConfigError("fedkin check needs a method: fedkin check ./mymethod.py:MyMethod")
    name, what = args[0], "Check that a method keeps the contract; NAME@FIELD=VALUE sets fields of it."
    flags = options(CheckFlags, args[1:], f"fedkin check {name}", what)
    method = get_method(name)
    rules = list(flags.rules or RULES)
    findings: list[RuleResult] = []
    before, log = torch.get_num_threads(), logging.getLogger("fedkin.engines")
    torch.set_num_threads(1)  # the networks are tiny
    level = log.level
    log.setLevel(logging.ERROR)  # its warnings are the remarks
    try:
        wait = screen.err.status("") if screen.err.is_terminal and not flags.json else nullcontext()
        with wait as shown:
            result = check_each(method, engines=_engines(), rules=rules)
            for number, rule in enumerate(rules, start=1):
                if shown is not None:
                    shown.update(f"rule {number} of {len(rules)}: {rule}")
                findings.append(next(result))
    finally:
        torch.set_num_threads(before)
        log.setLevel(level)
    _show(name, findings, flags)
    return 0 if all(f.holds for f in findings) else 1


def _show(name: str, findings: list[RuleResult], flags: CheckFlags) -> None:
    file = CodeRef.read(name).file
    lines = [{"rule": f.rule, "asks": MEANS[f.rule][0], **_as_json(f, file)} for f in findings]
    if flags.json:
        screen.write(json.dumps(lines, indent=2))
        return
    title = get_title(name)
    marks = {"holds": "holds", "broken": "BROKEN", "not checked": "not checked"}
    rows = tuple((line["rule"], line["asks"], marks[line["result"]]) for line in lines)
    screen.table(Grid(f"The contract: {title}", ("rule", "requirement", "result"), rows, words=3))
    for line in lines:
        for remark in line.get("remarks", ()):
            screen.say(f"\nRemark on {line['rule']}: {remark}.")
    broken = [line for line in lines if line["result"] == "broken"]
    for line in broken:
        screen.say(f"\n{line['rule']}: {line['reason']}\n  What to do: {line['do']}.")
    if broken:
        left = sum(line["result"] == "not checked" for line in lines)
        tail = f"; {left} were not checked, since {broken[-1]['rule']} must hold first" if left else ""
        screen.say(f"\n{title} breaks {len(broken)} of {len(lines)} rules{tail}.")
    else:
        every, rules = len(lines) == len(RULES), counted(len(lines), "rule")
        screen.say(f"\n{title} keeps {f'all {rules}' if every else f'the {rules} checked'}.")


def _as_json(f: RuleResult, file: Path | None) -> dict[str, Any]:
    if f.after is not None:
        return {"result": "not checked", "reason": f"{f.after!r} must hold first"}
    remarks = {"remarks": list(f.remarks)} if f.remarks else {}
    if f.error is None:
        return {"result": "holds", **remarks}
    words, at = _words(f.error), _line(f.error, file)
    reason = words if words.endswith(at) else f"{words}{at}"  # errors of client code name it themselves
    return {"result": "broken", "reason": reason, "do": MEANS[f.rule][1], **remarks}


def _words(error: Exception) -> str:
    own = type(error).__module__.startswith("fedkin")
    return str(error) if own else f"{type(error).__name__}: {error}"


def _line(error: BaseException | None, file: Path | None) -> str:
    """Return the line of the method's own file that raised the error, if there is one."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if file is not None and Path(frame.filename) == file]
        if lines:
            return f" ({file.name if file else ''}, line {lines[-1]})"
        error = error.__cause__
    return ""
