"""A device and every move to and from it, for the stacked engine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedkin.core import Bundle, ConfigError, EngineError, Samples
from fedkin.core.machine import cores
from fedkin.core.sides import chunked

PartName: TypeAlias = tuple[int, str, int]
"""A client, the part of its data ("train", "validation" or "test"), and how often its data have changed."""


class DeviceData:
    """Samples on the device, those of clients' parts kept by name: a federation on disk reads them anew every time.

    Args:
        up: moves a tensor to the device.
        most: bytes that may be kept.

    Attributes:
        left: bytes that may still be kept.
    """

    def __init__(self, up: Callable[[Tensor], Tensor], most: int) -> None:
        self._up, self._most, self.left = up, most, most
        # samples are held as long as they are named: else others may come to have their `id`
        self._named: dict[int, tuple[Samples, PartName]] = {}
        self._kept: dict[PartName, Samples] = {}

    def name(self, data: Samples, part: PartName) -> None:
        """Note which part these samples are, until `unname`."""
        self._named[id(data)] = data, part

    def unname(self) -> None:
        """Release the samples that have names; what is on the device stays."""
        self._named.clear()

    def of(self, data: Samples) -> Samples:
        """Return samples on the device, their inputs in torch's usual order; kept there if they have a name."""
        _, part = self._named.get(id(data), (None, None))
        if part is not None and part in self._kept:
            return self._kept[part]
        x = data.x
        there = Samples(self._up(x.contiguous()), self._up(data.y))
        taken = there.x.nbytes + there.y.nbytes
        if part is not None and there.x is not x and taken <= self.left:
            self._kept[part] = there
            self.left -= taken
        return there

    def joined(self, parts: Sequence[Samples]) -> Samples:
        """Return all samples of several parts one after another, on the device."""
        tensors = [self.of(part) for part in parts]
        if len(tensors) == 1:
            return tensors[0]
        return Samples(torch.cat([d.x for d in tensors]), torch.cat([d.y for d in tensors]))

    def forget(self) -> None:
        """Release what is kept on the device."""
        self._kept.clear()
        self.left = self._most


# ---- the device -------------------------------------------------------------------------------------------------
_GIB = 1 << 30
_WAIT = 100_000_000  # cycles that a GPU waits before it is timed: some 50 ms
_AT_ONCE = 1024  # samples per forward pass outside training on a GPU


class Place:
    """Device, with the data that are kept on it.

    Args:
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:1``.
        memory: GiB that one stack may take; 0: what the device has free (2 on a CPU).
        tf32: whether a GPU may round the factors of products to 10 bits, which is faster.

    Attributes:
        tf32: whether factors are rounded to 10 bits.
        recorded: bytes that recordings of steps work in, which nothing else can use.

    Raises:
        ConfigError: no such kind of device.
        EngineError: this machine has no such GPU.
    """

    def __init__(self, device: str, memory: float, tf32: bool) -> None:
        self.device = _found(device)
        self.cuda = self.device.type == "cuda"
        self._memory, self.tf32 = memory, tf32
        self.recorded = 0
        self.data = DeviceData(self.up, self._free() // 2)

    # ---- there and back ---------------------------------------------------------------------------------------------
    def up(self, t: Tensor) -> Tensor:
        """Return the tensor on the device; the same one if it is there already."""
        return t.to(self.device)

    def sent(self, t: Tensor) -> Tensor:
        """Return a tensor of the host on the device, without waiting until the device has what it is to do before.

        Torch writes to no pinned memory again before the device has read it.
        """
        return self._staged(t.shape, t.dtype).copy_(t).to(self.device, non_blocking=True) if self.cuda else self.up(t)

    def rows(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors of one shape as the rows of a new one on the device; equal ones are moved once."""
        at: dict[tuple[int, tuple[int, ...]], int] = {}
        index = [at.setdefault((t.data_ptr(), t.stride()), len(at)) for t in tensors]
        different = [tensors[index.index(i)].detach() for i in range(len(at))]
        host = self._staged((len(different), *different[0].shape), different[0].dtype)
        there = torch.stack(different, out=host).to(self.device, non_blocking=True)
        return there if len(different) == len(tensors) else there.index_select(0, self.up(torch.tensor(index)))

    def down(self, t: Tensor) -> Tensor:
        """Return the tensor on the host; wait for the device."""
        return self._staged(t.shape, t.dtype).copy_(t) if self.cuda else t.cpu()

    def done(self, t: Tensor) -> Tensor:
        """Return the tensor as it lies on the device; wait for the device, so that times are those of its work."""
        if self.cuda:
            torch.cuda.synchronize(self.device)
        return t

    def _staged(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return host memory for a move; pinned, if the device is a GPU."""
        return torch.empty(*shape, dtype=dtype, pin_memory=self.cuda)

    def bundle(self, b: Bundle) -> Bundle:
        """Return the bundle with all its tensors on the device."""
        return Bundle({name: self.up(t) for name, t in b.items()})

    def outputs(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return ``f`` of all inputs on the device, computed in large batches without gradient."""
        return chunked(f, x, _AT_ONCE) if self.cuda else chunked(f, x)

    # ---- memory -----------------------------------------------------------------------------------------------------
    def room(self) -> int:
        """Return the bytes that one stack may take now, with room left for all data that may still come."""
        return int(self._memory * _GIB) if self._memory else max(0, self._free() - self.data.left) * 4 // 5

    def _free(self) -> int:
        if not self.cuda:
            return 2 * _GIB
        cached = self.reserved() - torch.cuda.memory_allocated(self.device) - self.recorded
        return int(torch.cuda.mem_get_info(self.device)[0]) + max(0, cached)

    def reserved(self) -> int:
        """Return the bytes of the device's memory that torch has taken; 0 on a CPU."""
        return torch.cuda.memory_reserved(self.device) if self.cuda else 0

    def peak(self, step: Callable[[], None]) -> int:
        """Run a step and return the largest number of bytes that it took at a time; 0 on a CPU."""
        if not self.cuda:
            step()
            return 0
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        step()
        return torch.cuda.max_memory_allocated(self.device) - before

    def milliseconds(self, f: Callable[[], object], times: int = 3) -> float:
        """Return the mean time that the device takes for a call, without the time that starting its kernels takes.

        A GPU first waits, so that all kernels have been started when it comes to the first.
        """
        for _ in range(2):
            f()
        if not self.cuda:
            started = time.perf_counter()
            for _ in range(times):
                f()
            return (time.perf_counter() - started) * 1e3 / times
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(_WAIT)
            begin.record()
            for _ in range(times):
                f()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / times

    @cached_property
    def side(self) -> torch.cuda.Stream:
        """Stream of recordings on a GPU: torch keeps 64 MiB for products of matrices for each stream that had some."""
        with torch.cuda.device(self.device):
            return torch.cuda.Stream()

    # ---- while it computes ------------------------------------------------------------------------------------------
    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Compute products as precisely as asked, and restore torch's global generators afterwards.

        By default torch lets GPUs round the factors of convolutions. Next to a GPU the host computes on all its cores,
        which a run leaves to worker processes otherwise.
        """
        restore, threads = _precision(), torch.get_num_threads()
        try:
            _set_precision(self.tf32)
            if self.cuda:
                torch.set_num_threads(cores())
            with torch.random.fork_rng(devices=[self.device] if self.cuda else []):
                yield
        finally:
            torch.set_num_threads(threads)
            restore()

    @property
    def rounding(self) -> float:
        """Relative size of what rounding makes of a number: half a bit, or of sums in another order."""
        return 5e-4 if self.tf32 else 1e-6

    def generators(self) -> list[Tensor]:
        """Return the states of the generators that dropout draws from here."""
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.cuda else states

    def restore(self, states: list[Tensor]) -> None:
        """Put back states that `generators` returned."""
        torch.set_rng_state(states[0])
        if self.cuda:
            torch.cuda.set_rng_state(states[1], self.device)

    def seed(self, number: int) -> None:
        """Set the generator that dropout draws from here."""
        torch.default_generator.manual_seed(number)
        if self.cuda:
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(number)

    def forget(self) -> None:
        """Release the device's memory."""
        self.data.forget()
        if self.cuda:
            # torch imports parts of itself in the first step: its frames then hold each other, and tensors
            gc.collect()
            torch.cuda.empty_cache()


def full(e: Exception) -> bool:
    """Return whether an error says that the device has no memory left."""
    return isinstance(e, torch.OutOfMemoryError) or "STATUS_ALLOC_FAILED" in str(e)


def failed(e: Exception) -> bool:
    """Return whether an error is of the device or its libraries, after which nothing on it can be relied on."""
    text = str(e)
    of_library = ("CUBLAS_STATUS" in text or "CUDNN_STATUS" in text) and "NOT_SUPPORTED" not in text
    return isinstance(e, RuntimeError) and not full(e) and (text.startswith("CUDA error") or of_library)


def _found(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdigit())):
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise EngineError(f"{device} was asked for, torch sees {count} GPUs here; use device='auto' or 'cpu'")
    return torch.device("cuda", int(number) if number else torch.cuda.current_device())


def _precision() -> Callable[[], None]:
    """Return a call that puts torch's precision of products back as it is now.

    Newer torch has a setting for each kind of product, and does not read the older switches where one contradicts them.
    """
    newer = [(kind, kind.fp32_precision) for kind in _kinds()]
    older: list[tuple[Any, bool]] = []
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        with suppress(RuntimeError):
            older.append((switch, switch.allow_tf32))

    def restore() -> None:
        for switch, on in older:
            switch.allow_tf32 = on
        for kind, precision in newer:
            kind.fp32_precision = precision

    return restore


def _set_precision(tf32: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    for kind in _kinds():  # which may follow a setting for all
        if (kind.fp32_precision == "tf32") != tf32:
            kind.fp32_precision = "tf32" if tf32 else "ieee"


def _kinds() -> list[Any]:
    """Return the kinds of product that this torch has a setting for."""
    cudnn = torch.backends.cudnn
    settings = (torch.backends.cuda.matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None))
    return [kind for kind in settings if hasattr(kind, "fp32_precision")]
