"""The server's side of a run: the round loop, its transports, checks of uploads, clients' ledgers, attacks."""

from fedkin.server.attacks import Attack
from fedkin.server.memory_estimate import Needs, needs
from fedkin.server.plan import Plan
from fedkin.server.rounds import Message, Report, Server, Transport, asked, begin, common, hand_over, rounds, welcome
from fedkin.server.simulate import Simulation, chance_of_dropout, join_rounds

__all__ = [
    "Attack",
    "Message",
    "Needs",
    "Plan",
    "Report",
    "Server",
    "Simulation",
    "Transport",
    "asked",
    "begin",
    "chance_of_dropout",
    "common",
    "hand_over",
    "join_rounds",
    "needs",
    "rounds",
    "welcome",
]
