"""The server's side of a run: the round loop, its transports, checks of uploads, clients' ledgers, attacks."""

from fedkin.server.attacks import Attack
from fedkin.server.memory_estimate import Footprint, needs
from fedkin.server.messages import Message, Outcome, RoundReport, Server, Transport
from fedkin.server.plan import Plan
from fedkin.server.rounds import asked, begin, common, rounds, welcome
from fedkin.server.simulate import Simulation, join_rounds

__all__ = [
    "Attack",
    "Footprint",
    "Message",
    "Outcome",
    "Plan",
    "RoundReport",
    "Server",
    "Simulation",
    "Transport",
    "asked",
    "begin",
    "common",
    "join_rounds",
    "needs",
    "rounds",
    "welcome",
]
