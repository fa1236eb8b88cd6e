"""Figures show the numbers they were given: checked in the data of the specifications; each is drawn once."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace as replace_line

from fedkin.display import printable
from fedkin.record.lines import RelationLine, RoundLine, TimingLine
from fedkin.record.result import by_title
from fedkin.report import charts, client_table, clusters, costs, curves, figures, weights
from fedkin.report.standings import ClientGain
from madeup import edit


def values(figure: figures.Figure) -> list[dict]:
    """The data of a figure, which must be one that can be drawn."""
    assert charts.svg(figure.titled).startswith("<svg")
    return figure.spec["data"]["values"]


def of(rows: list[dict], series: str) -> list[float]:
    return [row["value"] for row in rows if row["series"] == series]


# ---- accuracy


def test_one_run_has_mean_worst_tenth_band_and_local(made):
    """The line is the mean in per cent, with ± one standard deviation; the dashed level is Local."""
    figure = curves.one_over_rounds(made(gains={0: -0.2}), "Local", 0.5, True)
    rows = values(figure)
    assert of(rows, "mean over clients") == [75.0] * 3
    assert of(rows, "worst 10 %") == [60.0] * 3
    assert of(rows, "Local, final") == [50.0, 50.0]
    assert (rows[0]["round"], rows[0]["low"], rows[0]["high"]) == (1, 70.0, 80.0)


def test_missing_values_are_left_out(made):
    run = made()
    edit(run, lambda line: {"accuracy": None, "std": None, "worst_decile": None} if line.round == 2 else None)
    rows = values(curves.one_over_rounds(run, "Local", None, True))
    assert [row["round"] for row in rows if row["series"] == "mean over clients"] == [1, 3]


def test_methods_are_overlaid_with_mean_and_spread_over_seeds(made):
    """Seeds at 60 and 80 %: the line is at 70, the band at ± 14.1 (sample std); labels by final accuracy."""
    runs = [made("A", 0, top=0.6), made("A", 1, top=0.8), made("Local", 0, top=0.9)]
    figure, worst = curves.over_rounds(by_title(runs))
    rows = values(figure)
    assert of(rows, "A") == [70.0] * 3
    assert rows[0]["high"] - rows[0]["low"] == pytest.approx(2 * 100 * np.std([0.6, 0.8], ddof=1), abs=0.02)
    (ends,) = [
        one["data"]["values"] for one in figure.spec["layer"] if one.get("data", {}).get("values", [{}])[0].get("name")
    ]
    assert [(row["name"], row["text"]) for row in ends] == [("Alone", "90.0"), ("A", "70.0")]
    assert worst.name == "accuracy-over-rounds-worst-tenth"


@pytest.mark.parametrize("title", ["a\\", 'a\\"b', "a\nb", "\u2028", 'say "b"', "FedAvg, α = 1"])
def test_a_title_of_any_signs_is_drawn(made, title):
    """A tooltip's titles become strings of an expression, in which Vega-Lite escapes double quotes only."""
    values(curves.over_rounds(by_title([made(title), made("Local")]))[0])
    assert json.loads('"' + figures.tip_title(title).replace('"', '\\"') + '"') == printable(title)


def test_a_mean_over_seeds_ends_with_the_first_of_them(made):
    """Of seeds that ended after rounds 4 and 6 the mean has four rounds."""
    ends = [("M", 0, 4), ("M", 1, 6), ("Local", 0, 5), ("Local", 1, 5)]
    runs = [made(title, seed, rounds=end) for title, seed, end in ends]
    figure = curves.over_rounds(by_title(runs))[0]
    assert [row["round"] for row in values(figure) if row["series"] == "M"] == [1, 2, 3, 4]
    assert max(row["round"] for row in values(figure) if row["series"] == "Local") == 5


def test_labels_of_curves_never_overlap():
    """Twelve methods at the same accuracy: their labels are a line apart, and all on the chart."""
    for level in (50.0, 0.0):
        ends = figures.end_labels({f"M{i}": level for i in range(12)}, 0, 100, curves.HEIGHT)
        pixels = [(100 - at) * curves.HEIGHT / 100 for _, at in ends]
        assert min(b - a for a, b in pairwise(pixels)) >= 15.9
        assert max(pixels) <= curves.HEIGHT


def test_the_lines_of_one_run_have_its_final_figures_at_their_ends(made):
    """The figure next to a line is the mean over the last rounds, as everywhere on the page, not the last round."""
    run = made("A", top=0.7, rounds=10)
    edit(run, lambda line: {"accuracy": 0.1} if line.round == 10 else None)
    ends = curves.one_over_rounds(run, "Local", 0.5, True).spec["layer"][2]["data"]["values"]
    found = {row["series"]: row["text"] for row in ends}
    assert (found["mean over clients"], found["Local, final"]) == (f"{100 * run.final.accuracy:.1f}", "50.0")
    assert found["mean over clients"] != "10.0"


def test_long_names_are_cut_in_their_middle():
    """Names of hospitals often differ at their ends; short ones stay."""
    names = ["Medical Centre of the North 1", "Medical Centre of the North 2"]
    said = figures.cut_axis(names)["labelExpr"]
    cuts = json.loads(said.removeprefix("(").removesuffix(")[datum.value]"))
    assert list(cuts) == names
    assert [(cut[:5], cut[-1], len(cut) <= 20) for cut in cuts.values()] == [("Medic", "1", True), ("Medic", "2", True)]
    assert figures.cut_axis(["north"]) == {}


def test_of_many_methods_the_best_and_the_references_have_colours(made):
    """22 methods: the best eight and FedAvg are in colour, no two alike; the others are grey, named by their count."""
    runs = [made(f"M{i}", top=0.5 + i / 100) for i in range(20)] + [made("FedAvg", top=0.4), made("Local", top=0.3)]
    groups = by_title(runs)
    shades = figures.shades(groups)
    coloured = {t: c for t, c in shades.items() if c != "var(--same)"}
    assert set(coloured) == {*(f"M{i}" for i in range(12, 20)), "FedAvg"}
    assert len(set(coloured.values())) == 9
    assert figures.prominent(groups)[-1] == "Local"
    assert "Thin and grey: 12 other methods." in curves.over_rounds(groups)[0].caption


def test_grey_lines_are_thin_and_below_the_others(made):
    """In order of clients and over bytes, as over rounds; a caption says how many methods they are."""
    runs = [made(f"M{i}", top=0.9 - i / 100) for i in range(14)]
    figure, sent = costs.distribution(by_title(runs)), costs.over_bytes(by_title(runs))
    assert "Thin and grey: 6 other methods." in figure.caption
    for found in (values(figure), sent.spec["data"]["values"]):
        order = list(dict.fromkeys(row["series"] for row in found))
        assert (set(order[:6]), set(order[6:])) == ({f"M{i}" for i in range(8, 14)}, {f"M{i}" for i in range(8)})
    for channel in ("opacity", "strokeWidth"):
        said = figure.spec["encoding"][channel]
        assert said["condition"]["value"] < said["value"]
        assert all((f'"{run.title}"' in said["condition"]["test"]) == (int(run.title[1:]) < 8) for run in runs)


def test_training_alone_is_grey_and_dashed(made):
    """Outside the twelve colours, as are its dashes and its mark; a method keeps its slot beside it."""
    groups = by_title([made(t) for t in ("DA-PFL", "Local", "Local (full)")])
    assert [c == "var(--same)" for c in figures.shades(groups).values()] == [False, True, True]
    assert figures.dashes(groups) == {"DA-PFL": [1, 0], "Local": [4, 3], "Local (full)": [2, 2]}
    assert figures.shapes(groups)["Local"] == ("stroke", True)


def test_traffic_until_it_beats_training_alone(made):
    """3 MB a round: A is above the 60 % of Local in round 2, after 6 of 9 MB; B, below it, never is, nor C, whose
    accuracy is above it on the way and ends at the same; D is level with it in round 2."""
    runs = {title: made(title) for title in "ABCD"}
    curve = {"A": (0.5, 0.65, 0.7), "B": (0.5, 0.5, 0.5), "C": (0.5, 0.7, 0.4 + 0.2), "D": (0.5, 0.4 + 0.2, 0.7)}
    for title, run in runs.items():
        edit(run, lambda line, of=curve[title]: {"accuracy": of[line.round - 1]})
    figure = curves.traffic(by_title([made("Local", top=0.6), *runs.values()]), "Local")
    assert [(r["method"], r["total"], r["until"], r["text"]) for r in values(figure)] == [
        ("A", 9.0, 6.0, "6 MB, round 2"), ("D", 9.0, 9.0, "9 MB, round 3"), ("C", 9.0, None, "not above"),
        ("B", 9.0, None, "not above"),
    ]  # fmt: skip


def test_the_course_says_who_still_rises(made):
    """Ten rounds: A is level from the start, B gains a tenth in the last two."""
    a, b = made("A", rounds=10), made("B", rounds=10)
    edit(b, lambda line: {"accuracy": 0.9} if line.round > 8 else None)
    assert curves.course(by_title([a, b])) == "B is still rising; the other levels off by round 1"
    again = edit(replace(b), title="A", seed=1)
    assert "A is still rising" in curves.course(by_title([a, again])), "the mean over seeds"


def test_long_runs_are_thinned(made):
    """Of 1,000 rounds 200 are drawn, the first and the last among them."""
    rows = values(curves.one_over_rounds(made(rounds=1000), "Local", None, True))
    drawn = [row["round"] for row in rows if row["series"] == "mean over clients"]
    assert (len(drawn), drawn[0], drawn[-1]) == (figures.MOST_POINTS, 1, 1000)


def test_final_accuracies_are_ordered_with_spread_and_local_line(made):
    """A row per method, best first; the text has mean and spread; the fact counts who is above Local."""
    runs = [made("A", 0, top=0.6), made("A", 1, top=0.8), made("Local", 0, top=0.65), made("Z", 0, top=0.5)]
    figure = curves.final_accuracies(by_title(runs), "Local")
    rows = values(figure)
    assert [(row["series"], row["value"], row["text"]) for row in rows] == [
        ("A", 70.0, "70.0 ± 14.1"), ("Local", 65.0, "65.0"), ("Z", 50.0, "50.0"),
    ]  # fmt: skip
    assert figure.spec["layer"][0]["encoding"]["x"]["datum"] == 65.0
    assert figure.fact == "A is highest with 70.0 %; 1 of 2 is above Local"


def test_every_method_has_its_name_over_bytes(made):
    """However many there are: at the right, a line of text apart, in order of the ends of the lines."""
    runs = [made(f"M{i:02}", top=0.5 + 0.01 * (i % 20)) for i in range(30)]
    for i, run in enumerate(runs):
        edit(run, lambda line, mb=1 + i: {"bytes_up": 1_000_000 * mb})
    figure = costs.over_bytes(by_title(runs))
    ends = figure.spec["layer"][0]["data"]["values"]
    low, high = figure.spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    at = [(high - end["label"]) * figure.spec["height"] / (high - low) for end in ends]
    assert sorted(end["name"] for end in ends) == [run.title for run in runs]
    assert [end["value"] for end in ends] == sorted((end["value"] for end in ends), reverse=True)
    assert min(b - a for a, b in pairwise(at)) >= 15.9
    assert (at[0] >= 0, at[-1] <= figure.spec["height"]) == (True, True)
    assert {end["name"] for end in ends if end["front"]} == {f"M{i:02}" for i in range(20)}  # then it begins again
    assert "The axis starts at 20%." in figure.caption
    assert not any(end["front"] for end in costs.over_bytes(by_title(runs[:1])).spec["layer"][0]["data"]["values"])


def test_kinds_of_classes_bytes_and_seconds(made):
    """Medium and many are there, few is not; bytes add up; seconds are there where a folder has a timing."""
    groups = by_title([made()])
    assert [(row["kind"], row["value"]) for row in values(costs.classes(groups))] == [("medium", 50.0), ("many", 90.0)]
    assert [row["mb"] for row in values(costs.over_bytes(groups))] == [3.0, 6.0, 9.0]
    assert costs.seconds(groups) is None
    lines = [TimingLine(1, 1.5, server=1.5), TimingLine(2, 5.0, server=2.0, exchange=3.0)]
    rows = values(costs.seconds({"A": [replace(made("A"), timing=lines)]}))
    assert {row["part"]: row["seconds"] for row in rows} == {
        "server": 3.5,
        "clients and messages": 3.0,
        "evaluation": 0,
    }


# ---- who learned from whom


LINES = [
    RelationLine(1, {0: {1: 1.0}, 2: {0: 1.0}}),
    RelationLine(2, {0: {1: 0.5, 0: 0.5}}),
    RelationLine(2, clusters=(0, 0, 0)),
]


def maps(lines: list[RelationLine], order: list[int], rounds: list[int], most: int) -> weights.Frames | None:
    """Frames of clients that have no names."""
    return weights.frames(lines, order, figures.along(order, figures.called(len(order), ())), rounds, most)


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
    lines = [RelationLine(r, {0: {1: float(r > 5)}, 1: {0: 1.0}}) for r in range(1, 11)]
    found = maps(lines, [0, 1], range(1, 11), 2)
    assert found.rounds == [(1, 5), (6, 10)]
    assert found.cells[:, 0, 1].tolist() == [0, 254]


def test_a_large_own_weight_does_not_drown_the_others():
    """Own weight .9, others .1: the colours end at .1 and the legend says so."""
    lines = [RelationLine(1, {0: {0: 0.9, 1: 0.1}, 1: {1: 0.9, 0: 0.1}})]
    found = maps(lines, [0, 1], [1], 5)
    assert (found.high, found.drowned) == (0.1, True)
    title = weights.weights_figure(found, "f").spec["layer"][0]["encoding"]["color"]["title"]
    assert "own weight is off the scale" in title


def test_clusters_have_members_sizes_and_the_last_move():
    """Three clients over rounds 2, 4, 6; client 1 moves to cluster 7 in round 6; unknown is left out."""
    lines = [
        RelationLine(2, clusters=(0, 0, -1)),
        RelationLine(4, clusters=(0, 0, 7)),
        RelationLine(6, clusters=(0, 7, 7)),
    ]
    found = clusters.cluster_table(lines)
    assert found.rounds == [2, 4, 6]
    assert found.labels.tolist() == [[0, 0, 0], [0, 0, 7], [-1, 7, 7]]
    members, sizes = clusters.cluster_figures("M", found, [0, 1, 2], ["a", "b", "c"], [0, 1, 1])
    assert len(values(members)) == 8
    assert {"round": 6, "client": "b", "group": "A"} in values(members)
    assert [(r["round"], r["group"], r["clients"]) for r in values(sizes)] == [
        (2, "B", 2), (4, "A", 1), (4, "B", 2), (6, "A", 2), (6, "B", 1),
    ]  # fmt: skip
    assert members.fact == "M: 3 clients end in 2 clusters; the last move is in round 6; ARI 1.00"


@pytest.mark.parametrize(("count", "kinds"), [(1, 1), (2, 2), (150, 40), (300, 5)])
def test_clusters_of_any_size(count, kinds):
    """One client, two, 150 in 40 clusters; of 300 only the sizes are drawn; becoming known is no move."""
    labels = np.tile(np.arange(count)[:, None] % kinds, (1, 5))
    labels[:, 0] = -1
    found = clusters.Clusters([1, 2, 3, 4, 5], labels)
    drawn = clusters.cluster_figures("M", found, range(count), figures.called(count, ()))
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


def test_letters_of_groups_go_by_size():
    """Cluster 1 has two of three clients: it is A; an empty cluster comes last; after Z comes AA."""
    lines = [RelationLine(r, clusters=(0, 1, 1)) for r in (1, 2)]
    found = clusters.cluster_table(lines, [RoundLine(1, cluster_sizes=(1, 2, 0)), RoundLine(2)])
    assert found.names == [0, 1, 2]
    assert clusters.letters(found, [0, 1, 1]) == {1: 0, 0: 1, 2: 2}
    assert [clusters.letter(n) for n in (0, 25, 26, 27)] == ["A", "Z", "AA", "AB"]


def test_clients_that_shared_a_model():
    """Clients 0 and 1 share a group in one of two rounds with groups, 1 and 2 in the other."""
    found = clusters.Clusters([1, 2, 3], np.array([[-1, 0, 0], [-1, 0, 1], [-1, 1, 1]]))
    shared = clusters.together(found, [0, 1, 2])
    assert shared.tolist() == [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]
    figure = clusters.together_figure("M", shared, ["a", "b", "c"], [0, 1, 1])
    groups = {(row["client"], row["from"]): row["group"] for row in values(figure)}
    assert (groups["a", "a"], groups["a", "b"], groups["b", "c"]) == (-2, -1, 1)


# ---- single clients


def test_the_table_of_clients(made):
    """Columns by hand: samples, classes, accuracy, gain, rounds; the series is in thousandths."""
    run = made(clients=2, gains={1: -0.2}, relations="weights")
    run.clients[0] = replace_line(run.clients[0], labels=(5, 0, 7))
    run.rounds[0] = replace_line(run.rounds[0], answered=(0,))
    p = client_table.client_table_of(run)
    gain = ClientGain(0, 0, 0.1, 0.8, 10, 1, 0.25)
    found = client_table.table(run, [p], {"Local": [{0: gain}]}, weights.mean_rows(run.relations))
    columns = found["columns"]
    assert columns["client"] == [0, 1]
    assert columns["training samples"] == [12, None]
    assert columns["classes"] == [2, None]
    assert columns["accuracy %"] == [80.0, 60.0]
    assert columns["gain over Local"] == [10.0, None]
    assert columns["p over Local"] == [0.25, None]
    assert columns["rounds taken part"] == [3, 2]
    assert found["series"] == [[800] * 3, [600] * 3]
    assert found["partners"][0] == [[0, 0.75], [1, 0.25]]
    figure, counts = client_table.labels_figure(p, [1, 0], ["bern", "aarau"], ["well", "ill"])
    assert counts.tolist() == [[0, 0, 0], [5, 0, 7]]
    assert values(figure) == [
        {"client": "aarau", "class": "well", "samples": 5}, {"client": "aarau", "class": "2", "samples": 7},
    ]  # fmt: skip


def test_the_table_of_thousands_of_clients_holds_the_worst_and_the_best(made):
    """Of 3,000 clients 1,000 have a row, the worst among them; the page says of how many."""
    run = made(clients=3000, gains={7: -0.5, 2000: 0.1}, rounds=1)
    p = client_table.client_table_of(run)
    found = client_table.table(run, [p], {}, {})
    assert (len(found["columns"]["client"]), found["of"]) == (client_table.MOST_ROWS, 3000)
    assert {7, 2000} <= set(found["columns"]["client"])


@pytest.mark.parametrize(
    ("values", "limits", "named"),
    [
        ({"A": 95.1, "B": 95.0}, {"apart": 1.0}, ""),
        ({"A": 94.0, "B": 95.0}, {"apart": 1.0}, "B"),
        ({"A": 15.0, "B": 15.0, "C": 2.0}, {"times": 1.1}, ""),
        ({"A": 10.0, "B": 11.1, "C": 2.0}, {"times": 1.1}, "B"),
        ({"A": 0.0, "B": 0.0}, {"apart": 1.0}, ""),
        ({"A": 3.0}, {"times": 1.1}, "A"),
        ({}, {"apart": 1.0}, ""),
    ],
)
def test_a_title_names_the_first_only_where_it_is_clearly_first(
    values: dict[str, float], limits: dict[str, float], named: str
) -> None:
    """By a point of accuracy, or a tenth of a cost; alone it is always named."""
    assert figures.leader(values, **limits) == named
