"""The machine's limit in fp32: fused multiply-adds per second from registers alone, without memory.

`torch.mm` is not that limit: on some processors its library uses narrower instructions than the processor has.
"""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from fedkin.core.machine import cores
from fedkin.engines import why_not_compiled

_LANES, _UNROLLED, _TURNS = 16, 8, 200_000


def fma_peak(repeats: int = 15) -> tuple[float, float]:
    """Return GFLOP/s on one core and on all, each the best of some tries.

    They are those of a loop of multiply-adds in registers; without llvmlite of oneDNN's matrix product, which reaches
    80 to 95 % of that.
    """
    call, flop, alive = _product() if why_not_compiled() else _loop()
    found = []
    for threads in (1, cores()):
        with ThreadPoolExecutor(threads) as pool:
            best = 0.0
            for _ in range(repeats):
                started = time.perf_counter()
                list(pool.map(lambda _: call(), range(threads)))
                best = max(best, threads * flop / (time.perf_counter() - started))
        found.append(best / 1e9)
    del alive  # the machine code, until here
    return found[0], found[1]


def _loop() -> tuple[Any, int, Any]:
    """Return a function that runs the loop, its number of operations, and what must live as long."""
    import llvmlite.binding as llvm

    from fedkin.engines.compiled.code import host

    target = host()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3
    )
    # as many sums as registers hold beside the two factors: each waits some cycles for itself, and so for no other
    sums = min(12, target.vectors - 2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_text(sums)), machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("peak"))
    place = torch.full((_LANES * (sums + 2),), 0.5)  # read and written once by each call
    return lambda: run(place.data_ptr(), _TURNS), 2 * _LANES * sums * _UNROLLED * _TURNS, (engine, run, place)


def _text(sums: int) -> str:
    """Return the loop as LLVM IR: `sums` vectors of 16 floats, each times a plus b, again and again."""
    v = f"<{_LANES} x float>"
    load = [f"  %p{i} = getelementptr {v}, ptr %at, i64 {i}" for i in range(sums + 2)]
    load += [f"  %s{i} = load {v}, ptr %p{i}, align 4" for i in range(sums + 2)]
    a, b = f"%s{sums}", f"%s{sums + 1}"
    phi = [f"  %x{i}.0 = phi {v} [ %s{i}, %start ], [ %x{i}.{_UNROLLED}, %loop ]" for i in range(sums)]
    steps = [
        f"  %x{i}.{j + 1} = call {v} @llvm.fma.v{_LANES}f32({v} %x{i}.{j}, {v} {a}, {v} {b})"
        for j in range(_UNROLLED)
        for i in range(sums)
    ]
    store = [f"  store {v} %x{i}.{_UNROLLED}, ptr %p{i}, align 4" for i in range(sums)]
    lines = [
        f"declare {v} @llvm.fma.v{_LANES}f32({v}, {v}, {v})",
        "define void @peak(ptr %at, i64 %turns) {",
        "start:", *load, "  br label %loop",
        "loop:", "  %n = phi i64 [ 0, %start ], [ %next, %loop ]", *phi, *steps,
        "  %next = add i64 %n, 1", "  %more = icmp ult i64 %next, %turns", "  br i1 %more, label %loop, label %end",
        "end:", *store, "  ret void", "}",
    ]  # fmt: skip
    return "\n".join(lines)


def _product(size: int = 1024) -> tuple[Any, int, Any]:
    """Return a function that multiplies square matrices by oneDNN on one thread, its operations, and nothing."""
    x, w = torch.rand(size, size), torch.rand(size, size)

    def call() -> None:
        torch.set_num_threads(1)
        torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")

    return call, 2 * size**3, None
