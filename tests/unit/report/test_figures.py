"""Figures show the numbers they were given: checked in the data of the specifications; each is drawn once."""

import numpy as np
import pytest

from fedkin.core.errors import DataError
from fedkin.evaluate import Conclusion, Harmed, against, difference
from fedkin.report import accuracy, charts, client_table, clusters, costs, figures, naming, spreads, weights
from fedkin.report.folder import Run, by_title


def values(figure: figures.Figure) -> list[dict]:
    """The data of a figure, which must be one that can be drawn."""
    assert charts.svg(figure.titled).startswith("<svg")
    return figure.spec["data"]["values"]


def of(rows: list[dict], series: str) -> list[float]:
    return [row["value"] for row in rows if row["series"] == series]


# ---- accuracy


def test_one_run_has_mean_worst_tenth_band_and_local(made):
    """The line is the mean in per cent, with ± one standard deviation; the dashed level is Local."""
    figure = accuracy.over_rounds(by_title([made(gains={0: -0.2})]), local=0.5)
    rows = values(figure)
    assert of(rows, "mean over clients") == [75.0] * 3
    assert of(rows, "worst 10 %") == [60.0] * 3
    assert of(rows, "Local, final") == [50.0, 50.0]
    assert (rows[0]["round"], rows[0]["low"], rows[0]["high"]) == (1, 70.0, 80.0)
    assert figure.fact == "DA-PFL: 75.0 % on average (round 3), 60.0 % for the worst tenth of clients"


def test_the_band_never_leaves_per_cent(made):
    """Mean 99 % plus a standard deviation of 5 points is drawn as 100 %."""
    assert max(row.get("high", 0) for row in values(accuracy.over_rounds(by_title([made(top=0.99)])))) == 100.0


def test_a_run_that_was_never_evaluated_still_draws():
    """No data: an empty chart that says so."""
    figure = accuracy.over_rounds({"X": [Run("X")]})
    assert values(figure) == []
    assert figure.fact == "X: no round was evaluated"


def test_missing_values_are_left_out(made):
    """None in a line is no point, not an error."""
    run = made()
    run.rounds[1].update(accuracy=None, std=None, worst_decile=None)
    rows = values(accuracy.over_rounds(by_title([run])))
    assert [row["round"] for row in rows if row["series"] == "mean over clients"] == [1, 3]


def test_methods_are_overlaid_with_mean_and_spread_over_seeds(made):
    """Seeds at 60 and 80 %: the line is at 70, the band at ± 14.1 (sample std); the order is by final accuracy."""
    runs = [made("A", 0, top=0.6), made("A", 1, top=0.8), made("Local", 0, top=0.9)]
    figure = accuracy.over_rounds(by_title(runs))
    rows = [row for row in values(figure) if row["measure"] == "mean over clients"]
    assert of(rows, "A") == [70.0] * 3
    assert rows[0]["high"] - rows[0]["low"] == pytest.approx(2 * 100 * np.std([0.6, 0.8], ddof=1), abs=0.02)
    assert list(figure.series) == ["Local", "A"]
    assert figure.fact == "Local ends highest (mean ± std over 2 seeds)"


def test_many_methods_get_no_bands_and_distinct_styles(made):
    """22 methods: no bands to hide the lines, and no two look the same."""
    groups = by_title([made(f"M{i}", s) for i in range(22) for s in range(2)])
    figure = accuracy.over_rounds(groups)
    assert [layer["mark"]["type"] for layer in figure.spec["layer"]] == ["line"]
    looks = zip(figures.colours(list(groups)).values(), map(tuple, figures.dashes(list(groups)).values()), strict=True)
    assert len(set(looks)) == 22


def test_the_reference_is_always_grey():
    """Wherever it stands in the order, the others keep the palette's first colours."""
    assert figures.colours(["A", "Local", "B"]) == {
        "A": charts.PALETTE[0],
        "Local": figures.REFERENCE,
        "B": charts.PALETTE[1],
    }


def test_long_runs_are_thinned(made):
    """Of 1,000 rounds 200 are drawn, the first and the last among them."""
    rows = values(accuracy.over_rounds(by_title([made(rounds=1000)])))
    drawn = [row["round"] for row in rows if row["series"] == "mean over clients"]
    assert (len(drawn), drawn[0], drawn[-1]) == (figures.MOST_POINTS, 1, 1000)


def test_final_accuracies_are_ordered_with_spread_and_local_line(made):
    """A row per method, best first; the text has mean and spread; the fact counts who is above Local."""
    runs = [made("A", 0, top=0.6), made("A", 1, top=0.8), made("Local", 0, top=0.65), made("Z", 0, top=0.5)]
    figure = accuracy.final_accuracies(by_title(runs))
    rows = values(figure)
    assert [(row["series"], row["value"], row["text"]) for row in rows] == [
        ("A", 70.0, "70.0 ± 14.1"), ("Local", 65.0, "65.0"), ("Z", 50.0, "50.0"),
    ]  # fmt: skip
    assert figure.spec["layer"][0]["encoding"]["x"]["datum"] == 65.0
    assert figure.fact == "A is highest with 70.0 %; 1 of 2 is above Local"


def test_gains_of_methods_stand_in_order_of_their_mean():
    """Each client is a dot at its gain, of the colour of its kind."""
    a = against({0: 0.5, 1: 0.5, 2: 0.5}, {0: 0.6, 1: 0.4, 2: 0.5})
    b = against({0: 0.5, 1: 0.5}, {0: 0.7, 1: 0.6})
    figure = spreads.gains({"A": [a], "B": [b]})
    rows = values(figure)
    assert [(r["series"], r["gain"], r["kind"]) for r in rows] == [
        ("B", 20.0, "above"), ("B", 10.0, "above"), ("A", 10.0, "above"), ("A", -10.0, "below"),
        ("A", 0.0, "equal"),
    ]  # fmt: skip
    assert figure.fact == "B: +15.0 points over Local on average, the most of all methods"


def test_the_fact_of_gains_is_the_range_of_harmed_clients():
    """Of two methods that of the lowest upper end; of one its own."""
    one = {"A": [against({0: 0.5}, {0: 0.6})], "B": [against({0: 0.5}, {0: 0.7})]}
    found = {t: Conclusion(difference([{0: 0.1}]), h) for t, h in (("A", Harmed(0, 3, 10)), ("B", Harmed(2, 4, 10)))}
    assert spreads.gains(one, found).fact == (
        "A: between 0 and 3 of 10 clients are harmed compared with Local (90 %), the lowest upper end of all methods"
    )
    assert spreads.gains({"B": one["B"]}, found).fact == (
        "B: between 2 and 4 of 10 clients are harmed compared with Local (90 %)"
    )
    alone = {"Local (full)": found["A"], "B": found["B"]}  # a reference row is not the fact where there are methods
    assert spreads.gains({"Local (full)": one["A"], "B": one["B"]}, alone).fact.startswith("B: between 2 and 4 of 10")


def test_gains_of_thousands_of_clients_are_counted():
    """10,000 clients are no 10,000 dots; every client is in one of them."""
    n = 10_000
    rows = values(spreads.gains({"A": [against(dict.fromkeys(range(n), 0.5), {i: i / n for i in range(n)})]}))
    assert len(rows) < 300
    assert sum(row["clients"] for row in rows) == n


def test_the_distribution_is_the_clients_in_order(made):
    """Worst first, at the middle of each client's share."""
    rows = values(spreads.distribution(by_title([made(gains={2: -0.2})])))
    assert [(row["share"], row["value"]) for row in rows] == [(12.5, 60.0), (37.5, 80.0), (62.5, 80.0), (87.5, 80.0)]


def test_methods_that_send_nothing_are_named_together(made):
    """One method sends next to nothing, or two."""
    runs = [made(title) for title in ("Local", "Local (full)", "M")]
    for run in runs[:2]:
        for line in run.rounds:
            line["bytes_up"], line["bytes_down"] = 10, 10
    assert " Local sends next to nothing: level, at its final" in costs.over_bytes(by_title(runs[::2])).caption
    both = costs.over_bytes(by_title(runs)).caption
    assert " Local and Local (full) send next to nothing: level, at their final accuracy." in both


def test_kinds_of_classes_bytes_and_seconds(made, folder):
    """Medium and many are there, few is not; bytes add up; seconds are there where a folder has a timing."""
    groups = by_title([made()])
    assert [(row["kind"], row["value"]) for row in values(costs.classes(groups))] == [("medium", 50.0), ("many", 90.0)]
    assert [row["mb"] for row in values(costs.over_bytes(groups))] == [3.0, 6.0, 9.0]
    assert costs.seconds(groups) is None
    path = folder()
    (path / "timing.jsonl").write_text('{"round": 1, "server_s": 1.5}\n{"round": 2, "server_s": 2, "exchange_s": 3}\n')
    rows = values(costs.seconds({"A": [Run("A", folder=path)]}))
    assert {row["part"]: row["seconds"] for row in rows} == {
        "server": 3.5,
        "clients and messages": 3.0,
        "evaluation": 0,
    }


# ---- who learned from whom


LINES = [
    {"round": 1, "kind": "weights", "rows": {"0": {"1": 1.0}, "2": {"0": 1.0}}},
    {"round": 2, "kind": "weights", "rows": {"0": {"1": 0.5, "0": 0.5}}},
    {"round": 2, "kind": "clusters", "labels": [0, 0, 0]},
]


def maps(lines: list[dict], order: list[int], rounds: list[int], most: int) -> weights.Frames | None:
    """Frames of clients that have no names."""
    return weights.frames(lines, order, naming.along(order, naming.called(len(order), ())), rounds, most)


def test_mean_weights_average_the_rounds_a_client_was_in():
    """Client 0 gives 1.0 then 0.5 to client 1: mean .75; client 2, in one round only, keeps its row; 1 has none."""
    assert weights.mean_rows(LINES) == {0: {1: 0.75, 0: 0.25}, 2: {0: 1.0}}


def test_frames_hold_each_round_in_the_order_of_the_map():
    """Order 2, 0, 1; 254 is the highest weight, 255 a client that said nothing in that round."""
    found = maps(LINES, [2, 0, 1], [1, 2], 10)
    assert found.rounds == [(1, 1), (2, 2)]
    assert found.cells[0].tolist() == [[0, 254, 0], [0, 0, 254], [255] * 3]
    assert found.cells[1].tolist() == [[255] * 3, [0, 127, 127], [255] * 3]
    assert found.mean.tolist() == [[0, 254, 0], [0, 64, 190], [255] * 3]
    figure = weights.weights_figure(found, "fact")
    assert {"client": "2", "from": "0", "weight": 1.0} in values(figure)


def test_more_rounds_than_frames_are_averaged():
    """Ten rounds in two frames of five."""
    lines = [{"round": r, "kind": "weights", "rows": {"0": {"1": float(r > 5)}, "1": {"0": 1.0}}} for r in range(1, 11)]
    found = maps(lines, [0, 1], range(1, 11), 2)
    assert found.rounds == [(1, 5), (6, 10)]
    assert found.cells[:, 0, 1].tolist() == [0, 254]


def test_many_clients_share_rows():
    """250 clients in 100 rows; each learns from itself alone, so all weight stays on the diagonal."""
    lines = [{"round": 1, "kind": "weights", "rows": {str(i): {str(i): 1.0} for i in range(250)}}]
    found = maps(lines, list(range(250)), [1], 5)
    assert found.cells.shape == (1, 100, 100)
    assert (found.cells[0] == 254 * np.eye(100)).all()
    assert "share a row" in weights.weights_figure(found, "f").caption


def test_a_large_own_weight_does_not_drown_the_others():
    """Own weight .9, others .1: the colours end at .1 and the legend says so."""
    lines = [{"round": 1, "kind": "weights", "rows": {"0": {"0": 0.9, "1": 0.1}, "1": {"1": 0.9, "0": 0.1}}}]
    found = maps(lines, [0, 1], [1], 5)
    assert (found.high, found.drowned) == (0.1, True)
    title = weights.weights_figure(found, "f").spec["encoding"]["color"]["title"]
    assert "own weight is off the scale" in title


def test_nothing_said_is_no_map():
    """A run that recorded no weights or clusters has no picture."""
    assert maps([], [0, 1], [1], 5) is None
    assert weights.weights_fact({}) == "no client said whom it learned from"
    with pytest.raises(DataError, match=r"got \[0, 0\]"):
        clusters.cluster_figures("M", clusters.cluster_table([]), [], [])


def test_the_fact_of_weights_with_and_without_groups():
    """Two of three rows go to the own group, two of six ordered pairs are in one. Without groups: how many others."""
    rows = {"0": {"2": 1.0}, "1": {"0": 1.0}, "2": {"0": 1.0}}
    lines = [{"round": 1, "kind": "weights", "rows": rows}]
    assert (
        weights.weights_fact(weights.mean_rows(lines), [1, 0, 1])
        == "67 % of weight on others is in the own group (chance: 33 %)"
    )
    lines = [{"round": 1, "kind": "weights", "rows": {"0": {"0": 0.5, "1": 0.25, "2": 0.25}}}]
    assert weights.weights_fact(weights.mean_rows(lines)) == "a client learns from about 2.0 others; own weight 50 %"
    assert weights.weights_fact({0: {0: 1.0}}) == ("no client learned from another")


def test_clusters_have_members_sizes_and_the_last_move():
    """Three clients over rounds 2, 4, 6; client 1 moves to cluster 7 in round 6; unknown is left out."""
    lines = [
        {"round": 2, "kind": "clusters", "labels": [0, 0, -1]},
        {"round": 4, "kind": "clusters", "labels": [0, 0, 7]},
        {"round": 6, "kind": "clusters", "labels": [0, 7, 7]},
    ]
    found = clusters.cluster_table(lines)
    assert found.rounds == [2, 4, 6]
    assert found.labels.tolist() == [[0, 0, 0], [0, 0, 7], [-1, 7, 7]]
    members, sizes = clusters.cluster_figures("M", found, [0, 1, 2], ["a", "b", "c"], [0, 1, 1])
    assert len(values(members)) == 8
    assert {"round": 6, "client": "b", "cluster": 7} in values(members)
    assert [row["clients"] for row in values(sizes)] == [2, 0, 2, 1, 1, 2]
    assert members.fact == "M: 3 clients end in 2 clusters; the last move is in round 6; ARI 1.00"


@pytest.mark.parametrize(("count", "kinds"), [(1, 1), (2, 2), (150, 40), (300, 5)])
def test_clusters_of_any_size(count, kinds):
    """One client, two, 150 in 40 clusters; of 300 only the sizes are drawn; becoming known is no move."""
    labels = np.tile(np.arange(count)[:, None] % kinds, (1, 5))
    labels[:, 0] = -1
    found = clusters.Clusters([1, 2, 3, 4, 5], labels)
    drawn = clusters.cluster_figures("M", found, range(count), naming.called(count, ()))
    assert {row["round"] for row in values(drawn[-1])} == {2, 3, 4, 5}  # nothing is known of the first
    assert [figure.name for figure in drawn] == ([] if count > 200 else ["clusters"]) + ["cluster-sizes"]
    assert all(values(figure) for figure in drawn)
    assert "no client ever moves" in clusters.clusters_fact([1, 2, 3, 4, 5], labels)


def test_the_usual_cluster_is_the_most_frequent_of_the_last_fifth():
    """Ten rounds, the last two count; and eleven, the last three: the most frequent one, of equally frequent ones the
    later; the last known one for a client that is in none there; -1 for one that never was in any."""
    early = [[5, 5, 5, 5, 5, 5, 5, 5]] * 4
    rows = np.array([[*row, *late] for row, late in zip(early, ([1, 2], [2, 1], [-1, 3], [-1, -1]), strict=True)])
    assert clusters.usual(rows).tolist() == [2, 1, 3, 5]
    rows = np.array([[5] * 8 + late for late in ([1, 1, 2], [1, 2, 2], [3, 2, 1], [-1, 0, -1])] + [[-1] * 11])
    assert clusters.usual(rows).tolist() == [1, 2, 1, 0, -1]


def test_an_empty_cluster_has_a_line_of_its_own():
    """Three clusters, the last of them empty: the chart of sizes shows 0 for it."""
    lines = [{"round": r, "kind": "clusters", "labels": [0, 1, 1]} for r in (1, 2)]
    found = clusters.cluster_table(lines, [{"round": 1, "cluster_sizes": [1, 2, 0]}, {"round": 2}])
    assert found.names == [0, 1, 2]
    _, sizes = clusters.cluster_figures("M", found, [0, 1, 2], ["a", "b", "c"])
    assert {"round": 2, "cluster": 2, "clients": 0} in values(sizes)


def test_no_known_cluster_at_all():
    """Only -1: an empty picture that says so."""
    assert clusters.clusters_fact([1], np.full((3, 1), -1), [0, 0, 1]) == "no cluster is known"


# ---- single clients


def test_the_table_of_clients(made):
    """Columns by hand: samples, classes, accuracy, gain, rounds; the series is in thousandths."""
    run = made(clients=2, gains={1: -0.2}, relations="weights", clients_info=None)
    run.clients[0]["labels"] = [5, 0, 7]
    run.rounds[0]["answered"] = [0]
    p = client_table.client_table_of(run)
    found = client_table.table(run, p, {"Local": {0: 0.1}}, weights.mean_rows(run.relations))
    columns = found["columns"]
    assert columns["client"] == [0, 1]
    assert columns["training samples"] == [12, None]
    assert columns["classes"] == [2, None]
    assert columns["accuracy %"] == [80.0, 60.0]
    assert columns["gain over Local"] == [10.0, None]
    assert columns["rounds taken part"] == [3, 2]
    assert found["series"] == [[800] * 3, [600] * 3]
    assert found["partners"][0] == [[0, 0.75], [1, 0.25]]
    labels = values(client_table.labels_figure(p, [1, 0], ["bern", "aarau"], ["well", "ill"]))
    assert labels == [
        {"client": "aarau", "class": "well", "samples": 5}, {"client": "aarau", "class": "2", "samples": 7},
    ]  # fmt: skip


def test_the_table_of_thousands_of_clients_holds_the_worst_and_the_best(made):
    """Of 3,000 clients 1,000 have a row, the worst among them; the page says of how many."""
    run = made(clients=3000, gains={7: -0.5, 2000: 0.1}, rounds=1)
    p = client_table.client_table_of(run)
    found = client_table.table(run, p, {}, {})
    assert (len(found["columns"]["client"]), found["of"]) == (client_table.MOST_ROWS, 3000)
    assert {7, 2000} <= set(found["columns"]["client"])
