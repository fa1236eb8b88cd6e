"""The program of a chain: a client's whole local training as one function, all its steps without Python between."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedkin.engines.compiled.arguments import ARGUMENTS
from fedkin.engines.compiled.code import Code, Module
from fedkin.engines.compiled.kernels import Kernels
from fedkin.engines.compiled.layout import Layout
from fedkin.engines.compiled.step import ProgramParts, StepWriter
from fedkin.engines.compiled.target import Target
from fedkin.engines.compiled.values import I64, Memory, Value


def write(layout: Layout, block: int, target: Target) -> str:
    """Return the program of a chain as LLVM IR.

    Args:
        layout: of its memory.
        block: samples that linear layers take at a time.
    """
    module = Module(target)
    kernels = Kernels(module, layout, block)
    module.function("".join(ARGUMENTS.values()), partial(_train, layout=layout, block=block, kernels=kernels), "train")
    return module.text()


def _train(c: Code, *values: Value | Memory, layout: Layout, block: int, kernels: Kernels) -> Value:
    """Write the program: pack, all steps, unpack."""
    a: dict[str, Any] = dict(zip(ARGUMENTS, values, strict=True))
    memory, wrong = a["memory"], c.array(I64, 1)
    wrong.put(c.number(0))
    packed = {name: memory.at(layout[name]) for name in ("w", "v", "center", "linear")}
    c.call(kernels.pack, a["start"], packed["w"])
    c.clear(packed["v"], c.choose(a["has_momentum"].is_not(0), c.number(layout.packed), c.number(0)))
    for name in ("center", "linear"):
        with c.when(a[f"has_{name}"].is_not(0)):
            c.call(kernels.pack, a[name], packed[name])
    training = ProgramParts(c, layout, block, kernels, a, packed, wrong)
    begun = c.var(c.number(0))
    with c.loop(a["steps"]) as step:
        n = a["rows"].one(step)
        StepWriter(training, n, a["index"].at(begun.get()), a["lr"].one(step)).write()
        begun.set(begun.get() + n)
    c.call(kernels.unpack, packed["w"], a["out"])
    return wrong.one()
