"""Bundles and downloads: named tensors, and who is sent what."""

import torch

from fedkin.core import Bundle, MethodError, stack, to_all, to_each
from refusals import refuses


def test_tensors_are_attributes_that_are_read() -> None:
    """``b.model`` is ``b["model"]``; an unknown name is named with those that are there; setting one is refused."""
    b = Bundle(model=torch.ones(2), body=torch.zeros(1))
    assert b.model is b["model"]
    with refuses(AttributeError, "'head'", "['body', 'model']"):
        _ = b.head
    assert not hasattr(b, "head")
    bundle = Bundle(a=torch.ones(1))
    with refuses(AttributeError, "take a copy: bundle.but(b=...)"):
        bundle.b = torch.ones(1)
    assert set(bundle) == {"a"}


def test_only_tensors_are_sent() -> None:
    """A number is told how to become one."""
    with refuses(MethodError, "to_all: 'mu' is a float; write torch.tensor(0.1)"):
        to_all(model=torch.ones(2), mu=0.1)  # type: ignore[arg-type]
    with refuses(MethodError, "to_each: 'k' is a list; it must be a tensor"):
        to_each(k=[1, 2])  # type: ignore[arg-type]


def test_owned_shares_no_memory() -> None:
    """Views of one tensor become tensors of their own, contiguous and without a graph."""
    base = torch.arange(6.0, requires_grad=True)
    b = Bundle(a=base[:3], b=base[1:4], t=base.view(2, 3).T).owned()
    assert len({t.untyped_storage().data_ptr() for t in b.values()}) == 3
    assert all(t.is_contiguous() and not t.requires_grad for t in b.values())
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in b.values())


def test_prefixes_wrap_and_unwrap() -> None:
    """``under`` then ``inside`` is the same bundle; other prefixes, also longer ones, are left out."""
    b = Bundle(model=torch.ones(1), h=torch.zeros(1))
    wrapped = Bundle(**b.under("inner"), **{"innermost.x": torch.ones(1)}, model=torch.zeros(1))
    assert wrapped.inside("inner").keys() == b.keys()
    assert wrapped.inside("inner").model is b.model
    assert Bundle(model=b.model).inside("inner") == {}


def test_rows_are_for_their_receivers() -> None:
    """Row i of ``to_each`` is for the i-th receiver; ``given`` keeps it from some."""
    sent = to_all(model=torch.ones(3)) | to_each(teacher=torch.tensor([[1.0], [2.0]]))
    assert float(sent.row(1).teacher) == 2.0
    assert sent.row(0).model is sent.row(1).model
    some = to_each(given=torch.tensor([True, False]), a=torch.zeros(2, 1)) | to_each(b=torch.zeros(2, 1))
    assert set(some.row(0)) == {"a", "b"}
    assert set(some.row(1)) == {"b"}


def test_downloads_are_joined_and_prefixed() -> None:
    """The right one's tensors and weights replace the left one's; a prefix is put before every name, masks included."""
    w = torch.eye(2)
    left, right = to_each(weights=w, a=torch.zeros(2)), to_each(a=torch.ones(2))
    assert (left | right).weights is w
    assert float((left | right).row(0).a) == 1.0
    assert (right | left).weights is w
    w = torch.eye(2)
    sent = (to_all(m=torch.ones(1)) | to_each(given=torch.tensor([False, True]), weights=w, a=torch.zeros(2))).under(
        "x"
    )
    assert set(sent.row(0)) == {"x.m"}
    assert set(sent.row(1)) == {"x.m", "x.a"}
    assert sent.weights is w


def test_stack_orders_by_client() -> None:
    """One row per client by id, whatever the order of arrival; scalars become vectors. Other names are refused with
    both clients."""
    up = stack(
        {7: Bundle(w=torch.tensor([7.0]), n=torch.tensor(7)), 2: Bundle(w=torch.tensor([2.0]), n=torch.tensor(2))}
    )
    assert up.w.tolist() == [[2.0], [7.0]]
    assert up.n.tolist() == [2, 7]
    with refuses(MethodError, "client 3 sent ['b'] but client 1 sent ['a']"):
        stack({1: Bundle(a=torch.zeros(1)), 3: Bundle(b=torch.zeros(1))})


def test_what_must_travel() -> None:
    """Rows of zeros need not: of three rows of two numbers one is empty, one holds a NaN, one a 1; of a vector and a
    single number all do. Nor what the receiver has: the same tensor under the same name."""
    rows = torch.tensor([[0.0, 0.0], [0.0, torch.nan], [1.0, 0.0]])
    b = Bundle(rows=rows, vector=torch.zeros(5), number=torch.tensor(0), none=torch.zeros(0, 3))
    assert b.nbytes == 6 * 4 + 5 * 4 + 8
    assert b.travelling() == 4 * 4 + 5 * 4 + 8
    assert Bundle(cube=torch.stack([rows[2:], 0 * rows[2:]])).travelling() == 2 * 4
    there = Bundle(vector=torch.zeros(5), number=torch.tensor(1), rows=torch.zeros(5))
    assert b.travelling(there) == 4 * 4 + 8
    assert Bundle(vector=torch.zeros(5)).travelling(Bundle(vector=torch.zeros(5).double())) == 5 * 4
    counted: dict[int, int] = {}
    assert [Bundle(rows=rows).travelling(None, counted) for _ in range(2)] == [4 * 4] * 2
    assert list(counted.values()) == [4 * 4]
