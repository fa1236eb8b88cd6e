"""Training and rounds: the round loop, transports and engines."""

from fedkin.engines.attacks import Attack
from fedkin.engines.choice import EngineName, choose, gradients
from fedkin.engines.drive import drive, lockstep
from fedkin.engines.loop import Loop
from fedkin.engines.needs import Needs, needs
from fedkin.engines.plan import Plan
from fedkin.engines.rounds import Message, Report, Server, Transport, asked, begin, common, hand_over, rounds, welcome
from fedkin.engines.simulate import Simulation, chance_of_dropout, join_rounds
from fedkin.engines.stacked import Stacked
from fedkin.engines.steps import Gradient
from fedkin.engines.tasks import Answer, Engine, Job, Session, Task
from fedkin.engines.workers import Workers

__all__ = [
    "Answer",
    "Attack",
    "Engine",
    "EngineName",
    "Gradient",
    "Job",
    "Loop",
    "Message",
    "Needs",
    "Plan",
    "Report",
    "Server",
    "Session",
    "Simulation",
    "Stacked",
    "Task",
    "Transport",
    "Workers",
    "asked",
    "begin",
    "chance_of_dropout",
    "choose",
    "common",
    "drive",
    "gradients",
    "hand_over",
    "join_rounds",
    "lockstep",
    "needs",
    "rounds",
    "welcome",
]
