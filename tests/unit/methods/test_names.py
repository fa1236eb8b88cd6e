"""Names of methods: those of the catalogue, and as papers write them."""

from __future__ import annotations

import pytest

from fedkin.core import ConfigError
from fedkin.methods import METHODS, canonical, get_method


@pytest.mark.parametrize("name", METHODS)
def test_every_title_is_a_name(name: str) -> None:
    """However its capitals and strokes are written."""
    title = METHODS[name]().title
    written = (name, title, title.upper(), title.replace("-", "_"), title.replace("-", " "))
    assert {canonical(t) for t in written} == {name}


def test_a_plus_matters() -> None:
    """FedAvg+ is another method than FedAvg."""
    assert (canonical("FedAvg+"), canonical("FedAvg")) == ("fedavg-ensemble", "fedavg")


def test_wrapped_methods() -> None:
    """Fed-CAM around a method by its paper's name."""
    assert (canonical("CFL-CAM"), canonical("PFA_cam")) == ("cfl-cam", "pfa-cam")
    assert get_method("CFL-CAM") == get_method("cfl-cam")


@pytest.mark.parametrize("name", ["./own.py:FedAvg", "own.module:FedAvg", "fedavg.py", "-cam", "", "nothing", "x-cam"])
def test_other_names_stay_as_they_are(name: str) -> None:
    """Those of user-defined methods, and those that mean nothing, so that a message shows what was written."""
    assert canonical(name) == name


def test_an_unknown_name_is_shown_as_it_was_written() -> None:
    """With the nearest one."""
    with pytest.raises(ConfigError, match="unknown method 'FedAvgg'"):
        get_method("FedAvgg")
