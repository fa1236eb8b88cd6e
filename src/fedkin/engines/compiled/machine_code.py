"""Machine code of programs: made by LLVM at first use, kept in the user's cache folder, linked in memory.

What the cache holds is run, so its folder is this user's alone, and a file is used only if its checksum is right. Its
name is a hash of everything that decides its content: files never change, and processes that make the same one at the
same time do no harm. On clusters machines of several kinds share a folder, hence the processor is part of the name.
Files that were not used for half a year, such as those of an earlier fedkin, are deleted when one is added.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import stat
import sys
import time
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from fedkin.engines.compiled.code import Target
from fedkin.engines.compiled.layout import FORWARD, TRAIN, Layout
from fedkin.engines.compiled.program import write
from fedkin.storage.files import cache_folder, make_private, write_atomic

_KINDS = {"f": ctypes.c_void_p, "n": ctypes.c_void_p, "l": ctypes.c_void_p, "i": ctypes.c_int64, "x": ctypes.c_float}
_TRAIN, _FORWARD = (ctypes.CFUNCTYPE(ctypes.c_int64, *(_KINDS[k] for k in f.values())) for f in (TRAIN, FORWARD))
_DAY = 86_400.0
_KEPT = 180 * _DAY
"""Seconds that a file is kept after its last use."""
_lock = Lock()  # LLVM's linker is not made for several threads


class Linked:
    """A program in this process's memory; calling it lets other threads of Python run.

    Attributes:
        train, forward: its functions, see `fedkin.engines.compiled.layout`.
        made: whether the code was made now, not found in the cache.
        target: the processor that it is for.
    """

    def __init__(self, code: bytes, target: Target, *, made: bool) -> None:
        self.made, self.target = made, target
        with _lock:
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target))  # it holds the code
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
            self.train: Any = _TRAIN(self._engine.get_function_address("train"))
            self.forward: Any = _FORWARD(self._engine.get_function_address("forward"))


def linked(layout: Layout, block: int, target: Target) -> Linked:
    """Return the program of a chain, from the cache if it is there."""
    path = _folder() / f"{fingerprint(layout, block, target)}.o"
    if (code := _read(path)) is not None:
        return Linked(code, target, made=False)
    code = object_code(layout, block, target)
    with contextlib.suppress(OSError):  # the cache cannot be written: the code is made in each process
        make_private(path.parent)
        _delete_unused(path.parent)
        write_atomic(path, hashlib.sha256(code).digest() + code, private=True)
    return Linked(code, target, made=True)


def fingerprint(layout: Layout, block: int, target: Target) -> str:
    """Return the name of a program's code: a hash of all that decides it."""
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    parts = (_generator(), llvmlite.__version__, llvm_version, target, layout, block, target.vectors)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


@lru_cache(maxsize=1)
def _generator() -> str:
    """Return a hash of the files that write programs."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    return cache_folder() / "compiled"


def _read(path: Path) -> bytes | None:
    """Return the code in a file; None if there is none that can be trusted."""
    with contextlib.suppress(OSError):
        folder, others = path.parent.stat(), stat.S_IRWXG | stat.S_IRWXO
        if sys.platform != "win32" and (folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) & others):
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            _used(path)
            return content[32:]
    return None


def _used(path: Path) -> None:
    with contextlib.suppress(OSError):  # the folder may be read-only
        if time.time() - path.stat().st_mtime > _DAY:
            path.touch()


def _delete_unused(folder: Path) -> None:
    oldest = time.time() - _KEPT
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process deletes them, too
            if path.stat().st_mtime < oldest:
                path.unlink()


@lru_cache(maxsize=1)
def _started() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _machine(target: Target) -> Any:
    _started()
    return llvm.Target.from_triple(target.triple).create_target_machine(cpu=target.cpu, features=target.features, opt=3)


def object_code(layout: Layout, block: int, target: Target) -> bytes:
    """Return the machine code of a program for a processor.

    Raises:
        RuntimeError: LLVM refuses it.
    """
    with _lock:
        machine = _machine(target)
        module = llvm.parse_assembly(write(layout, block, target))
        module.verify()
        # what is to be a vector is one already, and loops are unrolled where registers are to hold their values
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        tuning.slp_vectorization = tuning.loop_vectorization = tuning.loop_unrolling = False
        passes = llvm.create_pass_builder(machine, tuning)
        passes.getModulePassManager().run(module, passes)
        code: bytes = machine.emit_object(module)
        return code
