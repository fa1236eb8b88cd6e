"""Data that a person's own function gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import federation_of, load
from fedkin.experiment.settings import DataSettings
from refusals import refuses

FILE = """
import numpy as np, torch, fedkin
from torch.utils.data import TensorDataset

def client(k, n=250): return np.full((n, 3), k, dtype=np.float64), np.arange(n) % 2
def per_client(): return [client(k) for k in range(3)]
def two(): return [client(0), client(1)]
def named(): return {"north": client(0), "south": (torch.ones(30, 3), torch.zeros(30, dtype=torch.int64))}
def plain(): return client(0)
def dataset(): return fedkin.load("digits")
def federation(): return fedkin.Federation.from_arrays(per_client(), classes=2)
def torch_one(): return TensorDataset(*map(torch.from_numpy, client(0)))
def torch_two(): return [torch_one(), torch_one()]
def pictures(): return [(np.full((12, 4, 4, 3), 255, dtype=np.uint8), np.arange(12) % 3)] * 2
def two_lists(): return [list(client(0)), list(client(1))]
def two_of_plain_lists(): return [(x.tolist(), y.tolist()) for x, y in two()]
def one_of_plain_lists(): return np.ones((80, 3)).tolist(), [0, 1] * 40
def objects():
    x, y = client(0)
    return {"a": (x, np.array(["no", "yes"], dtype=object)[y]), "b": (x, np.array(["no", "no"], dtype=object)[y])}

def mixed_objects(): return [(np.ones((2, 3)), np.array(["no", None], dtype=object))]
def infinite(): return {"a": (np.ones((3, 2)), np.array([0.0, 1.0, np.inf]))}
def without_samples(): return {"a": client(0), "b": client(0, n=0)}
def two_unlike(): return [client(0), [np.ones((3, 2)), [0, 1]]]
def texts_and_numbers(): return [client(0), (np.ones((3, 3)), np.array(["a", "b", "a"]))]
def one_name(): return {1: client(0), "1": client(1)}
def nothing(): return None
def empty(): return []
def texts(): return [("a", "b")]
def short(): return [(np.ones((3, 2)), np.ones(2, dtype=int))]
def shapes(): return [client(0), (np.ones((20, 4)), np.arange(20) % 2)]
def broken(): return 1 / 0
def needs(x): return x
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "mydata.py").write_text(FILE)
    return f"{tmp_path}/mydata.py"


@pytest.mark.parametrize(
    ("name", "clients", "samples", "shape"),
    [
        ("per_client", 3, 750, (3,)), ("two", 2, 500, (3,)), ("two_lists", 2, 500, (3,)),
        ("two_of_plain_lists", 2, 500, (3,)), ("named", 2, 280, (3,)), ("objects", 2, 500, (3,)),
        ("plain", None, 250, (3,)), ("torch_one", None, 250, (3,)), ("torch_two", 2, 500, (3,)),
        ("one_of_plain_lists", None, 80, (3,)), ("pictures", 2, 24, (3, 4, 4)), ("dataset", None, 1797, (1, 8, 8)),
    ],
)  # fmt: skip
def test_what_a_function_may_give(
    own: str, name: str, clients: int | None, samples: int, shape: tuple[int, ...]
) -> None:
    """Each form is read; clients that the function gives are the federation's clients, without a further flag."""
    d = load(f"{own}:{name}")
    assert (len(d), d.shape) == (samples, shape)
    assert (None if d.client_names is None else len(d.client_names)) == clients
    f = federation_of(DataSettings(data=f"{own}:{name}", clients=2 if clients is None else None), 0)
    assert len(f) == (2 if clients is None else clients)
    assert f.preparation is not None


def test_texts_as_objects(own: str) -> None:
    """Labels that pandas or numpy hold as objects are texts, the classes those of all clients."""
    d = load(f"{own}:objects")
    assert d.labels == ("no", "yes")
    assert (d.y[:4].tolist(), d.y[250:].unique().tolist()) == ([0, 1, 0, 1], [0])


def test_a_federation(own: str) -> None:
    """It is taken as it is; settings that would share it out are refused."""
    assert len(federation_of(DataSettings(data=f"{own}:federation"), 0)) == 3
    with pytest.raises(ConfigError):
        federation_of(DataSettings(data=f"{own}:federation", clients=2), 0)
    with pytest.raises(ConfigError):
        load(f"{own}:federation")


def test_a_partition_wins(own: str) -> None:
    """Who sets a partition, or a setting that only another one has, gets it."""
    assert len(federation_of(DataSettings(data=f"{own}:per_client", partition="iid", clients=5), 0)) == 5
    assert (
        len(federation_of(DataSettings(data=f"{own}:per_client", partition="dirichlet@alpha=10.0", clients=4), 0)) == 4
    )


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nothing", "NoneType"), ("empty", "a list of 0"), ("texts", "client 0"), ("short", "client 0"),
        ("shapes", "[20, 4]"), ("infinite", "label inf of sample 2"), ("without_samples", "b: 0 inputs"),
        ("mixed_objects", "client 0"), ("texts_and_numbers", "<U1"), ("one_name", "'1'"),
        ("two_unlike", "client 1: 3 inputs"), ("broken", "ZeroDivisionError"), ("needs", "TypeError"),
        ("dataste", "did you mean 'dataset'"),
    ],
)  # fmt: skip
def test_faults(own: str, name: str, part: str) -> None:
    """A message says what came back and what was expected."""
    with refuses(DataError, part):
        load(f"{own}:{name}")
    with pytest.raises(ConfigError):
        load(f"{own}:plain", target="y")
