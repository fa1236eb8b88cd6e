"""Engines: local training of clients, one after another, in processes, or stacked on a device."""

from fedkin.engines.choice import choose, gradients
from fedkin.engines.drive import drive, lockstep
from fedkin.engines.loop import Loop
from fedkin.engines.native import resolved, why_not_compiled
from fedkin.engines.stacked import Stacked
from fedkin.engines.tasks import Answer, Engine, Job, Session, Task
from fedkin.engines.workers import Workers

__all__ = [
    "Answer",
    "Engine",
    "Job",
    "Loop",
    "Session",
    "Stacked",
    "Task",
    "Workers",
    "choose",
    "drive",
    "gradients",
    "lockstep",
    "resolved",
    "why_not_compiled",
]
