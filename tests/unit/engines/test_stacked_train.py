"""Local SGD on a stack gives what `sgd` gives for each request by itself, to float tolerance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedkin.core import Batch, Bundle, Net, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches, orders, sgd
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_rows import Orders, StackPlan, plan, steps_of
from fedkin.engines.stacked_train import StackRequest, Steps, bytes_of, train
from fedkin.engines.turns import Draws
from fedkin.testing.toys import network, samples

NET = network("mlp")
CONV = Net(
    lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ),
    (2, 6, 6),
    3,
)
ENDS = torch.zeros(NET.size, dtype=torch.bool)
ENDS[NET.head_weight], ENDS[-3:] = True, True  # the head's weight, and a part of the body's bias
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def near(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Cross-entropy that needs a tensor of the client's and one row per sample."""
    z, logits = net.features_and_logits(w, batch.x)
    return F.cross_entropy(logits + aux.shift, batch.y) + 0.1 * (z - aux.target[batch.y]).square().mean()


def noise(*stream: int | str, size: int = NET.size) -> Tensor:
    return 0.3 * torch.randn(size, generator=generator(0, *stream))


def place() -> Place:
    return Place("cpu", 0.0, False)


def asked(requests: Sequence[Train], data: Sequence[Samples], training: Training) -> list[StackRequest]:
    draws = [Draws(3, ("update", 1, i, 0)) for i in range(len(requests))]
    return [StackRequest(r, d, training, g) for r, d, g in zip(requests, data, draws, strict=True)]


def agree(requests: Sequence[Train], data: Sequence[Samples], training: Training, net: Net = NET) -> None:
    """Asserts that the stack's vectors are the loop's."""
    one = asked(requests, data, training)
    assert len({a.kind() for a in one}) == 1
    for got, a in zip(train(one, net, place()), one, strict=True):
        wanted = sgd(a.request, a.data, net, training, a.draws.rng())
        torch.testing.assert_close(got, wanted, **TOLERANCE)


def clients(sizes: Sequence[int] = (9, 5, 1, 12)) -> list[Samples]:
    return [samples(0, i, "train", n) for i, n in enumerate(sizes)]


TRAININGS = {
    "plain": Training(epochs=2, batch_size=4, lr=0.1),
    "steps": Training(steps=7, batch_size=4, lr=0.1),
    "momentum": Training(epochs=3, batch_size=4, lr=0.1, momentum=0.9),
    "decay": Training(epochs=2, batch_size=5, lr=0.1, weight_decay=0.05),
    "decay of matrices": Training(epochs=2, batch_size=5, lr=0.1, weight_decay=0.05, decay_biases=False, momentum=0.5),
    "falling": Training(epochs=3, batch_size=4, lr=0.2, epoch_decay=0.5, momentum=0.5),
}
ADAPTIVE = {
    "adam": Training(epochs=3, batch_size=4, lr=0.01, optimizer="adam", weight_decay=0.05, epoch_decay=0.5),
    "adamw": Training(steps=5, batch_size=5, lr=0.01, optimizer="adamw", weight_decay=0.5, decay_biases=False, clip=1),
}
REQUESTS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "head": {"only": NET.head},
    "body": {"only": NET.body},
    "not one slice": {"only": ENDS},
    "proximal": {"center": noise("c"), "mu": 0.5},
    "proximal afterwards": {"center": noise("c"), "mu": 0.5, "prox_after": True},
    "center without weight": {"center": noise("c"), "mu": 0.0},
    "linear": {"linear": noise("l")},
    "clip": {"clip": 0.3},
    "all": dict(only=ENDS, center=noise("c"), mu=0.5, prox_after=True, linear=noise("l"), clip=0.8),  # noqa: C408
    "own settings": {"epochs": 1, "batch_size": 3, "lr": 0.05, "momentum": 0.3, "weight_decay": 0.01},
}


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_stack_trains_as_each_alone(request_: str, training: str) -> None:
    """Every term of a request under every kind of training settings, on clients of 9, 5, 1 and 12 samples."""
    starts = [noise("start", i) for i in range(4)]
    agree([Train(w, **REQUESTS[request_]) for w in starts], clients(), TRAININGS[training])


@pytest.mark.parametrize("request_", ["nothing else", "not one slice", "proximal", "all"])
@pytest.mark.parametrize("training", ADAPTIVE)
def test_adam_s_moments_are_each_row_s_own(request_: str, training: str) -> None:
    """With the number of its steps, which differ as rows wait for a short batch of others and drop out."""
    starts = [noise("start", i) for i in range(4)]
    agree([Train(w, **REQUESTS[request_]) for w in starts], clients(), ADAPTIVE[training])


@pytest.mark.parametrize("seed", range(15))
def test_any_mixture_of_settings_agrees(seed: int) -> None:
    """Settings and sizes drawn at random, some clients without data, each with its own center."""
    draw = random.Random(seed)
    training = Training(
        epochs=draw.randint(1, 3),
        steps=draw.choice([None, 4]),
        batch_size=draw.choice([1, 3, 6]),
        lr=0.1,
        momentum=draw.choice([0, 0.6]),
        weight_decay=draw.choice([0, 0.02]),
        decay_biases=draw.random() < 0.5,
        epoch_decay=draw.choice([1, 0.7]),
    )
    fixed: dict[str, Any] = {
        "only": draw.choice([None, NET.head, NET.body, ENDS]),
        "clip": draw.choice([None, 0.4]),
        "prox_after": draw.random() < 0.5,
    }
    bent, data = draw.random() < 0.5, clients(draw.choices(range(14), k=5))
    pulled = [draw.random() < 0.7 for _ in range(5)]
    requests = [
        Train(
            noise("start", i),
            linear=noise("l", i) if bent else None,
            center=noise("c", i) if pulled[i] else None,
            mu=draw.choice([0.0, 0.5, 2.0]) if pulled[i] else 0.0,
            **fixed,
        )
        for i in range(5)
    ]
    agree(requests, data, training)


def test_what_a_loss_needs_comes_row_by_row() -> None:
    """A tensor of each client's (prototypes) and rows for its samples (logits of a partner)."""
    data = clients()
    requests = [
        Train(
            noise("start", i),
            loss=near,
            aux=Bundle(target=torch.randn(3, 7, generator=generator(1, i))),
            per_sample=Bundle(shift=torch.randn(len(d), 3, generator=generator(2, i))),
        )
        for i, d in enumerate(data)
    ]
    agree(requests, data, TRAININGS["plain"])


def test_a_projection_follows_every_step_of_every_row() -> None:
    """Numbers stay between -.25 and .25, which all starts leave."""
    requests = [Train(noise("start", i), project=small, only=ENDS) for i in range(4)]
    agree(requests, clients(), TRAININGS["momentum"])
    assert all(
        float(w.abs().max()) <= 0.25 for w in train(asked(requests, clients(), TRAININGS["plain"]), NET, place())
    )


def small(w: Tensor) -> Tensor:
    """Numbers between -.25 and .25."""
    return w.clamp(-0.25, 0.25)


def test_convolutions_pooling_and_group_norm() -> None:
    """Images, held channels last on the host, with a part that stands still."""
    images = [
        Samples(
            CONV.layout(torch.randn(n, 2, 6, 6, generator=generator(1, n))),
            torch.randint(0, 3, (n,), generator=generator(2, n)),
        )
        for n in (7, 4, 10)
    ]
    for only in (None, CONV.head, CONV.body, CONV.norms):
        requests = [Train(CONV.w0 + noise("conv", i, size=CONV.size), only=only) for i in range(3)]
        agree(requests, images, TRAININGS["momentum"], CONV)


def test_an_empty_part_or_no_data_leave_the_start_as_it_is() -> None:
    """What does not move comes back in memory of its own; the start is not written to."""
    start = NET.w0
    for request, data in ((Train(start, only=slice(5, 5)), clients((9,))), (Train(start), clients((0,)))):
        (got,) = train(asked([request], data, TRAININGS["momentum"]), NET, place())
        assert torch.equal(got, NET.w0)
        assert got.data_ptr() != start.data_ptr()
    train(asked([Train(start)], clients((9,)), TRAININGS["plain"]), NET, place())
    assert torch.equal(start, NET.w0)


def test_what_is_the_same_for_many_moves_once() -> None:
    """Three rows of one tensor and a fourth: two move; two views of one memory are two."""
    moved: list[int] = []

    class Watched(Place):
        def _staged(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
            moved.append(shape[0])
            return super()._staged(shape, dtype)

    a, b = noise("a"), noise("b")
    rows = Watched("cpu", 0.0, False).rows([a, b, a, a, a[:]])
    assert moved == [2]
    assert torch.equal(rows, torch.stack([a, b, a, a, a]))
    rows[0] += 1
    assert torch.equal(rows[2], a)
    m = noise("m", size=9).view(3, 3)
    assert torch.equal(place().rows([m, m.T]), torch.stack([m, m.T]))


def test_dropout_draws_by_client_and_by_seed() -> None:
    """Rows of equal clients differ by their masks; the same stack again gives the same; another seed another."""
    net = Net(lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 3)), (6,), 3)
    data = clients((8,)) * 2

    def once(seed: int) -> list[Tensor]:
        draws = Draws(seed, ("update", 1, 0, 0))
        return train([StackRequest(Train(net.w0), d, Training(batch_size=8), draws) for d in data], net, place())

    (a, b), again, other = once(1), once(1), once(2)
    assert not torch.equal(a, b)
    assert torch.equal(a, again[0])
    assert not torch.equal(a, other[0])


# ---- kinds --------------------------------------------------------------------------------------------------------
def kind(training: Training = TRAININGS["plain"], **changes: Any) -> object:
    return asked([Train(NET.w0, **changes)], clients((9,)), training)[0].kind()


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        *(({n: v}, True) for n, v in {"epochs": 3, "steps": 2, "batches": 0, "lr": 0.1, "batch_size": 4}.items()),
        ({"center": noise("c"), "mu": 1.0}, True),
        *(({n: v}, False) for n, v in {"lr": 0.2, "batch_size": 5, "momentum": 0.1, "loss": near, "clip": 1.0}.items()),
        *(({n: v}, False) for n, v in {"only": NET.head, "linear": noise("l"), "prox_after": True}.items()),
        *(({n: Bundle(a=torch.zeros(9, 2))}, False) for n in ("aux", "per_sample")),
        *(({n: v}, False) for n, v in {"weight_decay": 0.1, "optimizer": "adam"}.items()),
    ],
)
def test_what_requests_of_one_stack_may_differ_in(changes: dict[str, Any], same: bool) -> None:
    """Number of steps, which batches, the proximal term, settings of its own that are the run's; nothing else."""
    assert (kind(**changes) == kind()) == same


# ---- where tensors are --------------------------------------------------------------------------------------------
class OneDevice(TorchDispatchMode):
    """No operation may mix devices; moving is what copies are for, and a number may come from the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        moves = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        kinds = {t.device.type for t in found if t.dim() or t.device.type != "cpu"}
        assert moves or len(kinds) <= 1, f"{func} mixes {kinds}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("request_", "training"),
    [("nothing else", "momentum"), ("clip", "steps"), ("proximal afterwards", "falling"), ("all", "adamw")],
)
def test_every_tensor_of_a_step_is_on_the_device(request_: str, training: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's "meta" device, which computes shapes only, no step touches a tensor that was left on the host."""
    there, settings = place(), {**TRAININGS, **ADAPTIVE}[training]
    there.device = torch.device("meta")
    monkeypatch.setattr(there, "down", lambda t: torch.zeros_like(t, device="cpu"))
    data = clients()
    extra = [Bundle(offset=torch.zeros(len(d), 3)) for d in data]
    requests = [Train(NET.w0, per_sample=e, **REQUESTS[request_]) for e in extra]
    seen: list[str] = []
    step = Steps.__call__

    def watched(self: Steps, rows: Any, batch: Any, lr: Any) -> None:
        seen.extend(t.device.type for t in (*rows.tensors(), *batch.tensors()))
        step(self, rows, batch, lr)

    monkeypatch.setattr(Steps, "__call__", watched)
    with OneDevice():
        train(asked(requests, data, settings), NET, there)
        assert bytes_of(asked(requests, data, settings)[0], NET, there) > 0
    assert set(seen) == {"meta"}


# ---- memory -------------------------------------------------------------------------------------------------------
def test_what_a_row_takes() -> None:
    """Vectors, data, activations; Adam's moments; unfolded inputs where convolutions are products."""
    data = clients((1000,))
    one = asked([Train(NET.w0)], data, Training(batch_size=100))[0]
    found = bytes_of(one, NET, place())
    assert found > 1000 * 6 * 4 + 100 * 7 * 4 + 3 * NET.size * 4
    assert bytes_of(asked([Train(NET.w0)], data, Training(batch_size=200))[0], NET, place()) > found
    whole = asked([Train(NET.w0)], data, Training(batch_size=10**9))[0]  # a batch of all samples
    assert bytes_of(whole, NET, place(), longest=1000) < 1e6 < bytes_of(whole, NET, place())
    by_adam = bytes_of(asked([Train(NET.w0, optimizer="adam")], data, Training(batch_size=100))[0], NET, place())
    assert by_adam >= found + 2 * 4 * NET.size
    data = Samples(torch.zeros(100, 2, 6, 6), torch.zeros(100, dtype=torch.int64))
    one = asked([Train(CONV.w0)], [data], Training(batch_size=100))[0]
    assert bytes_of(one, CONV, place(), products=True) >= bytes_of(one, CONV, place()) + 100 * 18 * 16 * 4


class Measured(Place):
    """A GPU on which a step takes 50,000 bytes.

    Attributes:
        stepped: number of steps that were measured.
    """

    def __init__(self) -> None:
        super().__init__("cpu", 0.0, False)
        self.cuda, self.stepped = True, 0

    def _staged(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    def peak(self, step: Callable[[], None]) -> int:
        step()
        self.stepped += 1
        return 50_000


def test_on_a_gpu_the_memory_of_a_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, call = list[int](), Steps.__call__

    def watched(self: Steps, rows: Any, batch: Any, lr: Any) -> None:
        stepped.append(len(batch.y))
        call(self, rows, batch, lr)

    monkeypatch.setattr(Steps, "__call__", watched)
    one = asked([Train(NET.w0)], clients((4,)), Training(batch_size=8))[0]
    there, rest = Measured(), 8 * 4 * NET.size + 4 * 6 * 4
    assert bytes_of(one, NET, there) == 2 * 25_000 + rest
    assert (stepped, there.stepped, NET._seen) == ([2, 2], 1, [])
    estimated = bytes_of(one, NET, place())
    monkeypatch.setattr(Steps, "__call__", lambda *given: 1 / 0)
    assert bytes_of(one, NET, Measured()) == estimated

    def fails(*given: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Steps, "__call__", fails)
    with pytest.raises(RuntimeError):
        bytes_of(one, NET, Measured())


# ---- the plan -------------------------------------------------------------------------------------------------------
def drawn(sizes: list[int], training: Training, *, skip_single: bool = False) -> list[Orders]:
    """The epochs of clients of so many samples, those with most steps first."""
    found = [list(orders(n, training, generator(0, i), skip_single=skip_single)) for i, n in enumerate(sizes)]
    return sorted(found, key=lambda mine: -steps_of(mine, training.batch_size))


def members(p: StackPlan) -> list[list[int]]:
    """Who takes each segment."""
    return [list(range(s.m)) if isinstance(s.rows, slice) else s.rows.tolist() for s in p.segments]


def met(p: StackPlan, clients: int) -> list[list[list[int]]]:
    """The batches that each row meets, in order."""
    found: list[list[list[int]]] = [[] for _ in range(clients)]
    for s, rows in zip(p.segments, members(p), strict=True):
        here = slice(s.first, s.first + s.steps * s.m * s.size)
        index, row = (t[here].view(s.steps, s.m, s.size) for t in (p.index, p.row))
        assert row.tolist() == [[[i] * s.size for i in rows]] * s.steps
        for step in index.tolist():
            for i, batch in zip(rows, step, strict=True):
                found[i].append(batch)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_every_client_meets_the_loops_batches_in_their_order(seed: int) -> None:
    """Random sizes, batches, epochs and steps: no batch is padded, left out, moved or met twice."""
    draw = random.Random(seed)
    steps = draw.choice([None, None, 1, 3, 8])
    training = Training(epochs=draw.randint(1, 4), steps=steps, batch_size=draw.choice([1, 2, 5, 8, 40]))
    sizes = sorted(draw.choices(range(30), k=draw.randint(1, 9)), key=lambda n: -training.steps_for(n) if n else 0)
    skip = training.batch_size > 1 and draw.random() < 0.3
    clients = [list(orders(n, training, generator(0, i), skip_single=skip)) for i, n in enumerate(sizes)]
    decays = draw.random() < 0.5
    got = met(plan(clients, training.batch_size, decays=decays), len(sizes))
    for i, n in enumerate(sizes):
        wanted = [index.tolist() for _, index in batches(n, training, generator(0, i), skip_single=skip)]
        assert got[i] == wanted


def test_who_steps_with_whom() -> None:
    """Equal clients all the way; last batches of one size together; of equally many steps the smallest batch first."""
    (s,) = plan(drawn([40, 40, 40], Training(epochs=2, batch_size=10)), 10, decays=False).segments
    assert (s.rows, s.m, s.size, s.steps) == (slice(0, 3), 3, 10, 8)
    p = plan(drawn([13, 23, 33], Training(batch_size=10)), 10, decays=False)
    assert [(s.m, s.size) for s in p.segments] == [(3, 10), (2, 10), (1, 10), (3, 3)]
    p = plan(drawn([13, 20], Training(epochs=2, batch_size=10)), 10, decays=False)
    assert [(s.m, s.size) for s in p.segments[:3]] == [(2, 10), (1, 3), (2, 10)]


def test_epochs_are_told_apart_where_the_step_size_changes() -> None:
    """With a decay after each epoch no segment has steps of two, and each row says in which it is."""
    p = plan(drawn([20, 10], Training(epochs=2, batch_size=10)), 10, decays=True)
    seen: dict[int, list[int]] = {0: [], 1: []}
    for s, rows in zip(p.segments, members(p), strict=True):
        for i, epoch in zip(rows, s.epochs, strict=True):
            seen[i] += [epoch] * s.steps
    assert seen == {0: [0, 0, 1, 1], 1: [0, 1]}


@pytest.mark.parametrize(
    ("sizes", "training", "at_most"),
    [
        ([random.Random(0).randint(50, 350) for _ in range(100)], Training(epochs=5, batch_size=10), 1.35),
        ([200 * i for i in range(1, 26)], Training(epochs=5, batch_size=100), 1.0),
        ([1000 + 250 * i + i for i in range(8)], Training(epochs=5, batch_size=10), 1.1),
    ],
    ids=["many small", "even", "few large"],
)
def test_a_stack_takes_few_steps_more_than_its_largest_client(
    sizes: list[int], training: Training, at_most: float
) -> None:
    """Nobody who is needed waits: launches, as a multiple of the steps of the client with most."""
    clients = drawn(sizes, training)
    taken = sum(s.steps for s in plan(clients, training.batch_size, decays=False).segments)
    assert taken <= at_most * steps_of(clients[0], training.batch_size)
