"""FLamby's heart disease split, as reproduce/flamby-heart makes it: rows, inputs, scaling and stratification."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedkin.core.errors import DataError

HERE = Path(__file__).parents[1] / "reproduce" / "flamby-heart"
REAL = Path(os.environ.get("FEDKIN_DATA", "~/.cache/fedkin/data")).expanduser() / "heart-disease"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"heart_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"heart_{name}", made)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def heart(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("flamby", monkeypatch)


def row(i: int, target: int, *, cp: int | None = None, chol: str = "200") -> str:
    """Fourteen fields of UCI's layout; slope, ca and thal are missing, which costs no row."""
    return f"{40 + i},{i % 2},{cp or 1 + i % 4},120,{chol},0,{i % 3},{150 + i % 7},0,{i % 5}.5,?,?,?,{target}"


def write(folder: Path, ill: dict[str, tuple[int, int]], more: dict[str, list[str]]) -> None:
    """For each hospital its rows with target 0 and with targets 1 to 4, and further lines."""
    folder.mkdir()
    for name, (healthy, sick) in ill.items():
        rows = [row(i, 0) for i in range(healthy)] + [row(healthy + i, 1 + i % 4) for i in range(sick)]
        (folder / f"processed.{name}.data").write_text("\n".join([*rows, *more.get(name, [])]) + "\n")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """20 + 10, 12 + 18, 1 + 9 and 5 + 15 complete rows; Cleveland has two rows with a missing cholesterol as well."""
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    people = {"cleveland": (20, 10), "hungarian": (12, 18), "switzerland": (1, 9), "va": (5, 15)}
    write(tmp_path / "heart-disease", people, {"cleveland": [row(3, 1, chol="?"), row(4, 0, chol="")]})
    return tmp_path / "heart-disease"


def test_rows_for_training_and_testing(heart: ModuleType, small: Path) -> None:
    """floor(.66 n) rows train and ceil(.34 n) test: 19 + 11 of 30, 6 + 4 of 10, 13 + 7 of 20; rows with a missing value
    are left out and there is no validation part."""
    found = heart.federation()
    assert found.client_names == ("cleveland", "hungarian", "switzerland", "va")
    assert found.sizes().tolist() == [[19, 0, 11], [19, 0, 11], [6, 0, 4], [13, 0, 7]]
    assert found.shape == (13,)
    assert found.classes == 2


def test_both_parts_have_the_labels_of_their_hospital(heart: ModuleType, small: Path) -> None:
    """Stratified: of 10 ill in 30, 6.33 -> 6 of the 19 that train and 4 of the 11 that test; of 18, 11 and 7; of 15 in
    20, 9.75 -> 10 of 13 and 5 of 7. Targets 1 to 4 are all ill. Switzerland has a single healthy row and is not
    stratified."""
    ill = [[int(part.y.sum()) for part in (c.train, c.test)] for c in heart.federation().clients]
    assert [ill[0], ill[1], ill[3]] == [[6, 4], [11, 7], [10, 5]]
    assert sum(ill[2]) == 9


def test_the_drawn_rows_are_scikit_learns(heart: ModuleType) -> None:
    """Six of each label, random_state 43: the rows that scikit-learn's train_test_split draws when it is called by hand
    with FLamby's arguments. Another seed, or a split that does not shuffle or stratify, has others."""
    train, test = heart.train_and_test(np.array([0, 1] * 6))
    assert sorted([*train, *test]) == list(range(12))
    assert (train.tolist(), test.tolist()) == ([1, 4, 5, 6, 9, 10, 11], [0, 2, 3, 7, 8])


def test_inputs(heart: ModuleType, tmp_path: Path) -> None:
    """age, sex, trestbps, chol, fbs, thalach, exang, oldpeak, then cp = 2, 3, 4 and restecg = 1, 2; the categories are
    those of all hospitals, the first of each is dropped."""
    levels = [np.array([2.0, 3.0, 4.0]), np.array([1.0, 2.0])]
    rows = np.array([[63, 1, 4, 145, 233, 1, 2, 150, 0, 2.3, 0], [37, 0, 1, 130, 250, 0, 0, 187, 1, 3.5, 2]])
    wanted = [[63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 1, 0, 1], [37, 0, 130, 250, 0, 187, 1, 3.5, 0, 0, 0, 0, 0]]
    torch.testing.assert_close(heart.inputs(rows, levels), torch.tensor(wanted))


def test_scaling_is_by_the_hospitals_own_training_rows(heart: ModuleType, small: Path) -> None:
    """Training inputs have mean 0 and sample deviation 1 in each hospital, test inputs have not; columns that never
    change (trestbps, fbs, exang) are 0."""
    for client in heart.federation().clients:
        deviation = client.train.x.std(0)
        moving = deviation > 0
        assert [int(i) for i in (~moving).nonzero()] == [2, 3, 4, 6]
        torch.testing.assert_close(client.train.x.mean(0), torch.zeros(13), atol=1e-5, rtol=0)
        torch.testing.assert_close(deviation[moving], torch.ones(int(moving.sum())))
        assert float(client.test.x.mean(0).abs().max()) > 0.02
        assert not bool(client.test.x[:, ~moving].any())


def test_scaling_by_hand(heart: ModuleType) -> None:
    """1, 3 and 5: mean 3, sample deviation 2 (population 1.633): 7 becomes 2."""
    got = heart.scaled(torch.tensor([[7.0], [1.0]]), torch.tensor([[1.0], [3.0], [5.0]]))
    torch.testing.assert_close(got, torch.tensor([[2.0], [-1.0]]))


def test_a_header_and_csv_files_are_read(heart: ModuleType, small: Path) -> None:
    """The same rows as NAME.csv with a header line and empty fields for missing values: the same federation."""
    before = heart.federation().fingerprint()
    for file in list(small.glob("*.data")):
        (small / f"{file.name.split('.')[1]}.csv").write_text(
            "age" + ",x" * 13 + "\n" + file.read_text().replace("?", "")
        )
        file.unlink()
    assert heart.federation().fingerprint() == before


def test_missing_files_and_bad_lines(heart: ModuleType, small: Path) -> None:
    """The message says what to put where; a bad line is named by file and number."""
    (small / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(DataError, match=r"processed\.va\.data, line 1: 3 fields, expected 14"):
        heart.federation()
    (small / "processed.va.data").unlink()
    with pytest.raises(DataError, match=r"neither processed\.va\.data nor va\.csv.*FEDKIN_DATA"):
        heart.federation()


def test_two_logits_are_binary_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """z = log 3: probability 3/4, so the loss is -log(3/4) for label 1 and -log(1/4) for label 0."""
    model = module("logistic", monkeypatch).Logistic((2,))
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[1.0, 0.0]]))
        model.head.bias.zero_()
        z = torch.tensor([[np.log(3.0), 5.0]], dtype=torch.float32)
        loss = [float(torch.nn.functional.cross_entropy(model(z), torch.tensor([y]))) for y in (1, 0)]
    assert loss == pytest.approx([-np.log(0.75), -np.log(0.25)], rel=1e-6)


def test_the_start_is_the_first_draw_after_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """U(-1/sqrt(13), 1/sqrt(13)) by torch's generator: with seed 42 its first number is .8823 of 0..1, so the first
    weight is (2 * .8823 - 1)/sqrt(13) = .2120; the state of the generator outside is left alone."""
    torch.manual_seed(7)
    after = torch.rand(1)
    torch.manual_seed(7)
    start = module("logistic", monkeypatch).flamby_start(42)
    assert torch.equal(torch.rand(1), after)
    assert float(start.head.weight[0, 0].detach()) == pytest.approx(0.2120, abs=1e-4)
    assert start.head.weight.shape == (1, 13)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the four hospitals' files are not in {REAL} (UCI heart disease)")
def test_the_real_hospitals(heart: ModuleType) -> None:
    """FLamby's README: 199/104, 172/89, 30/16 and 85/45 rows; ill 46, 38, 98 and 78 % of them."""
    found = heart.federation()
    assert found.sizes().tolist() == [[199, 0, 104], [172, 0, 89], [30, 0, 16], [85, 0, 45]]
    ill = [float(torch.cat([c.train.y, c.test.y]).double().mean()) for c in found.clients]
    assert [round(100 * share) for share in ill] == [46, 38, 98, 78]
