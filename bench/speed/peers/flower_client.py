"""A Flower client: its data and the network stay in the process that Ray gives it, since a module of its own does."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from common import arrays, epoch, network, settings
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

app = ClientApp()


@cache
def _settings(path: str) -> dict[str, Any]:
    return settings(path)


@cache
def _network(path: str) -> nn.Module:
    return network(_settings(path))


@cache
def _data(path: str, client: int) -> tuple[Tensor, Tensor]:
    return arrays(_settings(path), "train", client)


@app.train()
def train(message: Message, context: Context) -> Message:
    config: Any = message.content["config"]
    weights: Any = message.content["arrays"]
    path = config["settings"]
    torch.set_num_threads(config["threads"])
    module = _network(path)
    module.load_state_dict(weights.to_torch_state_dict())
    x, y = _data(path, int(context.node_config["partition-id"]))
    epoch(module, x, y, _settings(path))
    content = RecordDict(
        {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    )
    return Message(content, reply_to=message)
