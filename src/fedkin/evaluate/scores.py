"""Scores of clients in one evaluated round, from their counts by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError
from fedkin.record.lines import ClientLine

Counts = npt.NDArray[np.int64]


def only_class(parts: Tensor) -> int | None:
    """Return the class that is predicted for all samples of all clients, of `tally` ``[m, 3, C]``; None if none is."""
    said = parts[:, 1].any(0).nonzero().flatten().tolist()
    return int(said[0]) if len(said) == 1 else None


def scores(
    round: int,
    clients: Sequence[int],
    test: Tensor,
    validation: Tensor,
    train_counts: Tensor,
    *,
    few_below: int = 30,
    many_above: int = 80,
) -> list[ClientLine]:
    """Return the lines of m clients with their scores in a round.

    Args:
        round: the round.
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
        ClientLine(
            round=round,
            client=client,
            n_test=n_test[i],
            correct=correct[i],
            n_validation=held[i],
            correct_validation=valid[i],
            majority=most[i] if known[i] else None,
            test_classes=classes_there[i],
            macro_f1=f1[i],
            balanced=balanced[i],
            few=groups[1][i],
            medium=groups[2][i],
            many=groups[3][i],
            unseen=groups[0][i],
        )
        for i, client in enumerate(clients)
    ]


def score(test: Tensor, train_counts: Tensor) -> ClientLine:
    """Return the score of a client by its test part alone: see `scores`."""
    return scores(1, [0], test[None], torch.zeros_like(test)[None], train_counts[None])[0]


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
    result: list[float | None] = [None] * len(of)
    for n in {*number.tolist()} - {0}:
        rows = np.flatnonzero(number == n)  # with as many classes, so that each row's sum has the same order as alone
        ratios = (right[rows][present[rows]] / of[rows][present[rows]]).reshape(len(rows), n)
        for i, mean in zip(rows, torch.from_numpy(ratios).mean(1).tolist(), strict=True):
            result[i] = mean
    return result


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
