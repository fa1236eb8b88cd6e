"""Settings of papers and of published programs: the fields, and the training that goes with them."""

from dataclasses import replace
from typing import Any

import pytest

from fedkin import methods as m
from fedkin.capabilities.presets import preset as with_preset
from fedkin.capabilities.presets import presets_of
from fedkin.cli.flags import run_flags
from fedkin.core import ConfigError, Method, Training
from fedkin.experiment.settings import method_of
from toys import ByHand, close, federation, mlp, run

FIVE_EPOCHS = {"epochs": 5, "batch_size": 100}
TRAINING = {"steps": 10, "batch_size": 32, "lr": 0.001, "momentum": 0.9}
"""That of the Fed-CAM paper and its program."""


@pytest.mark.parametrize(
    ("preset", "method", "training"),
    [
        ("paper", m.CFIC(register="lazy"), {"epochs": 5, "batch_size": 64, "lr": 0.01}),  # Algorithm 1
        ("code", m.CReFF(), {"epochs": 10, "lr": 0.1, "batch_size": 32}),
        ("head", m.FedAvgFT(part="head", tune_epochs=10), None),
        ("code", m.FedSoft(clusters=2, per_cluster=15, lam=0.01, tau=2, sigma=1e-4), None),  # CIFAR-10, also rotated
        ("pfedcs", m.PerFedAvg(inner_lr=0.005, outer_lr=0.005), None),  # one step size for both
        ("paper", m.PerFedAvg(outer_lr=0.001), None),
        ("paper", m.PFedCS(rho=1, teacher_lr=None), {**FIVE_EPOCHS, "lr": 0.005}),
        ("paper-resnet18", m.PFedCS(rho=1, teacher_lr=None), {**FIVE_EPOCHS, "lr": 0.1}),
    ],
)
def test_presets(preset: str, method: Method, training: dict[str, Any] | None) -> None:
    """What is not a field of it is the default."""
    assert with_preset(type(method), preset) == method
    found = presets_of(method)[preset]
    assert training is None or Training(**found["training"]) == Training(**training)
    assert not isinstance(method, m.PFedCS) or found["run"] == {"evaluate": "trained"}


@pytest.mark.parametrize("name", presets_of(m.FedRep()))
def test_presets_of_fedrep(name: str) -> None:
    """The authors' settings differ from the defaults in what their program does."""
    method = with_preset(m.FedRep, name)
    assert (method.head_epochs, method.final_head_epochs, method.first_head) == (10, 10, "average")
    assert Training(**presets_of(m.FedRep())[name]["training"]).momentum == 0.5


@pytest.mark.parametrize(("preset", "pulls"), [("flgo", [1e-4, 1e-4, 1e-3]), ("pfllib", [1, 1, 1])])
def test_presets_of_fedamp(preset: str, pulls: list[float]) -> None:
    """Both stay finite; flgo's pull of 1/10^4 is next to none, and grows tenfold every 30 rounds."""
    method = with_preset(m.FedAMP, preset, variant="heur" if preset == "flgo" else "distance")
    assert bool(run(method, mlp(), federation(), rounds_=2).state.bank.isfinite().all())
    hand, found = ByHand(method), []
    for hand.t in (0, 29, 30):
        found.append(float(hand.download([0]).shared.pull))
    close(found, pulls, 1e-9)


@pytest.mark.parametrize(
    ("preset", "name", "inner", "fields"),
    [
        ("paper", "ifca-cam", m.IFCA(), ("global", "simultaneous", "damped", "sum")),
        ("paper", "fesem-cam", m.FeSEM(), ("cluster", "simultaneous", "mean", "sum")),
        ("paper", "cfl-cam", m.CFL(), ("global", "simultaneous", "mean", "sum")),  # not in the paper: training alone
        ("fedbase-0.10.3-ifca", "ifca-cam", m.IFCA(), ("global", "cluster-first", "mean", "cluster")),
        ("fedbase-0.10.3-fesem", "fesem-cam", m.FeSEM(), ("cluster", "global-first", "mean", "sum")),
    ],
)
def test_presets_of_fed_cam(preset: str, name: str, inner: Method, fields: tuple[str, ...]) -> None:
    """Warm-up, order, update and choice, in Python as on the command line; and the recipe. A field that is given
    stands."""
    made = with_preset(m.CAM, preset, inner=inner)
    assert (made.warmup_of, made.order, made.update, made.choose_on) == fields
    assert presets_of(m.CAM(inner))[preset]["training"] == TRAINING
    settings, _ = run_flags([name, "--preset", preset])
    assert (method := method_of(settings)) == replace(made, inner=method.inner)  # FeSEM-CAM's pull is not the default's
    assert {field: getattr(settings.training, field) for field in TRAINING} == TRAINING
    given = with_preset(m.CAM, preset, inner=inner, update="damped", warmup_of="global")
    assert (given.warmup_of, given.update) == ("global", "damped")


@pytest.mark.parametrize(
    ("make", "preset", "other", "right"),
    [
        (m.CAM(m.IFCA()), "fedbase-0.10.3-fesem", "ifca-cam", "fesem-cam"),
        (m.FedAMP(), "flgo", "fedamp", "heur-fedamp"),  # FLGo's method of that name weighs by cosines
    ],
)
def test_presets_of_the_other_method_are_refused(make: Method, preset: str, other: str, right: str) -> None:
    """The command line says whose they are."""
    assert preset not in presets_of(make)
    with pytest.raises(ConfigError, match=f"fedkin run {right} --preset {preset}"):
        run_flags([other, "--preset", preset])


def test_flgos_preset_is_of_heurfedamp() -> None:
    """As it is given on the command line."""
    method = method_of(run_flags(["heur-fedamp", "--preset", "flgo"])[0])
    assert method == m.FedAMP(variant="heur", server_step=1e4, step_decay=0.1, decay_every=30)
