"""What stands beside an exported model: what it is, how good it is, how it was made."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.core import Net
from fedkin.course import Played
from fedkin.exporting.loader import FORMAT
from fedkin.exporting.played import name_of
from fedkin.exporting.rules import WORDS
from fedkin.models import MODELS
from fedkin.version import __version__


def card(p: Played, client: int | None, rule: dict[str, Any], tensors: dict[str, str]) -> dict[str, Any]:
    """What is known before the model is tried on the client's test part; ``client`` None: the model of all."""
    c, data = p.course, p.federation
    shard = None if client is None else p.job.shards[client]
    model = str(c.table["model"]["model"])
    return {
        "format": FORMAT,
        "what": "the model that all clients share" if client is None else "what one client predicts with",
        "client": client,
        "client_name": None if client is None else name_of(p, client),
        "method": c.table["method"],
        "title": c.title,
        "paper": type(c.method).paper,
        "round": p.server.round,
        "rounds_planned": c.plan.rounds,
        "seed": c.plan.seed,
        "data": data.name,
        "columns": None if data.preparation is None else dict(data.preparation.taken) or None,
        "classes": data.classes,
        "input": {"shape": list(c.net.shape), "dtype": "float32", "channels_last": c.net.channels_last},
        "network": {**network_of(c.net, model), "by_name": model in MODELS or ":" in model},
        "rule": rule,
        "tensors": tensors,
        "trained_on": None if shard is None else {
            "samples": len(shard.train),
            "per_class": shard.train.counts(data.classes).tolist(),
        },
        "config": c.table,
        "fingerprints": dict(c.marks),
        "command": None if p.folder is None or "made_by" in c.table else _command(p.folder),
        "versions": {"fedkin": __version__, "torch": torch.__version__},
    }  # fmt: skip


def network_of(net: Net, name: str) -> dict[str, Any]:
    """The network's name, head and parameters in the order of the flat vector."""
    return {
        "name": name,
        "head": net.head_name,
        "parameters": [[n, list(shape)] for n, (_, shape) in net.places().items()],
    }


def _command(folder: Path) -> str:
    return f"fedkin run {shlex.quote(str(folder / 'config.toml'))}"


def tested(found: Tensor, evaluated: Tensor | None) -> dict[str, Any]:
    """What the exported model makes of the test part.

    Args:
        found: its confusion matrix ``[C, C]``, rows true classes.
        evaluated: that of the run's evaluation of the same round.
    """
    n, right = int(found.sum()), int(found.diagonal().sum())
    return {
        "n": n,
        "correct": right,
        "accuracy": right / n if n else None,
        "confusion": found.tolist(),
        "as_evaluated": None if evaluated is None else bool(torch.equal(found, evaluated)),
    }


def readme(card: dict[str, Any], labels: list[str], *, standalone: bool, prepared: bool) -> str:
    """The card for people, as Markdown."""
    who = "all clients" if card["client"] is None else f"client {card['client']}"
    who += f" ({card['client_name']})" if card["client_name"] else ""
    shape = ", ".join(map(str, card["input"]["shape"]))
    lines = [
        f"# {card['title']}: the model of {who}",
        "",
        f"Trained by {card['title']} on {card['data']}, round {card['round']} of {card['rounds_planned']}, seed "
        f"{card['seed']}. {_accuracy(card)}",
        "",
        "| | |",
        "| --- | --- |",
        f"| predicts with | {WORDS[card['rule']['kind']]} |",
        f"| network | {card['network']['name']} |",
        f"| inputs | float32 `[n, {shape}]`{'' if prepared else ', prepared as those it was trained on'} |",
        *([f"| columns | {', '.join(f'{r}: {c}' for r, c in card['columns'].items())} |"] if card["columns"] else []),
        f"| classes | {', '.join(labels)} |",
        *_trained(card, labels),
        f"| method | {card['title']}{'. ' + card['paper'] if card['paper'] else ''} |",
        f"| made by | fedkin {card['versions']['fedkin']}, torch {card['versions']['torch']} |",
        *([f"| made again by | `{card['command']}` |"] if card["command"] else []),
        "",
        "## Use",
        "",
        "```python",
        "from load import load  # load.py lies beside this file",
        "",
        'model = load("THIS FOLDER")',
        "model.predict(x)  # numbers of classes; model.labels has their names",
        "model.probabilities(x)",
        "```",
        "",
        _needs(standalone),
        "Nothing is unpickled. With fedkin also from the command line: `fedkin predict THIS_FOLDER FILE`.",
        "",
        "## Limits",
        "",
        _limits(card),
        "",
    ]
    return "\n".join(lines)


def _accuracy(card: dict[str, Any]) -> str:
    test = card["test"]
    if test is None:
        return "It is the same for every client."
    if not test["n"]:
        return "The client has no test samples, so nothing is known of its accuracy."
    text = f"Right on {test['correct']} of {test['n']} test samples of this client ({100 * test['accuracy']:.1f} %)."
    return text if test["as_evaluated"] else f"{text} The run's evaluation differs from that by rounding."


def _limits(card: dict[str, Any]) -> str:
    soft = "Probabilities are a softmax of the logits and were not calibrated."
    if card["client"] is None:
        return f"The model was tried on nothing here: each client's own figures are in the run's report. {soft}"
    return (
        "The accuracy is that on this client's own test part, from the federation's data; on data from elsewhere it "
        f"may be much lower. {soft} A model can give away something of the data that it was trained on."
    )


def _trained(card: dict[str, Any], labels: list[str]) -> list[str]:
    own = card["trained_on"]
    if own is None:
        return []
    counts = ", ".join(f"{label}: {n}" for label, n in zip(labels, own["per_class"], strict=True))
    return [f"| the client's training samples | {own['samples']} ({counts}) |"]


def _needs(standalone: bool) -> str:
    if standalone:
        return "`load.py` needs torch and safetensors, and nothing of fedkin."
    return (
        "`load.py` needs torch and safetensors, and the network's own code, which could not be written down as torch "
        "layers: from fedkin or your package, or `load(folder, network=a_function_that_makes_it)`."
    )
