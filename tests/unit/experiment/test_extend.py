"""A run that gets more rounds ends as the run that had them from the start, bit for bit, or is refused."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from commandline import Command
from fedkin.capabilities.needs import needs_of
from fedkin.cli import BAD_INPUT, OK
from fedkin.core import ConfigError, MethodError, RunFolderError
from fedkin.experiment.compare import Comparison, compare
from fedkin.experiment.extend import extend
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import (
    Settings,
    method_of,
    settings_from,
    table_of,
    toml_of,
)
from fedkin.methods import METHODS, get_method
from fedkin.record.files import RUN, read_commit, read_json
from fedkin.record.lines import RunLine
from fedkin.storage.toml import read_toml
from folders import assert_equal_folders, content, records
from folders import small as settings_of
from grouped import tables as run_tables
from kills import Killed, Operations
from refusals import refuses
from thorough import thorough_except

HARD = {"dropout": 0.2, "late_joiners": "1@4"}
FIELDS: dict[str, dict[str, Any]] = {
    "ifca": {"clusters": 2},
    "ifca-cam": {"inner": {"clusters": 2}, "warmup": 2},
    "ifca-cam-eq6": {"inner": {"clusters": 2}, "warmup": 2},
    "fesem-cam": {"inner": {"clusters": 2}, "warmup": 2},
    "pfedcs": {"beta": 3},
}
GROUPS = {"oracle": {"partition": "cluster-dirichlet@groups=2"}}
FEW = {"local", "fedavg", "da-pfl", "fedfomo", *(n for n in METHODS if needs_of(get_method(n)).total)}
"""No state, the server's, a bank, a decay by rounds, and all that say themselves whether they depend on the number of
rounds. Of the others it is seen from their source whether they read it."""


def run_of(name: str, rounds: int, **run: Any) -> Settings:
    """A run of a method that is evaluated every fourth round, with drop-outs and a late joiner."""
    fields = FIELDS.get(name, {})
    tables = {"data": GROUPS[name]} if name in GROUPS else {}
    made = settings_of(name, fields, **run_tables({**HARD, "rounds": rounds, "eval_every": 4, **run}), **tables)
    if name not in FIELDS and needs_of(method_of(made)).total:  # with its stages where a short run has them
        field = {"after": 3, "warmup": 2}
        own = {k: v for k, v in field.items() if hasattr(method_of(made), k)}
        made = settings_of(name, own, **run_tables({**HARD, "rounds": rounds, "eval_every": 4, **run}), **tables)
    return made


# ---- equal to the long run ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", thorough_except(METHODS, FEW))
def test_every_method_goes_on_as_the_long_run(name: str, tmp_path: Path) -> None:
    """13 rounds that become 24 equal 24 rounds: the evaluations of rounds 5, 6, 7 and 9 to 13, which were among the
    last ten, are taken out; where the settings leave the method open to the number of rounds it is refused."""
    run_settings(run_of(name, 13), out=tmp_path / "a")
    resume(tmp_path / "a", rounds=24)
    run_settings(run_of(name, 24), out=tmp_path / "long")
    assert_equal_folders(tmp_path / "a", tmp_path / "long", 13)
    assert [line.round for line in records(tmp_path / "a", "rounds") if (line.figures is not None)][:3] == [4, 8, 12]


@pytest.mark.parametrize(
    "run", [{"state": "file"}, {"noise_multiplier": 1.0}, {"evaluate": "trained"}, {"engine": "workers"}]
)
@pytest.mark.parametrize("name", thorough_except(["da-pfl", "fedrep"], ["da-pfl"]))
def test_other_kinds_of_runs_go_on_as_the_long_run(name: str, run: dict[str, Any], tmp_path: Path) -> None:
    """States and banks in files, private training, the other moment of evaluation, and processes."""
    if "noise_multiplier" in run and name == "da-pfl":
        name = "fedper"
    run_settings(run_of(name, 13, **run), out=tmp_path / "a")
    resume(tmp_path / "a", rounds=24)
    run_settings(run_of(name, 24, **run), out=tmp_path / "long")
    assert_equal_folders(tmp_path / "a", tmp_path / "long", 13)


@pytest.mark.parametrize(
    ("rounds", "longer", "every"),
    [
        (12, 30, None),
        (50, 80, 2),
        (9, 10, None),
        (25, 51, None),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((30, 50, None), (50, 100, None))),
    ],
)
def test_the_interval_is_that_of_the_long_run_or_of_the_short_one(
    rounds: int, longer: int, every: int | None, tmp_path: Path
) -> None:
    """Where 25 evaluations of the long run are among those of the short one, the long run's interval holds; where they
    are not, the short run's, which the config then says."""
    run_settings(run_of("fedavg", rounds, eval_every=None), out=tmp_path / "a")
    resume(tmp_path / "a", rounds=longer)
    assert read_toml(tmp_path / "a" / "config.toml")["run"].get("eval_every") == every
    run_settings(run_of("fedavg", longer, eval_every=None if every is None else every), out=tmp_path / "long")
    assert_equal_folders(tmp_path / "a", tmp_path / "long", rounds)


def test_a_run_can_get_more_rounds_twice(tmp_path: Path) -> None:
    """5 to 11 to 24 rounds end as 24 do."""
    run_settings(run_of("da-pfl", 5), out=tmp_path / "a")
    for rounds in (11, 24):
        resume(tmp_path / "a", rounds=rounds)
    run_settings(run_of("da-pfl", 24), out=tmp_path / "long")
    assert_equal_folders(tmp_path / "a", tmp_path / "long")


@pytest.mark.parametrize(("stopped", "rounds"), [(2, 24), (7, 24), (7, 20), (12, 40)])
def test_an_interrupted_run_can_get_another_number_of_rounds(stopped: int, rounds: int, tmp_path: Path) -> None:
    """Stopped in the middle, a run of 30 rounds goes on to more rounds, or to fewer than were meant."""

    def stop(report: Any, line: Any) -> None:
        if report.round == stopped:
            raise Killed

    with pytest.raises(Killed):
        run_settings(run_of("fedrep", 30), out=tmp_path / "a", on_round=stop)
    resume(tmp_path / "a", rounds=rounds)
    run_settings(run_of("fedrep", rounds), out=tmp_path / "long")
    assert_equal_folders(tmp_path / "a", tmp_path / "long")


def test_a_run_that_has_not_begun_can_get_another_number_of_rounds(tmp_path: Path) -> None:
    """A folder with a config and no round is one of any number of rounds, also of a method that depends on it."""
    RunFolder.create(tmp_path / "a", toml_of(settings_of("pfedcs", run={"rounds": 4})))
    resume(tmp_path / "a", rounds=6)
    run_settings(settings_of("pfedcs", run={"rounds": 6}), out=tmp_path / "long")
    assert_equal_folders(tmp_path / "a", tmp_path / "long")


def test_the_same_number_of_rounds_changes_nothing(tmp_path: Path) -> None:
    """A finished run that is given the rounds it has stays as it is."""
    run_settings(run_of("pfedcs", 5), out=tmp_path / "a")
    before = content(tmp_path / "a")
    resume(tmp_path / "a", rounds=5)
    assert content(tmp_path / "a") == before


def test_the_best_round_is_kept_where_the_long_run_has_it(tmp_path: Path) -> None:
    """A best round that the long run would not have evaluated is not its best: its state goes, as after any change."""
    run_settings(run_of("fedavg", 13), out=tmp_path / "a")
    found = RunFolder(tmp_path / "a")
    assert read_commit(found.path).best is not None
    extend(found, run_of("fedavg", 13), 24)
    rest = resume(tmp_path / "a")
    kept = read_commit(found.path).best
    assert rest.best is not None
    assert kept is None or kept.round == rest.best.round


# ---- killed in between --------------------------------------------------------------------------------------------
def test_killed_at_every_operation_of_getting_longer(tmp_path: Path) -> None:
    """After a kill at each operation, and again in the recovery, the folder is that of the short run or of the long
    one; made longer again, it ends as the long run does."""
    run_settings(run_of("da-pfl", 13), out=tmp_path / "a")
    run_settings(run_of("da-pfl", 24), out=tmp_path / "long")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Operations(tmp_path / "b") as operations:
        extend(RunFolder(tmp_path / "b"), run_of("da-pfl", 13), 24)
    assert operations.count >= 10
    for at in range(1, operations.count + 1):
        for again in (1, 2, 3, 5):
            place = tmp_path / f"{at}-{again}"
            shutil.copytree(tmp_path / "a", place)
            with Operations(place, at), pytest.raises(Killed):
                extend(RunFolder(place), run_of("da-pfl", 13), 24)
            with Operations(place, again), suppress(Killed):
                RunFolder(place).recover()
            RunFolder(place).recover()
            config = read_toml(place / "config.toml")["run"]["rounds"]
            assert (config == 24) == (not read_commit(place).ended)
            assert not list(place.glob(".*"))
        resume(place, rounds=24 if config == 13 else None)
        assert_equal_folders(place, tmp_path / "long")


def test_a_run_that_gets_longer_is_not_finished(tmp_path: Path, fedkin: Command) -> None:
    """Until the longer run has ended there is no summary, and the report asks for it to be resumed."""
    run_settings(run_of("fedavg", 5), out=tmp_path / "a")
    extend(RunFolder(tmp_path / "a"), run_of("fedavg", 5), 7)
    assert not (tmp_path / "a" / "summary.json").exists()
    done = fedkin("report a")
    assert done.code == BAD_INPUT
    assert "a is not a finished run" in done.err
    assert "fedkin resume a" in done.err


# ---- refused ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name, make in METHODS.items() if needs_of(make()).total])
def test_methods_that_depend_on_the_number_of_rounds_are_refused(name: str, tmp_path: Path) -> None:
    """Stages and warm-ups that are a share of the rounds make other first rounds; the reason is told."""
    run_settings(settings_of(name, run={"rounds": 4}), out=tmp_path / "a")
    before = content(tmp_path / "a")
    with refuses(ConfigError, "not set", "4 rounds of 4", "of 6"):
        resume(tmp_path / "a", rounds=6)
    assert content(tmp_path / "a") == before


def test_a_cosine_depends_on_the_number_of_rounds(tmp_path: Path) -> None:
    """Its step sizes are those of a run of 4 rounds; the folder stays as it is."""
    s = settings_of("fedavg", run={"rounds": 4}, training={"schedule": "cosine"})
    run_settings(s, out=tmp_path / "a")
    before = content(tmp_path / "a")
    with refuses(ConfigError, "cosine", "4 rounds of 4", "of 6"):
        resume(tmp_path / "a", rounds=6)
    assert content(tmp_path / "a") == before


def test_methods_that_read_the_number_of_rounds_say_so() -> None:
    """Those of the catalogue, and only where their settings make them read it."""
    assert {name for name, make in METHODS.items() if needs_of(make()).total} >= {
        "pfedcs",
        "pfa",
        "ifca-cam",
        "fesem-cam",
    }
    assert needs_of(get_method("pfedcs")).total
    assert not needs_of(method_of(settings_of("pfedcs", {"beta": 3}))).total
    assert not needs_of(method_of(settings_of("pfa", {"after": 3}))).total
    assert not needs_of(get_method("fedavg")).total


OWN = '''"""A method of a user."""
from dataclasses import dataclass
from fedkin.capabilities import Needs
from fedkin.core import Bundle, Client, Method, Round, Train, to_all

@dataclass(frozen=True)
class Own(Method):
    """Averages, later twice as much."""

    can = ({can})

    def init(self, r):
        return Bundle(model=r.w0)

    def distribute(self, s, r):
        return to_all(model=s.model)

    def client_update(self, c):
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s, r, up):
        return s.but(model=r.mean(up.model) + 0 * {reads})

    def personalize(self, c):
        return Bundle(model=c.received.model)
'''


@pytest.mark.parametrize(("reads", "can"), [("r.index", ""), ("r.total", ""), ("r.total", 'Needs(total="it does"),')])
def test_a_user_s_method_says_that_it_reads_the_number_of_rounds(reads: str, can: str, tmp_path: Path) -> None:
    """If it does not, reading it is an error; if it does, the run cannot be made longer."""
    file = tmp_path / f"own_{reads[2:]}_{len(can)}.py"
    file.write_text(OWN.replace("{reads}", reads).replace("{can}", can))
    made = settings_of(f"{file}:Own", run={"rounds": 3})
    if reads == "r.total" and not can:
        with pytest.raises(MethodError, match=r"r\.total is read, and the method does not say so"):
            run_settings(made, out=tmp_path / "a")
        return
    run_settings(made, out=tmp_path / "a")
    if not can:
        assert resume(tmp_path / "a", rounds=5).total == 5
        return
    with refuses(ConfigError, "Own", "(it does)"):
        resume(tmp_path / "a", rounds=5)


def test_fewer_rounds_than_are_done_are_refused(tmp_path: Path, fedkin: Command) -> None:
    """The message has both numbers."""
    run_settings(run_of("fedavg", 5), out=tmp_path / "a")
    before = content(tmp_path / "a")
    done = fedkin("resume a --rounds 3")
    assert (done.code, done.out) == (BAD_INPUT, "")
    assert done.err == "fedkin: a has 5 rounds, more than the 3 asked for; give more than 5\n"
    assert content(tmp_path / "a") == before


def test_a_stopped_run_cannot_end_with_its_last_round(tmp_path: Path) -> None:
    """That round has no outcomes of single test samples, which the last round of a run has."""

    def stop(report: Any, line: Any) -> None:
        if report.round == 4:
            raise Killed

    with pytest.raises(Killed):
        run_settings(run_of("fedavg", 9, eval_every=1), out=tmp_path / "a", on_round=stop)
    before = content(tmp_path / "a")
    with refuses(ConfigError, "4 rounds of 9", "give more than 4"):
        resume(tmp_path / "a", rounds=4)
    assert content(tmp_path / "a") == before
    assert resume(tmp_path / "a", rounds=5).total == 5


@pytest.mark.parametrize(
    ("kind", "command", "one"),
    [
        ("comparison", "compare fedavg", "fedavg-seed0"),
        ("sweep", "sweep fedavg --grid training.lr=0.1,0.01", "000-seed0"),
    ],
)
def test_a_run_of_a_comparison_or_a_sweep_keeps_its_rounds(kind: str, command: str, one: str, fedkin: Command) -> None:
    """With others it could not be compared any more; a copy elsewhere is a run of its own."""
    data = "--clients 4 --samples-per-client 60 --model linear --steps 2 --batch-size 5 --engine loop"
    assert fedkin(f"{command} {data} --rounds 2 --out c --quiet").code == OK
    before = content(Path("c") / one)
    done = fedkin(f"resume c/{one} --rounds 4")
    assert done.code == BAD_INPUT
    assert f"c/{one} is a run of the {kind} c, whose runs all have 2 rounds; for 4, copy it elsewhere" in done.err
    assert content(Path("c") / one) == before
    assert fedkin(f"resume c/{one} --rounds 2 --quiet").code == OK
    shutil.copytree(Path("c") / one, "alone")
    assert fedkin("resume alone --rounds 14 --quiet").code == OK


def test_evaluations_that_were_not_made_cannot_be_had(tmp_path: Path) -> None:
    """A run of 15 rounds is evaluated in each of rounds 6 to 15, of which a stopped run of 30 has made some without."""

    def stop(report: Any, line: Any) -> None:
        if report.round == 11:
            raise Killed

    with pytest.raises(Killed):
        run_settings(run_of("fedavg", 30), out=tmp_path / "a", on_round=stop)
    with refuses(ConfigError, "round 6", "give 21 rounds or more"):
        resume(tmp_path / "a", rounds=15)
    assert resume(tmp_path / "a", rounds=21).total == 21


# ---- the command --------------------------------------------------------------------------------------------------
def test_the_command_makes_a_run_longer(tmp_path: Path, fedkin: Command) -> None:
    """``fedkin resume a --rounds 80`` says which interval of evaluations stays; figures are of the new last rounds."""
    run_settings(run_of("fedavg", 50, eval_every=None), out=tmp_path / "a")
    done = fedkin("resume a --rounds 80")
    assert done.code == OK
    assert "evaluated every 2 rounds, as before: 80 rounds alone would mean another interval" in " ".join(
        done.err.split()
    )
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert (summary["rounds"], summary["final"]["rounds"][0]) == (80, 71)
    assert (tmp_path / "a" / "report.html").exists()
    assert fedkin("report a").code == OK


def test_only_runs_get_more_rounds(tmp_path: Path, fedkin: Command) -> None:
    """A comparison has many runs, a run over hosts has its data elsewhere: both are refused with what to do."""
    plan = Comparison(("fedavg",), base=settings_of("fedavg", run={"rounds": 2}))
    compare(plan, out=tmp_path / "c")
    done = fedkin("resume c --rounds 4")
    assert (done.code, done.err) == (
        BAD_INPUT,
        "fedkin: c is a comparison, and --rounds 4 is for a single run; omit it\n",
    )
    (tmp_path / "c" / "fedavg-seed0" / "clients.json").write_text("{}")
    done = fedkin("resume c/fedavg-seed0 --rounds 4")
    assert done.code == BAD_INPUT
    assert "is a run over real hosts" in done.err
    assert "fedkin submit c/fedavg-seed0" in done.err


def test_other_settings_are_told_with_both_values(tmp_path: Path) -> None:
    """Whatever differs between a folder and what is to go on in it is named, and no fingerprint is."""
    run_settings(run_of("fedavg", 5), out=tmp_path / "a")
    other = run_of("fedavg", 6)
    with refuses(RunFolderError, "rounds was 5 there and is 6 here", "--rounds N"):
        run_settings(other, out=tmp_path / "a", resume=True)
    table = table_of(other)
    table["training"]["lr"] = 0.5
    del table["run"]["late_joiners"]
    with pytest.raises(RunFolderError) as caught:
        run_settings(settings_from(table), out=tmp_path / "a", resume=True)
    assert str(caught.value).endswith(
        "belongs to a run with another config: training.lr was 0.1 there and is 0.5 here; rounds was 5 there and is 6 "
        "here; late_joiners was '1@4' there and is not set here; resume it as it was begun"
    )
    config = tmp_path / "a" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 5", "rounds = 6"))
    with refuses(RunFolderError, "rounds was 5 there and is 6 here; restore it"):
        resume(tmp_path / "a")


def test_other_data_and_networks_are_told_by_their_sizes(tmp_path: Path) -> None:
    """Where data or network are not those of the checkpoint, what differs in size is named."""
    run_settings(run_of("fedavg", 5), out=tmp_path / "a")
    folder = RunFolder(tmp_path / "a")
    about = read_json(folder.path / RUN, RunLine).about
    sizes, network = json.loads(about["data"]), json.loads(about["network"])
    with pytest.raises(
        RunFolderError, match=r"a: the data have changed .*: clients was 6 there and is 7 here; restore them"
    ):
        folder.load({"data": "other"}, {"data": json.dumps({**sizes, "clients": 7})})
    with refuses(RunFolderError, "sizes and names are the same, values are not"):
        folder.load({"data": "other"}, about)
    with refuses(RunFolderError, "another network: parameters was 650 there and is 7 here"):
        folder.load({"network": "other"}, {"network": json.dumps({**network, "parameters": 7})})
