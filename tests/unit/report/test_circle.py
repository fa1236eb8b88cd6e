"""Clients on a circle: places, labels, links; and what a run's relations are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedkin.report import charts
from fedkin.report.client_table import client_table_of
from fedkin.report.relations import Relations, links, places, relations_of, strongest
from madeup import edit


def relations(run) -> Relations:
    """The relations of a run whose client 1 is harmed."""
    return relations_of(run, client_table_of(run), {1: -0.1}, 10_000, run.relations)[0]


def test_clients_stand_on_a_circle_in_the_order_of_their_groups() -> None:
    """From the top, clockwise; the radius is 1; between groups there is a gap."""
    nodes = places(list("abcd"), [0, 0, 1, 1])
    assert [math.hypot(p.x, p.y) for p in nodes] == pytest.approx([1.0] * 4)
    assert (nodes[0].x > 0, nodes[0].y > 0) == (True, True)
    near, far = (math.dist((a.x, a.y), (b.x, b.y)) for a, b in ((nodes[0], nodes[1]), (nodes[1], nodes[2])))
    assert far > near


def test_of_many_clients_only_harmed_ones_have_a_label() -> None:
    """Of 61 clients the seventh; of 60 all."""
    harmed = [i == 7 for i in range(61)]
    nodes = places([str(i) for i in range(61)], [-1] * 61, harmed=harmed)
    assert [place.name for place in nodes if place.datum["label"]] == ["7"]
    assert all(p.datum["label"] for p in places([str(i) for i in range(60)], [-1] * 60))


def test_at_most_two_links_a_client_are_drawn() -> None:
    """The strongest teachers of each learner; a pair is one link where both share a model; unknown is no link."""
    weights = np.array([[0.5, 0.3, 0.2, 0.1], [0.1, 0.9, np.nan, 0.0], [0.2, 0.2, 0.2, 0.2], [np.nan] * 4])
    pairs, total = strongest(weights, mutual=False)
    assert sorted((i, j) for i, j, _ in pairs) == [(0, 1), (0, 2), (1, 0), (2, 1), (2, 3)]
    assert total == 7
    pairs, total = strongest(np.array([[1, 0.5, 0], [0.5, 1, 1], [0, 1, 1]]), mutual=True)
    assert (pairs, total) == ([(1, 2, 1.0), (0, 1, 0.5)], 2)


def test_a_link_runs_from_the_teacher_to_the_learner() -> None:
    """Three points: the teacher's place, one near the middle, the learner's; the arrow points along the end."""
    nodes = places(list("abcd"), [0, 0, 1, 1])
    rows = links([(0, 2, 0.4)], nodes)
    assert [(row["x"], row["y"]) for row in rows[::2]] == [
        (round(nodes[2].x, 4), round(nodes[2].y, 4)), (round(nodes[0].x, 4), round(nodes[0].y, 4)),
    ]  # fmt: skip
    assert math.hypot(rows[1]["x"], rows[1]["y"]) < 0.4
    assert (rows[0]["from"], rows[0]["client"], rows[0]["group"], rows[0]["w"]) == ("c", "a", -1, 0.4)
    assert "turn" in rows[2]


def test_a_run_with_weights_has_a_circle_and_a_matrix(made) -> None:
    """Client 1 learns from client 2 with a quarter of the weight; both charts can be drawn."""
    found = relations(made(relations="weights"))
    assert (found.kind, found.fact) == ("weights", "DA-PFL gave each client a mix of the others")
    matrix, drawn = found.figures
    assert all(charts.svg(one.titled).startswith("<svg") for one in (matrix, drawn))
    links = next(one["data"]["values"] for one in drawn.spec["layer"] if one["data"]["name"] == "links")
    assert [round(row["w"], 2) for row in links if (row["from"], row["client"]) == ("2", "1")] == [0.25] * 3
    assert drawn.fact == "DA-PFL: 4 links"


def test_a_run_with_groups_has_strip_circle_and_matrix(made) -> None:
    """Two groups of two; with true groups these are the colours, and those found are rings."""
    run = made(relations="clusters")
    found = relations(run)
    assert [one.name for one in found.figures] == ["clusters", "cluster-sizes", "circle", "matrix"]
    assert (found.fact, found.letters, found.order) == (
        "DA-PFL found two groups, of 2 and 2 clients",
        [0, 1],
        [0, 2, 1, 3],
    )
    edit(run, groups=(1, 1, 0, 0))
    grouped = relations(run)
    nodes = next(one["data"]["values"] for one in grouped.figures[2].spec["layer"] if one["data"]["name"] == "nodes")
    assert [(row["client"], row["group"], row["ring"]) for row in nodes] == [
        ("2", 0, 0), ("3", 0, 1), ("0", 1, 0), ("1", 1, 1),
    ]  # fmt: skip
    assert "Adjusted Rand index with the true groups" in grouped.says
