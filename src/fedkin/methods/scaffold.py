"""SCAFFOLD: control variates of server and clients take the drift out of clients' steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkin.capabilities import Logs, Needs, PrivateSums, RobustMeans, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all
from fedkin.functional.step_size import accumulated_step


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """One global model; every client step is corrected by the difference of the mean gradient and its own last one."""

    paper = (
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD, Stochastic Controlled Averaging for Federated "
        "Learning, ICML 2020"
    )
    family = "one global model"

    server_lr: float = 1.0
    """The server's step size (the paper's global step size eta_g): 1 takes the mean of the clients' models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "server_lr", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start and c = 0."""
        return Bundle(model=r.w0, c=torch.zeros(r.net.params.stop))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Rescale c to the new number of clients, so that it stays the mean of all c_i."""
        # joining clients have c_i = 0
        return s.but(c=s.c * (1 - len(r.ids) / len(r.roster)))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the model x and the control variate c to every participant."""
        return to_all(model=s.model, c=s.c)

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send the model x to every client."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Take steps along g_i(y) + c - c_i from x, renew c_i by Option II, and return y and the change of c_i."""
        x, params = c.received.model, c.net.params
        old = c.state.get("c", torch.zeros_like(c.received.c))
        drift = torch.zeros_like(x)  # without running statistics: these stay 0
        drift[params] = c.received.c - old
        y = yield Train(x, linear=drift)  # Eq. 3
        moved = accumulated_step(c.training, len(c.data), skip_single=c.net.batchnorm)  # K eta_l
        new = old - c.received.c + (x - y)[params] / moved if moved else old.clone()  # Eq. 4, Option II
        c.state = Bundle(c=new)
        return Bundle(model=y, change=new - old)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return x + eta_g mean_S(y_i - x) and c + |S|/N mean_S(c_i+ - c_i), N counting all clients (Eq. 5)."""
        even, params = r.but(uniform=True), r.net.params
        model = even.mean(up.model)  # of which the running statistics are kept
        step = (model.double() - s.model.double())[params]
        model[params] = (s.model[params].double() + self.server_lr * step).to(model.dtype)
        # N counts all clients that have joined, not the participants
        return Bundle(model=model, c=s.c + len(r.ids) / len(r.roster) * even.mean(up.change))

    def _pools(self, s: Bundle, r: Round) -> Bundle:
        """Return one pool with equal weights: the server needs plain means of all uploads."""
        return Bundle(group=torch.zeros_like(r.ids), weight=r.but(uniform=True).weight)

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return the norm of c, which estimates the gradient of the mean loss."""
        return {"gradient_norm": float(s.c.norm())}

    can = (
        RobustMeans(),
        PrivateSums(_pools),
        Uploads("its model and its mean gradient"),
        Needs(sgd="its control variates are changes divided by the sum of step sizes"),
        Logs(_numbers),
    )
