"""What leaves a client is read off a run, not off the author's word: four methods whose messages are known."""

import pytest

from fedkin.methods import get_method
from fedkin.testing.payloads import payloads


@pytest.mark.parametrize(
    ("name", "sends", "models"),
    [("fedavg", "`model` [P]", 1.0), ("local", "", 0.0), ("fedper", "`body` [B]", None)],
)
def test_what_is_sent_back(name: str, sends: str, models: float | None) -> None:
    """FedAvg sends its model, FedPer all but the head, which stays, Local nothing."""
    found = payloads(get_method(name))
    assert found.cell("sends") == sends
    if models is None:
        assert 0 < found.models("sends") < 1
        assert "`head`" in found.cell("keeps")
    else:
        assert found.models("sends") == models


def test_what_is_said_and_what_only_some_messages_have() -> None:
    """DA-PFL says its class counts at joining; PFedCS sends models in its first stage, classifiers in its second, so
    both are in brackets."""
    assert payloads(get_method("da-pfl")).cell("says") == "`counts` [C] int"
    cell = payloads(get_method("pfedcs")).cell("sends")
    assert "(`head`" in cell
