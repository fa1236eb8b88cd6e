"""`inspect` on every kind of source, and what it does not say: no warning of what is natural."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.core.samples import Samples
from fedkin.data import IID, ClassesPerClient, Dataset, Dirichlet, Natural
from fedkin.inspection import Finding, Inspection, inspect
from fedkin.inspection.finding import ClientSummary
from fedkin.inspection.shares import clients_of


def codes(found: Inspection, severity: Any = None) -> list[str]:
    return [f.code for f in found.findings if severity in (None, f.severity)]


def one(found: Inspection, code: str) -> Finding:
    """The only finding of that kind."""
    (finding,) = [f for f in found.findings if f.code == code]
    return finding


def patients(n: int = 200) -> dict[str, list[Any]]:
    """Columns with a constant, gaps, a numbering and a flag, of two hospitals and two classes."""
    rng = np.random.default_rng(0)
    pressure = rng.normal(130, 15, n).round(1).tolist()
    return {
        "patient": list(range(500, 500 + n)),
        "age": rng.normal(55, 10, n).round(2).tolist(),
        "pressure": [None if i % 4 == 0 else v for i, v in enumerate(pressure)],
        "unit": ["mmHg"] * n,
        "smoker": [bool(v) for v in rng.integers(0, 2, n)],
        "hospital": ["north", "south"] * (n // 2),
        "ill": [i // 2 % 2 for i in range(n)],
    }


def write_csv(path: Path, told: dict[str, list[Any]]) -> Path:
    plain = [[int(v) if isinstance(v, bool) else "" if v is None else v for v in column] for column in told.values()]
    path.write_text("\n".join([",".join(told), *(",".join(map(str, row)) for row in zip(*plain, strict=True)), ""]))
    return path


# ---- tables that are no csv files -----------------------------------------------------------------------------------
FAULTS = ["id-column"]


def test_parquet_is_judged_as_csv_is(tmp_path: Path) -> None:
    """The same findings, columns and clients; what lies there is shown as rows of text."""
    arrow: Any = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra 'parquet'")
    parquet = importlib.import_module("pyarrow.parquet")
    told = patients()
    parquet.write_table(arrow.table(told), tmp_path / "a.parquet")
    write_csv(tmp_path / "a.csv", told)
    a, b = (inspect(tmp_path / name, target="ill", client="hospital") for name in ("a.parquet", "a.csv"))
    assert codes(a) == codes(b) == FAULTS
    assert (a.kind, a.columns, a.clients) == ("a table", b.columns, b.clients)
    assert {c.name: c.missing for c in a.columns}["pressure"] == 0.25
    (tmp_path / "b.parquet").write_bytes(b"PAR1 cut")
    found = inspect(tmp_path / "b.parquet", target="ill")
    assert (one(found, "refused").severity, found.seen) == ("error", ())


def test_hugging_face(tmp_path: Path) -> None:
    """A table is judged by its columns; of images the splits are shown, and which columns were taken for what."""
    datasets: Any = pytest.importorskip("datasets", reason="needs the library datasets, the extra 'hf'")
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, the extra 'images'")
    told = {("label" if name == "ill" else name): column for name, column in patients().items()}
    datasets.Dataset.from_dict(told).save_to_disk(str(tmp_path / "t"))
    found = inspect(f"hf:{tmp_path}/t")
    assert found.kind == "a data set in the format of Hugging Face"
    assert codes(found) == FAULTS
    assert found.seen[1:4] == (
        "label: label (guessed; --target overrides it)",
        "client: hospital (guessed; --client-column overrides it)",
        "input: all other columns",
    )
    assert [c.name for c in found.clients] == ["north", "south"]
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 4, 4)).astype(np.uint8)
    rows = {"image": [image.fromarray(p) for p in pixels], "label": [i % 2 for i in range(40)]}
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    datasets.Dataset.from_dict(rows, features=kinds).save_to_disk(str(tmp_path / "p"))
    found = inspect(f"hf:{tmp_path}/p", IID(), clients=2)
    assert (found.findings, found.classes) == ((), ("cat", "dog"))
    assert "float32, 0 to 1" in found.inputs  # not 0 to 255: that is how they are kept
    assert "input: image (guessed)" not in found.seen
    assert "client: none (--client-column names one)" in found.seen
    assert one(inspect(f"hf:{tmp_path}/nothing"), "refused").severity == "error"


# ---- what is natural ------------------------------------------------------------------------------------------------
def test_rows_that_are_equal_by_chance_are_not_called_copies(tmp_path: Path) -> None:
    """An age and a sex of 400 people: many are alike, nobody was copied."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal(55, 9):.1f},{'fm'[i % 2]},{rng.integers(2)},{i % 3}" for i in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["age,sex,ill,site", *rows, ""]))
    found = inspect(tmp_path / "a.csv", target="ill", client="site")
    assert codes(found, "warning") == []
    assert one(found, "duplicates-between-clients").severity == "note"

    rows = [f"{row},{rng.normal():.6f}" for row in rows]
    rows += [row.replace(",0,0,", ",0,1,") for row in rows if ",0,0," in row]  # those of site 0 are also at site 1
    (tmp_path / "b.csv").write_text("\n".join(["age,sex,ill,site,marker", *rows, ""]))
    found = inspect(tmp_path / "b.csv", target="ill", client="site")
    assert one(found, "duplicates-between-clients").severity == "warning"


@pytest.mark.parametrize(("copies", "severity"), [(3, "note"), (30, "warning")])
def test_few_copies_in_test_parts_are_a_note(copies: int, severity: str) -> None:
    """Of 200 test samples: up to 0.5 / sqrt(200), 3.5 %, is less than chance moves their accuracy."""
    x = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    x[800 : 800 + copies] = x[:copies]
    test = Samples(x[800:], torch.arange(200) % 2)
    data = Dataset(x[:800], torch.arange(800) % 2, classes=2, name="toy", official_test=test)
    finding = one(inspect(data, IID(), clients=4, split="official"), "train-test-leak")
    assert finding.severity == severity
    assert finding.what.startswith(f"copies of {copies} test samples ({copies / 2:.3g} %) are in a training")


def test_one_small_client_of_many_is_a_note() -> None:
    """Up to a tenth of the clients: the mean over all hardly notices them."""

    def summaries(small: int, n: int) -> tuple[ClientSummary, ...]:
        sizes = [(4, (6, 0))] * small + [(40, (30, 30))] * (n - small)
        return tuple(ClientSummary(str(i), size, 2, 6, counts) for i, (size, counts) in enumerate(sizes))

    for small, n, severity in ((2, 20, "note"), (3, 20, "warning"), (1, 4, "warning")):
        found = {f.code: f.severity for f in clients_of(summaries(small, n), 2)}
        assert found == {"small-client": severity, "one-class-client": severity}


def test_advice_is_for_the_partition_and_the_split_that_there_are() -> None:
    """Settings that the partition has; natural clients have none that gives them classes, and keep their samples."""
    one = (ClientSummary("a", 4, 2, 0, (6, 0)),)
    larger = "use a larger min_samples (--partition dirichlet@min_samples=N), or ask for fewer clients"
    for partition, few, classes in (
        (Natural(), "leave small clients out: --partition natural@min_samples=N with a larger N", ""),
        (Dirichlet(0.5), larger, "; a larger alpha of the partition gives clients more classes"),
        (ClassesPerClient(1), None, "; a larger classes_per_client of the partition gives clients more classes"),
    ):
        small, untested, single = clients_of(one, 2, partition)
        assert few is None or small.todo == few
        assert untested.todo == f"raise --test, or {small.todo}"
        assert single.todo == f"read the worst tenth of clients next to the mean{classes}"
    assert list(clients_of(one, 2, Natural(), "official"))[1].todo == "deal out both parts together: --split pooled"


def test_units_that_a_partition_deals_to_several_clients(tmp_path: Path) -> None:
    """A warning where single samples are dealt, and where the units of a merged test part are not known."""
    x, y, unit = np.arange(240, dtype=np.float32).reshape(120, 2), np.arange(120) % 2, np.arange(120) // 6
    np.savez(tmp_path / "a.npz", x=x, y=y, unit=unit, subject=unit // 5)
    warned = inspect(tmp_path / "a.npz", IID(), clients=4)
    assert one(warned, "units-dealt").what.endswith("20 units of 120 samples")
    assert not {"units-dealt", "units-unknown"} & {*codes(inspect(tmp_path / "a.npz", Natural()))}
    parts = {"x_train": x[:84], "y_train": y[:84], "x_test": x[84:], "y_test": y[84:]}
    np.savez(tmp_path / "b.npz", **parts, unit=unit[:84])
    unknown = inspect(tmp_path / "b.npz", IID(), clients=4)
    assert one(unknown, "units-unknown").what == "the units of the official test part (36 samples) are not given"
    assert "units-unknown" not in codes(inspect(tmp_path / "b.npz", IID(), clients=4, split="official"))
    np.savez(tmp_path / "c.npz", **parts, unit_train=unit[:84], unit_test=unit[84:])
    assert {*codes(inspect(tmp_path / "c.npz", IID(), clients=4))} >= {"units-dealt"}
    assert "units-unknown" not in codes(inspect(tmp_path / "c.npz", IID(), clients=4))
