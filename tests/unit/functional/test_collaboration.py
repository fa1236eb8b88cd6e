"""Who collaborates and with what weight; the paper's own cases are among the golden tests of PFedCS."""

import pytest
import torch

from fedkin.functional.collaboration import candidates, customised_weights, row_distances, threshold
from fedkin.functional.grouping import two_gaussians
from toys import close


def test_row_distances_are_relative_and_exactly_zero_for_equals() -> None:
    """Squared distances 0, 1, 4 divided by 4; an equal classifier is at exactly 0, far from the origin too."""
    heads = torch.tensor([[0.0], [1.0], [2.0]]) + 4096
    close(row_distances(heads, 0), [0, 0.25, 1])
    same = torch.randn(1, 50).expand(3, -1) * 1e4
    assert row_distances(same, 1).tolist() == [0, 0, 0]


def test_one_candidate() -> None:
    """One other is a candidate whatever its distance, except by the fixed rule."""
    for rule in ("gmm", "kmeans", "hier"):
        assert candidates(torch.tensor([1.0]), rule).tolist() == [True]
    assert candidates(torch.tensor([1.0]), "fixed").tolist() == [False]


def test_nobody_else() -> None:
    """No others: no candidates, threshold 0."""
    assert candidates(torch.zeros(0), "gmm").shape == (0,)
    assert threshold(torch.zeros(0), 1, 5) == 0.0


@pytest.mark.parametrize("rule", ["gmm", "kmeans", "hier"])
def test_equal_distances_are_all_candidates(rule: str) -> None:
    """Equal up to rounding: all, where a mixture of two normals would find an empty component."""
    assert bool(candidates(torch.tensor([0.3, 0.3 + 1e-15, 0.3], dtype=torch.float64), rule).all())


def test_nearly_equal_distances_leave_somebody() -> None:
    """Others at .9999, 1, 1 (closer than the mixture's least standard deviation, 1e-3): both components of a mixture of
    normals coincide and the larger takes everybody; that makes all of them candidates, as at equal distances."""
    d = torch.tensor([0.9999, 1.0, 1.0], dtype=torch.float64)
    assert not bool(two_gaussians(d).any())
    assert candidates(d, "gmm").tolist() == [True, True, True]


def test_fixed_rule_includes_its_border() -> None:
    """d <= fixed."""
    assert candidates(torch.tensor([0.2, 0.5, 0.51]), "fixed").tolist() == [True, True, False]


def test_threshold_falls_from_mean_to_minimum() -> None:
    """d = (0, 1), beta = 4: .5 - t/8."""
    d = torch.tensor([0.0, 1.0], dtype=torch.float64)
    close([threshold(d, t, 4) for t in (1, 2, 3, 4, 9)], [0.375, 0.25, 0.125, 0, 0], 1e-15)


def test_nobody_chosen_leaves_the_own_classifier() -> None:
    """No collaborators: weight 1 on k in every reading."""
    for reading in ("union", "others", "literal-norm"):
        p = customised_weights(
            torch.tensor([0.5, 0.0, 1.0]), torch.zeros(3, dtype=torch.bool), 1, torch.tensor([5, 6, 7]), 0.5, reading
        )
        assert p.tolist() == [0.0, 1.0, 0.0]


def test_farthest_of_the_group_has_no_similarity_weight() -> None:
    """lam = 1: (Dmax - D)/sum over G = {0 (k), .2, 1}: weights 1, .8, 0 over 1.8; clients outside G get nothing."""
    d = torch.tensor([0.2, 0.0, 1.0, 0.1], dtype=torch.float64)
    chosen = torch.tensor([True, False, True, False])
    p = customised_weights(d, chosen, 1, torch.tensor([5, 6, 7, 8]), 1.0, "union")
    close(p, [0.8 / 1.8, 1 / 1.8, 0, 0], 1e-12)


def test_data_size_alone() -> None:
    """lam = 0: shares of samples within G; without k in "others"."""
    d = torch.tensor([0.2, 0.0, 1.0], dtype=torch.float64)
    chosen, sizes = torch.tensor([True, False, True]), torch.tensor([10, 20, 30])
    close(customised_weights(d, chosen, 1, sizes, 0.0, "union"), [1 / 6, 1 / 3, 1 / 2], 1e-12)
    close(customised_weights(d, chosen, 1, sizes, 0.0, "others"), [0.25, 0, 0.75], 1e-12)
