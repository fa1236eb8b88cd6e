"""The section on settings: the choices of each method's run, the command that repeats it, what the words mean."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.report.folder import Run

_COLUMNS = {"Data": ("data",), "Model and training": ("model", "training"), "Run": ("run",), "Method": ("method",)}
_MOST = 12
WORDS = {
    "Higher, equal, lower": "What was measured at a client in the last round, next to the method it is compared with.",
    "Harmed, worse off": "A client whose true accuracy is lower by more than a point. Single tests rarely show who, so "
    "it is a range for their number (90%).",
    "Better, unclear, worse": "The likely range (95% interval) of the average gain lies above zero, contains zero, or "
    "lies below zero. With one seed: ahead, level, behind.",
    "Clear": "The difference on the client's own test samples is significant (exact sign test, Holm's correction for "
    "all clients); p is without the correction.",
    "Accuracy": "Mean over clients, of the evaluated rounds in the last fifth of the run, at most ten. Every client "
    "counts the same.",
    "Worst client": "The lowest accuracy of any client under that method in the last round. It need not be the same "
    "client under each method.",
    "Traffic": "Megabytes sent during training, up and down, over all clients.",
    "±": "One standard deviation over seeds, after a mean; after a client's accuracy half of its 95% interval.",
    "Group": "The clients that share a model. Letters go by size; the usual group is the most frequent one in the last "
    "fifth of the rounds.",
    "Weight": "The share that another client's model has in the model of the client that learns.",
}
"""Meaning of the words of the page."""
AT_BEST = "Mean over clients, in each run's round with the highest validation accuracy. Every client counts the same."
"""Meaning of accuracy where figures are of the best round."""


def section(runs: Mapping[str, Sequence[Run]], first: str, command: str | None) -> str:
    """Return the settings as HTML: in columns for the method that is picked, complete below.

    Args:
        runs: all runs by method.
        first: the method that is shown first.
        command: command that repeats the runs; omitted if None.
    """
    blocks = "".join(
        f'<div class="by-method" data-method="{html.escape(title)}"{"" if title == first else " hidden"}>'
        f"{_columns(title, found)}{_complete(title, seeds)}</div>"
        for title, seeds in runs.items()
        if (found := _config(seeds[0]))
    )
    again = "" if not command else (
        f'<div class="cmd"><span class="t12 mut">Run it again</span><pre>{html.escape(command)}</pre>'
        '<button type="button" class="btn" id="copy">Copy</button></div>'
    )  # fmt: skip
    at_best = any(run.at_best for found in runs.values() for run in found)
    known = WORDS | ({"Accuracy": AT_BEST} if at_best else {})
    words = "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in known.items())
    meaning = (
        f'<details class="plain" id="words"><summary>What the words mean</summary><dl class="gl">{words}</dl></details>'
    )
    return f'<div class="panel">{blocks}{again}{meaning}</div>'


def _config(run: Run) -> Mapping[str, Any]:
    config = run.summary.get("config")
    return config if isinstance(config, dict) else {}


def _columns(title: str, config: Mapping[str, Any]) -> str:
    drawn = []
    for head, keys in _COLUMNS.items():
        rows = [(name, value) for key in keys if isinstance(config.get(key), Mapping)
                for name, value in config[key].items() if not isinstance(value, Mapping)]  # fmt: skip
        rows = [(name, value) for name, value in rows if value is not None and value is not False][:_MOST]
        if rows:
            lines = "".join(f"<dt>{html.escape(name.replace('_', ' '))}</dt><dd>{html.escape(_shown(value))}</dd>"
                            for name, value in rows)  # fmt: skip
            name = html.escape(title if head == "Method" else head)
            drawn.append(f'<div><h3>{name}</h3><dl class="kv">{lines}</dl></div>')
    return f'<div class="sets">{"".join(drawn)}</div>' if drawn else ""


def _shown(value: object) -> str:
    return (
        "yes"
        if value is True
        else value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, default=str)
    )


def _complete(title: str, seeds: Sequence[Run]) -> str:
    """Return all settings as lines, collapsed; for several seeds of one method those of the first."""
    lines = "\n".join(html.escape(line) for line in _flat(_config(seeds[0])))
    others = f" (and {', '.join(str(run.seed) for run in seeds[1:])})" if len(seeds) > 1 else ""
    label = html.escape(f"Settings of {title}, seed {seeds[0].seed}{others}")
    return f"<details><summary>{label}</summary><pre>{lines}</pre></details>"


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return nested settings as lines ``a.b = value``."""
    lines = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            lines += _flat(value, f"{prefix}{key}.")
        else:
            lines.append(f"{prefix}{key} = {json.dumps(value, ensure_ascii=False, default=str)}")
    return lines
