"""Checks of one client's data."""

from __future__ import annotations

from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.core.samples import ClientData, Samples
from fedkin.data.checks import check_samples

PARTS = ("train", "validation", "test")


def check_client_data(shard: ClientData, k: int, like: Tensor, classes: int, name: str) -> None:
    """Raise an error unless client ``k`` of the federation ``name`` can take part.

    Args:
        like: inputs of client 0.

    Raises:
        DataError: no training sample, inputs of another shape or type than those of client 0, labels out of range,
            values that are not finite; a drift to other numbers of samples, or before round 2.
    """
    if len(shard.train) == 0:
        raise DataError(f"{name}: client {k} has no training sample; drop this client or give it at least one")
    for part in PARTS:
        data: Samples = getattr(shard, part)
        where = f"{name}: client {k}, {part} part"
        check_samples(data.x, data.y, classes, where)
        if data.x.shape[1:] != like.shape[1:]:
            raise DataError(
                f"{where}: inputs of shape {list(data.x.shape[1:])}, those of client 0 have {list(like.shape[1:])}; "
                "all clients need the same"
            )
        if data.x.dtype != like.dtype:
            raise DataError(f"{where}: inputs are {data.x.dtype}, those of client 0 {like.dtype}; all need the same")
    if shard.drift is not None:
        start, then = shard.drift
        before, after = ([len(getattr(data, part)) for part in PARTS] for data in (shard, then))
        if start < 2 or before != after:
            raise DataError(
                f"{name}: client {k} has {before} samples (train, validation, test) and {after} from round {start} on; "
                "data can drift from round 2 on, to as many samples"
            )
        check_client_data(then, k, like, classes, f"{name}, from round {start} on")
