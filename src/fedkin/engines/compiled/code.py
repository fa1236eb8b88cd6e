"""Functions of a program that is being written as LLVM IR: arithmetic, loops, calls, memory.

A kernel is a Python function that is called once, while the program is written: a plain ``for`` is unrolled, a loop of
the program is ``with c.loop(n) as i``. Arithmetic is IEEE's without fast-math, and a product is fused with its sum only
where `Code.fma` says so; hence the results depend neither on the width of the processor's registers nor on how many
values a kernel keeps in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir

from fedkin.engines.compiled.units import LANES
from fedkin.engines.compiled.values import (
    F32,
    I1,
    I8,
    I32,
    I64,
    MASK,
    PLACES,
    POINTER,
    VECTOR,
    Memory,
    Operand,
    Value,
    index,
)


@dataclass(frozen=True)
class Target:
    """A processor.

    Attributes:
        triple: architecture and system, as LLVM names them.
        cpu, features: its name, and what it can do: ``+avx2,-avx512f``.
    """

    triple: str
    cpu: str
    features: str

    def can(self, feature: str) -> bool:
        """Return whether the processor has a feature."""
        return f"+{feature}" in self.features.split(",")

    def without(self, *names: str) -> Target:
        """Return a plain processor of this kind that lacks the features whose names begin so."""
        off = [f[1:] for f in self.features.split(",") if f[1:].startswith(names)]
        kept = [f for f in self.features.split(",") if f[1:] not in off]
        return replace(
            self, cpu="generic" if self._arm else "x86-64", features=",".join([*kept, *(f"-{f}" for f in off)])
        )

    @property
    def _arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))

    @property
    def fma(self) -> bool:
        """Whether a product and a sum are rounded once."""
        return self._arm or self.can("fma") or self.can("avx512f")

    @property
    def vectors(self) -> int:
        """Number of vectors of 16 floats that its registers hold."""
        if self.can("avx512f"):
            return 32
        return 8 if self._arm or self.can("avx") else 4


@lru_cache(maxsize=1)
def host() -> Target:
    """Return this machine's processor."""
    return Target(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


# ---- code -------------------------------------------------------------------------------------------------------
class Var:
    """A value that changes; LLVM turns its memory into a register."""

    __slots__ = ("_at", "_code", "_type")

    def __init__(self, code: Code, start: Value) -> None:
        self._code, self._type = code, start.of.type
        self._at = code.entry.alloca(self._type)
        self.set(start)

    def get(self) -> Value:
        """Return what it holds now."""
        return self._code.value(self._code.builder.load(self._at, typ=self._type))

    def set(self, value: Value) -> None:
        """Replace what it holds."""
        self._code.builder.store(value.of, self._at)


class Code:
    """One function while it is written."""

    def __init__(self, function: Any, target: Target) -> None:
        self.function, self.target = function, target
        self.entry = ir.IRBuilder(function.append_basic_block())
        self._body = function.append_basic_block()
        self.builder = ir.IRBuilder(self._body)

    def close(self, result: Value | None = None) -> None:
        """End the function."""
        self.entry.branch(self._body)
        if result is None:
            self.builder.ret_void()
        else:
            self.builder.ret(result.of)

    # ---- values -----------------------------------------------------------------------------------------------
    def value(self, of: Any) -> Value:
        """Return an instruction's result with operators."""
        return Value(self.builder, of)

    def number(self, n: int) -> Value:
        """Return a whole number of 64 bits."""
        return self.value(ir.Constant(I64, n))

    def real(self, x: float) -> Value:
        """Return a float."""
        return self.value(ir.Constant(F32, x))

    def vector(self, x: Value | float) -> Value:
        """Return 16 times the same float."""
        if not isinstance(x, Value):
            return self.value(ir.Constant(VECTOR, [x] * LANES))
        return self._spread(x, VECTOR)

    def places(self, n: Value | int | Sequence[int]) -> Value:
        """Return 16 times the same whole number of 32 bits, or 16 numbers."""
        if isinstance(n, Value):
            return self._spread(n.cast("trunc", I32), PLACES)
        return self.value(ir.Constant(PLACES, [n] * LANES if isinstance(n, int) else list(n)))

    def _spread(self, x: Value, kind: Any) -> Value:
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), x.of, ir.Constant(I32, 0))
        return self.value(self.builder.shuffle_vector(one, one, ir.Constant(PLACES, [0] * LANES)))

    def first_lanes(self, n: int) -> Value:
        """Return a mask of the first ``n`` lanes."""
        return self.value(ir.Constant(MASK, [i < n for i in range(LANES)]))

    def lane(self, v: Value, i: int) -> Value:
        """Return one element of a vector."""
        return self.value(self.builder.extract_element(v.of, ir.Constant(I32, i)))

    def every_other(self, a: Value, b: Value, first: int) -> Value:
        """Return the even (0) or odd (1) elements of two vectors that follow each other."""
        return self._mixed(a, b, range(first, 2 * LANES, 2))

    def sums(self, vectors: Sequence[Value]) -> Value:
        """Return a vector with the sum of each of 16 vectors."""
        if len(vectors) == 1:
            return vectors[0]
        half = len(vectors) // 2
        a, b = self.sums(vectors[:half]), self.sums(vectors[half:])
        return self.every_other(a, b, 0) + self.every_other(a, b, 1)

    def transposed(self, rows: Sequence[Value]) -> list[Value]:
        """Return the columns of 16 vectors of 16 elements.

        Interleaving row i with row i + 8 moves the first of the 8 bits of an element's place to the end; after four
        times row and lane have changed places.
        """
        low, high = ([k // 2 + k % 2 * LANES + half for k in range(LANES)] for half in (0, LANES // 2))
        columns = list(rows)
        for _ in range(4):
            pairs = list(zip(columns[: LANES // 2], columns[LANES // 2 :], strict=True))
            columns = [self._mixed(a, b, half) for a, b in pairs for half in (low, high)]
        return columns

    def _mixed(self, a: Value, b: Value, chosen: Sequence[int]) -> Value:
        """Return elements of two vectors that follow each other."""
        return self.value(self.builder.shuffle_vector(a.of, b.of, ir.Constant(PLACES, list(chosen))))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a b + c`` of vectors, rounded once on processors that can do so."""
        if self.target.fma:
            return self.value(self.builder.call(self._fused(), [a.of, b.of, c.of]))
        return a * b + c

    def _fused(self) -> Any:
        """Return LLVM's instruction for 16 fused products and sums."""
        module, name = self.function.module, f"llvm.fma.v{LANES}f32"
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(VECTOR, [VECTOR] * 3), name)

    def choose(self, condition: Value, a: Value, b: Value) -> Value:
        """Return ``a`` where the condition holds, else ``b``; neither is avoided."""
        return self.value(self.builder.select(condition.of, a.of, b.of))

    def least(self, a: Value, b: Operand) -> Value:
        """Return the smaller of two whole numbers."""
        other = b if isinstance(b, Value) else self.number(int(b))
        return self.choose(a < other, a, other)

    def relu(self, v: Value) -> Value:
        """Return ``max(v, 0)``, and NaN for NaN, so that a diverged model cannot look finite."""
        return self.choose(v < 0.0, self.vector(0.0), v)

    def var(self, start: Value) -> Var:
        """Return a new variable."""
        return Var(self, start)

    # ---- control ----------------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, stop: Operand, step: int = 1, start: Operand = 0) -> Iterator[Value]:
        """Repeat the block for ``start, start + step, ...`` below ``stop``; perhaps never."""
        counter = self.var(self.value(index(start)))
        test, body, end = (self.function.append_basic_block() for _ in range(3))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        self.builder.cbranch((counter.get() < stop).of, body, end)
        self.builder.position_at_end(body)
        i = counter.get()
        yield i
        counter.set(i + step)
        self.builder.branch(test)
        self.builder.position_at_end(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the block if the condition holds."""
        body, end = self.function.append_basic_block(), self.function.append_basic_block()
        self.builder.cbranch(condition.of, body, end)
        self.builder.position_at_end(body)
        yield
        self.builder.branch(end)
        self.builder.position_at_end(end)

    def call(self, function: Any, *args: Operand | Memory) -> None:
        """Call another function of the program."""
        self.builder.call(function, [a.pointer if isinstance(a, Memory) else index(a) for a in args])

    # ---- memory -----------------------------------------------------------------------------------------------
    def array(self, kind: Any, n: int) -> Memory:
        """Return an array that lives as long as the function runs."""
        made = self.entry.alloca(ir.ArrayType(kind, n))
        made.align, made.type = 64, POINTER
        return Memory(self.builder, made, kind)

    def numbers(self, m: Memory) -> Memory:
        """Return the same memory as whole numbers of 32 bits."""
        return Memory(self.builder, m.pointer, I32)

    def clear(self, m: Memory, n: Operand) -> None:
        """Write ``n`` zeros of 4 bytes."""
        count = (n * 4).of if isinstance(n, Value) else ir.Constant(I64, 4 * int(n))
        zeros = self.function.module.declare_intrinsic("llvm.memset", [POINTER, I64])
        self.builder.call(zeros, [m.pointer, ir.Constant(I8, 0), count, ir.Constant(I1, 0)])

    def copy(self, to: Memory, source: Memory, n: int) -> None:
        """Copy ``n`` elements of 4 bytes."""
        move = self.function.module.declare_intrinsic("llvm.memcpy", [POINTER, POINTER, I64])
        self.builder.call(move, [to.pointer, source.pointer, ir.Constant(I64, 4 * n), ir.Constant(I1, 0)])


_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "f": (POINTER, F32),
    "n": (POINTER, I32),
    "l": (POINTER, I64),
    "i": (I64, None),
    "x": (F32, None),
}
"""Letters for arguments: memory of floats, of numbers of 32 and 64 bits; a whole number, a float."""


class Module:
    """A program while it is written."""

    def __init__(self, target: Target) -> None:
        self.target, self._module, self._count = target, ir.Module("fedkin"), 0

    def function(self, kinds: str, write: Callable[..., Value | None], name: str = "") -> Any:
        """Write a function; arrays among its arguments must not overlap.

        Args:
            kinds: a letter per argument: memory ``f``, ``n``, ``l`` (float, 32, 64 bits), ``i`` whole, ``x`` float.
            write: is called with a `Code` and the arguments; what it returns is the result, a whole number.
            name: of a function that is called from outside; others are called from the program alone.
        """
        self._count += 1
        result = I64 if name else ir.VoidType()
        form = ir.FunctionType(result, [_ARGUMENTS[k][0] for k in kinds])
        made = ir.Function(self._module, form, name or f"kernel{self._count}")
        if not name:
            made.linkage = "internal"
            made.attributes.add("noinline")
        c, args = Code(made, self.target), list[Value | Memory]()
        for arg, kind in zip(made.args, kinds, strict=True):
            if kind in "ix":
                args.append(c.value(arg))
            else:
                arg.add_attribute("noalias")
                args.append(Memory(c.builder, arg, _ARGUMENTS[kind][1]))
        c.close(write(c, *args))
        return made

    def text(self) -> str:
        """Return the program."""
        return str(self._module)
