"""What stands beside an exported model: what it is, how good it is, how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedkin.core import Net
from fedkin.data.preparation import Preparation
from fedkin.exporting.loader import FORMAT
from fedkin.exporting.rules import WORDS
from fedkin.exporting.taken import Origin, Taken
from fedkin.models import MODELS
from fedkin.version import __version__


def card(origin: Origin, taken: Taken, tensors: Mapping[str, str]) -> dict[str, Any]:
    """What is known before the model is tried on the client's test part.

    Args:
        tensors: what each of the bundle's is: a network, several, or neither.
    """
    net, shard, model = origin.net, taken.shard, str(origin.table["model"]["model"])
    return {
        "format": FORMAT,
        "what": "the model that all clients share" if taken.client is None else "what one client predicts with",
        "client": taken.client,
        "client_name": taken.name,
        "method": origin.table["method"],
        "title": origin.title,
        "paper": type(origin.method).paper,
        "round": origin.round,
        "rounds_planned": origin.rounds,
        "chosen": None if origin.chosen is None else {"by": "validation accuracy", **origin.chosen},
        "seed": origin.seed,
        "data": origin.data,
        "columns": None if taken.preparation is None else dict(taken.preparation.taken) or None,
        "classes": net.classes,
        "input": {"shape": list(net.shape), "dtype": "float32", "channels_last": net.channels_last},
        "network": {**network_of(net, model), "by_name": model in MODELS},
        "rule": taken.rule,
        "tensors": tensors,
        "trained_on": None if shard is None else {
            "samples": len(shard.train),
            "per_class": shard.train.counts(net.classes).tolist(),
        },
        "config": origin.table,
        "fingerprints": dict(origin.marks),
        "command": origin.command,
        "versions": {"fedkin": __version__, "torch": torch.__version__},
    }  # fmt: skip


def network_of(net: Net, name: str) -> dict[str, Any]:
    """The network's name, head and parameters in the order of the flat vector."""
    return {
        "name": name,
        "head": net.head_name,
        "parameters": [[n, list(shape)] for n, (_, shape) in net.places().items()],
    }


def tested(found: Tensor, evaluated: Tensor | None) -> dict[str, Any]:
    """What the exported model makes of the test part.

    Args:
        found: its confusion matrix ``[C, C]``, rows true classes.
        evaluated: that of the run's evaluation of the same round, None if there was none.
    """
    n, right = int(found.sum()), int(found.diagonal().sum())
    return {
        "n": n,
        "correct": right,
        "accuracy": right / n if n else None,
        "confusion": found.tolist(),
        "as_evaluated": None if evaluated is None else bool(torch.equal(found, evaluated)),
        "correct_as_evaluated": None if evaluated is None else int(evaluated.diagonal().sum()),
    }


def readme(
    card: dict[str, Any],
    labels: list[str],
    *,
    standalone: bool,
    prepared: Preparation | None,
    ranges: Mapping[str, Any] | None = None,
) -> str:
    """The card for people, as Markdown.

    Args:
        card: what is known.
        labels: names of the classes.
        standalone: the network is written down in the folder.
        prepared: how raw data become inputs, where that is known.
        ranges: what training had, where the folder keeps it.
    """
    who = "all clients" if card["client"] is None else f"client {card['client']}"
    who += f" ({card['client_name']})" if card["client_name"] else ""
    shape = ", ".join(map(str, card["input"]["shape"]))
    made = "made of raw data as below" if prepared else "prepared as those it was trained on"
    lines = [
        f"# {card['title']}: the model of {who}",
        "",
        f"Trained by {card['title']} on {card['data']}, round {card['round']} of {card['rounds_planned']}"
        f"{_chosen(card)}, seed {card['seed']}. {_accuracy(card)}",
        "",
        "| | |",
        "| --- | --- |",
        f"| predicts with | {WORDS[card['rule']['kind']]} |",
        f"| network | {card['network']['name']} |",
        f"| inputs | float32 `[n, {shape}]`, {made} |",
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
        *_needs(card, standalone),
        "",
        *([] if prepared is None else ["## Raw data", "", _raw(prepared), "", *_prepare(prepared), ""]),
        *([] if ranges is None else ["## What training had", "", _ranges(ranges), ""]),
        "## Limits",
        "",
        _limits(card),
        "",
    ]
    return "\n".join(lines)


def _raw(made: Preparation) -> str:
    """How raw data become inputs, in words; the numbers are in ``preparation.json``."""
    if made.kind == "table":
        return (
            "`preparation.json` says how a row becomes `x`, column by column. A number becomes `(value - mean) / std`, "
            "and 0 where the field is empty or `std` is 0; with `gaps`, a second input behind it is 1 where the field "
            'is empty. A text becomes one input for each of its `categories`, 1 for its own; an empty field is "".'
        )
    scale = "" if made.factor == 1 else f"; its values are multiplied by {made.factor:.6g}"
    if made.kind == "array":
        return f"`preparation.json` says how an array becomes `x`: as it is{scale}."
    height, width = made.size or (0, 0)
    size = f"is brought to {height} x {width} pixels" if made.resized else f"has {height} x {width} pixels"
    colour = "grey" if made.mode == "L" else "colour, red first"
    return f"`preparation.json` says how an image becomes `x`: it {size}, {colour}{scale}."


def _prepare(made: Preparation) -> list[str]:
    """The code for it; ``fedkin predict`` does the same."""
    if made.kind == "table":
        names = ", ".join(f"{column.name!r}: ..." for column in made.columns)
        return [
            "`load.py` does it with `prepare.py`; `None` stands for an empty field, "
            '`model.predict_csv("rows.csv")` reads and predicts a file:',
            "",
            "```python",
            "from load import load",
            "",
            'model = load("THIS FOLDER")',
            f"x = model.inputs([{{{names}}}])",
            "```",
        ]
    raw = {"image": '["scan.png"]', "array": "[array]"}[made.kind]
    return [
        "`fedkin predict` does it by itself. In Python, with fedkin installed:",
        "",
        "```python",
        "import json",
        "from pathlib import Path",
        "from fedkin.data import Preparation",
        "",
        'made = Preparation.from_json(json.loads(Path("THIS FOLDER/preparation.json").read_text()))',
        f"x = made.apply({raw})",
        "```",
    ]


def _chosen(card: dict[str, Any]) -> str:
    if card["chosen"] is None:
        return ""
    return f" (the highest validation accuracy, {100 * card['chosen']['validation']:.1f} % as the mean over clients)"


def _ranges(ranges: Mapping[str, Any]) -> str:
    """What ``ranges.json`` is for, and what it gives away."""
    use = (
        f"`ranges.json` says in which range {ranges['of']} lie; what is predicted is compared with it, and values on "
        "another scale are warned of. "
    )
    if "samples" in ranges:
        return use + "It holds extremes, which are values of single samples: keep it where the client's data are."
    return use + "Its ranges are rounded quantiles, without the extremes."


def _accuracy(card: dict[str, Any]) -> str:
    test = card["test"]
    if test is None:
        return "It is the same for every client."
    if not test["n"]:
        return "The client has no test samples, so nothing is known of its accuracy."
    text = f"Right on {test['correct']} of {test['n']} test samples of this client ({100 * test['accuracy']:.1f} %)."
    if test["as_evaluated"] is not False:
        return text
    other = f"In the run's own evaluation of that round it was right on {test['correct_as_evaluated']}"
    return f"{text} {other}: rounding, or private training that draws other noise each time."


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


def _needs(card: dict[str, Any], standalone: bool) -> list[str]:
    """What loading takes beside the folder, and whom it has to trust."""
    data = (
        "With fedkin also from the command line: `fedkin predict THIS_FOLDER FILE`, which reads this folder as data: "
        "nothing in it is run, imported or unpickled. `load.py` is a program, as any Python file that comes along; "
        "where the folder comes from somebody else, use `fedkin predict`."
    )
    if standalone:
        return ["`load.py` needs torch and safetensors, and nothing of fedkin.", data]
    name = card["network"]["name"]
    if card["network"]["by_name"]:
        return [f"`load.py` needs torch and safetensors, and fedkin, in whose catalogue the network `{name}` is.", data]
    flag = f" --network {name}" if ":" in name else " --network ./FILE.py:FUNCTION"
    return [
        f"**The network's code is not in this folder** (`{name}`; it could not be written down as torch layers). "
        f"Whoever has it, gives it: `fedkin predict THIS_FOLDER FILE{flag}`, or in Python "
        "`load(folder, network=a_function_that_makes_it)`. `load.py` needs torch and safetensors.",
        data,
    ]
