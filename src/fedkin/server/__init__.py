"""The server's side of a run: the round loop, its transports, checks of uploads, clients' ledgers, attacks."""

from fedkin.server.attacks import Attack
from fedkin.server.memory_estimate import Footprint, needs
from fedkin.server.plan import Plan, RunSettings
from fedkin.server.rounds import (
    Message,
    RoundReport,
    Server,
    Transport,
    asked,
    begin,
    common,
    hand_over,
    rounds,
    welcome,
)
from fedkin.server.simulate import Simulation, join_rounds

__all__ = [
    "Attack",
    "Footprint",
    "Message",
    "Plan",
    "RoundReport",
    "RunSettings",
    "Server",
    "Simulation",
    "Transport",
    "asked",
    "begin",
    "common",
    "hand_over",
    "join_rounds",
    "needs",
    "rounds",
    "welcome",
]
