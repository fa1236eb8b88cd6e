"""The rule of safe forms decided anew on recorded runs, whose truth is known better than by a client's own tests.

    python bench/no_harm_runs.py digits --seeds 0 1 2       # lines are added to bench/results/no_harm_runs.jsonl
    python bench/no_harm_runs.py writers --data PATH/mnist --seeds 0
    python bench/no_harm_runs.py har --data PATH/uci-har/uci-har.npz --seeds 0 1 2 3 4
    python bench/no_harm_runs.py har-halved --data PATH/uci-har/uci-har.npz --seeds 0 1 2 3 4

`docs/generate.py` makes a table of docs/results/no-harm.md of the lines.

Each run trains a method and, at each client, a model alone (a safe form does both). After every second of the last ten
rounds each rule chooses every client's share on its held-out samples. The gain of a share over the model alone is
measured on digits by the test samples of all clients together, weighted by the client's own shares of the classes
(almost without noise), and elsewhere by the client's own test samples. A client is harmed if it loses more than half a
point; the worst client is averaged over rounds.

har-halved has the clients, training samples and so models of har. Only the samples that decide and those that judge
are others: of each class, the first half of the held-out and the first half of the test windows are held out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/no_harm_runs.py` works, too
from bench.no_harm import HARM, RULES, chosen

from fedkin.core import Bundle, ClientData, Net, Samples
from fedkin.core.sides import chunked
from fedkin.data import federation_of
from fedkin.engines import Loop
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.settings import Settings, completed
from fedkin.functional.safe_share import mixtures, passes, probabilities
from fedkin.methods import Safe, get_method
from fedkin.server import Simulation
from fedkin.server.rounds import asked, begin, rounds

LINES = Path(__file__).parent / "results" / "no_harm_runs.jsonl"
METHODS = ("fedavg", "fedper", "da-pfl", "ifca")
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "data": "digits", "clients": 20, "partition": "dirichlet@alpha=0.5", "model": "mlp", "rounds": 100,
        "participation": 0.5,
    },
    "writers": {
        "data": "mnist", "clients": 50, "partition": "natural@min_samples=60", "model": "small-cnn", "rounds": 60,
        "participation": 0.2,
    },
}  # fmt: skip
"""The federations of reproduce/catalogue, with a tenth of the samples held out; of UCI HAR a fifth, as there."""
SETTINGS["har"] = SETTINGS["har-halved"] = {
    "data": "uci-har.npz", "client_column": "subject", "samples_per_client": 150, "validation": 0.2, "model": "mlp",
    "rounds": 40, "participation": 0.5,
}  # fmt: skip


def settings(name: str, method: str, seed: int, data: str | None = None, rounds_: int | None = None) -> Settings:
    """Return the settings of one run: a method within its safe form, which sends no numbers, evaluated at the end."""
    leaves = (
        SETTINGS[name] | ({} if data is None else {"data": data}) | ({} if rounds_ is None else {"rounds": rounds_})
    )
    safe = {"name": f"{method}-safe", "send_numbers": False}
    return completed(
        Settings().but(method=safe, **leaves, seed=seed, eval_every=leaves["rounds"], epochs=2, batch_size=10, lr=0.05)
    )


def halved(client: ClientData) -> ClientData:
    """Return a client whose held-out and test samples are alike: the first and second halves of both, by class.

    Windows of a recording are in the order of their times, so that hardly any window overlaps one of the other half.
    """
    halves: tuple[list[Samples], list[Samples]] = ([], [])
    for part in (client.validation, client.test):
        for label in part.y.unique():
            at = (part.y == label).nonzero().flatten()
            for half, index in zip(halves, at.tensor_split([(len(at) + 1) // 2]), strict=True):
                half.append(Samples(part.x[index], part.y[index]))
    held, test = (Samples(torch.cat([s.x for s in half]), torch.cat([s.y for s in half])) for half in halves)
    return replace(client, validation=held, test=test)


def moments(s: Settings, alike: bool = False) -> Iterator[tuple[Experiment, Sequence[ClientData], dict[int, Bundle]]]:
    """Yield what every client would predict with after every second of the last ten rounds.

    Args:
        alike: clients are `halved`.
    """
    federation = federation_of(s.data, s.run.seed)
    e = Experiment.prepare(s, federation)
    clients = e.laid_out([halved(c) if alike else c for c in federation.clients])
    transport = Simulation(Loop().start(e.job(clients)), len(clients), seed=s.run.seed)
    server = begin(e.method, e.net, e.plan)
    for report in rounds(e.method, e.net, e.settings.training, transport, e.plan, server):
        if report.round > s.run.rounds - 10 and (s.run.rounds - report.round) % 2 == 0:
            models, _ = asked(e.method, e.net, transport, e.plan, server, "keep")
            yield e, clients, models


def predicted(method: Safe, net: Net, b: Bundle, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return p and q ``[n, C]``: probabilities by the wrapped method and by the model alone, float64."""
    x = net.layout(x)
    of_method = chunked(lambda part: method.inner.predict(net, b.inside("inner"), part), x)
    return probabilities(of_method.double()), probabilities(chunked(lambda part: net(b.alone, part), x).double())


def gained(
    method: Safe, net: Net, b: Bundle, client: ClientData, common: tuple[Tensor, Tensor] | None, classes: int
) -> Tensor:
    """Return the gain of every share in the grid over the model alone, ``[5]``, measured on test samples.

    Args:
        common: inputs and classes of all clients' test samples, which then count by the client's shares of the classes;
            None: its own test samples count.
    """
    x, y = (client.test.x, client.test.y) if common is None else common
    weight = torch.ones(len(y), dtype=torch.float64)
    if common is not None:
        share = client.train.counts(classes).double()
        weight = (share / torch.bincount(y, minlength=classes).clamp(min=1))[y]
    accuracy = (rights(method, net, b, x, y) * weight).sum(1) / weight.sum()
    return accuracy - accuracy[0]


def rights(method: Safe, net: Net, b: Bundle, x: Tensor, y: Tensor) -> Tensor:
    """Return which samples the mixture with every share in the grid classifies correctly, bool ``[5, n]``."""
    return mixtures(*predicted(method, net, b, x)).argmax(2) == y


def surely_lost(method: Safe, net: Net, b: Bundle, client: ClientData) -> Tensor:
    """Return, bool ``[5]``, the shares for which a sign test on the client's test samples finds a loss at 5 %."""
    right = rights(method, net, b, client.test.x, client.test.y)
    lost, won = ((right[0] & ~right).sum(1), (right & ~right[0]).sum(1))
    return torch.tensor([passes(int(i), int(j), 0.05) for i, j in zip(lost, won, strict=True)])


def lines(name: str, method: str, s: Settings) -> list[dict[str, Any]]:
    """Run a method once; return a line for each rule: mean gain, shares of harmed and of surely harmed clients, worst.

    Surely: as far as a sign test on the client's own test samples can tell.
    """
    seen: dict[str, list[Tensor]] = {}
    sure: dict[str, list[Tensor]] = {}
    held: list[int] = []
    for e, clients, models in moments(s, name == "har-halved"):
        safe, net = e.method, e.net
        assert isinstance(safe, Safe)
        x, y = (torch.cat([getattr(c.test, part) for c in clients]) for part in ("x", "y"))
        common = (x, y) if name == "digits" else None
        able = [i for i, c in enumerate(clients) if i in models and len(safe.parts(c.validation)[1]) and len(c.test)]
        truth = torch.stack([gained(safe, net, models[i], clients[i], common, net.classes) for i in able])
        parts = [safe.parts(clients[i].validation)[1] for i in able]
        samples = [(*predicted(safe, net, models[i], part.x), part.y) for i, part in zip(able, parts, strict=True)]
        held = [len(part) for part in parts]
        surely = torch.stack([surely_lost(safe, net, models[i], clients[i]) for i in able])
        for rule, share in chosen(samples, truth).items():
            seen.setdefault(rule, []).append(truth[torch.arange(len(able)), share])
            sure.setdefault(rule, []).append(surely[torch.arange(len(able)), share])
    of = {"federation": name, "method": method, "seed": s.run.seed, "held": [min(held), max(held)]}
    return [
        {
            **of,
            "rule": rule,
            "gain": round(float(torch.cat(found).mean()), 6),
            "harmed": round(float((torch.cat(found) < -HARM).double().mean()), 6),
            "surely": round(float(torch.cat(sure[rule]).double().mean()), 6),
            "worst": round(sum(float(g.min()) for g in found) / len(found), 6),
        }
        for rule, found in seen.items()
    ]


def table() -> str:
    """Return a row for each federation and method: gain / % harmed / worst client under some rules, means over seeds.

    Methods that read held-out samples read half of them, and the other half decides. UCI HAR is left out.
    """
    lines_ = [json.loads(text) for text in LINES.read_text(encoding="utf-8").splitlines()]
    rules = [rule for rule in RULES if rule in ("method", "likely", "sure", "oracle")]
    rows: dict[str, list[dict[str, Any]]] = {}
    for x in lines_:
        if not x["federation"].startswith("har"):
            rows.setdefault(f"{x['federation']}, {get_method(x['method']).title}", []).append(x)
    text = f"| federation, method | {' | '.join(rules)} |\n| --- |{' --: |' * len(rules)}\n"
    for name, found in rows.items():
        text += f"| {name} | {' | '.join(_cell([x for x in found if x['rule'] == r]) for r in rules)} |\n"
    return text


def _cell(found: Sequence[dict[str, Any]]) -> str:
    gain, harmed, worst = (100 * sum(x[key] for x in found) / len(found) for key in ("gain", "harmed", "worst"))
    return f"{round(gain, 1) + 0.0:+.1f}/{harmed:.{0 if harmed == 0 or harmed >= 1 else 1}f}/{round(worst) + 0}"


def main() -> None:
    """Make the runs of one federation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=list(SETTINGS))
    parser.add_argument("--data", help="folder of the data")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2))
    flags = parser.parse_args()
    torch.set_num_threads(1)
    for seed in flags.seeds:
        for method in flags.methods:
            made = lines(flags.name, method, settings(flags.name, method, seed, flags.data))
            with LINES.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in made)
            print(flags.name, method, seed, flush=True)


if __name__ == "__main__":
    main()
