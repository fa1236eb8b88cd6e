"""Figures show the numbers they were given: checked on the artists, not on pixels."""

import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedkin.core.errors import DataError
from fedkin.evaluate import against
from fedkin.report import plots, relations, style
from fedkin.report.folder import Run, by_title


def drawn(figure: Figure) -> Figure:
    """The figure after a full drawing, which meets every warning there is."""
    figure.canvas.draw()
    return figure


def title(figure: Figure) -> str:
    return figure.get_suptitle()


# ---- accuracy over rounds


def test_accuracy_over_rounds_draws_mean_band_and_local(made):
    """The line is the mean in per cent, the band ends at the worst decile, the dashed line is Local."""
    figure = drawn(plots.accuracy_over_rounds(made(gains={0: -0.2}), local=0.5))
    axes = figure.axes[0]
    line, local = axes.get_lines()
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata() == pytest.approx([75.0] * 3)
    assert list(local.get_ydata()) == [50.0, 50.0]
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (pytest.approx(60.0), pytest.approx(80.0))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "test accuracy of clients (%)")
    assert title(figure) == "DA-PFL: 75.0 % on average, 60.0 % for the worst tenth of clients"


def test_the_band_never_leaves_per_cent(made):
    """Mean 99 % plus a standard deviation of 5 points is drawn as 100 %."""
    figure = drawn(plots.accuracy_over_rounds(made(top=0.99)))
    assert figure.axes[0].collections[0].get_paths()[0].vertices[:, 1].max() == 100.0


def test_a_run_that_was_never_evaluated_still_draws():
    """No data: empty axes that say so."""
    assert title(drawn(plots.accuracy_over_rounds(Run("X")))) == "X: no evaluated round"


def test_missing_values_leave_gaps(made):
    """None in a line becomes a gap, not an error."""
    run = made()
    run.rounds[1].update(accuracy=None, std=None, worst_decile=None)
    y = drawn(plots.accuracy_over_rounds(run)).axes[0].get_lines()[0].get_ydata()
    assert np.isnan(y).tolist() == [False, True, False]


def test_methods_are_overlaid_with_mean_and_spread_over_seeds(made):
    """Seeds at 60 and 80 %: the line is at 70, the band at ± 14.1 (sample std); the legend is by final accuracy."""
    runs = [made("A", 0, top=0.6), made("A", 1, top=0.8), made("Local", 0, top=0.9)]
    figure = drawn(plots.accuracy_of_methods(by_title(runs)))
    axes = figure.axes[0]
    assert axes.get_lines()[0].get_ydata() == pytest.approx([70.0] * 3)
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert edges.max() - edges.min() == pytest.approx(2 * 100 * np.std([0.6, 0.8], ddof=1))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["Local", "A"]
    assert title(figure) == "Local ends highest (mean ± std over 2 seeds)"


def test_many_methods_get_no_bands_and_distinct_styles(made):
    """22 methods: no bands to hide the lines, and no two look the same."""
    runs = [made(f"M{i}", s) for i in range(22) for s in range(2)]
    axes = drawn(plots.accuracy_of_methods(by_title(runs))).axes[0]
    assert not axes.collections
    assert len({(line.get_color(), str(line._unscaled_dash_pattern)) for line in axes.get_lines()}) == 22


def test_the_reference_is_always_grey():
    """Local looks the same wherever it stands, and takes no colour from the palette."""
    looks = style.styles(["Local", "A", "B"])
    assert looks["Local"].colour == style.REFERENCE
    assert (looks["A"].colour, looks["B"].colour) == style.PALETTE[:2]


# ---- per client


def test_gain_plot_colours_helped_and_harmed():
    """Gains -10, 0, +20 in order; harmed in one colour, unchanged grey, helped in another."""
    local = {0: 0.5, 1: 0.5, 2: 0.5}
    figure = drawn(plots.gain_per_client("M", local, {0: 0.7, 1: 0.4, 2: 0.5}))
    left, right = figure.axes
    dots = right.collections[1]
    assert dots.get_offsets()[:, 1].tolist() == pytest.approx([-10.0, 0.0, 20.0])
    assert [to_hex(c).upper() for c in dots.get_facecolors()] == [style.HARMED, style.UNCHANGED, style.HELPED]
    assert left.collections[0].get_offsets()[:, 1].tolist() == pytest.approx([40.0, 50.0, 70.0])
    assert [label.get_text() for label in right.get_xticklabels()] == ["1", "2", "0"]
    assert title(figure) == "M: 1 of 3 clients gain over Local, 1 lose"
    assert left.get_xlabel() == "accuracy with Local (%)"
    assert right.get_ylabel() == "gain over Local (points)"


@pytest.mark.parametrize("clients", [1, 2, 150])
def test_gain_plot_of_any_number_of_clients(clients):
    """One, two or 150 clients: a dot each; beyond 40 no crowd of ids on the axis."""
    local = dict.fromkeys(range(clients), 0.5)
    figure = drawn(plots.gain_per_client("M", local, {i: 0.5 + i / 1000 for i in range(clients)}))
    right = figure.axes[1]
    assert len(right.collections[1].get_offsets()) == clients
    assert len(right.get_xticks()) <= 40


def test_gains_of_methods_stand_in_order_of_their_mean():
    """Rows from the lowest mean gain up; the tick is at the mean; the least harmful method is named."""
    local = {0: 0.5, 1: 0.5}
    good, bad = against(local, {0: 0.6, 1: 0.7}), against(local, {0: 0.4, 1: 0.5})
    figure = drawn(plots.gains_of_methods({"good": [good], "bad": [bad]}))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["bad", "good"]
    assert axes.collections[1].get_offsets()[:, 0].tolist() == pytest.approx([10.0, 20.0])
    assert axes.get_lines()[1].get_xdata() == pytest.approx([15.0, 15.0])
    assert title(figure) == "good: no client loses to Local"


# ---- per method


def test_final_accuracies_are_ordered_with_spread_and_local_line(made):
    """A (60 and 80 %) above Local (50 %): the mean's dot at 70, both seeds shown, the line at 50."""
    runs = [made("A", 0, top=0.6), made("A", 1, top=0.8), made("Local", 0, top=0.5)]
    figure = drawn(plots.final_accuracies(by_title(runs)))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Local", "A"]
    assert axes.get_lines()[0].get_xdata() == pytest.approx([50.0, 50.0])
    assert axes.collections[0].get_offsets()[:, 0].tolist() == pytest.approx([60.0, 80.0])
    assert {text.get_text() for text in axes.texts} == {"50.0", "70.0 ± 14.1"}
    assert title(figure) == "A is highest with 70.0 %; 1 of 1 is above Local"


def test_final_accuracies_without_any_figure():
    """Runs that were never evaluated give an empty figure, not an error."""
    assert title(drawn(plots.final_accuracies({"A": [Run("A")]}))) == "No method has a final accuracy"


# ---- who learned from whom


def test_mean_weights_average_the_rounds_a_client_was_in():
    """Client 0 gives 1.0 then 0.5 to client 1: mean .75; client 2, in one round only, keeps its row; 1 has none."""
    lines = [
        {"round": 1, "kind": "weights", "rows": {"0": {"1": 1.0}, "2": {"0": 1.0}}},
        {"round": 2, "kind": "weights", "rows": {"0": {"1": 0.5, "0": 0.5}}},
        {"round": 2, "kind": "clusters", "labels": [0, 0, 0]},
    ]
    weights = relations.mean_weights(lines)
    assert weights[0].tolist() == [0.25, 0.75, 0.0]
    assert np.isnan(weights[1]).all()
    assert weights[2].tolist() == [1.0, 0.0, 0.0]


def test_weights_map_is_ordered_by_group():
    """Groups 1, 0, 1: client 1 comes first; all weight on the other client of the own group: 100 %."""
    weights = np.array([[0, 0, 1.0], [1.0, 0, 0], [1.0, 0, 0]])
    figure = drawn(relations.weights_map(weights, [1, 0, 1], "M"))
    axes = figure.axes[0]
    assert axes.images[0].get_array().tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["group 0", "group 1"]
    # two of three rows go to their own group; of the six ordered pairs of clients two are in one group
    assert title(figure) == "M: 67 % of weight on others is in the own group (chance: 33 %)"


def test_weights_map_without_groups_says_how_many_others():
    """Own weight a half, the rest on two others alike: about 2.0 others, 50 % own."""
    weights = np.array([[0.5, 0.25, 0.25]] + [[np.nan] * 3] * 2)
    figure = drawn(relations.weights_map(weights))
    assert title(figure) == "a client learns from about 2.0 others; own weight 50 %"
    assert figure.axes[0].images[0].get_array().mask[1:].all()


def test_a_large_own_weight_does_not_drown_the_others():
    """Own weight .9, others .1: the colours end at .1 and the bar says so."""
    weights = np.array([[0.9, 0.1], [0.1, 0.9]])
    figure = drawn(relations.weights_map(weights))
    assert figure.axes[0].images[0].get_clim() == (0.0, 0.1)
    assert "own weight is off the scale" in figure.axes[1].get_ylabel()


@pytest.mark.parametrize("clients", [1, 2, 150])
@pytest.mark.parametrize("known", [False, True])
def test_weights_map_of_any_number_of_clients(clients, known):
    """One, two or 150 clients, with and without groups (one unknown); labels stay few."""
    groups = [-1, *(i % 12 for i in range(clients - 1))] if known else None
    figure = drawn(relations.weights_map(np.full((clients, clients), 0.01), groups))
    assert len(figure.axes[0].get_yticklabels()) <= 30


def test_nothing_to_draw_is_an_error():
    """A run that recorded no weights or clusters has no picture."""
    with pytest.raises(DataError, match="no weights"):
        relations.weights_map(relations.mean_weights([]))
    with pytest.raises(DataError, match=r"got \[0, 0\]"):
        relations.cluster_map(*relations.cluster_table([]))


def test_cluster_map_shows_labels_sizes_and_the_last_move():
    """Three clients over rounds 2, 4, 6; client 1 moves to cluster 7 in round 6; unknown is masked."""
    lines = [
        {"round": 2, "kind": "clusters", "labels": [0, 0, -1]},
        {"round": 4, "kind": "clusters", "labels": [0, 0, 7]},
        {"round": 6, "kind": "clusters", "labels": [0, 7, 7]},
    ]
    rounds, labels = relations.cluster_table(lines)
    assert rounds == [2, 4, 6]
    assert labels.tolist() == [[0, 0, 0], [0, 0, 7], [-1, 7, 7]]
    figure = drawn(relations.cluster_map(rounds, labels, [0, 1, 1], "M"))
    upper, lower = figure.axes
    image = upper.images[0].get_array()
    assert image.filled(-1).tolist() == [[0, 0, 0], [0, 0, 1], [-1, 1, 1]]
    assert [line.get_ydata().tolist() for line in lower.get_lines()] == [[2, 2, 1], [0, 1, 2]]
    assert [label.get_text() for label in lower.get_xticklabels()] == ["2", "4", "6"]
    assert title(figure) == "M: 3 clients end in 2 clusters; the last move is in round 6; ARI 1.00"


@pytest.mark.parametrize(("clients", "clusters"), [(1, 1), (2, 2), (150, 40)])
@pytest.mark.parametrize("known", [False, True])
def test_cluster_map_of_any_size(clients, clusters, known):
    """One client, two, or 150 in 40 clusters; becoming known is no move."""
    labels = np.tile(np.arange(clients)[:, None] % clusters, (1, 5))
    labels[:, 0] = -1
    groups = [i % 3 for i in range(clients)] if known else None
    figure = drawn(relations.cluster_map([1, 2, 3, 4, 5], labels, groups))
    assert "nobody ever moves" in title(figure)


def test_no_known_cluster_at_all():
    """Only -1: a grey picture that says so."""
    figure = drawn(relations.cluster_map([1], np.full((3, 1), -1), [0, 0, 1]))
    assert title(figure) == "no cluster is known"


# ---- files


def test_figures_are_saved_by_suffix_and_the_same_each_time(made, tmp_path):
    """PNG and SVG by name; SVG has no date, so the same figure gives the same file."""
    run = made("A $1 & $2")
    assert style.save(plots.accuracy_over_rounds(run), tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    one = style.save(plots.accuracy_over_rounds(run), tmp_path / "a.svg").read_bytes()
    two = style.save(plots.accuracy_over_rounds(run), tmp_path / "b.svg").read_bytes()
    assert one == two
    assert b"<svg" in one
    assert style.save(plots.accuracy_over_rounds(run), tmp_path / "c") == tmp_path / "c.png"


def test_pyplot_is_never_used(made):
    """No display and no figure that stays open: pyplot is not even imported."""
    drawn(plots.accuracy_over_rounds(made()))
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("groups", [None, [0, 1, -1, 0, 1, 1, 0]])
def test_the_fact_of_many_clients_is_that_of_the_map(groups):
    """Summed without a matrix it says the same words, own weights and clients that never said anything included."""
    rng = np.random.default_rng(0)
    lines = []
    for t in range(4):
        cohort = rng.choice(7, size=3, replace=False).tolist()
        rows = {str(i): {str(j): float(rng.random()) for j in cohort} for i in cohort}
        lines.append({"round": t, "kind": "weights", "rows": rows})
    known = 1 + max(int(i) for line in lines for i in line["rows"])
    groups = groups and groups[:known]
    weights = relations.mean_weights(lines)
    assert relations.weights_fact(lines, groups) == title(relations.weights_map(weights, groups))
    alone = [{"round": 1, "kind": "weights", "rows": {"5": {"5": 1.0}}}]
    assert relations.weights_fact(alone) == title(relations.weights_map(relations.mean_weights(alone)))


def test_more_clients_than_a_map_shows():
    """Ids from 1000 on; the last one in a row's columns counts too."""
    for i, j, many in (("1", "999", False), ("1", "1000", True), ("1000", "1", True)):
        assert relations.too_many([{"round": 1, "kind": "weights", "rows": {i: {j: 1.0}}}]) == many
    assert not relations.too_many([{"round": 1, "kind": "clusters", "labels": [0] * 2000}])
