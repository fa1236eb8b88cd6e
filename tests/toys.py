"""Federations small enough for pencil and paper: networks that are a few numbers, losses in closed form.

`ByHand` plays rounds one call at a time, with any loss; `run` sends a method through the real round loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.capabilities import Uploads, has
from fedkin.capabilities.asks import asks
from fedkin.core import (
    Batch,
    Bundle,
    Client,
    ClientData,
    Download,
    Method,
    Net,
    Roster,
    Round,
    Samples,
    Train,
    Training,
    Work,
    stack,
    to_all,
)
from fedkin.core.refusals import Code, Reason, Stage
from fedkin.core.seeds import generator
from fedkin.engines import Loop, drive
from fedkin.engines.loop import sgd
from fedkin.engines.tasks import Job
from fedkin.record.lines import RoundLine
from fedkin.server import Plan, RoundReport, Server, Simulation, begin, rounds

Solve = Callable[[Train, Client], Tensor]


# ---- numbers -------------------------------------------------------------------------------------------------------
def close(got: object, wanted: object, tolerance: float = 1e-6) -> None:
    """Asserts that two tensors, lists or numbers agree to an absolute tolerance, in float64."""
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (got, wanted))
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def squares_apart(rows: Tensor) -> Tensor:
    """Squared Euclidean distances of all pairs of rows, from their differences in float64."""
    x = rows.double()
    return torch.stack([(x - row).square().sum(1) for row in x])


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of its own, away from those that runs draw from."""
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=seeded(seed))


def apart(got: object, other: object, least: float) -> None:
    """Asserts that two results differ by at least so much somewhere."""
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (got, other))
    assert float((a - b).abs().max()) >= least


def tallied(matrix: Tensor) -> Tensor:
    """Numbers of samples, predictions and correct ones by class ``[..., 3, C]`` of confusion matrices ``[..., C, C]``,
    whose rows are true classes."""
    return torch.stack([matrix.sum(-1), matrix.sum(-2), matrix.diagonal(0, -2, -1)], -2)


# ---- networks ------------------------------------------------------------------------------------------------------
def vector_net(*start: float) -> Net:
    """A network that is a vector: its flat vector is ``start``, its one logit ``<w, x>``; it is all head."""

    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(len(start), 1, bias=False))
        with torch.no_grad():
            module[0].weight.copy_(torch.tensor([start]))
        return module

    return Net(build, (len(start),), 1)


def logit_net(classes: int) -> Net:
    """A network whose flat vector is its logits at ``x = 1``."""
    return Net(lambda: nn.Sequential(nn.Linear(1, classes, bias=False)), (1,), classes)


def product_net(head: float, body: float) -> Net:
    """``h * b * x``: the flat vector is ``[h, b]``."""

    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        with torch.no_grad():
            module[0].weight.fill_(body)
            module[1].weight.fill_(head)
        return module

    return Net(build, (1,), 1)


def plane_net(*, bias: bool = False) -> Net:
    """Two features, two classes: the head is a 2 x 2 matrix, row by row (then its bias); the body one more."""
    return Net(lambda: nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=bias)), (2,), 2)


def mlp(seed: int = 0) -> Net:
    """Four inputs, three classes, one hidden layer."""
    return Net(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,), 3, seed=seed)


def mlp_with_batchnorm(seed: int = 0) -> Net:
    """The same with batch normalisation, that is with running statistics and an integer counter."""
    layers = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))  # noqa: E731
    return Net(layers, (4,), 3, seed=seed)


# ---- losses --------------------------------------------------------------------------------------------------------
def quadratic(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """1/2 |w - a|^2, where every sample's input is ``a``."""
    return 0.5 * (w - batch.x.mean(0)).square().sum()


def squares(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """1/2 (net(x) - y)^2."""
    return 0.5 * (net(w, batch.x)[:, 0] - batch.y).square().mean()


# ---- data ----------------------------------------------------------------------------------------------------------
def copies(a: float | Sequence[float], n: int, y: int = 0) -> Samples:
    """``n`` samples with the same input and the same label."""
    x = torch.tensor([[a]] if isinstance(a, int | float) else [list(a)], dtype=torch.float32)
    return Samples(x.repeat(n, 1), torch.full((n,), y))


def blobs(n: int, shares: Sequence[float], seed: int, turn: int = 0) -> Samples:
    """``n`` samples with four inputs around one centre per class, labels turned by ``turn``."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=rng)
    centres = torch.randn(len(shares), 4, generator=torch.Generator().manual_seed(99))
    x = centres[y] + 0.7 * torch.randn(n, 4, generator=rng)
    return Samples(x, (y + turn) % len(shares))


def federation(sizes: Sequence[int] = (9, 23, 14, 30, 11), seed: int = 0) -> list[ClientData]:
    """Clients of unequal sizes with three classes, each with another dominant one; the last turns its labels."""
    out = []
    for i, n in enumerate(sizes):
        shares = [0.15, 0.15, 0.15]
        shares[i % 3] = 0.7
        turn = int(i == len(sizes) - 1)
        parts = [blobs(size, shares, 1000 * seed + 10 * i + k, turn) for k, size in enumerate((n, 5, 8))]
        out.append(ClientData(*parts, group=i % 2))
    return out


# ---- methods -------------------------------------------------------------------------------------------------------
class Averaging:
    """The steps of FedAvg, for methods that differ from it in one: ``class Toy(Averaging, Method)``.

    Not a method itself: those are final.
    """

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=r.mean(up.model))


class Branching(nn.Module):
    """A network whose way depends on values, which no list of layers and no trace can say."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.head(x if float(x.sum()) > 0 else -x)
        return out


# ---- one round at a time -------------------------------------------------------------------------------------------
@dataclass
class TrialClient(Client):
    """A client whose own measure of a model can be any loss."""

    measure: Callable[[Net, Tensor, Batch, Bundle], Tensor] | None = None

    def loss(self, w: Tensor) -> float:
        if self.measure is None:
            return super().loss(w)
        return float(self.measure(self.net, w, Batch(self.data.x, self.data.y), Bundle()))


@dataclass
class ByHand:
    """A federation whose rounds are played one call at a time.

    ``loss`` replaces the loss of every request and the clients' own measure; ``solve`` replaces local training.
    """

    method: Method
    net: Net = field(default_factory=mlp)
    data: Sequence[Samples] = field(default_factory=lambda: [shard.train for shard in federation()])
    training: Training = field(default_factory=lambda: Training(batch_size=1000))
    total: int = 10
    loss: Callable[[Net, Tensor, Batch, Bundle], Tensor] | None = None
    solve: Solve | None = None
    uniform: bool = False
    seed: int = 0
    present: int | None = None
    cohort: int | None = None
    group: Sequence[int] | None = None
    server: Bundle = field(init=False)
    kept: list[Bundle] = field(init=False)
    t: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.kept = [Bundle() for _ in self.data]
        self.roster = Roster(torch.zeros(0, dtype=torch.int64))
        self.server = self.method.init(self.at("init", []))
        self.join(len(self.data) if self.present is None else self.present)

    def join(self, known: int) -> None:
        """Lets clients in, up to so many."""
        new = list(range(len(self.roster), known))
        said = [self.method.describe(self.client(i)) for i in range(known)]
        described = Bundle({n: torch.stack([b[n] for b in said]) for n in said[0]}) if said else Bundle()
        self.roster = Roster(torch.tensor([len(d) for d in self.data[:known]]), described)
        self.server = self.method.admit(self.server, self.at("admit", new))

    def at(self, step: str, ids: Sequence[int], t: int | None = None) -> Round:
        """The server's view of one step."""
        return Round(
            index=self.t if t is None else t,
            rounds=self.total,
            net=self.net,
            roster=self.roster,
            ids=torch.tensor(list(ids), dtype=torch.int64),
            cohort=len(self.data) if self.cohort is None else self.cohort,
            seed=self.seed,
            step=step,
            uniform=self.uniform,
        )

    def client(self, i: int, received: Bundle | None = None) -> TrialClient:
        """A client as it is now."""
        data = self.data[i]
        return TrialClient(
            id=i,
            data=data,
            validation=data,
            net=self.net,
            training=self.training,
            received=received or Bundle(),
            state=self.kept[i],
            seed=self.seed,
            round=self.t,
            group=-1 if self.group is None else self.group[i],
            measure=self.loss,
        )

    def train(self, request: Train, client: Client) -> Tensor:
        """Carries out one request by the real local SGD, with this federation's loss."""
        if self.solve is not None:
            return self.solve(request, client)
        asked = request if self.loss is None else request.but(loss=self.loss)
        return sgd(asked, client.data, self.net, client.training, generator(self.seed, self.t, client.id))

    def download(self, ids: Sequence[int]) -> Download:
        """What the next round gives out."""
        return self.method.distribute(self.server, self.at("distribute", ids, self.t + 1))

    def ask(self, ids: Sequence[int] | None = None) -> Bundle:
        """The survey at the start of the next round; gives the stacked answers of those who were asked."""
        ids = list(range(len(self.roster))) if ids is None else list(ids)
        question = asks(self.method, "round")
        assert question is not None
        sent = question.question(self.method, self.server, self.at("survey", ids, self.t + 1))
        asked = [] if sent is None else [(row, i) for row, i in enumerate(ids) if sent.row(row)]
        if sent is None or not asked:
            return Bundle()
        work = {i: question.answer(self.method, self.client(i, sent.row(row))) for row, i in asked}
        said = stack({i: drive(w, lambda request: request.start).owned() for i, w in work.items()})
        answered = self.at("collect", [i for _, i in asked], self.t + 1)
        self.server = question.collect(self.method, self.server, answered, said)
        return said

    def play(
        self,
        ids: Sequence[int] | None = None,
        change: Callable[[Bundle], Bundle] = lambda up: up,
        drawn: Bundle | None = None,
    ) -> Bundle:
        """One round; gives the stacked uploads, after ``change``. ``drawn``: what ``sample`` said beside the ids."""
        ids = list(range(len(self.data))) if ids is None else list(ids)
        beside = drawn or Bundle()
        sent = self.method.distribute(self.server, self.at("distribute", ids, self.t + 1).but(drawn=beside))
        self.t += 1
        ups = {}
        for row, i in enumerate(ids):
            client = self.client(i, sent.row(row))
            ups[i] = drive(self.method.client_update(client), lambda request, c=client: self.train(request, c)).owned()
            self.kept[i] = client.state.owned()
        up = change(stack(ups))
        self.server = self.method.aggregate(self.server, self.at("aggregate", ids).but(drawn=beside), up)
        return up

    def used(self, i: int) -> Bundle:
        """What client i predicts with now."""
        sent = self.method.deliver(self.server, self.at("evaluate", [i]))
        client = self.client(i, sent.row(0))
        return drive(self.method.personalize(client), lambda request: self.train(request, client))


def two_quadratics(method: Method, steps: int = 2, **changes: Any) -> ByHand:
    """Two clients with L_i = 1/2 (w - a_i)^2, a = (0, 8), n = (30, 10), steps of .5 from 0."""
    training = Training(steps=steps, lr=0.5, batch_size=1000)
    data = [copies(0.0, 30), copies(8.0, 10)]
    return ByHand(method, vector_net(0.0), data, training=training, loss=quadratic, **changes)


# ---- the real round loop -------------------------------------------------------------------------------------------
@dataclass
class Run:
    """What a run left behind."""

    server: Server
    clients: dict[int, Bundle]
    reports: list[RoundReport]

    @property
    def state(self) -> Bundle:
        return self.server.state


def run(
    method: Method,
    net: Net,
    shards: Sequence[ClientData],
    *,
    rounds_: int = 4,
    participation: float = 0.6,
    training: Training | None = None,
    seed: int = 0,
    dropout: float = 0.0,
    joins: list[int] | None = None,
    uniform: bool = False,
    each_round: Callable[[Server, Simulation], None] | None = None,
) -> Run:
    """A method through the real round loop with the reference engine."""
    training = training or Training(epochs=2, batch_size=5, lr=0.1)
    session = Loop().start(Job(method, net, training, list(shards), seed))
    simulation = Simulation(session, len(shards), seed=seed, dropout=dropout, joins=joins)
    plan = Plan(rounds_, participation, seed=seed, weighting="uniform" if uniform else "samples")
    server = begin(method, net, plan)
    reports = []
    for report in rounds(method, net, training, simulation, plan, server):
        reports.append(report)
        if each_round is not None:
            each_round(server, simulation)
    return Run(server, simulation.states(server.acks), reports)


def method(**steps: Callable[..., Any]) -> Method:
    """A method whose clients send what they trained, with other steps put in."""

    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.received.get("model", c.w0))
        c.state = Bundle(model=w)
        return Bundle(model=w)

    body = {
        "init": lambda self, r: Bundle(),
        "distribute": lambda self, s, r: to_all(),
        "client_update": client_update,
        "aggregate": lambda self, s, r, up: s,
        "personalize": lambda self, c: Bundle(model=c.w0),
    }
    made: Method = type("Made", (Method,), {**body, **steps})()
    return made


def refused(of: RoundReport | RoundLine, *stages: Stage) -> dict[int, Code]:
    """The codes of a round's answers that were not used or did not arrive, by client; of its report or its line."""
    return {one.client: one.code for one in of.refused if not stages or one.stage in stages}


def unusable(method: Method, r: Round, up: Bundle) -> Reason | None:
    """Why a method refuses an upload of the right form; None if it does not."""
    judge = (has(method, Uploads) or Uploads()).refuses
    return None if judge is None else judge(method, r, up)
