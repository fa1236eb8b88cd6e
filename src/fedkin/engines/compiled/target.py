"""The processor that programs are made for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import llvmlite.binding as llvm


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
