"""Tables as files: every one parses, every cell's settings can be made, layers win over each other in their order."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch
from reproduce.cells import Cell, cells_of, chosen, in_order, located
from reproduce.reading import PAPERS, papers
from reproduce.tables import HERE, Table

from fedkin.core import ConfigError
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import Settings, digest, settings_from, table_of
from papers import ONE, TWO, paper


def cell(table: Table, path: str, scale: str = "paper") -> Cell:
    """One cell by row, column and seed."""
    (found,) = [c for c in cells_of(table, scale) if c.path == f"{table.path}/{path}"]
    return found


# ---- the real tables ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PAPERS)
def test_settings_of_all_cells_can_be_made(name: str) -> None:
    """Every cell of every table has valid settings, its own seed and an explicit partition."""
    (found,) = papers([name])
    for table in found.tables:
        assert table.left_out or table.shown in table.scales
        for scale in table.scales:
            for one in cells_of(table, scale):
                assert isinstance(one.settings, Settings)
                assert one.settings.run.seed == one.seed
                assert one.settings.data.partition is not None, "the partition may not depend on where data lie"


@pytest.mark.parametrize("name", PAPERS)
def test_cells_of_one_table_differ(name: str) -> None:
    """Two rows with the same settings, or two columns in which all rows have the same, are a mistake in the file."""
    (found,) = papers([name])
    for table in found.tables:
        for scale in table.scales:
            cells = [c for c in cells_of(table, scale) if c.seed == table.scales[scale].seeds[0]]
            rows, columns = dict[str, set[str]](), dict[str, set[tuple[str, str]]]()
            for one in cells:
                rows.setdefault(one.digest, set()).add(one.row.key)
                columns.setdefault(one.column.key, set()).add((one.digest, one.column.metric or ""))
            assert all(len(keys) == 1 for keys in rows.values()), f"{table.path} ({scale})"
            assert len({frozenset(runs) for runs in columns.values()}) == len(columns), f"{table.path} ({scale})"


def test_dapfl_s_tables_4_and_6_rest_on_the_runs_of_1_and_2() -> None:
    """Tables IV and VI, and two rows of V, need no run beyond those of I and II."""
    (found,) = papers(["dapfl"])
    tables = {table.name: table for table in found.tables}
    base = {c.digest for name in ("table1", "table2") for c in cells_of(tables[name], "paper")}
    for name in ("table4", "table6"):
        assert {c.digest for c in cells_of(tables[name], "paper")} <= base
    main = {c.digest for c in cells_of(tables["table5"], "paper") if c.row.key in ("da-pfl", "ditto")}
    assert len(main) == 6  # two rows, three seeds
    assert main <= base


def test_the_control_for_cfic_steps_on_from_the_mean_by_beta() -> None:
    """In round 1 the momentum is one step of length beta along that of FedAvg; with beta 0 it is FedAvg."""
    table = {
        "data": {"data": "digits", "partition": "dirichlet", "clients": 4, "samples_per_client": 20},
        "model": {"model": "linear"},
        "training": {"steps": 2, "batch_size": 5, "lr": 0.1},
        "run": {"rounds": 1},
        "compute": {"engine": "loop"},
    }
    name = f"{HERE / 'cfic' / 'momentum.py'}:ServerMomentum"
    methods = [{"name": "fedavg"}, {"name": name, "beta": 0.25}, {"name": name, "beta": 0.0}]
    mean, moved, same = (run_settings(settings_from({**table, "method": m})).server.state.model for m in methods)
    start = run_settings(settings_from({**table, "method": {"name": "local"}})).finished
    assert start is not None
    step = mean - start.job.net.w0
    assert torch.allclose(moved, mean + 0.25 * step / step.norm(), atol=1e-6)
    assert torch.equal(same, mean)


def test_the_control_for_ifca_cam_trains_fedavg_and_ifca_apart() -> None:
    """Its global model is FedAvg's bit for bit; with full batches its clusters are those of IFCA."""
    table = {
        "data": {"data": "digits", "partition": "dirichlet@alpha=0.2", "clients": 6, "samples_per_client": 30},
        "model": {"model": "linear"},
        "training": {"steps": 5, "batch_size": 1000, "lr": 0.5},
        "run": {"rounds": 3, "participation": 1.0},
        "compute": {"engine": "loop"},
    }
    name = f"{HERE / 'cam' / 'apart.py'}:Apart"
    methods = [{"name": name, "clusters": 2}, {"name": "fedavg"}, {"name": "ifca", "clusters": 2}]
    apart, fedavg, ifca = (run_settings(settings_from({**table, "method": m})).server.state for m in methods)
    assert torch.equal(apart.model, fedavg.model)
    assert torch.allclose(apart.centres, ifca.centres, atol=1e-5)
    assert len(set(ifca.labels.tolist())) == 2
    assert torch.equal(apart.labels, ifca.labels)


def test_columns_set_fields_of_user_methods() -> None:
    """The control for IFCA-CAM has the number of clusters that its column gives it."""
    (found,) = papers(["cam"])
    with_it = [table for table in found.tables if "apart" in table.rows]
    assert [table.name for table in with_it] == ["table1", "table2"]
    for table in with_it:
        for scale in table.scales:
            numbers = {
                c.column.key: c.settings.method["clusters"] for c in cells_of(table, scale) if c.row.key == "apart"
            }
            assert numbers == {key: 5 if key.startswith("k5") else 10 for key in table.columns}


def test_the_library_does_not_know_of_it() -> None:
    """No module under src imports this package."""
    sources = list((HERE.parent / "src").rglob("*.py"))
    assert len(sources) > 100
    imports = re.compile(r"^\s*(from|import) reproduce\b", re.MULTILINE)
    assert not [path for path in sources if imports.search(path.read_text(encoding="utf-8"))]


# ---- layers -------------------------------------------------------------------------------------------------------
def test_later_layers_win(tmp_path: Path) -> None:
    """Settings override each other in the order table, column, preset, row, scale, column at a scale."""
    table, _ = paper(tmp_path).tables
    weak, strong, code = (cell(table, f"{row}/few/0").settings for row in ("da-pfl", "strong", "code"))
    assert tuple(one.method["lam"] for one in (weak, strong, code)) == (0.5, 2.0, 0.5)
    assert (code.method["distance"], weak.method["distance"]) == ("l2", "squared")
    assert (code.training.momentum, weak.training.momentum) == (0.5, 0.0)
    assert code.training.lr == weak.training.lr == 0.1
    many, small = cell(table, "fedavg/many/1").settings, cell(table, "fedavg/many/0", "small").settings
    assert (many.data.clients, many.run.participation, many.run.rounds, many.run.seed) == (8, 0.5, 5, 1)
    assert (small.data.clients, small.run.participation, small.run.rounds, small.run.seed) == (7, 0.5, 2, 0)


def test_a_cell_s_file_is_one_that_fedkin_run_takes(tmp_path: Path) -> None:
    """The TOML of a cell gives its settings and its digest."""
    table, _ = paper(tmp_path).tables
    one = cell(table, "strong/many/1")
    read = settings_from(tomllib.loads(one.toml()))
    assert read == one.settings
    assert digest(table_of(read)) == one.digest


def test_digests_change_with_settings_alone(tmp_path: Path) -> None:
    """Titles and priorities leave a digest as it is; a changed setting changes the digests of its row."""
    one = cell(paper(tmp_path / "a").tables[0], "da-pfl/few/0")
    same = ONE.replace('"Table 1"', '"Another title"').replace("priority = 10", "priority = 11")
    other = ONE.replace("lam = 0.5", "lam = 0.25")
    assert cell(paper(tmp_path / "b", one=same).tables[0], "da-pfl/few/0").digest == one.digest
    changed = paper(tmp_path / "c", one=other).tables[0]
    assert cell(changed, "da-pfl/few/0").digest != one.digest
    assert cell(changed, "strong/few/0").digest == cell(paper(tmp_path / "d").tables[0], "strong/few/0").digest


def test_scales_have_their_own_rows_and_seeds(tmp_path: Path) -> None:
    """A scale may keep some rows and seeds of a table."""
    table, _ = paper(tmp_path).tables
    assert len(list(cells_of(table))) == 4 * 2 * 2
    assert {(c.row.key, c.seed) for c in cells_of(table, "small")} == {("fedavg", 0), ("da-pfl", 0)}


def test_a_table_like_another_shares_its_runs(tmp_path: Path) -> None:
    """Cells of equal settings in two tables are one run, at the higher priority."""
    one, two = paper(tmp_path).tables
    cells = [*cells_of(one), *cells_of(two)]
    assert len(cells) == 16 + 8
    ordered = in_order(cells)
    assert len(ordered) == 16, "the runs of table 2 are among those of table 1"
    assert [c.priority for c in ordered] == sorted(c.priority for c in ordered)
    assert {c.table.name for c in ordered[:4]} == {"two"}, "its priority is higher"
    assert [c.seed for c in ordered[:4]] == [0, 0, 1, 1], "seed after seed"
    assert ordered[-1].path == "toy/one/strong/many/1"


def test_names_choose_cells(tmp_path: Path) -> None:
    """A name chooses the cells whose path begins with it; an unknown one is an error."""
    cells = [c for table in paper(tmp_path).tables for c in cells_of(table)]
    assert len(chosen(cells, [])) == len(cells)
    assert len(chosen(cells, ["toy/one/strong"])) == 4
    assert [c.path for c in chosen(cells, ["toy/two/fedavg/few/1"])] == ["toy/two/fedavg/few/1"]
    with pytest.raises(ConfigError, match="unknown table or cell 'toy/on' at this scale"):
        chosen(cells, ["toy/on"])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("lr = 0.1", "lrr = 0.1", "lrr"),
        ("guess = 10", "guess = 10\nround = 3", "unknown entry 'round'"),
        ("da-pfl = [70.0", "da-pfll = [70.0", "names the row 'da-pfll'; there are fedavg, da-pfl"),
        ('da-pfl = [70.0, "-"]', "da-pfl = [70.0]", "1 numbers, there are 2 columns"),
        ('row = "da-pfl"', 'row = "dapfl"', "'DA-PFL is above FedAvg.' names dapfl; there are fedavg, da-pfl"),
        ('than = "baselines"', 'than = "baselines"\ncolumns = ["fewer"]', "names fewer; there are few, many"),
        ("columns.many = {", "columns.most = {", "scale small names most"),
        ('preset = "code"', 'preset = "coda"', "no preset 'coda'"),
        ("da-pfl = {}", 'da-pfl = { title = "FedAvg" }', "fedavg has the title 'FedAvg' of another one"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    """An error in a table's file names the wrong entry."""
    assert old in ONE

    def read() -> list[Settings]:
        return [one.settings for one in cells_of(paper(tmp_path, one=ONE.replace(old, new)).tables[0])]

    with pytest.raises(ConfigError, match=says):
        read()


def test_a_file_that_the_paper_does_not_name(tmp_path: Path) -> None:
    """A table that paper.toml does not list is an error."""
    paper(tmp_path)
    (tmp_path / "toy" / "three.toml").write_text(TWO)
    with pytest.raises(ConfigError, match="does not name the tables three"):
        paper(tmp_path)


def test_where_data_are_looked_for(tmp_path: Path) -> None:
    """As the library expects them, or as one npz; the name alone where nothing lies."""
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "mnist").mkdir()
    for name in ("cifar10/all.npz", "cifar100/train.bin", "mnist/train-images-idx3-ubyte.gz", "mnist/writers.npz"):
        (tmp_path / name).touch()
    (tmp_path / "svhn.npz").touch()
    assert located("cifar10", tmp_path) == str(tmp_path / "cifar10")
    assert located("cifar100-first20", tmp_path) == f"cifar100-first20:{tmp_path / 'cifar100'}"
    assert located("mnist", tmp_path) == f"mnist:{tmp_path / 'mnist'}"
    assert located("svhn", tmp_path) == str(tmp_path / "svhn.npz")
    assert located("fashion-mnist", tmp_path) == "fashion-mnist"
    assert located("digits", tmp_path) == "digits"
