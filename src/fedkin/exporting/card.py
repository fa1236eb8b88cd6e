"""The card of an exported model: its inputs and classes, its accuracy and its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from fedkin.core import Bundle, Method, Net
from fedkin.core.samples import ClientData
from fedkin.data.preparation import Preparation
from fedkin.display import printable, printable_parts
from fedkin.evaluate import Constant, choose, majority_class, score
from fedkin.exporting.ranges import Ranges
from fedkin.version import __version__

FORMAT: Literal["fedkin export 2"] = "fedkin export 2"


@dataclass(frozen=True)
class ExportSource:
    """The origin of exported models: the part that all exports of a run have in common.

    Attributes:
        method, net: method and network that predict.
        title: display name of the method.
        table: settings of the run.
        marks: fingerprints of the run.
        round, rounds: the last completed round, and the number of planned rounds.
        seed: seed of the run.
        data: name of the data.
        labels: names of the classes; None: their numbers.
        command: command that repeats the run; None where it is not known.
        chosen: figures of the round, where validation chose it; None: it is the last.
    """

    method: Method
    net: Net
    title: str
    table: Mapping[str, Any]
    marks: Mapping[str, str]
    round: int
    rounds: int
    seed: int
    data: str
    labels: tuple[str, ...] | None = None
    command: str | None = None
    chosen: Chosen | None = None


@dataclass(frozen=True)
class Taken:
    """One exported model.

    Attributes:
        bundle: the tensors that the model predicts with.
        preparation: preparation of raw data; None where it is not known.
        client: number of the client; None: the model of all clients.
        name: name of the client.
        shard: data of the client; None if ``client`` is None.
        ranges: ranges of the training data; None: they are not exported.
        evaluated: counts per class ``[3, C]`` on its test part from the run's evaluation of the same round; None: there
            was no such evaluation.
    """

    bundle: Bundle
    preparation: Preparation | None = None
    client: int | None = None
    name: str | None = None
    shard: ClientData | None = None
    ranges: Ranges | None = None
    evaluated: Tensor | None = None

    @property
    def model(self) -> str:
        """The model, for messages."""
        return f"the model of {'all clients' if self.client is None else f'client {self.name or self.client}'}"


class ProgramInput(msgspec.Struct, frozen=True):
    """An input of the program.

    Attributes:
        name: the column's, or ``x``.
        type: of ONNX.
        shape: ``n`` is the number of samples, which is free.
        unit: what its values are.
        values: texts that training had; other texts carry no information.
    """

    name: str
    type: str
    shape: list[int | str]
    unit: str = ""
    values: list[str] = []


class Chosen(msgspec.Struct, frozen=True):
    """The round that validation chose, and its accuracies, means over clients."""

    round: int
    validation: float
    accuracy: float | None
    by: str = "validation accuracy"


class Network(msgspec.Struct, frozen=True):
    """The network: its name, the module that classifies, and the shapes of its parameters and running statistics."""

    name: str
    head: str
    parameters: dict[str, list[int]]


class Trained(msgspec.Struct, frozen=True):
    """The client's training samples."""

    samples: int
    per_class: list[int]


class ClassCounts(msgspec.Struct, frozen=True):
    """Test samples by class, predictions of each class, and correct ones."""

    samples: list[int]
    predicted: list[int]
    correct: list[int]


class Tested(msgspec.Struct, frozen=True):
    """Result on the client's test part.

    Attributes:
        n, correct: test samples, and those predicted correctly.
        accuracy, balanced: fractions; None without test samples.
        majority: number of test samples of the client's most frequent training class.
        per_class: counts by class.
        as_evaluated: whether the counts are those of the run's evaluation of the round; None: there was none.
        correct_as_evaluated: correct ones in that evaluation.
    """

    n: int
    correct: int
    accuracy: float | None
    balanced: float | None
    majority: int | None
    per_class: ClassCounts
    as_evaluated: bool | None = None
    correct_as_evaluated: int | None = None


class ExportCard(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``card.json``.

    Attributes:
        weights_only: reason for which the folder has no program; None if it has one.
        client, client_name: number and name of the client; None: the model of all clients.
        classes: names of the classes, in the order of the probabilities.
        inputs: of the program.
        preparation: how raw data become inputs of the network; the program does it.
        dtype: of the network's inputs.
        unused: columns that data may have and the model does not use: class, client, dropped ones.
        config: settings of the run.
    """

    format: Literal["fedkin export 2"] = FORMAT
    weights_only: str | None = None
    client: int | None
    client_name: str | None
    method: dict[str, Any]
    title: str
    paper: str
    round: int
    rounds_planned: int
    chosen: Chosen | None
    seed: int
    data: str
    classes: list[str]
    inputs: list[ProgramInput]
    preparation: Preparation
    dtype: Literal["float32", "int64"]
    unused: list[str]
    network: Network
    trained_on: Trained | None
    test: Tested | None = None
    config: dict[str, Any]
    fingerprints: dict[str, str]
    command: str | None
    versions: dict[str, str]


def card(origin: ExportSource, taken: Taken, preparation: Preparation, inputs: list[ProgramInput]) -> ExportCard:
    """Return the card of a model that was not tested yet."""
    net, shard, data = origin.net, taken.shard, origin.table.get("data", {})
    classes = printable_parts(list(origin.labels or map(str, range(net.classes))))
    columns = dict(preparation.taken)  # where the reader had to find the class and the client
    dropped = str(data.get("drop") or "").split(",")
    unused = (preparation.target, data.get("client_column"), columns.get("label"), columns.get("client"), *dropped)
    return ExportCard(
        client=taken.client,
        client_name=taken.name,
        method=origin.table["method"],
        title=origin.title,
        paper=type(origin.method).paper,
        round=origin.round,
        rounds_planned=origin.rounds,
        chosen=origin.chosen,
        seed=origin.seed,
        data=origin.data,
        classes=classes,
        inputs=inputs,
        preparation=preparation if preparation.labels is None else replace(preparation, labels=tuple(classes)),
        dtype="int64" if net.dtype == torch.int64 else "float32",
        unused=[str(name).strip() for name in unused if name],
        network=Network(
            str(origin.table["model"]["model"]), net.head_name, {n: list(s) for n, (_, s) in net.places().items()}
        ),
        trained_on=None if shard is None else Trained(len(shard.train), shard.train.counts(net.classes).tolist()),
        config=dict(origin.table),
        fingerprints=dict(origin.marks),
        command=origin.command,
        versions={"fedkin": __version__, "torch": str(torch.__version__)},
    )


def tested(counts: Tensor, evaluated: Tensor | None, trained: Tensor) -> Tested:
    """Return the result of the exported model on the test part.

    ``counts`` are its samples, predictions and correct ones by class, ``evaluated`` those of the run's evaluation of
    the same round; the most frequent class of the training samples ``trained [C]`` is a constant answer.
    """
    of = score(counts, trained)
    return Tested(
        int(of.n_test),
        int(of.correct),
        of.accuracy,
        of.balanced,
        None if of.majority is None else int(of.majority),
        ClassCounts(*counts.tolist()),
        None if evaluated is None else bool(torch.equal(counts, evaluated)),
        None if evaluated is None else int(evaluated[2].sum()),
    )


def readme(card: ExportCard, ranges: Ranges | None) -> str:
    """Return the card as Markdown."""
    name = card.client_name or ""
    who = "all clients" if card.client is None else f"client {card.client}"
    who = name if name.startswith("client ") else f"{who} ({name})" if name else who
    inputs = "".join(f"| `{i.name}` | {i.type} {i.shape} | {_unit(i)} |\n" for i in card.inputs)
    first = "".join(f'"{i.name}": ..., ' for i in card.inputs[:2]) + ("..." if len(card.inputs) > 2 else "")
    chosen = f" (highest validation accuracy, {100 * card.chosen.validation:.1f} %)" if card.chosen else ""
    counts = "" if card.trained_on is None else f" on {card.trained_on.samples} samples of this client"
    use = f"""`fedkin predict THIS_FOLDER FILE` predicts a file of raw data. Without fedkin, by onnxruntime:

```python
import onnxruntime

model = onnxruntime.InferenceSession("model.onnx")
labels, probabilities = model.run(["label", "probabilities"], {{{first.rstrip(", ")}}})
```

| input | type | values |
| --- | --- | --- |
{inputs}"""
    if card.weights_only is not None:
        use = f"The folder holds weights only: {card.weights_only}.\n`model.safetensors` has them by parameter.\n"
    text = f"""# {card.title}: the model of {who}

Trained by {card.title}{counts} ({card.data}), round {card.round} of {card.rounds_planned}{chosen}, seed {card.seed}. \
{_accuracy(card)}

Classes: {", ".join(card.classes)}. Network: {card.network.name}. Made by fedkin {card.versions["fedkin"]}\
{f"; again by `{card.command}`" if card.command else ""}.{f" {card.paper}." if card.paper else ""}

## Use

{use}
## Limits

Probabilities are not calibrated. A model can reveal information about its training data. On data from elsewhere its \
accuracy may be much lower.{_kept(card, ranges)}
"""
    return printable(text)


def _unit(i: ProgramInput) -> str:
    return f"one of {', '.join(v or 'nothing' for v in i.values)}; {i.unit}" if i.type == "string" else i.unit


def _kept(card: ExportCard, ranges: Ranges | None) -> str:
    if ranges is None:
        return ""
    if card.client is None:
        return " `ranges.json` has rounded quantiles of the training data, without extremes."
    return (
        " `ranges.json` has values of single samples: keep it where the client's data are. It is for warnings of "
        "unusual inputs, and may be deleted."
    )


def _accuracy(card: ExportCard) -> str:
    test = card.test
    if test is None or card.trained_on is None:
        return "It is the same for every client."
    if test.accuracy is None:
        return "The client has no test samples, so its accuracy is unknown."
    text = _figures(test, card.trained_on.per_class, card.classes)
    if test.as_evaluated is not False:
        return text
    other = f"In the run's own evaluation of that round it was right on {test.correct_as_evaluated}"
    return f"{text} {other}: due to rounding, or to private training, which draws new noise each time."


def _figures(test: Tested, trained: Sequence[int], classes: Sequence[str]) -> str:
    """Return accuracies next to that of a constant answer; first the one that the client's report would begin with."""
    right = f"ight on {test.correct} of {test.n} test samples of this client ({100 * (test.accuracy or 0):.1f} %)"
    balanced = f"alanced accuracy, the mean over its classes, is {100 * (test.balanced or 0):.1f} %"
    answer = majority_class(list(trained))
    if answer is None or test.majority is None:
        return f"R{right}; b{balanced}."
    constant = Constant("this client", classes[answer], test.majority, test.n)
    always = f"always predicting {classes[answer]} is right on {constant.right} ({100 * constant.accuracy:.1f} %)"
    if choose([constant]).fair:
        return f"R{right}; {always}. B{balanced}."
    return f"B{balanced}: r{right}, while {always}."
