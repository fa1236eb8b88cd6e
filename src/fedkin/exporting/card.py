"""The card of an exported model: its content, its accuracy and its origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedkin.core import Net
from fedkin.data.preparation import Preparation
from fedkin.evaluate import Constant, choose, majority_class, score
from fedkin.exporting.export_source import ExportSource, Taken
from fedkin.exporting.loader import FORMAT
from fedkin.exporting.rules import WORDS
from fedkin.models import MODELS
from fedkin.version import __version__


def card(origin: ExportSource, taken: Taken, tensors: Mapping[str, str]) -> dict[str, Any]:
    """Return the entries of the card that are known before the model is tried on the client's test part.

    Args:
        origin: the run.
        taken: the model.
        tensors: kind of each tensor of the bundle: a network, several networks, or neither.
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
        "input": {
            "shape": list(net.shape),
            "dtype": str(net.dtype).removeprefix("torch."),
            "channels_last": net.channels_last,
        },
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
    """Return the network's name, head and parameters in the order of the flat vector."""
    return {
        "name": name,
        "head": net.head_name,
        "parameters": [[n, list(shape)] for n, (_, shape) in net.places().items()],
        "fixed": list(net.fixed),
    }


def tested(found: Tensor, evaluated: Tensor | None, trained: Tensor) -> dict[str, Any]:
    """Return the result of the exported model on the test part.

    Args:
        found: its samples, predictions and correct ones by class, `fedkin.core.samples.tally`.
        evaluated: those of the run's evaluation of the same round, None if there was none.
        trained: the client's training samples by class ``[C]``, whose most frequent class is a constant answer.
    """
    of = score(found, trained)
    return {
        "n": of.n_test,
        "correct": of.correct,
        "accuracy": of.accuracy,
        "balanced": of.balanced,
        "majority": of.majority,
        "per_class": dict(zip(("samples", "predicted", "correct"), found.tolist(), strict=True)),
        "as_evaluated": None if evaluated is None else bool(torch.equal(found, evaluated)),
        "correct_as_evaluated": None if evaluated is None else int(evaluated[2].sum()),
    }


def readme(
    card: dict[str, Any],
    labels: list[str],
    *,
    standalone: bool,
    prepared: Preparation | None,
    ranges: Mapping[str, Any] | None = None,
) -> str:
    """Return the card as Markdown.

    Args:
        card: entries of the card.
        labels: names of the classes.
        standalone: whether the folder describes the network.
        prepared: preparation of raw data, where it is known.
        ranges: ranges of the training data, where the folder contains them.
    """
    name = card["client_name"] or ""
    who = "all clients" if card["client"] is None else f"client {card['client']}"
    who = name if name.startswith("client ") else f"{who} ({name})" if name else who
    shape = ", ".join(map(str, card["input"]["shape"]))
    made = "made of raw data as below" if prepared else "prepared as those it was trained on"
    lines = [
        f"# {card['title']}: the model of {who}",
        "",
        f"Trained by {card['title']} on {card['data']}, round {card['round']} of {card['rounds_planned']}"
        f"{_chosen(card)}, seed {card['seed']}. {_accuracy(card, labels)}",
        "",
        "| | |",
        "| --- | --- |",
        f"| predicts with | {WORDS[card['rule']['kind']]} |",
        f"| network | {card['network']['name']} |",
        f"| inputs | {card['input']['dtype']} `[n, {shape}]`, {made} |",
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
        "from load import load  # load.py lies next to this file",
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
    """Return the preparation of raw data in words; the numbers are in ``preparation.json``."""
    if made.kind == "table":
        return (
            "`preparation.json` describes how a row becomes `x`, column by column. A number becomes "
            "`(value - mean) / std`, and 0 where the field is empty or `std` is 0; with `gaps`, a second input behind "
            "it is 1 where the field is empty. A text becomes one input for each of its `categories`, 1 for the "
            'matching one; an empty field is "".'
        )
    scale = "" if made.factor == 1 else f"; its values are multiplied by {made.factor:.6g}"
    if made.kind == "array":
        return f"`preparation.json` describes how an array becomes `x`: as it is{scale}."
    height, width = made.size or (0, 0)
    size = f"is brought to {height} x {width} pixels" if made.resized else f"has {height} x {width} pixels"
    colour = "grey" if made.mode == "L" else "colour, red first"
    return f"`preparation.json` describes how an image becomes `x`: it {size}, {colour}{scale}."


def _prepare(made: Preparation) -> list[str]:
    """Return the code that prepares raw data; ``fedkin predict`` does the same."""
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
    """Return the purpose of ``ranges.json``, and what it reveals."""
    use = (
        f"`ranges.json` states the range of {ranges['of']}; inputs at prediction are compared with it, and values on "
        "another scale raise a warning. "
    )
    if "samples" in ranges:
        return use + "It holds extremes, which are values of single samples: keep it where the client's data are."
    return use + "Its ranges are rounded quantiles, without the extremes."


def _accuracy(card: dict[str, Any], labels: list[str]) -> str:
    test = card["test"]
    if test is None:
        return "It is the same for every client."
    if not test["n"]:
        return "The client has no test samples, so its accuracy is unknown."
    text = _right(test, card["trained_on"]["per_class"], labels)
    if test["as_evaluated"] is not False:
        return text
    other = f"In the run's own evaluation of that round it was right on {test['correct_as_evaluated']}"
    return f"{text} {other}: due to rounding, or to private training, which draws new noise each time."


def _right(test: dict[str, Any], trained: list[int], labels: list[str]) -> str:
    """Return the figures of the test part next to those of a constant answer; first the one that the client's report
    would begin with."""
    accuracy = f"ight on {test['correct']} of {test['n']} test samples of this client ({100 * test['accuracy']:.1f} %)"
    balanced = f"alanced accuracy, the mean over its classes, is {100 * test['balanced']:.1f} %"
    answer = majority_class(trained)
    if answer is None:
        return f"R{accuracy}; b{balanced}."
    constant = Constant("this client", labels[answer], test["majority"], test["n"])
    always = f"always predicting {labels[answer]} is right on {constant.right} ({100 * constant.accuracy:.1f} %)"
    if choose([constant]).fair:
        return f"R{accuracy}; {always}. B{balanced}."
    return f"B{balanced}: r{accuracy}, while {always}."


def _limits(card: dict[str, Any]) -> str:
    soft = "Probabilities are a softmax of the logits and are not calibrated."
    if card["client"] is None:
        return f"The model was not tested here: each client's figures are in the run's report. {soft}"
    return (
        "The accuracy is that on this client's own test part, from the federation's data; on data from elsewhere it "
        f"may be much lower. {soft} A model can reveal information about its training data."
    )


def _trained(card: dict[str, Any], labels: list[str]) -> list[str]:
    own = card["trained_on"]
    if own is None:
        return []
    counts = ", ".join(f"{label}: {n}" for label, n in zip(labels, own["per_class"], strict=True))
    return [f"| the client's training samples | {own['samples']} ({counts}) |"]


def _needs(card: dict[str, Any], standalone: bool) -> list[str]:
    """Return the requirements of loading besides the folder, and the programs that have to be trusted."""
    data = (
        "With fedkin also from the command line: `fedkin predict THIS_FOLDER FILE`, which reads this folder as data: "
        "nothing in it is run, imported or unpickled. `load.py` is a program like any other Python file; "
        "if you did not export the folder yourself, use `fedkin predict`."
    )
    if standalone:
        return ["`load.py` needs torch and safetensors, and nothing of fedkin.", data]
    name = card["network"]["name"]
    if card["network"]["by_name"]:
        return [f"`load.py` needs torch and safetensors, and fedkin, which contains the network `{name}`.", data]
    flag = f" --network {name}" if ":" in name else " --network ./FILE.py:FUNCTION"
    return [
        f"**The network's code is not in this folder** (`{name}`; it could not be written down as torch layers). "
        f"Pass it with `fedkin predict THIS_FOLDER FILE{flag}`, or in Python "
        "`load(folder, network=a_function_that_makes_it)`. `load.py` needs torch and safetensors.",
        data,
    ]
