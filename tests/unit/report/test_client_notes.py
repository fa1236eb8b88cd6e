"""The figure of the numbers that a method notes on each client."""

from fedkin.record.result import Result
from fedkin.report import charts, costs, figures
from madeup import about, client_line, round_line


def values(figure: figures.Figure) -> list[dict]:
    """The data of a figure, which must be one that can be drawn."""
    assert charts.svg(figure.titled).startswith("<svg")
    return figure.spec["data"]["values"]


def noted(title="A-safe", seed=0, shares=((0.0, 0.5, 0.0), (1.0, 1.0, 0.0)), rounds=10):
    """A run of three clients whose shares in rounds 9 and 10, the last fifth, are given; before it all are 1."""
    lines = [
        client_line(t, i, 0.5, note_share=shares[t - 9][i] if t > 8 else 1.0)
        for t in range(1, rounds + 1)
        for i in range(3)
    ]
    run = about(title, seed, 3, names=("a", "b", "c"))
    return Result(run=run, config={}, rounds=[round_line(t) for t in range(1, rounds + 1)], clients=lines)


def test_the_share_of_each_client_is_a_dot():
    """Means over the last fifth of the run: 0.5, 0.75 and 0; over two seeds the mean of both."""
    (figure,) = costs.note_figures("A-safe", [noted()])
    assert [(row["client"], row["value"], row["row"]) for row in values(figure)] == [
        *(("a", 0.5, 1), ("b", 0.75, 1), ("c", 0.0, 1))
    ]
    assert [row["place"] for row in values(figure)] == [0.50625, 0.75, 0.0]  # in steps of a 40th of 0.75
    assert figure.name == "notes-share-a-safe"
    assert figure.fact == "A-safe: share from 0 to 0.75, mean 0.42; 1 of 3 clients at 0"
    other = noted(seed=1, shares=((0.5, 0.5, 0.0), (0.5, 0.5, 0.0)))
    (mean,) = costs.note_figures("A-safe", [noted(), other])
    assert [row["value"] for row in values(mean)] == [0.5, 0.625, 0.0]
    plain = Result(run=about("A"), config={}, rounds=[round_line(1)], clients=[client_line(1, 0)])
    assert costs.note_figures("A", [plain]) == []


def test_equal_shares_are_stacked_and_many_clients_are_bars(monkeypatch):
    """Two clients at 1 are two dots above each other; with more clients than dots a bar has their number."""
    run = noted(shares=((1.0, 1.0, 0.25), (1.0, 1.0, 0.25)))
    (figure,) = costs.note_figures("A-safe", [run])
    assert [(row["place"], row["row"]) for row in values(figure)] == [(1.0, 1), (1.0, 2), (0.25, 1)]
    monkeypatch.setattr(costs, "MOST_DOTS", 2)
    (figure,) = costs.note_figures("A-safe", [run])
    assert values(figure) == [{"place": 0.25, "clients": 1}, {"place": 1.0, "clients": 2}]
    assert figure.spec["mark"]["type"] == "bar"
