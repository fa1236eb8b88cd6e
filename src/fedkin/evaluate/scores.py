"""Score of one client in one evaluated round, and the summary over all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClientScore:
    """Score of one client in one round, on its test and validation parts.

    Accuracies and F1 are fractions in 0..1, None where there is nothing to count; ``balanced`` is balanced accuracy.
    ``majority`` is the number of test samples of the client's most frequent training class: the number that always
    predicting this class gets right; None where the training counts are not known. ``test_classes`` is the number of
    classes that the test part has samples of. ``few``, ``medium``, ``many`` and
    ``unseen`` are (correct, total) over the test samples whose true class has that many training samples at this
    client; the four totals add up to ``n_test``. Numbers of samples are whole, unless several rounds are averaged.
    """

    client: int
    n_test: float
    correct: float
    accuracy: float | None
    macro_f1: float | None
    balanced: float | None
    majority: float | None
    test_classes: float
    n_validation: float
    validation_accuracy: float | None
    few: tuple[float, float]
    medium: tuple[float, float]
    many: tuple[float, float]
    unseen: tuple[float, float]

    def line(self, round: int) -> dict[str, Any]:
        """Return the line of ``clients.jsonl``: every field and the round, in types that JSON has."""
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        return {"round": round, **fields}


def only_class(parts: Tensor) -> int | None:
    """Return the class that is predicted for all samples of all clients, of `tally` ``[m, 3, C]``; None if none is."""
    said = parts[:, 1].any(0).nonzero().flatten().tolist()
    return int(said[0]) if len(said) == 1 else None


def score(
    client: int,
    test: Tensor,
    validation: Tensor | None,
    train_counts: Tensor,
    *,
    few_below: int = 30,
    many_above: int = 80,
) -> ClientScore:
    """Return the score of one client, as `scores` does; ``validation`` is None if it has none.

    Raises:
        DataError, ConfigError: as `scores`.
    """
    held = torch.zeros_like(test) if validation is None else validation
    found = scores([client], test[None], held[None], train_counts[None], few_below=few_below, many_above=many_above)
    return found[0]


def scores(
    clients: Sequence[int],
    test: Tensor,
    validation: Tensor,
    train_counts: Tensor,
    *,
    few_below: int = 30,
    many_above: int = 80,
) -> list[ClientScore]:
    """Return the score of each of m clients.

    Args:
        clients: their ids.
        test: `fedkin.core.samples.tally` of their test parts, integer ``[m, 3, C]``.
        validation: the same for their validation parts; zeros for a client that has none.
        train_counts: their training samples per class, integer ``[m, C]``.
        few_below: a class with 1..few_below-1 training samples here is *few*, with none *unseen*.
        many_above: a class with more training samples here than this is *many*; classes in between are *medium*
            (30 and 80 as in DA-PFL, Table IV).

    Raises:
        DataError: a part is not ``[3, C]`` or has a negative count.
        ConfigError: the two limits contradict each other.
    """
    if not 1 <= few_below <= many_above + 1:
        raise ConfigError(
            f"expected 1 <= few_below <= many_above + 1, got few_below={few_below}, many_above={many_above}"
        )
    _check_parts(clients, train_counts.shape[1], test=test, validation=validation)
    counts = train_counts.numpy()  # small sums, which numpy begins faster than torch
    total, predicted, right = test.numpy().swapaxes(0, 1)
    held, _, valid = validation.numpy().sum(2).T.tolist()
    kind = (counts > 0).astype(np.int64) + (counts >= few_below) + (counts > many_above)
    groups = [_pairs(*(np.where(kind == k, n, 0).sum(1) for n in (right, total))) for k in range(4)]
    f1, balanced = _mean_ratios(2 * right, predicted + total), _mean_ratios(right, total)
    n_test, correct = total.sum(1).tolist(), right.sum(1).tolist()
    most = total[np.arange(len(total)), counts.argmax(1)].tolist()  # of the class that `majority_class` returns
    known: list[bool] = (counts.sum(1) > 0).tolist()
    classes_there: list[int] = (total > 0).sum(1).tolist()
    return [
        ClientScore(
            client=client,
            n_test=n_test[i],
            correct=correct[i],
            accuracy=correct[i] / n_test[i] if n_test[i] else None,
            macro_f1=f1[i],
            balanced=balanced[i],
            majority=most[i] if known[i] else None,
            test_classes=classes_there[i],
            n_validation=held[i],
            validation_accuracy=valid[i] / held[i] if held[i] else None,
            unseen=groups[0][i],
            few=groups[1][i],
            medium=groups[2][i],
            many=groups[3][i],
        )
        for i, client in enumerate(clients)
    ]


def _pairs(right: Counts, total: Counts) -> list[tuple[int, int]]:
    return list(zip(right.tolist(), total.tolist(), strict=True))


def _check_parts(clients: Sequence[int], classes: int, **parts: Tensor) -> None:
    for name, given in parts.items():
        if tuple(given.shape[1:]) != (3, classes):
            raise DataError(f"client {clients[0]}: the {name} part must be [3, {classes}], got {list(given.shape[1:])}")
        if given.numel() and int(given.min()) < 0:
            client = clients[int(given.flatten(1).amin(1).argmin())]
            raise DataError(f"client {client}: the {name} part has negative counts")


def _mean_ratios(right: Counts, of: Counts) -> list[float | None]:
    """Return the means of ``right / of [m, C]`` over the classes where ``of`` is above 0, for each row.

    With 2 tp over true + predicted it is macro-F1, over the classes that are true or predicted at least once; with tp
    over true the balanced accuracy (Brodersen et al., ICPR 2010).
    """
    present = of > 0
    number = present.sum(1)
    found: list[float | None] = [None] * len(of)
    for n in {*number.tolist()} - {0}:
        rows = np.flatnonzero(number == n)  # with as many classes, so that each row's sum has the same order as alone
        ratios = (right[rows][present[rows]] / of[rows][present[rows]]).reshape(len(rows), n)
        for i, mean in zip(rows, torch.from_numpy(ratios).mean(1).tolist(), strict=True):
            found[i] = mean
    return found


def summarise(scores: Sequence[ClientScore]) -> dict[str, float | int | None]:
    """Return the summary of one evaluated round; all fractions, None where a figure is undefined.

    Clients without test samples are omitted from all figures on the test part, and counted.

    Returns:
        ``accuracy`` mean over clients (the headline); ``pooled`` over all samples (micro); ``std`` of the clients'
        accuracies (population); ``worst_decile`` mean accuracy of the worst ceil(10 %) clients; ``macro_f1`` mean over
        clients and ``macro_f1_weighted`` weighted by test samples (as Fed-CAM reports it); ``balanced`` balanced
        accuracy, mean over clients; ``few``, ``medium``, ``many``, ``unseen`` accuracy pooled over clients;
        ``validation`` mean over the clients that have validation samples; ``majority`` accuracy of always predicting
        each client's most frequent training class, mean over clients, and ``majority_balanced`` its balanced accuracy;
        ``clients`` with test samples and ``clients_without_test``.
    """
    tested = [s for s in scores if s.n_test > 0]
    n = sum(s.n_test for s in tested)
    f1 = [(s.macro_f1, s.n_test) for s in tested if s.macro_f1 is not None]
    each = sorted(s.correct / s.n_test for s in tested)
    mean = _mean(each)
    return {
        "accuracy": mean,
        "pooled": sum(s.correct for s in tested) / n if n else None,
        "std": None if mean is None else math.sqrt(math.fsum((a - mean) ** 2 for a in each) / len(each)),
        "worst_decile": _mean(each[: -(-len(each) // 10)]),
        "macro_f1": _mean([value for value, _ in f1]),
        "macro_f1_weighted": math.fsum(value * weight for value, weight in f1) / n if n else None,
        "balanced": _mean([s.balanced for s in tested if s.balanced is not None]),
        "few": _pooled([s.few for s in tested]),
        "medium": _pooled([s.medium for s in tested]),
        "many": _pooled([s.many for s in tested]),
        "unseen": _pooled([s.unseen for s in tested]),
        "validation": _mean([s.validation_accuracy for s in scores if s.validation_accuracy is not None]),
        "majority": _mean([s.majority / s.n_test for s in tested if s.majority is not None]),
        "majority_balanced": _mean([bool(s.majority) / s.test_classes for s in tested if s.majority is not None]),
        "clients": len(tested),
        "clients_without_test": len(scores) - len(tested),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _pooled(parts: Sequence[tuple[float, float]]) -> float | None:
    total = sum(t for _, t in parts)
    return sum(c for c, _ in parts) / total if total else None


def adjusted_rand(labels: Tensor, groups: Tensor) -> float | None:
    """Return the adjusted Rand index of a clustering against true groups: 1 if equal up to names, about 0 by chance.

    Both integer ``[K]``; a client marked -1 in either is omitted. None if no client remains.

    Raises:
        DataError: the two have different lengths.
    """
    if labels.shape != groups.shape or labels.dim() != 1:
        raise DataError(f"expected labels and groups [K] of one length, got {list(labels.shape)}, {list(groups.shape)}")
    known = (labels >= 0) & (groups >= 0)
    if not bool(known.any()):
        return None
    from sklearn.metrics import adjusted_rand_score  # imported here, because the import takes a second

    return float(adjusted_rand_score(groups[known].tolist(), labels[known].tolist()))
