"""The machine: what it is, how fast its matrix products are, what memory a program and its children take."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import fedkin
from fedkin.core.machine import cores


def described() -> dict[str, Any]:
    """Cores that may be used, model of the processor, memory in GB, load while measuring."""
    found = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cores": cores(),
        "cpu": (found or [platform.processor() or platform.machine()])[0],
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "memory_gb": round(memory[0] / 2**20, 1) if memory else None,
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def versions() -> dict[str, str]:
    """Of this program and what it computes with."""
    found = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {"python": platform.python_version(), "fedkin": fedkin.__version__, **found}


def matmul_peak(size: int = 2048, repeats: int = 20) -> tuple[float, float]:
    """GFLOP/s of the best of a few fp32 products of square matrices: on one thread, and on one thread per core."""
    before = torch.get_num_threads()
    a, b = torch.rand(size, size), torch.rand(size, size)
    out = torch.empty(size, size)
    found = []
    try:
        for threads in (1, cores()):
            torch.set_num_threads(threads)
            best = 0.0
            for _ in range(repeats):
                started = time.perf_counter()
                torch.mm(a, b, out=out)
                best = max(best, 2 * size**3 / (time.perf_counter() - started))
            found.append(best / 1e9)
    finally:
        torch.set_num_threads(before)
    return found[0], found[1]


def memory_mb(root: int) -> float | None:
    """Memory of a process and its descendants in MB, shared pages counted once (PSS); None where it is not known."""
    if not Path("/proc/self/smaps_rollup").exists():
        return None
    total = 0
    for pid in _family(root):
        for line in _lines(f"/proc/{pid}/smaps_rollup"):
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def _family(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            for line in _lines(path / "stat"):  # "pid (name) state parent ...", and a name may hold anything
                children.setdefault(int(line.rpartition(")")[2].split()[1]), []).append(int(path.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not this system, or the process has just ended
        return []
