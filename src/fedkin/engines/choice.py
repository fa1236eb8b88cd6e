"""Choice of a run's engine, with the reason."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedkin.core import Samples, Train
from fedkin.core.grammar import chosen
from fedkin.core.machine import cores
from fedkin.core.settings import ENGINES, Processes
from fedkin.engines.forks import why_no_workers
from fedkin.engines.loop import Loop
from fedkin.engines.native import native
from fedkin.engines.stacked import Stacked
from fedkin.engines.steps import written_out
from fedkin.engines.tasks import Engine, Job
from fedkin.engines.workers import Workers

_STEP = 3e-4  # seconds that a core takes for a step of a network of next to no work
_RATE = 4e10  # floating-point operations of a core per second, in training with small batches
_SMALL = 0.05  # seconds of a round of all clients on the CPU, below which starting kernels on a GPU takes longer


def choose(engine: str | Engine, job: Job) -> tuple[Engine, str]:
    """Return the engine by name, and the reason for it.

    Args:
        engine: a name, such as ``workers@n=4``, or an engine, which is used unchanged.
        job: what it is to do.

    Raises:
        ConfigError: there is no engine of that name.
    """
    if not isinstance(engine, str):
        return engine, f"{engine} (as asked)"
    engine, how = chosen(engine, ENGINES, "engine")
    workers = how.n if isinstance(how, Processes) else 0
    if engine == "loop":
        return Loop(), "one client after another (as asked)"
    if engine == "stacked":
        return Stacked(), "stacks of clients (as asked)"
    gpu = engine == "auto" and _could_be_stacked(job)
    if gpu and not small(job, cores()):
        return Stacked(), f"stacks of clients on {torch.cuda.get_device_name()}"
    little = "; little work for a GPU" if gpu else ""
    if engine == "auto" and (why := _alone(job)):
        return Loop(), f"one client after another ({why}{little})"
    count = min(workers or cores(), len(job.shards))
    reason = "as asked" if workers else "one per core" if count == cores() else "one per client"
    return Workers(workers), f"{count} worker process{'es' if count > 1 else ''} ({reason}{little})"


def _could_be_stacked(job: Job) -> bool:
    """Return whether there is a GPU, and training that can be stacked.

    Recurrent layers on a GPU are computed by a library as a whole, which cannot be stacked; what is fixed of a network
    stays on the host.
    """
    if not torch.cuda.is_available() or job.private is not None or job.net.cumulative or job.net.fixed:
        return False
    return not any(isinstance(m, nn.RNNBase) for m in job.net.module.modules())


def small(job: Job, cores: int) -> bool:
    """Return whether a number of cores train all clients sooner than a GPU has started the kernels for that.

    An estimate from the numbers of steps and operations, so that a run has the same engine each time on a machine. A
    run of 20 clients on 1,800 digits took three times as long on a GPU as on one core of another machine, where a round
    took some 40 ms.
    """
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        job.net(job.net.w0, job.net.inputs(2))  # some networks cannot take a single one
    work = 3 * counted.get_total_flops() / 2 / _RATE  # of a sample: forward, and back to inputs and weights
    seconds = 0.0
    for shard in job.shards:
        steps = job.training.steps_for(len(shard.train))
        seconds += steps * (_STEP + min(len(shard.train), job.training.batch_size) * work)
        if seconds > _SMALL * cores:
            return False
    return True


def _alone(job: Job) -> str:
    """Return why worker processes would not pay here; "" if they do."""
    if len(job.shards) == 1:
        return "there is one client"
    if cores() == 1:
        return "there is one core"
    return why_no_workers()


def gradients(engine: Engine, job: Job) -> str:
    """Return how the gradient of the cross-entropy is computed in a job, and why."""
    if job.private is not None:
        return "gradients of single samples (private training)"
    if isinstance(engine, Stacked):
        return "gradients by torch.func"
    if job.gradient == "autograd":
        return "gradients by autograd (as asked)"
    request = Train(job.net.w0)
    layers = written_out(request, job.net)
    if isinstance(layers, str):
        return f"gradients by autograd ({layers})"
    why, chain = "as asked", f"a chain of {len(layers)} layers; a method's own losses by autograd"
    if job.gradient != "explicit":
        none = Samples(torch.empty(0, *job.net.shape), torch.empty(0, dtype=torch.int64))
        compiled = native(request, job.training, none, job.net)
        if not isinstance(compiled, str):
            return f"training compiled ({chain})"
        why = f"not compiled: {compiled}"
    return f"gradients written out ({chain}; {why})"
