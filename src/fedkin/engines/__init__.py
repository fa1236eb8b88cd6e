"""How methods are carried out: the round loop, transports and engines."""

from fedkin.engines.drive import drive, lockstep
from fedkin.engines.loop import Loop
from fedkin.engines.rounds import Message, Plan, Report, Server, Transport, begin, rounds
from fedkin.engines.simulate import Simulation, chance_of_dropout, join_rounds
from fedkin.engines.tasks import Answer, Engine, Job, Session, Task
from fedkin.engines.workers import Workers

__all__ = [
    "Answer",
    "Engine",
    "Job",
    "Loop",
    "Message",
    "Plan",
    "Report",
    "Server",
    "Session",
    "Simulation",
    "Task",
    "Transport",
    "Workers",
    "begin",
    "chance_of_dropout",
    "drive",
    "join_rounds",
    "lockstep",
    "rounds",
]
