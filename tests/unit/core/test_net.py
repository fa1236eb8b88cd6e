"""A module as a pure function of one flat vector ``[head | body | buffers]``."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedkin.core import MethodError, ModelError, Net
from refusals import refuses
from toys import blobs, close, mlp, mlp_with_batchnorm


def test_layout_of_the_vector() -> None:
    """Head first (its weight, then its bias), then the body, then the float buffers; integer buffers stay out."""
    net = mlp_with_batchnorm()
    assert " ".join(net.names) == ("3.weight 3.bias 0.weight 0.bias 1.weight 1.bias 1.running_mean 1.running_var")
    assert (net.head, net.body) == (slice(0, 21), slice(21, 75))
    assert (net.params, net.buffers) == (slice(0, 63), slice(63, 75))
    assert net.head_weight == slice(0, 18)
    assert net.size == 75
    assert net.batchnorm
    assert not mlp().batchnorm
    assert [s.stop - s.start for s in net.layers()] == [18, 3, 24, 6, 6, 6]


def test_value_and_gradient_are_the_modules() -> None:
    """The same logits and the same gradient as the torch module with these weights."""
    net, data = mlp(), blobs(11, [1.0, 1, 1], 0)
    w = net.w0.requires_grad_(True)
    loss = F.cross_entropy(net(w, data.x), data.y)
    (grad,) = torch.autograd.grad(loss, w)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    module.load_state_dict(net.unflatten(net.w0))
    theirs = F.cross_entropy(module(data.x), data.y)
    theirs.backward()
    close(loss.detach(), theirs.detach(), 0)
    named = dict(module.named_parameters())
    assert torch.equal(grad, torch.cat([named[n].grad.reshape(-1) for n in net.names]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.double(), "the model is float64, its inputs are float32: use .float()"),
        (lambda w: w[:-1], "a model of this network is a vector of 51 numbers, got the shape [50]"),
        (lambda w: w.repeat(4, 1), "a model of this network is a vector of 51 numbers, got the shape [4, 51]"),
    ],
    ids=["type", "length", "rows"],
)
def test_a_vector_that_is_no_model_is_told_from_one(change: Callable[[Tensor], Tensor], message: str) -> None:
    """torch names the sizes of all layers, or a product inside one."""
    net = mlp()
    with refuses(MethodError, message):
        net(change(net.w0), torch.randn(2, 4))


def test_batchnorm_in_training_updates_the_tail_as_a_module_would() -> None:
    """Train mode: batch statistics for the logits, running statistics written into the vector's tail, in place."""
    net, data = mlp_with_batchnorm(), blobs(11, [1.0, 1, 1], 0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    module.load_state_dict(net.unflatten(net.w0), strict=False)
    module.train()
    w = net.w0
    close(net.training()(w, data.x), module(data.x).detach(), 0)
    assert torch.equal(net.flatten(module), w)
    assert not torch.equal(w[net.buffers], net.w0[net.buffers])


def test_partner_inside_a_loss_stands_still() -> None:
    """``frozen`` in a training view: eval mode, no gradient, no written statistics; the view goes on in train mode."""
    net, data = mlp_with_batchnorm(), blobs(11, [1.0, 1, 1], 0)
    moving, partner = net.training(), net.w0
    trained = moving(net.w0, data.x)
    logits = moving.frozen(partner, data.x)
    assert torch.equal(logits, net(net.w0, data.x))
    assert not logits.requires_grad
    assert torch.equal(partner, net.w0)
    assert torch.equal(moving(net.w0, data.x), trained)


@pytest.mark.parametrize("part", ["head", "body"])
def test_only_a_part_has_a_gradient(part: str) -> None:
    """``training(only)``: the rest of the vector gets gradient 0 and, with a frozen body, eval mode."""
    net, data = mlp_with_batchnorm(), blobs(11, [1.0, 1, 1], 0)
    moves = getattr(net, part)
    w = net.w0.requires_grad_(True)
    (grad,) = torch.autograd.grad(F.cross_entropy(net.training(moves)(w, data.x), data.y), w)
    rests = net.body if part == "head" else net.head
    assert not bool(grad[rests].any())
    assert bool(grad[moves].any())
    assert torch.equal(w.detach()[net.buffers], net.w0[net.buffers]) == (part == "head")


def test_a_part_is_named_by_layers_or_kinds() -> None:
    """A mask of parameters and running statistics inside modules; the last layers are the head and those before it."""
    net = mlp_with_batchnorm()  # [3.weight 18, 3.bias 3, 0.weight 24, 0.bias 6, 1.weight 6, 1.bias 6, 1.running 6 + 6]
    numbers = torch.arange(net.size)
    assert numbers[net.part("0")].tolist() == list(range(21, 51))
    assert numbers[net.part("1")].tolist() == list(range(51, 75))
    assert torch.equal(net.norms, net.part("1"))
    assert numbers[net.part(nn.Linear)].tolist() == list(range(51))
    assert bool(net.part(nn.Module).all())
    assert not bool(net.part(nn.Conv2d).any())
    assert not bool(mlp().norms.any())
    nested = Net(lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), nn.Linear(3, 2)), (4,), 2)
    assert torch.equal(nested.part("0"), ~nested.part("1"))
    assert numbers[: nested.size][nested.norms].tolist() == list(range(23, 29))
    net = mlp_with_batchnorm()
    assert torch.equal(net.top(1), net.part("3"))
    assert torch.equal(net.top(2), net.part("1", "3"))
    assert bool(net.top(3).all())
    parts = {"head": nn.Linear(3, 2), "a": nn.Linear(4, 3), "b": nn.Linear(3, 3)}
    order = ("a", "b", "head")
    first = Net(lambda: Ordered(copy.deepcopy(parts), order), (4,), 2)
    assert torch.equal(first.top(2), first.part("b", "head"))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda net: net.part("conv9"), "no layer 'conv9' with parameters; the network has ['0', '1', '3']"),
        (lambda net: net.part("2"), "no layer '2' with parameters"),
        (lambda net: net.top(0), "3 layers with parameters: ['0', '1', '3']; got 0"),
        (lambda net: net.top(4), "got 4"),
    ],
)
def test_a_part_that_is_not_there(ask: Callable[[Net], object], text: str) -> None:
    """The error has the layers that there are."""
    with refuses(ModelError, text):
        ask(mlp_with_batchnorm())


class Ordered(nn.Module):
    """Layers in another order than that of their registration."""

    def __init__(self, layers: dict[str, nn.Module], order: tuple[str, ...]) -> None:
        super().__init__()
        self.order = order
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


def test_statistics_of_a_norm_without_weights_move_in_training() -> None:
    """Batch normalisation with ``affine=False`` has no parameter of its own, but is trained with the body."""
    net = Net(lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3)), (4,), 3)
    w, x = net.w0, blobs(11, [1.0, 1, 1], 0).x
    net.training(net.head)(w, x)
    assert torch.equal(w, net.w0)
    net.training()(w, x)
    assert not bool((w[net.buffers] == net.w0[net.buffers]).any())


def test_features_and_start_vectors() -> None:
    """Features are the head's input; a vector is named tensors and back, buffers included."""
    net, data = mlp(), blobs(7, [1.0, 1, 1], 0)
    z, logits = net.features_and_logits(net.w0, data.x)
    assert z.shape == (7, 6)
    assert torch.equal(net.classify(net.w0[net.head], z), logits)
    other = torch.zeros(21)
    assert not bool(net.classify(other, z).any())
    assert torch.equal(net(net.w0, data.x), logits)
    net = mlp_with_batchnorm()
    w = torch.randn(net.size)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    named = net.unflatten(w)
    module.load_state_dict(named, strict=False)
    assert torch.equal(net.flatten(module), w)
    named["3.bias"].zero_()
    assert bool(w[18:21].any())


def test_starts() -> None:
    """w0 is fixed by the seed and handed out as a copy; ``fresh(0)`` is it, other streams are unrelated; building a
    start leaves the global generator alone."""
    net = mlp(seed=3)
    assert torch.equal(net.w0, mlp(seed=3).w0)
    assert not torch.equal(net.w0, mlp(seed=4).w0)
    net.w0.zero_()
    assert bool(net.w0.any())
    starts = [net.fresh(0), net.fresh(1), net.fresh(2), net.fresh("inner", 0), net.fresh("head", 0)]
    assert torch.equal(starts[0], net.w0)
    assert len(torch.stack(starts).unique(dim=0)) == 5
    assert torch.equal(net.fresh("inner", 0), starts[3])
    before = torch.random.get_rng_state()
    net.fresh(5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_second_network() -> None:
    """Of the first one's kind, with a start of its own; a part of both says what of it moves."""
    net, data = mlp_with_batchnorm(), blobs(11, [1.0, 1, 1], 0)
    view = net.training()
    assert net.networks == (net,)
    assert (net.second.size, net.second.shape, net.second.classes) == (net.size, net.shape, net.classes)
    assert not torch.equal(net.second.w0, net.w0)
    assert torch.equal(mlp_with_batchnorm().second.w0, net.second.w0)
    assert net.networks[1] is net.second is view.networks[1]
    assert len(net.statistics) == 4
    w = net.second.w0
    close(net.second(w, data.x), net.second(net.second.w0, data.x), 0)
    assert torch.equal(w, net.second.w0)
    view.second(w, data.x)
    assert not torch.equal(w[net.buffers], net.second.w0[net.buffers])
    net, data = mlp_with_batchnorm(), blobs(11, [1.0, 1, 1], 0)
    start, size = net.second.w0, net.size
    both = torch.ones(2 * size, dtype=torch.bool)
    for part, moves in ((slice(0, size), False), (slice(size, 2 * size), True), (both, True), (net.norms, False)):
        w = start.clone()
        net.training(part).second(w, data.x)
        assert torch.equal(w, start) != moves
    w = start.clone()
    net.training().second.frozen(w, data.x)
    assert torch.equal(w, start)


def test_matrices_and_columns_are_selected() -> None:
    """All parameters, the head's weight, linear layers; weight decay touches weights with two dimensions."""
    net = mlp_with_batchnorm()
    rows = torch.stack([net.w0, net.fresh(1)])
    assert torch.equal(net.select(rows, "all"), rows[:, net.params])
    assert torch.equal(net.select(rows, "head"), rows[:, net.head_weight])
    assert net.select(rows, "fc").shape == (2, 24 + 6 + 18 + 3)  # without the 12 of batch normalisation
    net = mlp_with_batchnorm()
    mask = net.matrices(net.size)
    assert int(mask.sum()) == 18 + 24
    assert net.matrices(21).tolist() == [1.0] * 18 + [0.0] * 3
    assert net.matrices(net.size + 4)[-4:].tolist() == [1.0] * 4


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(torch.tanh(self.first(x))))


def test_tied_weights_are_one_part_of_the_vector() -> None:
    """A shared matrix is in the vector once and set in both places."""
    net = Net(Tied, (3,), 2)
    assert net.size == 9 + 6 + 2
    w, x = torch.randn(net.size), torch.randn(4, 3)
    named = net.unflatten(w)
    m = named["first.weight"]
    wanted = torch.tanh(x @ m.T) @ m.T @ named["out.weight"].T + named["out.bias"]
    close(net(w, x), wanted, 1e-6)


class Drops(nn.Module):
    """Dropout as a function, in training only or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always, self.body, self.head = always, nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.body(x), 0.5, training=self.always or self.training))


class TiedHead(nn.Module):
    """A head whose matrix is that of a layer before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.out = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(4, 3)
        self.out.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.middle(self.first(x)))


class Viewing(nn.Module):
    """A network that needs its maps in one piece of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 1), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.conv(x).view(len(x), 12))
        return out


def test_a_second_network_takes_the_first_one_s_inputs() -> None:
    """In the memory layout that the first one has its inputs in."""
    net = Net(lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(12, 3)), (2, 2, 2), 3, second=Viewing)
    with refuses(ModelError, "the second network needs x.flatten(1) in place of x.view"):
        _ = net.second


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(2, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def test_recurrent_networks_follow_the_vector() -> None:
    """A GRU's flat weights are those of the vector: another vector, other logits, with a gradient."""
    net, x = Net(Recurrent, (4, 2), 3), torch.randn(2, 4, 2)
    w = net.fresh(1).requires_grad_(True)
    module = Recurrent()
    module.load_state_dict(net.unflatten(w.detach()))
    close(net(w, x).detach(), module(x).detach(), 1e-6)
    (grad,) = torch.autograd.grad(net.training()(w, x).sum(), w)
    assert bool(grad[net.body].any())


def test_the_head_can_be_named() -> None:
    """``head=`` names the classifying layer; by default it is the last linear layer with as many outputs as classes."""
    layers = lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))  # noqa: E731
    assert Net(layers, (3,), 3).head_name == "2"
    assert Net(layers, (3,), 3, head="0").head == slice(0, 12)


def test_layout_of_images() -> None:
    """Convolutions take channels_last where the network can; a network that views its maps does not."""
    conv = lambda flat: nn.Sequential(nn.Conv2d(2, 3, 3), flat, nn.Linear(3 * 4 * 4, 2))  # noqa: E731

    class View(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(x.shape[0], -1)

    net = Net(lambda: conv(nn.Flatten()), (2, 6, 6), 2)
    x = torch.randn(3, 2, 6, 6)
    assert net.channels_last
    assert net.layout(x).is_contiguous(memory_format=torch.channels_last)
    close(net(net.w0, net.layout(x)), net(net.w0, x), 1e-5)
    viewing = Net(lambda: conv(View()), (2, 6, 6), 2)
    assert not viewing.channels_last
    assert viewing.layout(x).is_contiguous()
    assert not mlp().channels_last


def wrapped(norm: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(4, 6), copy.deepcopy(norm), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("factory", "head", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 5)), None, "no linear layer with 3 outputs"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 7)), None, "the last one, '1', has 7"),
        (lambda: nn.Sequential(nn.Flatten()), None, "the number of classes, to serve as the head"),
        (lambda: nn.Linear(4, 3), None, "a single layer, which has no name; wrap it"),
        (lambda: nn.Sequential(nn.Linear(4, 3)), "top", "no module 'top'"),
        (lambda: nn.Sequential(nn.Linear(7, 3)), None, "inputs of shape [4]"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5)), "0", "gives float32 [2, 5]"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4)), "1", "no weight"),
        (lambda: nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 3)), None, "'0.weight' has no shape yet"),
        (
            lambda: nn.Sequential(nn.Linear(4, 6), weight_norm(nn.Linear(6, 3))),
            None,
            "weight of the head '1' is computed",
        ),
        (
            wrapped(nn.BatchNorm1d(6, track_running_stats=False)),
            None,
            "'1' normalises by the statistics of the samples",
        ),
        (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), None, "changes its inputs in place"),
        (lambda: Drops(always=True), None, "training=self.training"),
        (TiedHead, None, "'out.weight' is the same parameter as 'first.weight'"),
    ],
)
def test_networks_that_are_refused(factory: Callable[[], nn.Module], head: str | None, message: str) -> None:
    """What is wrong is in the message. Layers further on may work in place, or drop in training."""
    with refuses(ModelError, message):
        Net(factory, (4,), 3, head=head)
    Net(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (4,), 3)
    Net(lambda: Drops(always=False), (4,), 3)
