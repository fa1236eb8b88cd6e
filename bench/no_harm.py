"""How many clients the safe form of a method harms, on planted federations whose truth is known.

    python bench/no_harm.py                 # some minutes on one core; lines go to bench/results/no_harm.jsonl
    python bench/no_harm.py --limits        # what breaks the rule; lines go to bench/results/no_harm_limits.jsonl
    python bench/no_harm.py --noise         # one noisy choice; lines go to bench/results/no_harm_noise.jsonl
    python bench/no_harm.py --few           # four clients without a prior; lines go to bench/results/no_harm_few.jsonl

`docs/generate.py` makes the tables of docs/results/no-harm.md of these lines.

Every client has two models with Gaussian logits in ten classes: signal on the true class plus a standard normal number
per class. The signals of models alone lie between 1.8 and 3.2 (59 to 93 % correct); those of the method differ from
them by a shift that is planted. The errors of the two models are correlated by 0.8, and one side in five is 2.5 times
too sharp. The gain of a share lambda over the model alone is measured on 10,000 samples by which no share was chosen; a
client is harmed if it loses more than half a point.

The limits: clients that lie about what the method does for them, in the strongest way that is not refused; models that
are all too sharp, those of one side or of both; and what 20 test samples per client show of the truth.

With noise (`metadata_epsilon`) a client sends no numbers but one choice, by randomised response.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.core.seeds import generator
from fedkin.functional.safe_share import (
    BOUNDS,
    FLAT,
    GRID,
    LEAST,
    choose,
    choose_alone,
    choose_few,
    counted,
    gains,
    left_out,
    mixtures,
    numbers,
    posterior,
    posteriors,
    prior_of,
    tested,
)
from fedkin.privacy.noise import Keyed, noisy_choice

LINES = Path(__file__).parent / "results" / "no_harm.jsonl"
LIMITS = Path(__file__).parent / "results" / "no_harm_limits.jsonl"
NOISY = Path(__file__).parent / "results" / "no_harm_noise.jsonl"
FEW = Path(__file__).parent / "results" / "no_harm_few.jsonl"
CLASSES, CORRELATION, SHARP, TRUTH = 10, 0.8, 2.5, 10_000
HELD = (5, 10, 20, 50, 200, 500)
DRAWS = {5: 100, 20: 100, 200: 10}
HARM = 0.005
EPSILONS = (0.5, 1.0, 3.0)
RULES = ("method", "alone", "own log-likelihood", "by itself", "best", "likely", "sure", "oracle")

Shifts = Callable[[int, torch.Generator], Tensor]


def _gaining(clients: int, rng: torch.Generator) -> Tensor:
    return 0.4 + 0.5 * torch.rand(clients, generator=rng)


def _losing(clients: int, rng: torch.Generator) -> Tensor:
    return -2.0 + 1.1 * torch.rand(clients, generator=rng)


def _half(clients: int, rng: torch.Generator) -> Tensor:
    return torch.where(torch.arange(clients) < clients / 2, _losing(clients, rng), _gaining(clients, rng))


def _one_unlike(clients: int, rng: torch.Generator) -> Tensor:
    return torch.where(torch.arange(clients) == 0, -2.5, _gaining(clients, rng))


def _anything(clients: int, rng: torch.Generator) -> Tensor:
    return 4 * torch.rand(clients, generator=rng) - 2.5


PLANTED: dict[str, Shifts] = {
    "no client gains": _losing,
    "all gain": _gaining,
    "half gain, half lose": _half,
    "one unlike the others": _one_unlike,
    "anything": _anything,
}
"""Shift of the method's signal of every client, by kind of federation."""


@dataclass(frozen=True)
class Side:
    """Both models of one client: signals, and how much too sharp they are."""

    signal: tuple[float, float]
    sharp: tuple[float, float]

    def probabilities(self, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return p and q ``[n, C]`` of new samples, the true class the first."""
        common = torch.randn(n, CLASSES, generator=rng) * math.sqrt(CORRELATION)
        both = []
        for signal, sharp in zip(self.signal, self.sharp, strict=True):
            z = common + torch.randn(n, CLASSES, generator=rng) * math.sqrt(1 - CORRELATION)
            z[:, 0] += signal
            both.append((sharp * z).softmax(1).double())
        return both[0], both[1]


def federation(kind: str, clients: int, draw: int, sharp_sides: tuple[float, float] | None = None) -> list[Side]:
    """Return the clients of one draw; ``sharp_sides``: how much too sharp the models of all are, method and alone."""
    rng = generator(draw, "no harm", kind, clients)
    alone = 1.8 + 1.4 * torch.rand(clients, generator=rng)
    method = alone + PLANTED[kind](clients, rng)
    sharp = torch.where(torch.rand(clients, 2, generator=rng) < 0.2, SHARP, 1.0)
    sharp = sharp if sharp_sides is None else torch.tensor([sharp_sides]).expand(clients, 2)
    pairs = torch.stack([method, alone], 1).tolist()
    return [Side((m, a), (s, t)) for (m, a), (s, t) in zip(pairs, sharp.tolist(), strict=True)]


def accuracies(p: Tensor, q: Tensor) -> Tensor:
    """Return the fraction of samples that each mixture classifies correctly, ``[5]``; class 0 is the true one."""
    return (mixtures(p, q).argmax(2) == 0).double().mean(1)


def outcomes(
    kind: str,
    clients: int,
    draw: int,
    held: tuple[int, ...] = HELD,
    truth: int = TRUTH,
    *,
    liars: int = 0,
    sharp: tuple[float, float] | None = None,
    noise: tuple[float, ...] = (),
) -> Iterator[Any]:
    """Yield the true gain of every honest client by number of held-out samples and rule: ``(n, rule, gains [K])``."""
    sides, rng = federation(kind, clients, draw, sharp), generator(draw, "samples", kind, clients)
    gained = torch.stack([(a := accuracies(*side.probabilities(truth, rng))) - a[0] for side in sides])
    samples = [side.probabilities(max(held), rng) for side in sides]
    for n in held:
        true = torch.zeros(n, dtype=torch.int64)
        seen = [(p[:n], q[:n], true) for p, q in samples]
        source = Keyed(generator(draw, "noise", kind, clients, n))
        for rule, share in (chosen(seen, gained, liars) | chosen_with_noise(seen, noise, source)).items():
            yield n, rule, gained[torch.arange(clients), share][: clients - liars]


def chosen(samples: list[tuple[Tensor, Tensor, Tensor]], gained: Tensor, liars: int = 0) -> dict[str, Tensor]:
    """Return the position in the grid that every client takes under each rule, from held-out p, q and true classes.

    The last ``liars`` clients send that lambda = 1 is right, and all others wrong, on as many samples as can count:
    twice the median.
    """
    k, found = len(samples), [numbers(*one) for one in samples]
    own, hits = torch.stack([f[0] for f in found]), torch.stack([f[1] for f in found])
    size = torch.tensor([float(len(y)) for _, _, y in samples], dtype=torch.float64)
    sent, hits, size = own.clone(), hits.clone(), size.clone()
    if liars:
        most = int(2 * size.quantile(0.5))
        sent[-liars:], size[-liars:] = torch.tensor([0.0, 0.0, 0.0, 1e3]).double(), most
        hits[-liars:] = torch.tensor([-most, -most, -most, most])
    likelihood, hits, size = counted(sent, hits, size)
    prior, r = posteriors(likelihood)
    table, r, flat = gains(r, hits, size), posterior(own, prior), posterior(own, FLAT)
    others = left_out(likelihood, hits, size, torch.arange(k)) if k > LEAST else torch.full((k,), 2)
    own = torch.nn.functional.pad(own, (1, 0))
    return {
        "method": torch.full((k,), len(GRID) - 1),
        "alone": torch.zeros(k, dtype=torch.int64),
        "own log-likelihood": own.argmax(1),
        "by itself": torch.tensor([choose_alone(row, BOUNDS["likely"]) for row in flat]),
        "held-out accuracy": torch.tensor([choose_few(*one) for one in samples]),
        "best": torch.tensor([choose(row, table, BOUNDS["best"]) for row in r]),
        "likely": torch.tensor([choose(row, table, BOUNDS["likely"]) for row in r]),
        "sure": torch.tensor([tested(*one, int(j), 0.05) for one, j in zip(samples, others, strict=True)]),
        "oracle": gained.argmax(1),
    }


def chosen_with_noise(
    samples: list[tuple[Tensor, Tensor, Tensor]], epsilons: tuple[float, ...], source: Keyed
) -> dict[str, Tensor]:
    """Return the same of mode "likely" where clients send one noisy choice each, by epsilon."""
    own = torch.stack([numbers(*one)[0] for one in samples])
    best = torch.nn.functional.pad(own, (1, 0)).argmax(1).tolist()
    found = {}
    for epsilon in epsilons:
        sent = torch.tensor([noisy_choice(j, len(GRID), epsilon, source) for j in best])
        prior = prior_of(sent, epsilon) if len(sent) >= LEAST else FLAT
        rows = posterior(own, prior)
        found[f"epsilon {epsilon:g}"] = torch.tensor([choose_alone(row, BOUNDS["likely"]) for row in rows])
    return found


def summary(kind: str, clients: int, draws: int, **changes: Any) -> list[dict[str, Any]]:
    """Return a line for each number of held-out samples and rule: mean gain, share of harmed clients, worst client.

    Args:
        changes: of `outcomes`.
    """
    seen: dict[tuple[int, str], list[Tensor]] = {}
    for draw in range(draws):
        for n, rule, gained in outcomes(kind, clients, draw, **changes):
            seen.setdefault((n, rule), []).append(gained)
    return [
        {
            "federation": kind,
            "clients": clients,
            "draws": draws,
            "held": n,
            "rule": rule,
            "gain": round(float(torch.cat(found).mean()), 6),
            "harmed": round(float((torch.cat(found) < -HARM).double().mean()), 6),
            "worst": round(sum(float(g.min()) for g in found) / len(found), 6),
        }
        for (n, rule), found in seen.items()
    ]


BREAKING: dict[str, dict[str, Any]] = {
    "as above": {},
    "one liar": {"liars": 1},
    "two liars": {"liars": 2},
    "five liars": {"liars": 5},
    "all models alone 4 times too sharp": {"sharp": (1.0, 4.0)},
    "all models of the method 4 times too sharp": {"sharp": (4.0, 1.0)},
    "all models 4 times too sharp": {"sharp": (4.0, 4.0)},
    "seen on 20 test samples": {"truth": 20},
}
"""What may break the rule or its measurement, as changes of `outcomes`; 20 clients, 10 held-out samples."""


def limits(draws: int = 40, truth: int = 4000) -> Iterator[dict[str, Any]]:
    """Yield a line for each change of `BREAKING`, kind of federation and rule."""
    for name, changes in BREAKING.items():
        for kind in ("no client gains", "all gain", "anything"):
            for line in summary(kind, 20, draws, **{"held": (10,), "truth": truth, **changes}):
                yield {"change": name, **line}


def with_noise() -> Iterator[dict[str, Any]]:
    """Yield a line for each kind and size of federation and rule, with ten held-out samples per client."""
    for kind in PLANTED:
        for clients, draws in DRAWS.items():
            yield from summary(kind, clients, draws, held=(10,), truth=4000, noise=EPSILONS)


def of_four() -> Iterator[dict[str, Any]]:
    """Yield a line for each kind of federation of four clients, number of held-out samples and rule."""
    for kind in PLANTED:
        yield from summary(kind, 4, 100, held=(5, 10, 20, 50), truth=4000)


def planted() -> str:
    """Return the table of gain / % harmed / worst client for 20 clients with ten held-out samples, by rule."""
    rules = [rule for rule in RULES if rule != "alone"]
    by = {(x["federation"], x["rule"]): x for x in known() if (x["clients"], x["held"]) == (20, 10)}
    text = f"| federation | {' | '.join(rules)} |\n| --- |{' --: |' * len(rules)}\n"
    return text + "".join(f"| {kind} | {' | '.join(_cell(by[kind, rule]) for rule in rules)} |\n" for kind in PLANTED)


def most_harmed() -> str:
    """Return the table of the largest shares of harmed clients over all kinds and sizes of federation."""
    rules = RULES[2:-1]
    text = f"| held-out samples | {' | '.join(rules)} |\n| --: |{' --: |' * len(rules)}\n"
    for n in HELD:
        most = (max(x["harmed"] for x in known() if (x["held"], x["rule"]) == (n, rule)) for rule in rules)
        text += f"| {n} | {' | '.join(f'{100 * harmed:.1f}' for harmed in most)} |\n"
    return text


@cache
def known() -> list[dict[str, Any]]:
    """Return the lines of the planted federations."""
    return [json.loads(text) for text in LINES.read_text(encoding="utf-8").splitlines()]


def _cell(x: dict[str, Any]) -> str:
    harmed, worst = 100 * x["harmed"], round(100 * x["worst"]) + 0  # no -0
    return f"{round(100 * x['gain'], 1) + 0.0:.1f}/{harmed:.{0 if harmed == 0 or harmed >= 1 else 1}f}/{worst}"


def main() -> None:
    """Simulate, and write the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--few", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    others = ((flags.limits, LIMITS, limits), (flags.noise, NOISY, with_noise), (flags.few, FEW, of_four))
    for asked, path, lines in others:
        if asked:
            path.write_text("".join(json.dumps(line) + "\n" for line in lines()), encoding="utf-8")
    if flags.limits or flags.noise or flags.few:
        return
    with LINES.open("w", encoding="utf-8") as file:
        for kind in PLANTED:
            for clients, draws in DRAWS.items():
                for line in summary(kind, clients, draws):
                    file.write(json.dumps(line) + "\n")
                print(kind, clients, flush=True)


if __name__ == "__main__":
    main()
