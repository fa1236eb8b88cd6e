"""Numbers, vectors of 16 floats and memory of a program that is being written, with Python's operators."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from fedkin.engines.compiled.units import LANES

F32, F64, I1, I8, I32, I64 = ir.FloatType(), ir.DoubleType(), *(ir.IntType(n) for n in (1, 8, 32, 64))
VECTOR, PLACES, MASK = (ir.VectorType(t, LANES) for t in (F32, I32, I1))
POINTER = ir.PointerType()


class Value:
    """A number or a vector of the program; operators write instructions, and fold what is known while writing."""

    __slots__ = ("builder", "of")

    def __init__(self, builder: Any, of: Any) -> None:
        self.builder, self.of = builder, of

    @property
    def whole(self) -> bool:
        """Whether it is an integer, or a vector of them."""
        return _element(self.of.type) is not None

    def _with(self, other: Operand) -> Any:
        return other.of if isinstance(other, Value) else _constant(self.of.type, other)

    def _new(self, of: Any) -> Value:
        return Value(self.builder, of)

    def __add__(self, other: Operand) -> Value:
        if self.whole:
            return self if is_number(other, 0) else self._new(self.builder.add(self.of, self._with(other)))
        return self._new(self.builder.fadd(self.of, self._with(other)))

    def __sub__(self, other: Operand) -> Value:
        sub = self.builder.sub if self.whole else self.builder.fsub
        return self._new(sub(self.of, self._with(other)))

    def __rsub__(self, other: Operand) -> Value:
        sub = self.builder.sub if self.whole else self.builder.fsub
        return self._new(sub(self._with(other), self.of))

    def __mul__(self, other: Operand) -> Value:
        if self.whole:
            return self if is_number(other, 1) else self._new(self.builder.mul(self.of, self._with(other)))
        return self._new(self.builder.fmul(self.of, self._with(other)))

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Operand) -> Value:
        return self._new(self.builder.fdiv(self.of, self._with(other)))

    def __lt__(self, other: Operand) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare(">", other)

    def is_(self, other: Operand) -> Value:
        """Return whether the two are equal; a NaN is equal to nothing."""
        return self._compare("==", other)

    def is_not(self, other: Operand) -> Value:
        """Return whether the two differ; a NaN differs from everything."""
        if self.whole:
            return self._compare("!=", other)
        return self._new(self.builder.fcmp_unordered("!=", self.of, self._with(other)))

    def _compare(self, how: str, other: Operand) -> Value:
        compare = self.builder.icmp_signed if self.whole else self.builder.fcmp_ordered
        return self._new(compare(how, self.of, self._with(other)))

    def __or__(self, other: Value) -> Value:
        return self._new(self.builder.or_(self.of, other.of))

    def __and__(self, other: Value) -> Value:
        return self._new(self.builder.and_(self.of, other.of))

    def __lshift__(self, bits: int) -> Value:
        return self._new(self.builder.shl(self.of, _constant(self.of.type, bits)))

    def cast(self, how: str, to: Any) -> Value:
        """Return it as another type, by the instruction of that name."""
        return self._new(getattr(self.builder, how)(self.of, to))


Operand = Value | int | float


class Memory:
    """An array of the program: floats, or whole numbers of 32 or 64 bits, which are read and written as 64 bits."""

    __slots__ = ("_builder", "kind", "pointer")

    def __init__(self, builder: Any, pointer: Any, kind: Any) -> None:
        self._builder, self.pointer, self.kind = builder, pointer, kind

    def at(self, i: Operand) -> Memory:
        """Return the part that begins at an offset."""
        return self if is_number(i, 0) else Memory(self._builder, self._address(i), self.kind)

    def _address(self, i: Operand) -> Any:
        return self._builder.gep(self.pointer, [index(i)], source_etype=self.kind)

    def one(self, i: Operand = 0) -> Value:
        """Return one element."""
        width = 8 if self.kind is I64 else 4
        value = Value(self._builder, self._builder.load(self._address(i), typ=self.kind, align=width))
        return value.cast("sext", I64) if self.kind is I32 else value

    def put(self, value: Value, i: Operand = 0) -> None:
        """Write one element."""
        value = value.cast("trunc", I32) if self.kind is I32 else value
        self._builder.store(value.of, self._address(i), align=8 if self.kind is I64 else 4)

    def vector(self, i: Operand = 0, *, aligned: bool = False) -> Value:
        """Return 16 elements; ``aligned``: they begin at a multiple of 64 bytes."""
        kind = VECTOR if self.kind is F32 else PLACES
        return Value(self._builder, self._builder.load(self._address(i), typ=kind, align=64 if aligned else 4))

    def put_vector(self, value: Value, i: Operand = 0, *, aligned: bool = False) -> None:
        """Write 16 elements."""
        self._builder.store(value.of, self._address(i), align=64 if aligned else 4)


def index(i: Operand) -> Any:
    """Return an index as an operand of an instruction."""
    return i.of if isinstance(i, Value) else ir.Constant(I64, i)


def _element(kind: Any) -> Any:
    """Return the type if it is of integers, or of vectors of them; else None."""
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return element if isinstance(element, ir.IntType) else None


def _constant(kind: Any, x: float) -> Any:
    return ir.Constant(kind, [x] * LANES if isinstance(kind, ir.VectorType) else x)


def is_number(value: Operand, n: int) -> bool:
    """Return whether an operand is known to be a number while the program is written."""
    return isinstance(value, int) and value == n
