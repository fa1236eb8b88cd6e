"""Folders of runs are read whole, or the reader is told what is wrong; figures follow from the lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as line_with

from fedkin.core.errors import ConfigError, RunFolderError
from fedkin.record.files import COMMIT, Lines, mark_of, read_commit, write_json
from fedkin.record.lines import ClientLine, Commit, RelationLine, RoundLine, Snapshot, TimingLine
from fedkin.record.result import Result, by_title
from madeup import about, client_line, edit, round_line, rounds, written


def made(**run: object) -> Result:
    """Three rounds of four clients with 10 samples: client i has 7 right, validation rises."""
    clients = [client_line(t, i, 0.7) for t in (1, 2, 3) for i in range(4)]
    lines = [round_line(t, accuracy=0.7, validation=t / 10, bytes_up=1, bytes_down=2, clients=4) for t in (1, 2, 3)]
    relations = [RelationLine(t, clusters=(0, 0, 1, -1)) for t in (1, 2, 3)]
    return Result(run=about(**run), config={}, rounds=lines, clients=clients, relations=relations)


def everything(folder: Path) -> list[object]:
    """All lines of a folder."""
    run = Result.open(folder)
    return [*run.rounds, *run.clients, *run.relations]


def test_a_folder_reads_back_as_the_run(tmp_path: Path) -> None:
    """Everything comes back as it was written, at each pass; a run of a folder may be read before it has ended."""
    run = made(title="IFCA", seed=3, names=("a", "b", "c", "d"), groups=(0, 0, 1, 1))
    read = Result.finished_in(written(tmp_path, run))
    assert read.run == run.run
    assert list(read.rounds) == run.rounds
    for _ in range(2):
        assert (list(read.clients), list(read.relations)) == (run.clients, run.relations)
    assert [line.round for line in read.timing] == [1, 2, 3]
    write_json(tmp_path / COMMIT, line_with(read_commit(tmp_path), ended=""))
    assert len(Result.open(tmp_path).rounds) == 3
    with pytest.raises(RunFolderError):
        Result.finished_in(tmp_path)


def test_what_no_commit_covers_is_not_read(tmp_path: Path) -> None:
    """Lines of a round that a kill interrupted, and half lines."""
    written(tmp_path, made())
    for name, line in (("rounds", RoundLine(4)), ("clients", client_line(4, 0)), ("timing", TimingLine(4, 1.0))):
        with (tmp_path / f"{name}.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n{")
    read = Result.open(tmp_path)
    assert (read.total, len(list(read.clients)), len(list(read.timing))) == (3, 12, 3)


@pytest.mark.parametrize("name", ["rounds", "clients", "relations"])
def test_every_other_change_is_damage(name: str, tmp_path: Path) -> None:
    """A line less, another figure, the file gone."""
    path = written(tmp_path, made()) / f"{name}.jsonl"
    whole = path.read_bytes()
    assert len(everything(tmp_path)) == 18
    for harmed in (whole[: whole.rfind(b"{")], whole.replace(b"1", b"2", 1), b""):
        path.write_bytes(harmed)
        with pytest.raises(RunFolderError, match=path.name):
            everything(tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        [client_line(1, 1), client_line(1, 0)],
        [client_line(1, 0), client_line(1, 0)],
        [client_line(1, 4)],
        [client_line(1, 10**12)],
    ],
)
def test_lines_that_no_run_writes_are_refused_whatever_their_mark(lines: list[ClientLine], tmp_path: Path) -> None:
    """Out of order, twice, of a client that is none of the four: marks are no proof, since anybody can make them."""
    raw = msgspec.json.Encoder().encode_lines(lines)
    (tmp_path / "clients.jsonl").write_bytes(raw)
    commit = Commit(Snapshot(1, "0" * 40), files={"clients.jsonl": mark_of(raw)})
    with pytest.raises(RunFolderError):
        list(Lines(tmp_path, ClientLine, commit, 4))


def test_large_files_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks end with lines, whatever their size."""
    run = made()
    written(tmp_path, run)
    for size in (1, 100, 1 << 20):
        monkeypatch.setattr("fedkin.record.files._BLOCK", size)
        assert list(Result.open(tmp_path).clients) == run.clients


def test_a_folder_without_a_round_is_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """What is known is in its config."""
    with pytest.raises(RunFolderError):
        Result.open(tmp_path)
    (tmp_path / "config.toml").write_text('[method]\nname = "fedavg"\n[run]\nseed = 4')
    read = Result.open(tmp_path)
    assert (read.title, read.seed, list(read.rounds), read.final.accuracy, read.last) == ("fedavg", 4, [], None, None)


@pytest.mark.parametrize("file", ["run.json", "commit.json"])
def test_other_files_that_are_damaged_are_named(file: str, tmp_path: Path) -> None:
    """Not JSON, or another kind of object."""
    written(tmp_path, made())
    for raw in (b"{", b"[]", b'{"round": -1}'):
        (tmp_path / file).write_bytes(raw)
        with pytest.raises(RunFolderError, match=file):
            Result.open(tmp_path)


def test_a_client_s_figure_is_over_the_rounds_of_the_run() -> None:
    """Evaluated in rounds 1 to 6 of 10: round 6 alone, for clients and for their mean."""
    clients = [client_line(t, i, t / 10) for t in range(1, 7) for i in range(4)]
    run = Result(run=about(), config={}, rounds=rounds(*(t / 10 for t in range(1, 7))), clients=clients)
    longer = replace(run, rounds=[*run.rounds, *(round_line(t, evaluated=False) for t in range(7, 11))])
    assert longer.by_client == {i: pytest.approx(0.6) for i in range(4)}
    assert run.by_client == {i: pytest.approx(0.55) for i in range(4)}
    assert (longer.total, longer.last and longer.last[0], longer.final.rounds) == (10, 6, (6,))


def test_figures_of_the_best_round() -> None:
    """Validation is highest in round 2 of 3, test accuracy in round 3: figures of the run and of clients are of round
    2, and the outcomes of single test samples, which are of round 3, are left out."""
    run = edit(made(), lambda line: {"accuracy": line.round / 10, "validation": 0.9 - abs(line.round - 2)})
    bits = {"right": b"\xff\x00", "test_part": "d"}
    edit(run, clients=lambda line: {"accuracy": line.round / 10, **(bits if line.round == 3 else {})})
    best = replace(run, at_best=True)
    assert (best.final.accuracy, best.final.rounds) == (0.2, (2,))
    assert best.by_client == dict.fromkeys(range(4), 0.2)
    assert (best.answers, len(run.answers), best.last and best.last[0]) == ({}, 4, 3)
    edit(run, lambda line: {"validation": line.round / 10})
    assert replace(run, at_best=True).answers == replace(run).answers
    edit(run, lambda line: {"validation": None})
    with pytest.raises(ConfigError, match="--round best"):
        _ = replace(run, at_best=True).final


def test_outcomes_of_single_test_samples_are_those_of_the_last_round() -> None:
    """One bit for each sample, or the folder is damaged."""
    last = client_line(2, 0, 0.9, right=b"\xff\x80", test_part="d")
    run = Result(run=about(), config={}, rounds=rounds(0.5, 0.5), clients=[client_line(1, 0, right=b"\xff"), last])
    assert (run.answers, run.test_parts) == ({0: last}, {0: (10, "d")})
    with pytest.raises(RunFolderError):
        _ = replace(run, clients=[client_line(2, 0, 0.9, right=b"\xff")]).answers


def test_bytes_are_the_sum_over_rounds() -> None:
    assert made().bytes == 9


def test_the_summary_is_for_people() -> None:
    """It has the figures that there are."""
    summary = edit(made(), config={"method": {"name": "ifca"}}).summary
    assert summary["final"]["accuracy"] == pytest.approx(0.7)
    assert (summary["method"], summary["rounds"], summary["bytes_up"], summary["best"]["round"]) == ("ifca", 3, 3, 3)
    assert "diverged" not in summary


def test_runs_of_one_title_are_seeds_in_order() -> None:
    """Titles keep their order, seeds are sorted; two runs cannot both be seed 0 of one method."""
    runs = [made(title=title, seed=seed) for title, seed in (("B", 1), ("A", 0), ("B", 0))]
    groups = by_title(runs)
    assert [(title, [run.seed for run in runs]) for title, runs in groups.items()] == [("B", [0, 1]), ("A", [0])]
    with pytest.raises(RunFolderError, match="'A' with seed 0"):
        by_title([runs[1], runs[1]])
