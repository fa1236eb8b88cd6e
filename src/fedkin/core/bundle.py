"""Named tensors: the one type that is sent, stored and checkpointed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.core.errors import MethodError
from fedkin.core.refusals import Reason


class Bundle(dict[str, Tensor]):
    """Named tensors with attribute access: ``Bundle(model=w).model``.

    What leaves a client, what stays on it, what the server keeps and what a checkpoint holds are all bundles.
    """

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no tensor named {name!r} in this bundle; it holds {sorted(self)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: the value would be no tensor of the bundle, and be lost.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(
            f"a bundle is not changed by an attribute; take a copy: bundle.but({name}=...), such as "
            f"c.state = c.state.but({name}=...)"
        )

    def but(self, **changes: Tensor) -> Bundle:
        """Return a copy with some tensors replaced or added."""
        return Bundle({**self, **changes})

    def only(self, names: Iterable[str]) -> Bundle:
        """Return the tensors of these names."""
        return Bundle({name: self[name] for name in names})

    def owned(self) -> Bundle:
        """Return a copy whose tensors own their memory, detached from any graph and from each other."""
        return Bundle({name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in self.items()})

    def inside(self, prefix: str) -> Bundle:
        """Return the tensors stored under ``prefix.``, without the prefix (a wrapped method's own bundle)."""
        return Bundle({name[len(prefix) + 1 :]: t for name, t in self.items() if name.startswith(prefix + ".")})

    def under(self, prefix: str) -> Bundle:
        """Return the same tensors with ``prefix.`` in front of their names."""
        return Bundle({f"{prefix}.{name}": t for name, t in self.items()})

    @property
    def nbytes(self) -> int:
        """Number of bytes on the wire: the numbers alone."""
        return sum(t.numel() * t.element_size() for t in self.values())

    def travelling(self, there: Mapping[str, Tensor] | None = None, counted: dict[int, int] | None = None) -> int:
        """Return the number of bytes that must travel.

        These are the bytes of the numbers, without rows of zeros, which fill empty places, and without tensors that the
        receiver has. Messages between hosts hold both all the same.

        Args:
            there: tensors that the receiver has been sent in this round already.
            counted: by ``id``, bytes of tensors that several bundles share, so that each is examined once; the
                mapping is extended, and is valid while the tensors live.
        """
        there, counted, total = there or {}, {} if counted is None else counted, 0
        for name, t in self.items():
            if name not in there or not _same(t, there[name]):
                if id(t) not in counted:
                    counted[id(t)] = _filled(t) * t.element_size()
                total += counted[id(t)]
        return total


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _filled(t: Tensor) -> int:
    """Return the number of elements in rows that are not all zero; for a vector, the number of its elements."""
    if t.dim() < 2 or t.numel() == 0:
        return t.numel()
    return int(t.flatten(1).any(1).sum()) * (t.numel() // len(t))


@dataclass(frozen=True)
class Download:
    """The result of ``distribute``: tensors for all receivers and one row for each of ``r.ids``.

    Attributes:
        shared: the same for every receiver.
        rows: row i is for ``r.ids[i]``.
        given: bool ``[m]`` per name in ``rows``; the receivers that get that row. A missing name means all of them.
        weights: float ``[m, K]`` or None; the clients that each receiver's rows were mixed from (never
            sent, kept for the record).
    """

    shared: Bundle
    rows: Bundle
    given: Bundle
    weights: Tensor | None = None

    def __or__(self, other: Download) -> Download:
        return Download(
            Bundle({**self.shared, **other.shared}),
            Bundle({**self.rows, **other.rows}),
            Bundle({**self.given, **other.given}),
            self.weights if other.weights is None else other.weights,
        )

    def under(self, prefix: str) -> Download:
        """Return the same download with ``prefix.`` in front of every name."""
        parts = (self.shared.under(prefix), self.rows.under(prefix), self.given.under(prefix))
        return Download(*parts, self.weights)

    def row(self, i: int) -> Bundle:
        """Return what the i-th receiver is sent."""
        mine = {n: t[i] for n, t in self.rows.items() if n not in self.given or bool(self.given[n][i])}
        return Bundle({**self.shared, **mine})


def require_tensors(what: str, values: Mapping[str, object]) -> None:
    """Check that named values are tensors.

    Raises:
        MethodError: one is not; the message starts with ``what`` and names it.
    """
    for name, value in values.items():
        if not isinstance(value, Tensor):
            mend = f"write torch.tensor({value!r})" if isinstance(value, bool | int | float) else "it must be a tensor"
            raise MethodError(f"{what} {name!r} is {_kind(value)}; {mend}")


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def to_all(**tensors: Tensor) -> Download:
    """Return a download with the same tensors for every receiver.

    Raises:
        MethodError: a value is not a tensor.
    """
    require_tensors("to_all:", tensors)
    return Download(Bundle(tensors), Bundle(), Bundle())


def to_each(*, given: Tensor | None = None, weights: Tensor | None = None, **rows: Tensor) -> Download:
    """Return a download with one row for each receiver: row i is for ``r.ids[i]``.

    Args:
        given: bool ``[m]``; only these receivers get their row (default: all).
        weights: float ``[m, K]``; the clients that each row was mixed from, for the record.
        rows: tensors ``[m, ...]``.

    Raises:
        MethodError: a value is not a tensor.
    """
    require_tensors("to_each:", rows)
    masks = {} if given is None else dict.fromkeys(rows, given)
    return Download(Bundle(), Bundle(rows), Bundle(masks), weights)


def stack(bundles: Mapping[int, Bundle]) -> Bundle:
    """Return the uploads as one bundle, one row per client in ascending order of id.

    Rows that lie side by side in memory are not copied.

    Raises:
        MethodError: two clients sent different names or shapes.
    """
    ids = sorted(bundles)
    names = set(bundles[ids[0]])
    for i in ids:
        if set(bundles[i]) != names:
            raise MethodError(
                f"client {i} sent {sorted(bundles[i])} but client {ids[0]} sent {sorted(names)}; "
                "all uploads of a round need the same names"
            )
    return Bundle({name: _rows([bundles[i][name] for i in ids]) for name in bundles[ids[0]]})


def _rows(tensors: list[Tensor]) -> Tensor:
    """Return the tensors as rows ``[m, ...]``; without a copy if they already lie one after another in memory."""
    stacked = _in_place(tensors)
    return torch.stack(tensors) if stacked is None else stacked


def _in_place(tensors: list[Tensor]) -> Tensor | None:
    """Return the tensors as rows ``[m, ...]`` of the memory that they lie in; None if they do not lie side by side."""
    first = tensors[0]
    at, step, home = first.data_ptr(), first.numel() * first.element_size(), first.untyped_storage().data_ptr()
    for i, t in enumerate(tensors):
        if t.data_ptr() != at + i * step or t.shape != first.shape or t.dtype != first.dtype or not t.is_contiguous():
            return None
        if t.untyped_storage().data_ptr() != home or step == 0:
            return None
    return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))


def refusal(upload: Bundle, schema: Bundle, bound: float) -> Reason | None:
    """Return why an upload cannot be used, or None if it can.

    Args:
        upload: what a client sent.
        schema: a bundle with the names, shapes and types that it must have.
        bound: largest absolute value that a floating-point number may have.
    """
    if set(upload) != set(schema):
        return Reason("names", expected=", ".join(sorted(schema)))
    for name, like in schema.items():
        t = upload[name]
        if t.shape != like.shape or t.dtype != like.dtype:
            return Reason("shape", name, f"{t.dtype} {list(t.shape)}", f"{like.dtype} {list(like.shape)}")
        if t.is_floating_point() and t.numel() and not (largest := _largest(t)) <= bound:
            finite = math.isfinite(largest)
            return Reason("too-large", name, largest, f"{bound:g}") if finite else Reason("not-finite", name)
    return None


def not_finite(bundle: Bundle) -> list[str]:
    """Return the names of tensors that hold NaN or infinity."""
    return [name for name, t in bundle.items() if t.is_floating_point() and not bool(t.isfinite().all())]


def refusals(uploads: Mapping[int, Bundle], schema: Bundle, bound: float) -> dict[int, Reason]:
    """Return why uploads cannot be used, by client, as `refusal` finds it; those that can be used are not in it.

    Numbers that lie side by side in memory are examined in one pass.
    """
    if uploads and _all_fit(list(uploads.values()), schema, bound):
        return {}
    return {i: why for i, upload in uploads.items() if (why := refusal(upload, schema, bound)) is not None}


def norms(bundles: Mapping[int, Bundle], order: float) -> dict[int, float]:
    """Return a norm of all floating-point numbers of each bundle: its length for order 2, the largest one for infinity.

    All bundles have the same names and shapes.
    """
    norms = [torch.zeros(len(bundles))]
    for name in next(iter(bundles.values()), Bundle()):
        column = [b[name] for b in bundles.values()]
        if column[0].is_floating_point() and column[0].numel():
            rows = _in_place(column)
            if rows is None:
                norms.append(torch.stack([t.norm(order) for t in column]).cpu().float())
            else:
                norms.append(rows.reshape(len(column), -1).norm(order, dim=1).cpu().float())
    return dict(zip(bundles, torch.stack(norms).norm(order, dim=0).tolist(), strict=True))


def _all_fit(uploads: list[Bundle], schema: Bundle, bound: float) -> bool:
    """Return whether no upload is to be refused; False also if that cannot be seen for all at once."""
    names = set(schema)
    if any(set(upload) != names for upload in uploads):
        return False
    for name, like in schema.items():
        column = [upload[name] for upload in uploads]
        if any(t.shape != like.shape or t.dtype != like.dtype for t in column):
            return False
        if like.is_floating_point() and like.numel():
            rows = _in_place(column)
            if rows is None or not _largest(rows) <= bound:
                return False
    return True


def _largest(t: Tensor) -> float:
    """Return the largest absolute value, NaN if there is one."""
    least, most = torch.aminmax(t)  # in one pass; NaN wins both
    return max(-float(least), float(most))
