"""A torch module seen as a pure function of one flat vector.

The vector is ``[head | body | buffers]``: trained parameters first, then float buffers (running statistics) as an
untrained tail. Integer buffers stay out, and so does what is fixed: parameters with ``requires_grad = False``, and the
buffers of layers without others. So ``w[net.params]`` is the part for distances and proximal terms,
``w[net.body]`` is the body with its running statistics, and averaging vectors averages buffers with the weights of the
parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from fedkin.core.errors import FedkinError, MethodError, ModelError, user_line
from fedkin.core.parts import Part, Spans
from fedkin.core.seeds import key

Selection = Literal["all", "fc", "head"]
_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
"""Types of normalisation layers; the first covers batch and instance normalisation."""


class ForwardPass(Protocol):
    """Forward pass without gradient, as an engine computes it."""

    def __call__(self, w: Tensor, x: Tensor, *, features: bool) -> tuple[Tensor, Tensor | None] | None:
        """Return the logits ``[B, C]`` and, if ``features``, the head's input ``[B, d]``; None: the module is asked."""


class Net:
    """A network: its shape, its parts, and its value at any flat vector.

    Attributes:
        size: P, the length of a flat vector.
        params, head, body, buffers: slices of a flat vector; ``body`` ends with the buffers.
        head_weight: the slice of the head's weight matrix (without the bias).
        norms: mask ``[P]`` of all normalisation layers, with their running statistics.
        classes: C, the number of logits.
        shape: shape of one input.
        fixed: what is not trained, by name: constants of the network, which no method sees.
        dtype: type of the inputs: int64 where the data are whole numbers and the network takes them, else float32.
        channels_last: whether inputs are best held in that layout.

    Args:
        samples: inputs of the data ``[n, *shape]``, n > 0, two of which every check of the network takes; None: they
            are not known, and made up.
        name: of the network, for messages. Default: its class.

    Raises:
        ModelError: no head was found, the named head does not exist, is fixed or shares parameters with another layer,
            or the network cannot take such inputs.
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        shape: tuple[int, ...],
        classes: int,
        *,
        head: str | None = None,
        seed: int = 0,
        second: Callable[[], nn.Module] | None = None,
        samples: Tensor | None = None,
        name: str | None = None,
    ) -> None:
        self.shape, self.classes, self._factory, self._seed = tuple(shape), classes, factory, seed
        self._module = self._build("init", 0)
        self._name = name or f"the network {type(self._module).__name__}"
        _require_ordinary(self._module)
        self.head_name = head or _last_linear(self._module, classes)
        self._head = _submodule(self._module, self.head_name)
        self._index()
        self._w0 = self.flatten(self._module)
        for p in self._module.parameters():
            p.requires_grad_(False)
        self._mode: object = None
        self._seen: list[Tensor] = []
        self._head.register_forward_pre_hook(lambda _m, args, seen=self._seen: seen.append(args[0]))
        for m in self._module.modules():
            if isinstance(m, nn.GroupNorm):
                m.register_forward_pre_hook(_contiguous_where_torch_fails)
        self._training = False
        self._only: Spans | None = None
        self._moves = [True] * len(self._sizes)
        self._apart: tuple[Tensor, list[Tensor]] | None = None  # a vector, and where its running statistics are
        self._passes: ForwardPass | None = None
        self._make_second, self._seconds = second or factory, list[Net]()  # the list is that of all views
        self._second_head = None if second else head
        self._part: Part | None = None
        self._samples = self._first_pass(samples)
        self.channels_last = self._try_layouts()

    # ---- values -----------------------------------------------------------------------------------------------
    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the logits ``[B, C]`` of the model ``w [P]`` at ``x [B, *shape]``.

        In eval mode, except inside a loss while an engine trains: there running statistics in the tail of ``w`` are
        updated in place, as training a module would.
        """
        given = self._given(w, x)
        return self._computed(w, x) if given is None else given[0]

    def frozen(self, w: Tensor, x: Tensor) -> Tensor:
        """Return logits in eval mode and without gradient, also inside a loss: for a partner that does not move."""
        with torch.no_grad():
            return self._still()(w, x)

    def features_and_logits(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's input ``[B, d]`` and the logits ``[B, C]``."""
        if (given := self._given(w, x, features=True)) is not None and given[1] is not None:
            return given[1], given[0]
        logits = self._computed(w, x)
        if not self._seen:
            raise ModelError(f"the head {self.head_name!r} was not called in the forward pass; name another with head=")
        return self._seen[-1], logits

    def classify(self, head: Tensor, z: Tensor) -> Tensor:
        """Return the logits ``[B, C]`` of the head ``[H]`` (``net.head`` of a flat vector) at features ``z [B, d]``."""
        self._seen.clear()
        parts = self._split(head, self._sizes[: self._n_head], "head")
        for slots, part, shape in zip(self._slots, parts, self._shapes, strict=False):
            for store, name in slots:
                store[name] = part.view(shape)
        out: Tensor = self._head(z)
        if out.dim() != 2:
            raise ModelError(
                f"the head {self.head_name!r} gives {list(out.shape[1:])} numbers per sample where this method applies "
                f"it alone, not {self.classes}; take a network that ends with a linear layer, or another method"
            )
        return out

    # ---- vectors ----------------------------------------------------------------------------------------------
    @property
    def w0(self) -> Tensor:
        """Common start of the run, ``[P]``: the same for every method and every client of one seed."""
        return self._w0.clone()

    def fresh(self, *stream: int | str) -> Tensor:
        """Return an independent random start ``[P]`` for each stream; ``fresh(0)`` is ``w0``."""
        return self.w0 if stream == (0,) else self.flatten(self._build("init", *stream))

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the flat vector of a module of this architecture."""
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([named[n].detach().reshape(-1).float() for n in self.names])

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of a flat vector, as a ``state_dict`` without integer buffers."""
        parts = w.split(self._sizes)
        return {n: p.view(s).clone() for n, p, s in zip(self.names, parts, self._shapes, strict=True)}

    def select(self, rows: Tensor, part: Selection) -> Tensor:
        """Return columns of ``rows [m, P]``: all parameters, those of all linear layers, or the head's weight.

        Raises:
            ModelError: the network has no linear layer.
        """
        if part == "all":
            return rows[:, self.params]
        spans = [self.head_weight] if part == "head" else self._linear
        if not spans:
            raise ModelError("the network has no linear layer, whose parameters this method compares")
        return torch.cat([rows[:, s] for s in spans], dim=1)

    def layers(self) -> list[slice]:
        """Return the slice of every trainable parameter tensor, in the order of the vector."""
        return self._spans[: self._n_params]

    # ---- a second network -------------------------------------------------------------------------------------
    @property
    def second(self) -> Net:
        """A second network for the same inputs and classes, with a flat vector of its own.

        It is made on first use, from random values of its own: of the kind that the method names
        (`fedkin.core.method.Method.second_network`), by default of this network's. In a loss it is in train mode as
        this one is; a request for both begins with this one's vector, then comes that of the second
        (``models=(c.net, c.net.second)``).

        Raises:
            ModelError: it cannot take inputs as this network can.
        """
        if not self._seconds:
            seed = key(self._seed, "second")
            made = Net(
                self._make_second, self.shape, self.classes, head=self._second_head, seed=seed, samples=self._samples
            )
            if self.channels_last and not made.channels_last:
                raise ModelError("the second network needs x.flatten(1) in place of x.view(...), as the first one does")
            self._seconds.append(made)
        second = self._seconds[0]
        return second.training(self._beyond(second.size)) if self._training else second

    def _beyond(self, size: int) -> Tensor | None:
        """Return what moves of the second network's vector, a mask ``[size]``; None: all."""
        if self._part is None:
            return None
        moves = torch.zeros(self.size + size, dtype=torch.bool)
        if not isinstance(self._part, Tensor):
            moves[self._part] = True
        elif len(self._part) == len(moves):
            moves = self._part
        return moves[self.size :]

    @property
    def networks(self) -> tuple[Net, ...]:
        """This network and, once it is in use, the second."""
        return (self, *self._seconds)

    @property
    def batchnorm(self) -> bool:
        """Whether a network has batch normalisation, so that it cannot train on a batch of one sample."""
        return any(net._norms for net in self.networks)

    @property
    def cumulative(self) -> bool:
        """Whether running statistics depend on a count of batches, which is not part of the vector."""
        return any(m.momentum is None for net in self.networks for m in net._norms)

    @property
    def statistics(self) -> list[str]:
        """Names of all running statistics."""
        return [name for net in self.networks for name in net.names[net._n_params :]]

    # ---- parts that are not one slice ---------------------------------------------------------------------------
    def part(self, *layers: str | type[nn.Module]) -> Tensor:
        """Return a mask, bool ``[P]``, that is true at the parameters and running statistics inside some layers.

        ``w[mask]`` are their numbers, ``w[~mask]`` all others; masks are joined with ``|``.

        Args:
            layers: names of modules, such as "features.0", or types, such as ``nn.Conv2d``.

        Raises:
            ModelError: no module has this name, or it has no parameters.
        """
        modules = dict(self._module.named_modules())
        inside = set[str]()
        for layer in layers:
            named = [layer] if isinstance(layer, str) else [n for n, m in modules.items() if isinstance(m, layer)]
            matching = {n for n in self.names for name in named if n.startswith(f"{name}.")}
            if isinstance(layer, str) and not matching:
                raise ModelError(f"no layer {layer!r} with parameters; the network has {self._layer_names()}")
            inside |= matching
        return self._mask(inside)

    @property
    def norms(self) -> Tensor:
        """Mask ``[P]`` of all normalisation layers, with their running statistics; false everywhere without any."""
        return self.part(*_NORMALISATION)

    def top(self, layers: int) -> Tensor:
        """Return a mask, bool ``[P]``, that is true at the last layers: the head, and those registered last before it.

        Raises:
            ModelError: the network has fewer layers with parameters.
        """
        names = self._layer_names()
        if not 1 <= layers <= len(names):
            raise ModelError(f"the network has {len(names)} layers with parameters: {names}; got {layers}")
        return self.part(*names[-layers:])

    def _layer_names(self) -> list[str]:
        """Return the names of the modules with parameters of their own, in the order of registration; the head last."""
        names = dict.fromkeys(n.rpartition(".")[0] for n, _ in self._module.named_parameters() if n not in self.fixed)
        return [n for n in names if n and n != self.head_name] + [self.head_name]

    def _mask(self, names: Collection[str]) -> Tensor:
        flags = torch.tensor([n in names for n in self.names])
        return flags.repeat_interleave(torch.tensor(self._sizes))

    # ---- for engines ------------------------------------------------------------------------------------------
    @property
    def module(self) -> nn.Module:
        """Torch module, for its structure only: its parameters hold whatever the last call put there."""
        return self._module

    def places(self) -> dict[str, tuple[slice, torch.Size]]:
        """Return the span of each parameter and buffer in a flat vector, and its shape, by name."""
        return {n: (span, shape) for n, span, shape in zip(self.names, self._spans, self._shapes, strict=True)}

    def training(self, only: Part | None = None) -> Net:
        """Return this network in train mode; parameters outside ``only`` are fixed, their modules in eval mode."""
        part = Spans.of(only, len(only) if isinstance(only, Tensor) else self.size)
        view = copy.copy(self)
        view._training, view._only, view._passes = True, None if only is None else part, None
        view._part = only
        view._moves = [part.meets(s) for s in self._spans]
        return view

    def evaluated_by(self, passes: ForwardPass) -> Net:
        """Return this network with its passes without gradient computed by an engine; not those of `training`."""
        view = copy.copy(self)
        view._passes = passes
        return view

    @property
    def forward_pass(self) -> ForwardPass | None:
        """What computes passes without gradient, where that is not the module alone."""
        return self._passes

    @contextmanager
    def with_statistics(self, w: Tensor) -> Iterator[tuple[Net, list[Tensor]]]:
        """Provide this network with copies of the running statistics of ``w [P]``, and these copies.

        Passes of the vector ``w`` itself use and move the copies in place of its tail. For `torch.func.vmap`, which
        would move copies of the slices of stacked vectors, and drop them.
        """
        spans = zip(self._spans[self._n_params :], self._shapes[self._n_params :], strict=True)
        statistics, view = [w.detach()[span].view(shape).clone() for span, shape in spans], copy.copy(self)
        view._apart = (w, statistics)
        counts = [(m, m.num_batches_tracked) for m in self._norms]
        for m in self._norms:  # a count of batches of the module itself, which `torch.func.grad` may not change
            m.num_batches_tracked = None
        try:
            yield view, statistics
        finally:
            for m, count in counts:
                m.num_batches_tracked = count

    def count_anew(self) -> None:
        """Start counts of batches at 0: running statistics that depend on one are then means of the batches to come.

        The count is the module's, which trains one client after another. So it begins with each request.
        """
        for m in (m for net in self.networks for m in net._norms):
            if m.momentum is None and m.num_batches_tracked is not None:
                m.num_batches_tracked.zero_()

    def matrices(self, length: int) -> Tensor:
        """Return 1 at parameters with two dimensions or more, 0 at biases and norms; float ``[length]``.

        A shorter vector is a head, a longer one has further parameters after those of the network.
        """
        flags = [float(i < self._n_params and len(shape) > 1) for i, shape in enumerate(self._shapes)]
        mask = torch.tensor(flags).repeat_interleave(torch.tensor(self._sizes))
        return torch.cat([mask, torch.ones(max(0, length - self.size))])[:length]

    def layout(self, x: Tensor) -> Tensor:
        """Return ``x`` in the fastest memory layout; whole numbers as floats where the network takes only these."""
        x = x.float() if self.dtype.is_floating_point and not x.is_floating_point() else x
        return nhwc(x) if self.channels_last and x.dim() == 4 else x.contiguous()

    def inputs(self, n: int) -> Tensor:
        """Return inputs ``[n, *shape]`` that this network takes: two samples of the data, over and over."""
        return self.layout(self._samples[torch.arange(n) % 2])

    def release(self) -> None:
        """Release the tensors of the last pass, whose memory would stay taken until the next."""
        for net in self.networks:
            net._seen.clear()
            net._load(net._w0)

    # ---- inside -----------------------------------------------------------------------------------------------
    def _computed(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the logits that the module computes; what it gave to the head is the last of ``_seen``."""
        self._seen.clear()
        self._load(w)
        self._switch(self._training)
        try:
            out = self._module(x)
        except (FedkinError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as e:  # a network is its author's code
            if isinstance(e, RuntimeError) and w.dtype != x.dtype and w.is_floating_point() and x.is_floating_point():
                raise MethodError(f"the model is {_kind(w)}, its inputs are {_kind(x)}: use .float()") from None
            if not x.is_cpu or torch._C._functorch.maybe_current_level() is not None:
                raise  # engines know a failure of a device or of a transform by its class
            if (x.shape[1:], x.dtype) != (self.shape, self.dtype):
                raise  # the caller's fault
            raise ModelError(f"{self._name} fails on {self._fault(x, e)}") from e
        if isinstance(out, Tensor):
            return out
        if isinstance(logits := getattr(out, "logits", None), Tensor):  # an output of the package transformers
            return logits
        raise ModelError(f"{self._name} {self._expected(f'an object of type {type(out).__name__}')}")

    def _fault(self, x: Tensor, e: Exception) -> str:
        """Return what the network was given, what it raised, and what to do."""
        low, high = (f"{float(end):.6g}" for end in x.aminmax()) if x.numel() else ("", "")
        inside = f"inputs of shape {list(x.shape[1:])} ({_kind(x)}, {low} to {high})"
        how = "change its forward to take one tensor of such inputs"
        if "index out of range in self" in str(e):
            how = f"an nn.Embedding needs a row for each of the numbers, at least {high} + 1 of them; or {how}"
        return f"{inside}: {type(e).__name__}: {e}{user_line(e)}; {how}"

    def _expected(self, got: str) -> str:
        return (
            f"gives {got}; expected logits [B, {self.classes}], a tensor of one float for each of the {self.classes} "
            "classes, or an object with them as .logits: change what its forward returns"
        )

    def _given(self, w: Tensor, x: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None] | None:
        """Return logits and features as an engine computes them; None where the module is to do it."""
        return None if self._passes is None or torch.is_grad_enabled() else self._passes(w, x, features=features)

    def _still(self) -> Net:
        if not self._training:
            return self
        view = copy.copy(self)
        view._training, view._only, view._seen = False, None, []
        return view

    def _build(self, *stream: int | str) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key(self._seed, *stream))
            return self._factory()

    def _index(self) -> None:
        self._still_modules = still = _still(self._module)
        every = dict(self._module.named_parameters())
        trained = [n for n, p in every.items() if p.requires_grad] or every  # none are: it was last used to predict
        self.fixed = {n: p.detach() for n, p in every.items() if n not in trained}
        params = {n: p for n, p in every.items() if n not in self.fixed}
        inside = [n for n in params if n.startswith(self.head_name + ".")]
        for name, p in self._head.named_parameters():
            if (full := f"{self.head_name}.{name}") in self.fixed:
                raise ModelError(
                    f"the head's {full!r} is not trained (requires_grad = False); the head must be: set requires_grad ="
                    " True, or name another module with head="
                )
            if full not in params:
                other = next(n for n, t in params.items() if t is p)
                raise ModelError(
                    f"the head's {full!r} is the same parameter as {other!r}; the head must have parameters of its own:"
                    " give it a copy, or name another module with head="
                )
        buffers = {n: b for n, b in self._module.named_buffers() if b.is_floating_point()}
        owner = {n: self._module.get_submodule(n.rpartition(".")[0]) for n in buffers}
        self.fixed |= {n: b for n, b in buffers.items() if owner[n] in still}
        buffers = {n: b for n, b in buffers.items() if n not in self.fixed}
        self.names = inside + [n for n in params if n not in inside] + list(buffers)
        tensors = {**params, **buffers}
        self._n_head, self._n_params = len(inside), len(params)
        self._shapes = [tensors[n].shape for n in self.names]
        self._sizes = [tensors[n].numel() for n in self.names]
        ends = torch.tensor([0, *self._sizes]).cumsum(0).tolist()
        self._spans = [slice(a, b) for a, b in pairwise(ends)]
        self.size = ends[-1]
        self.head, self.body = slice(0, ends[self._n_head]), slice(ends[self._n_head], self.size)
        self.params, self.buffers = slice(0, ends[self._n_params]), slice(ends[self._n_params], self.size)
        self._slots = [_slots(self._module, tensors[n]) for n in self.names]
        span = dict(zip(self.names, self._spans, strict=True))
        self.head_weight = span[f"{self.head_name}.weight"]
        linear = [n for n, m in self._module.named_modules() if isinstance(m, nn.Linear)]
        of_linear = [f"{n}.{part}" for n in linear for part in ("weight", "bias")]
        self._linear = [span[name] for name in of_linear if name in span]
        self._norms = [
            m for m in self._module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m not in still
        ]
        self._recurrent = [m for m in self._module.modules() if isinstance(m, nn.RNNBase)]

    def _split(self, w: Tensor, sizes: list[int], what: str) -> Sequence[Tensor]:
        try:
            parts: Sequence[Tensor] = w.split(sizes)
            return parts
        except RuntimeError:  # torch names the sizes of all layers
            raise MethodError(
                f"a {what} of this network is a vector of {sum(sizes)} numbers, got the shape {list(w.shape)}"
            ) from None

    def _load(self, w: Tensor) -> None:
        parts = self._split(w, self._sizes, "model")
        still = w.data.split(self._sizes) if self._n_params < len(parts) else parts
        if self._apart is not None and w is self._apart[0]:
            still = (*parts[: self._n_params], *self._apart[1])
        for i, (slots, shape) in enumerate(zip(self._slots, self._shapes, strict=True)):
            # running statistics are written through .data: in place, unseen by autograd
            part = parts[i] if i < self._n_params else still[i]
            part = part.view(shape) if self._moves[i] else part.detach().view(shape)
            for store, name in slots:
                store[name] = part
        for m in self._recurrent:
            m._flat_weights = [getattr(m, n) for n in m._flat_weights_names]

    def _switch(self, training: bool) -> None:
        mode = (training, self._only)
        if self._module.__dict__.get("_fedkin_mode") == mode:
            return
        self._module.__dict__["_fedkin_mode"] = mode
        moved = {id(store) for slots, on in zip(self._slots, self._moves, strict=True) if on for store, _ in slots}
        body = training and (self._only is None or self._only.meets(self.body))
        for m in self._module.modules():
            own = any(p is not None for p in m._parameters.values())
            m.training = training and m not in self._still_modules and (id(m._parameters) in moved if own else body)

    def _first_pass(self, samples: Tensor | None) -> Tensor:
        """Return two inputs that the network takes: samples of the data, or numbers that may be features or indices.

        Whole numbers are tried as they are, then as floats.
        """
        if samples is None:
            size = (2, *self.shape)
            tried = [torch.linspace(0, 1, math.prod(size)).view(size), torch.ones(size, dtype=torch.int64)]
        else:
            x = samples[torch.arange(2) % len(samples)]
            tried = [x] if x.is_floating_point() else [x, x.float()]
        faults = list[ModelError]()
        for x in tried:
            self.dtype = x.dtype
            given = x.clone(memory_format=torch.contiguous_format)
            try:
                with torch.no_grad():
                    out = self(self._w0, given)
            except ModelError as e:
                self._require_unchanged(given)
                faults.append(e)
                continue
            self._require_unchanged(given)
            if tuple(out.shape) != (2, self.classes) or not out.is_floating_point():
                raise ModelError(f"{self._name} {self._expected(f'{_kind(out)} {list(out.shape)} for B = 2')}")
            return x
        raise next((e for e in faults if "type" not in str(e.__cause__)), faults[0])  # not which type is wanted

    def _try_layouts(self) -> bool:
        """Return whether channels_last works (a module may use ``view`` after a convolution), by two inputs."""
        x = self._samples
        with torch.no_grad():
            self._require_pure(x)
            if x.dim() != 4:
                return False
            try:
                self(self._w0, nhwc(x))
            except ModelError:
                return False
            return True

    def _require_unchanged(self, x: Tensor) -> None:
        """Raise `ModelError` if the network has changed these inputs: in an evaluation they are the data."""
        if x._version:
            raise ModelError(
                f"{self._name} changes its inputs in place, and with them the data; write x = x - 0.5 instead of "
                "x -= 0.5, and give a first layer no inplace=True"
            )

    def _require_pure(self, x: Tensor) -> None:
        """Raise `ModelError` if predictions differ from one time to the next."""
        first, second = self(self._w0, x), self(self._w0, x)
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise ModelError(
                f"{self._name} draws random numbers when it predicts, so no figure could be repeated; draw in training "
                "only, such as F.dropout(x, 0.5, training=self.training)"
            )


def _kind(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def nhwc(x: Tensor) -> Tensor:
    """Return images ``[n, C, H, W]`` with channels innermost in memory.

    With one channel torch takes either order for both, and would go on in the slower one: strides are set here.
    """
    if x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last):
        return x
    n, c, h, w = x.shape
    return torch.empty(n, h, w, c, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2).copy_(x)


def _slots(module: nn.Module, tensor: Tensor) -> list[tuple[dict[str, Tensor | None], str]]:
    """Return every place that holds this very tensor: tied weights have several."""
    places: list[tuple[dict[str, Tensor | None], str]] = []
    for m in module.modules():
        stores: tuple[dict[str, Tensor | None], ...] = (m._parameters, m._buffers)  # type: ignore[assignment]
        places += [(store, name) for store in stores for name, t in store.items() if t is tensor]
    return places


def _contiguous_where_torch_fails(norm: nn.GroupNorm, args: tuple[Tensor]) -> tuple[Tensor] | None:
    """Return another layout of the input, with which torch finds the gradient of a group norm's weights.

    On a CPU it ends the process if the input is channels_last and has no gradient itself (frozen layers before it).
    """
    (x,) = args
    fails = x.dim() == 4 and x.stride(1) == 1 and not x.requires_grad
    return (x.contiguous(),) if fails and norm.weight is not None and norm.weight.requires_grad else None


def _still(module: nn.Module) -> set[nn.Module]:
    """Return the modules without a trained parameter, or around which there is none; none if that is all of them."""
    still_modules = set[nn.Module]()

    def walk(m: nn.Module, around: bool) -> None:
        inside = [p.requires_grad for p in m.parameters()]
        still = not any(inside) if inside else around
        still_modules.update({m} if still else ())
        for child in m.children():
            walk(child, still)

    walk(module, False)
    return set() if module in still_modules else still_modules


def _require_ordinary(module: nn.Module) -> None:
    """Raise `ModelError` for layers without a size, or whose output for a sample depends on other samples."""
    if lazy := [n for n, p in module.named_parameters() if isinstance(p, nn.UninitializedParameter)]:
        raise ModelError(
            f"the parameter {lazy[0]!r} has no shape yet; name the number of inputs of the layer (nn.Linear instead of "
            "nn.LazyLinear)"
        )
    for name, m in module.named_modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is None:
            raise ModelError(
                f"{name!r} normalises by the statistics of the samples that are predicted together "
                "(track_running_stats=False), so that a prediction would depend on other samples; leave "
                "track_running_stats=True, or take nn.GroupNorm"
            )


def _last_linear(module: nn.Module, classes: int) -> str:
    if isinstance(module, nn.Linear):
        raise ModelError("the network is a single layer, which has no name; wrap it: nn.Sequential(layer)")
    linear = [(n, m) for n, m in module.named_modules() if n and isinstance(m, nn.Linear)]
    fitting = [n for n, m in linear if m.out_features == classes]
    if not fitting:
        last = f" (the last one, {linear[-1][0]!r}, has {linear[-1][1].out_features})" if linear else ""
        if linear and (classes, linear[-1][1].out_features) == (2, 1):
            raise ModelError(
                f"the last linear layer, {linear[-1][0]!r}, has one output for two classes; fedkin trains by softmax "
                "and cross-entropy: give it two outputs, and leave out the sigmoid"
            )
        raise ModelError(
            f"no linear layer with {classes} outputs, the number of classes{last}, to serve as the head; name the "
            f"classifying module with head=, one of {[n for n, _ in module.named_children()]}"
        )
    return str(fitting[-1])


def _submodule(module: nn.Module, name: str) -> nn.Module:
    names = [n for n, m in module.named_modules() if n and any(True for _ in m.parameters(recurse=False))]
    if name not in names:
        raise ModelError(f"no module {name!r} with parameters to serve as the head; the network has {names}")
    head = module.get_submodule(name)
    if not isinstance(getattr(head, "weight", None), Tensor):
        raise ModelError(f"the head {name!r} has no weight; the head must be one layer, such as nn.Linear")
    if "weight" not in dict(head.named_parameters(recurse=False)):
        raise ModelError(
            f"the weight of the head {name!r} is computed from other parameters (weight_norm, for example); take a "
            "plain layer, or name another module with head="
        )
    return head
