"""What a network is given: the data's own samples, of their own type; and what is said where it fails on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core import ModelError, Net
from refusals import refuses
from toys import close

WORDS = torch.tensor([[7, 3, 0, 0], [1, 9, 4, 0], [2, 2, 8, 5]])


class Words(nn.Module):
    """Mean of embeddings, then a linear layer."""

    def __init__(self, rows: int = 10) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(rows, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.emb(x).mean(1))


class Long(Words):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.long())


class Attends(Words):
    """Padding, 0, is masked; a sample of padding alone has no logits."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 0).all(1).any()):
            raise ValueError("a sample of padding alone")
        e = self.emb(x.long())
        return self.fc(self.attend(e, e, e, key_padding_mask=x == 0)[0].mean(1))


class OneHot(Words):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.one_hot(x, 10)[..., :6].float().mean(1))


class Reads(Words):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(self.emb(x))[0][:, -1])


def of_numbers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def of_series() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("make", [Words, Long, Attends, OneHot, Reads])
def test_a_network_of_indices_is_given_whole_numbers(make: Callable[[], nn.Module]) -> None:
    """It is checked with samples of the data, and its inputs stay int64. Without data, at a server, it is made too."""
    net = Net(make, (4,), 3, samples=WORDS)
    assert (net.dtype, net.layout(WORDS).dtype, net.inputs(5).dtype) == (torch.int64,) * 3
    assert torch.equal(net.inputs(3), WORDS[[0, 1, 0]])
    assert torch.equal(net.second(net.second.w0, WORDS), Net.second.fget(net)(net.second.w0, WORDS))  # type: ignore[attr-defined]
    assert net.second.dtype == torch.int64
    bare = Net(make, (4,), 3)
    assert bare(bare.w0, WORDS).shape == (3, 3)
    assert torch.equal(bare.w0, net.w0)


@pytest.mark.parametrize("make", [of_numbers, of_series, lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))])
def test_a_network_of_numbers_is_given_floats(make: Callable[[], nn.Module]) -> None:
    """Whole numbers are features to it, of the same value."""
    net = Net(make, (4,), 3, samples=WORDS)
    assert net.dtype == torch.float32
    assert torch.equal(net(net.w0, net.layout(WORDS)), net(net.w0, WORDS.float()))


def test_the_data_are_not_changed() -> None:
    """A network that works in place is refused before it has touched a sample."""

    class Shifts(Words):
        def forward(self, x: Tensor) -> Tensor:
            x += 1
            return super().forward(x)

    data = WORDS.clone()
    with refuses(ModelError, "changes its inputs in place"):
        Net(Shifts, (4,), 3, samples=data)
    assert torch.equal(data, WORDS)


@dataclass
class Output:
    """As the package transformers gives it."""

    logits: Tensor
    loss: object = None


class Gives(nn.Module):
    """Something made of its logits."""

    def __init__(self, what: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.what, self.fc = what, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> object:
        return self.what(self.fc(x))


def test_an_object_with_logits() -> None:
    """They are the output; features, gradients and frozen passes as of a tensor."""
    x = torch.randn(5, 4)
    net, plain = Net(lambda: Gives(Output), (4,), 3), Net(lambda: Gives(lambda z: z), (4,), 3)
    assert torch.equal(net(net.w0, x), plain(plain.w0, x))
    assert torch.equal(net.features_and_logits(net.w0, x)[1], plain(plain.w0, x))
    assert torch.equal(net.frozen(net.w0, x), plain(plain.w0, x))


@pytest.mark.parametrize(
    ("what", "got"),
    [
        (lambda z: (z, z), "gives an object of type tuple"),
        (lambda z: [z], "gives an object of type list"),
        (lambda z: {"logits": z}, "gives an object of type dict"),
        (lambda z: None, "gives an object of type NoneType"),
        (lambda z: Output(None), "gives an object of type Output"),  # type: ignore[arg-type]
        (lambda z: z.argmax(1), "gives int64 [2]"),
        (lambda z: F.one_hot(z.argmax(1), 3), "gives int64 [2, 3]"),
        (lambda z: z.sum(), "gives float32 []"),
        (lambda z: z[:, :1].sigmoid(), "gives float32 [2, 1]"),
        (lambda z: z.unsqueeze(1), "gives float32 [2, 1, 3]"),
    ],
)
def test_what_is_no_logits(what: Callable[[Tensor], object], got: str) -> None:
    """One sentence with what it gives, and what is expected."""
    with refuses(ModelError, f"Gives {got}", "expected logits [B, 3]"):
        Net(lambda: Gives(what), (4,), 3)


def test_one_output_for_two_classes() -> None:
    """A sigmoid is another way of training, so its head gets one more output and not a new name."""
    with refuses(ModelError, "one output for two classes", "two outputs, and leave out the sigmoid"):
        Net(lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), (4,), 2)


class Fails(nn.Module):
    """Raises where an input is above 1."""

    def __init__(self, e: Exception, always: bool = True) -> None:
        super().__init__()
        self.e, self.always, self.fc = e, always, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.always or bool((x > 1).any()):
            raise self.e
        return self.fc(x)


FAULTS = [
    IndexError("no row 5"),
    KeyError("k"),
    AssertionError(),
    AttributeError("no shape"),
    ZeroDivisionError("by 0"),
]


@pytest.mark.parametrize("e", FAULTS, ids=repr)
def test_whatever_a_network_raises(e: Exception) -> None:
    """Where it is made, and later on other values: one error with the network, its own text and its line."""
    facts = ("Fails fails on inputs of shape [4] (float32, ", f"{type(e).__name__}: ", "(test_net_inputs.py, line ")
    with refuses(ModelError, *facts):
        Net(lambda: Fails(e), (4,), 3)
    net = Net(lambda: Fails(e, always=False), (4,), 3)
    with refuses(ModelError, *facts):
        net(net.w0, torch.full((2, 4), 2.0))


def test_too_few_rows_of_an_embedding() -> None:
    """The message says how many the inputs need, where a network is made and later."""
    with refuses(ModelError, "index out of range in self", "a row for each of the numbers, at least 9 + 1"):
        Net(lambda: Words(5), (4,), 3, samples=WORDS)
    net = Net(lambda: Words(10), (4,), 3, samples=WORDS)
    with refuses(ModelError, "at least 12 + 1"):
        net(net.w0, WORDS + 3)


# ---- what is not trained --------------------------------------------------------------------------------------------
def backbone(*, fixed: bool = True) -> nn.Module:
    """Batch normalisation, with and without parameters, and dropout in a part that may be fixed; then two layers."""
    first = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6, affine=False), nn.Dropout(0.5))
    made = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    for p in first.parameters():
        p.requires_grad = not fixed
    return made


class Adapted(nn.Module):
    """A fixed linear layer and a trained change of low rank, as a LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.a = nn.Linear(4, 6).requires_grad_(False), nn.Parameter(torch.randn(2, 4))
        self.b, self.fc = nn.Parameter(torch.ones(6, 2)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.base(x) + x @ self.a.T @ self.b.T).relu())


class Tied(nn.Module):
    """A fixed weight in two places, and a bias of one of them that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight
        self.one.weight.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.two(self.one(x).relu()))


@pytest.mark.parametrize(
    ("make", "fixed"),
    [
        (
            backbone,
            "0.0.weight 0.0.bias 0.1.weight 0.1.bias 0.1.running_mean 0.1.running_var 0.2.running_mean 0.2.running_var",
        ),
        (Adapted, "base.weight base.bias"),
        (Tied, "one.weight"),
    ],
)
def test_the_vector_is_what_is_trained(make: Callable[[], nn.Module], fixed: str) -> None:
    """Its logits and gradient are the module's; what is fixed is in no vector, and does not change."""
    net, x, y = Net(make, (4,), 3, seed=5), torch.randn(7, 4), torch.arange(7) % 3
    assert list(net.fixed) == fixed.split()
    assert not set(net.names) & set(net.fixed)
    before = {n: t.clone() for n, t in net.fixed.items()}
    module = make().eval()
    w = net.fresh(3)
    module.load_state_dict({**net.unflatten(w), **net.fixed}, strict=False)
    close(net(w, x), module(x))
    moved = w.clone().requires_grad_(True)
    F.cross_entropy(net(moved, x), y).backward()
    F.cross_entropy(module(x), y).backward()
    assert moved.grad is not None
    for name, g in net.unflatten(moved.grad).items():
        if name in dict(module.named_parameters()):
            close(g, module.get_parameter(name).grad)
    train = net.training()
    F.cross_entropy(train(w.clone().requires_grad_(True), x), y).backward()
    assert all(torch.equal(t, before[n]) for n, t in net.fixed.items())


def test_a_fixed_part_is_in_evaluation_mode() -> None:
    """Its dropout and batch normalisation as in evaluation, those after it as in training; one sample trains where all
    batch normalisation is fixed."""
    net = Net(backbone, (4,), 3)
    net.training()(net.w0, torch.randn(5, 4))
    (first, _, _, norm, _) = net.module.children()
    assert [m.training for m in first.children()] == [False] * 4
    assert norm.training
    alone = Net(lambda: nn.Sequential(nn.BatchNorm1d(4).requires_grad_(False), nn.Linear(4, 3)), (4,), 3)
    assert (net.batchnorm, alone.batchnorm) == (True, False)
    assert not alone.statistics


def test_what_is_fixed_is_in_no_start_and_no_part() -> None:
    """Random starts share constants, the second network has its own; layers are counted without fixed ones."""
    net = Net(Adapted, (4,), 3, seed=2)
    assert len(net.fresh(1)) == net.size == 2 * 4 + 6 * 2 + 6 * 3 + 3
    assert not torch.equal(net.second.fixed["base.weight"], net.fixed["base.weight"])
    again = Net(Adapted, (4,), 3, seed=2)
    assert torch.equal(again.fixed["base.weight"], net.fixed["base.weight"])
    net = Net(backbone, (4,), 3)
    assert int(net.top(1).sum()) == 5 * 3 + 3
    with refuses(ModelError, "the network has ['2', '3', '4']"):
        net.part("0")
    assert not net.norms[net.head].any()


def test_a_fixed_head_is_refused_and_a_frozen_module_is_trained() -> None:
    """A head that is fixed leaves nothing to send; of a module without any gradient all is trained."""
    with refuses(ModelError, "the head's '1.weight' is not trained"):
        Net(lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3).requires_grad_(False)), (4,), 3)
    net = Net(lambda: backbone(fixed=True).requires_grad_(False), (4,), 3)
    assert not net.fixed
    assert torch.equal(net.w0, Net(lambda: backbone(fixed=False), (4,), 3).w0)
