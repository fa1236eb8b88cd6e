"""Run folders are read whole, or the reader is told what is wrong."""

import os
from dataclasses import replace

import pytest

from fedkin.core.errors import ConfigError, RunFolderError
from fedkin.report.client_table import client_table_of
from fedkin.report.folder import Run, by_title, read_run
from fedkin.storage.files import write_atomic
from fedkin.storage.json_lines import Lines


def test_a_folder_reads_back_as_the_run(folder, made):
    """Title, seed, rounds, clients and relations come back as written."""
    run = read_run(folder(title="IFCA", seed=3, relations="clusters"))
    same = made(title="IFCA", seed=3, relations="clusters")
    assert (run.title, run.seed, run.rounds, run.clients) == ("IFCA", 3, same.rounds, same.clients)
    assert list(run.relations) == list(same.relations) == list(run.relations)


def test_single_test_samples_are_those_of_the_last_round(folder):
    """Client 1 has 80 % of 11 samples, the first 9: ff 80. Earlier rounds, and folders without them, have none."""
    run = read_run(folder(answers="d"))
    assert (run.answers[1].right, run.answers[1].n, run.answers[1].digest) == (b"\xff\x80", 11, "d1")
    assert run.test_parts == {i: (10 + i, f"d{i}") for i in range(4)}
    assert read_run(folder("private")).answers == {}
    stale = [{"round": 3, "client": 0, "n_test": 4}, {**run.clients[-4], "round": 2}]
    assert Run("M", clients=stale).answers == {}
    assert Run("M", clients=stale[::-1]).answers == {}


def test_damaged_single_test_samples_are_named(folder):
    """Which file, round and client, and what is wrong."""
    run = read_run(folder(answers="d"))
    run.clients[-1]["right"] = "ff"
    with pytest.raises(RunFolderError, match=r"clients\.jsonl: round 3, client 3: 13 test samples take 2 bytes"):
        _ = run.answers


def test_only_the_summary_must_be_there(folder):
    """Without the .jsonl files a run has no rounds, no clients, no relations, and no bytes."""
    run = read_run(folder(without=("rounds", "clients", "relations")))
    assert (run.rounds, run.clients, list(run.relations), run.by_client, run.bytes) == ([], [], [], {}, None)


def test_a_folder_without_summary_is_refused(tmp_path):
    """The message says what is missing and what to do."""
    with pytest.raises(RunFolderError, match=r"no summary\.json; if it was begun"):
        read_run(tmp_path)


def test_a_line_cut_short_at_the_end_is_skipped(tmp_path):
    """A run killed while writing leaves half a line; the rounds before it count."""
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n{"rou')
    assert list(Lines(path)) == [{"round": 1}]


@pytest.mark.parametrize("damage", ["{oops}\n", "[1]\n"])
def test_damage_elsewhere_is_named_by_line(tmp_path, damage):
    """Any other line that is no JSON object is an error with its number."""
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n' + damage + '{"round": 2}\n')
    with pytest.raises(RunFolderError, match="line 2"):
        list(Lines(path))


def test_a_damaged_summary_is_named(tmp_path):
    """Broken JSON in the summary is a run folder error."""
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(RunFolderError, match="not JSON"):
        read_run(tmp_path)


def test_final_figures_are_computed_from_the_rounds(made):
    """All displayed figures follow one rule, whatever the summary says."""
    assert made(top=0.8, final={"accuracy": 0.25}).final["accuracy"] == pytest.approx(0.8)
    assert made(rounds=0, final={"accuracy": 0.25}).final["accuracy"] is None


def test_a_client_s_figure_is_over_the_rounds_of_the_run(made):
    """Evaluated in rounds 1 to 6 of 10: round 6 alone, for clients and for their mean."""
    run = made(rounds=6)
    for line in run.clients:
        line["accuracy"] = line["round"] / 10
    longer = replace(run, rounds=[*run.rounds, {"round": 10, "evaluated": False}])
    assert longer.by_client == {i: pytest.approx(0.6) for i in range(4)}
    assert client_table_of(longer).final == longer.by_client
    assert run.by_client == {i: pytest.approx(0.55) for i in range(4)}
    assert (longer.total, longer.last["round"], longer.final["rounds"]) == (10, 6, "round 6")


def test_figures_of_the_best_round(made):
    """Validation is highest in round 2 of 3, test accuracy in round 3: figures of the run and of clients are of round
    2, and the outcomes of single test samples, which are of round 3, are left out."""
    run = made(answers="a")
    for line in [*run.rounds, *run.clients]:
        line["accuracy"] = line["round"] / 10
    run.rounds[1]["validation"] = 0.9
    best = replace(run, at_best=True)
    assert (best.final["accuracy"], best.final["rounds"]) == (0.2, "round 2")
    assert best.by_client == client_table_of(best).final == dict.fromkeys(range(4), 0.2)
    assert (best.answers, len(run.answers), best.last["round"]) == ({}, 4, 3)
    run.rounds[2]["validation"] = 1.0
    assert replace(run, at_best=True).answers == run.answers


def test_without_validation_there_is_no_best_round_to_show(made):
    """The error says what to do."""
    run = made("M")
    for line in run.rounds:
        line["validation"] = None
    with pytest.raises(ConfigError, match=r"M has no validation accuracy .* leave out --round best"):
        replace(run, at_best=True).final["accuracy"]


def test_bytes_are_those_of_the_summary_else_the_sum_over_rounds(made):
    """Three rounds of 1 + 2 MB are 9 MB."""
    assert made().bytes == 9_000_000
    assert made(bytes_up=1, bytes_down=2).bytes == 3


def test_runs_of_one_title_are_seeds_in_order():
    """Titles keep their order, seeds are sorted."""
    groups = by_title([Run("B", 1), Run("A", 0), Run("B", 0)])
    assert [(title, [run.seed for run in runs]) for title, runs in groups.items()] == [("B", [0, 1]), ("A", [0])]


def test_two_runs_of_one_title_and_seed_are_refused():
    """They cannot both be seed 0 of one method; averaging them would hide a difference in settings."""
    with pytest.raises(RunFolderError, match="'A' with seed 0"):
        by_title([Run("A", 0), Run("A", 0)])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """If the last step fails the old content stands and no half file is left behind."""
    path = tmp_path / "page.html"
    write_atomic(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
