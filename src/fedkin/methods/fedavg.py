"""FedAvg: one global model, the weighted mean of the models that the sampled clients trained."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.capabilities import PrivateSums, RobustMeans, Role, Uploads, Views
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class FedAvg(Method):
    """One global model: the mean of the clients' models, weighted by their samples."""

    paper = "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning, AISTATS 2017"
    family = "one global model"

    after_training: bool = False
    """Also evaluate each client's model right after its own training (FedAvg-local); keeps one model per client."""

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model on the client's data and return it (McMahan et al., ClientUpdate)."""
        w = yield Train(c.received.model)
        c.state = Bundle(local=w) if self.after_training else c.state
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the models' mean, weighted by samples: sum_k n_k / n w_k (McMahan et al., Algorithm 1)."""
        return Bundle(model=r.mean(up.model))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "local", with `after_training`."""
        return {"local": Bundle(model=c.state.get("local", c.received.model))} if self.after_training else {}

    can = (Role("average"), RobustMeans(alone=True), PrivateSums(), Uploads("its model"), Views(_views))
