"""Averages per class and the nearest prototype; the papers' own numbers are among the golden tests."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.functional.prototypes import class_average, nearness
from toys import close


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 5), classes=st.integers(1, 4), d=st.integers(1, 3), seed=st.integers(0, 999))
def test_average_is_over_owners_only(m: int, classes: int, d: int, seed: int) -> None:
    """Whatever those say that do not have the class, the average is that of the others; nobody's class keeps its row;
    permuting clients changes nothing."""
    rng = torch.Generator().manual_seed(seed)
    rows, old = torch.randn(m, classes, d, generator=rng), torch.randn(classes, d, generator=rng)
    weight = torch.randint(0, 3, (m, classes), generator=rng)
    found = class_average(rows, weight, old)
    for c in range(classes):
        w = weight[:, c].double()
        wanted = old[c].double() if w.sum() == 0 else (w[:, None] * rows[:, c]).sum(0) / w.sum()
        close(found[c], wanted, 1e-5)
    junk = torch.where(weight[..., None] > 0, rows, torch.full_like(rows, 1e6))
    assert torch.equal(class_average(junk, weight, old), found)
    order = torch.randperm(m, generator=rng)
    close(class_average(rows[order], weight[order], old), found, 1e-5)


def test_the_nearest_prototype() -> None:
    """Far from the origin differences decide, not a Gram matrix; unknown classes are never nearest."""
    a = torch.full((1, 512), 4096.0)
    prototypes = torch.cat([a + 0.02, a + 0.01])
    found = nearness(a, prototypes, torch.tensor([True, True]))
    assert int(found.argmax()) == 1
    close(found, -(prototypes - a).double().square().sum(1)[None], 1e-4)
    found = nearness(torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [9.0, 9.0]]), torch.tensor([False, True]))
    assert found.tolist() == [[-torch.inf, -162.0]]
    assert nearness(torch.zeros(0, 2), torch.zeros(3, 2), torch.ones(3, dtype=torch.bool)).shape == (0, 3)
