"""Settings of a run, each declared once: a tree of frozen groups, read without torch.

A group is a table of a settings file and a group of flags; the text below a setting is its help. Names of settings are
unique, so that a flag, and an argument of `fedkin.run`, needs no group. Neither a constructor nor the command line
checks ranges: `checked` does, for all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from fedkin.core.errors import ConfigError, nearest
from fedkin.core.grammar import Table, choices_of, chosen, placed

Count: TypeAlias = Annotated[int, Meta(ge=1)]
Natural: TypeAlias = Annotated[int, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
Part: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=1e300)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e300)]

Optimizer: TypeAlias = Literal["sgd", "adam", "adamw"]
Moment: TypeAlias = Literal["delivered", "trained"]
"""When a client's model is scored: as it would predict now, with what the server would deliver and what the client
keeps; or right after its last local training."""
Gradient: TypeAlias = Literal["auto", "compiled", "explicit", "autograd"]
Kept: TypeAlias = Literal["auto", "memory", "file"]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Settings that belong together."""

    def but(self, **changes: Any) -> Self:
        """Return a copy with some of the settings changed."""
        return msgspec.structs.replace(self, **changes)


class Plain(Group, frozen=True):
    """A choice without settings of its own."""


class Robust(Group, frozen=True):
    """A rule that withstands a minority of false updates."""

    fraction: Annotated[float, Meta(ge=0, lt=0.5)] = 0.2
    """Fraction of the updates that may be false."""


class Bounded(Group, frozen=True):
    """A rule that shortens updates far from the median."""

    bound: Positive = 1.0
    """Maximum distance from the median update, in multiples of the median norm."""


class StepDecay(Group, frozen=True):
    """A step size that falls in steps."""

    factor: Part
    """Factor on the step size."""
    every: Count = 1
    """Rounds from one use of the factor to the next."""


class Attackers(Group, frozen=True):
    """An attack by some of the clients."""

    fraction: Annotated[float, Meta(gt=0, lt=1)]
    """Fraction of the clients that attack, rounded down; drawn by the run's seed."""


class Planted(Group, frozen=True):
    """Synthetic true groups of clients."""

    groups: Count = 4
    """Number of groups."""
    drift: Annotated[int, Meta(ge=2)] | None = None
    """First round in which some clients are in the next group: their data drift. Default: never."""
    fraction: Part = 0.5
    """Fraction of the clients whose data drift."""


class Processes(Group, frozen=True):
    """Parallel processes."""

    n: Natural = 0
    """Number of processes; 0 for one per core."""


RULES: Mapping[str, type[Group]] = {"mean": Plain, "median": Plain, "trimmed": Robust, "krum": Robust, "norm": Bounded}
SCHEDULES: Mapping[str, type[Group]] = {"constant": Plain, "step": StepDecay, "cosine": Plain}
ATTACKS: Mapping[str, type[Group]] = {"none": Plain, "sign-flip": Attackers, "scale": Attackers, "random": Attackers}
PLANTS: Mapping[str, type[Group]] = {"labels": Planted, "rotations": Planted}
ENGINES: Mapping[str, type[Group]] = {"auto": Plain, "loop": Plain, "workers": Processes, "stacked": Plain}


class DataSettings(Group, frozen=True):
    """Data and their partition over clients."""

    data: str = "digits"
    """Name of a data set (digits, synthetic, cifar10, femnist and others; fedkin list data shows all); a path: a folder
    of idx, csv, parquet or image files, an npz, csv or parquet file; hf:NAME or hf:FOLDER (Hugging Face); a function
    that gives data, package.module:function or ./file.py:function; or a folder with a whole federation
    (Federation.save), which needs no other setting."""
    clients: Count | None = None
    """Number of clients. Default: 20, or all that the data bring (partition natural; a number draws some of them)."""
    partition: str | None = None
    """Partition of the samples over clients, such as dirichlet@alpha=0.1 or classes@classes_per_client=2; fedkin list
    partitions shows all with their settings. Default: natural if the data name their clients (client_column, one file
    or folder per client, a function that gives clients), else dirichlet."""
    plant: str | None = None
    """Synthetic true groups, labels (permuted) or rotations (images turned by quarters): labels@groups=4. With
    drift=50 half of the clients (fraction=0.5) are in the next group from round 50 on. Default: none."""
    feature_noise: Amount = 0.0
    """Variance of Gaussian noise on the inputs of the last client; client i of N has i/N of it."""
    split: Literal["pooled", "official"] = "pooled"
    """Merge the official test part and split every client's samples, or take test samples from the official part."""
    test: Share = 0.2
    """Fraction of a client's samples for testing."""
    validation: Share = 0.1
    """Fraction of a client's samples for validation."""
    samples_per_client: Count | None = None
    """Maximum number of samples per client."""
    target: str | None = None
    """Tables: the column with the class. Hugging Face: the column with the label."""
    client_column: str | None = None
    """Tables, Hugging Face: the column with the client; npz: the array with it."""
    binary: bool = False
    """Tables: two classes, target > 0 and the rest."""
    drop: str | None = None
    """Tables: columns to leave out, with commas between them: id,date. A name with a comma is in double quotes."""
    image_size: Count | None = None
    """Images: resize all to this height and width in pixels."""
    scaling: Literal["pooled", "client"] = "pooled"
    """Tables: standardise columns by all clients' training values together, which only a simulation can see, or by
    each client's own."""
    encoding: str | None = None
    """Tables: encoding of the text of csv files, such as cp1252 (Windows), latin1 or utf-16. Default: UTF-8."""
    data_seed: int | None = None
    """Seed of the partition. Default: the run's seed."""

    def __post_init__(self) -> None:
        self.planted  # noqa: B018 - checked

    @property
    def planted(self) -> tuple[str, Planted] | None:
        """Kind of the planted groups, and their settings; None: none are planted."""
        if self.plant is None:
            return None
        kind, how = chosen(self.plant, PLANTS, "plant")
        assert isinstance(how, Planted)
        return kind, how


class ModelSettings(Group, frozen=True):
    """The network."""

    model: str = "mlp"
    """Name of a network (fedkin list models), or a class or function: ./file.py:build or package.module:build."""
    head: str | None = None
    """Name of the module that is the head. Default: the last linear layer."""
    init_weights: str | None = None
    """Initial weights: a state_dict as .safetensors. Default: random weights, the same for every method."""


class Training(Group, frozen=True):
    """Local training, unless the method overrides it; the optimizer is a new one in every round."""

    epochs: Count = 1
    """Passes over the client's training data per round (not used when steps is given)."""
    steps: Count | None = None
    """Mini-batch steps per round instead of epochs."""
    batch_size: Count = 10
    """Samples per mini-batch; a last, smaller batch is used as well."""
    optimizer: Optimizer = "sgd"
    """Optimizer of the clients, with PyTorch's defaults (adam and adamw: betas 0.9 and 0.999, eps 1e-8)."""
    lr: Positive = 0.01
    """Step size of the optimizer."""
    momentum: Share = 0.0
    """Momentum of SGD."""
    weight_decay: Amount | None = None
    """L2 coefficient, added to the gradient before momentum; of adamw: apart from the gradient, times the step size.
    Default: 0.01 of adamw, as in PyTorch; otherwise 0."""
    decay_biases: bool = True
    """Apply weight decay also to parameters with one dimension (biases, norms)."""
    clip: Positive | None = None
    """Maximum norm of the gradient of a mini-batch, before weight decay and proximal terms. Default: no limit."""
    schedule: str = "constant"
    """Step size over the rounds: constant; step@factor=0.99 (and every=10), multiplied by the factor after each round
    (after every 10); cosine, lowered along half a cosine from lr in the first round towards 0 after the last."""
    epoch_decay: Part = 1.0
    """Factor on the step size after every local epoch."""

    def __post_init__(self) -> None:
        chosen(self.schedule, SCHEDULES, "schedule")
        if self.momentum and self.optimizer != "sgd":  # of a run's settings, and of a method's single request
            raise ConfigError(
                f"momentum = {self.momentum} belongs to SGD, and the optimizer is {self.optimizer!r}, which has "
                'moments of its own; set momentum = 0 or optimizer = "sgd"'
            )

    @property
    def decay(self) -> float:
        """Weight decay, as given or by default of the optimizer."""
        return self.weight_decay if self.weight_decay is not None else 0.01 if self.optimizer == "adamw" else 0.0

    def steps_for(self, samples: int) -> int:
        """Return the number of mini-batch steps on a number of samples."""
        return self.steps if self.steps is not None else self.epochs * math.ceil(samples / self.batch_size)

    def in_round(self, round: int, rounds: int) -> Training:
        """Return the settings with the step size of a round, 1 the first, in a run of a number of rounds.

        Later rounds, of clients that join a finished run, are as the last one on the cosine.
        """
        done, (name, how) = max(0, round - 1), chosen(self.schedule, SCHEDULES, "schedule")
        factor = 1.0
        if name == "cosine":
            factor = math.cos(math.pi / 2 * min(done, rounds - 1) / rounds) ** 2  # (1 + cos(pi t / T)) / 2, never 0
        elif isinstance(how, StepDecay):
            factor = how.factor ** (done // how.every)
        return self if factor == 1 else self.but(lr=self.lr * factor)


class RunSettings(Group, frozen=True):
    """The run itself."""

    rounds: Count = 50
    """Communication rounds."""
    participation: Part = 1.0
    """Fraction of the clients that each round samples."""
    seed: int = 0
    """Seed of all random draws."""
    eval_every: Count | None = None
    """Evaluate every N rounds and in each of the last ten. Default: about 25 times in a run."""
    stop_after: Count | None = None
    """End the run early, after N evaluations in a row without a new maximum of the mean validation accuracy. Default:
    never."""
    evaluate: Moment = "delivered"
    """Evaluate each client's model as it would predict now, with what the server would deliver, or as it was right
    after its last local training."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in averages: its number of training samples, or the same for all."""
    dropout: Share = 0.0
    """Probability that a sampled client does not reply."""
    late_joiners: str | None = None
    """Clients that join late, such as 3@50: three clients join in round 50."""
    min_replies: Count = 1
    """Minimum number of usable replies; a round with fewer is abandoned and changes no model."""
    oversampling: Annotated[float, Meta(ge=1, le=1e300)] = 1.0
    """Factor on the number of sampled clients, such as 1.3; the first to reply are used."""
    attack: str = "none"
    """Attack on updates, for research: sign-flip@fraction=0.2, scale (by 100) or random (noise) of this fraction of the
    clients, rounded down and drawn by the seed."""

    def __post_init__(self) -> None:
        chosen(self.attack, ATTACKS, "attack")

    @property
    def interval(self) -> int:
        """Number of rounds from one evaluation to the next."""
        return max(1, self.rounds // 25) if self.eval_every is None else self.eval_every

    def evaluates(self, round: int) -> bool:
        """Return whether clients are evaluated after this round."""
        return round % self.interval == 0 or round > self.rounds - 10

    def cohort(self, clients: int) -> int:
        """Return the number of clients that a round samples when ``clients`` have joined."""
        return cohort_size(self.participation, clients)

    def sampled(self, clients: int) -> int:
        """Return the number of clients that a round asks, with those beyond `cohort`."""
        return math.ceil(self.cohort(clients) * self.oversampling - 1e-9)


class Aggregation(Group, frozen=True):
    """How the server aggregates updates."""

    rule: str = "mean"
    """The mean, or a rule that is robust to a minority of false updates: median, trimmed@fraction=0.2 (the fraction
    that may be false), krum@fraction=0.2 or norm@bound=1.0 (maximum distance from the median update, in multiples of
    the median norm)."""
    secure: bool = False
    """Secure aggregation: the server learns sums of updates only (methods that need no more, at least 3 clients)."""

    def __post_init__(self) -> None:
        chosen(self.rule, RULES, "rule")


LEAST_NOISE, MOST_NOISE = 0.01, 1e6
"""Limits of noise_multiplier: beyond them the accountant of epsilon does not end, or fails."""


class Privacy(Group, frozen=True):
    """Privacy options."""

    noise_multiplier: Annotated[float, Meta(ge=0, le=MOST_NOISE)] | None = None
    """Private training (DP-SGD): noise in units of max_grad_norm, such as 1.0. Default: plain training."""
    max_grad_norm: Positive = 1.0
    """Maximum norm of the gradient of a single sample in private training."""
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    """Delta of private training: the probability with which its epsilon may not hold."""
    metadata_epsilon: Annotated[float, Meta(ge=1e-6, le=1e300)] | None = None
    """Epsilon of the noise on class counts that clients report when they join, and of the one choice that they report
    in a safe form. Default: exact ones."""

    def __post_init__(self) -> None:
        if 0 < (self.noise_multiplier or 0) < LEAST_NOISE:
            raise ConfigError(
                f"noise_multiplier must be 0 or {LEAST_NOISE:g} to {MOST_NOISE:g}, got {self.noise_multiplier:g}"
            )

    @property
    def asked(self) -> bool:
        """Whether any option is taken."""
        return self.metadata_epsilon is not None or self.noise_multiplier is not None


class Compute(Group, frozen=True):
    """Computation of a run: results do not depend on it, except for their last digits."""

    engine: str = "auto"
    """How clients are trained: in parallel processes (workers@n=4; one per core without a number), one after another
    (loop), or in stacks for a GPU (stacked)."""
    gradient: Gradient = "auto"
    """How clients' models are trained: "compiled" (needs fedkin[fast]) or "explicit" for chains of conv, pool, linear
    and ReLU layers, "autograd" for any; each where it can be, else the next. auto: the fastest that is installed."""
    state: Kept = "auto"
    """Where clients' private states and the server's model of each client are kept; auto: in files if a model for every
    client takes more than 256 MiB."""

    def __post_init__(self) -> None:
        chosen(self.engine, ENGINES, "engine")


class HostSettings(Group, frozen=True):
    """Settings for real hosts; a simulation ignores them."""

    min_clients: Count = 1
    """Number of clients to wait for before the first round."""
    min_connected: Count = 1
    """Minimum number of connected clients in later rounds."""
    wait_timeout: Positive = 3600.0
    """Maximum seconds to wait for enough clients; then a round goes on with those that are connected."""
    reply_timeout: Positive = 600.0
    """Maximum seconds for a client's reply, up to 10 of them for transfer; a slower client is left out of the round."""
    max_samples: Count = 10_000_000
    """Maximum number of training samples that a client may claim."""
    free_names: bool = False
    """Accept clients under other names than those of their registered keys. By default the client-id is the NAME of
    NAME.pub at the link, so that no client can come as another."""
    max_share: Part = 0.5
    """Maximum fraction of a round's samples that one client can have by its claim; a larger weight is lowered to it
    and reported in the run's events and rounds. With 1 / max_share clients or fewer (two at 0.5) there is no limit; 1
    switches it off."""


class Settings(Group, frozen=True):
    """All settings of a run: a table of a settings file for each group."""

    method: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "fedavg"})
    """The method's name and its fields, those of a wrapped method in the table inner."""
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: Training = Training()
    run: RunSettings = RunSettings()
    aggregation: Aggregation = Aggregation()
    privacy: Privacy = Privacy()
    compute: Compute = Compute()
    hosts: HostSettings = HostSettings()
    code: dict[str, str] = {}
    """Fingerprints of user-defined code, under method and model."""
    made_by: str = ""
    """A program's own method and data, which a file cannot name; such a run goes on in that program alone."""

    def but(self, **leaves: Any) -> Settings:
        """Return a copy with some settings changed, each by its name alone; ``method`` may be a text: fedprox@mu=0.1.

        A whole group may be given as well: ``but(training=Training(lr=0.1))``.

        Raises:
            ConfigError: there is no setting of that name.
        """
        changes: dict[str, Any] = {}
        own: dict[str, dict[str, Any]] = {}
        for name, value in leaves.items():
            if name == "method":
                changes[name] = {"name": value} if isinstance(value, str) else value
            elif isinstance(value, Group) or name in ("code", "made_by"):
                changes[name] = value
            elif (group := leaf_groups().get(name)) is not None:
                own.setdefault(group, {})[name] = str(value) if isinstance(value, Path) else value
            else:
                raise ConfigError(f"unknown setting {name}{nearest(name, leaf_groups())}")
        changes |= {group: changes.get(group, getattr(self, group)).but(**leaves) for group, leaves in own.items()}
        return msgspec.structs.replace(self, **changes)


GROUPS = ("data", "model", "training", "run", "aggregation", "privacy", "compute", "hosts")
"""The groups of `Settings` whose leaves are settings."""


@cache
def leaf_groups() -> Mapping[str, str]:
    """Return the group of each setting, by its name."""
    kinds = {f.name: f.type for f in msgspec.structs.fields(Settings)}
    return {f.name: group for group in GROUPS for f in msgspec.structs.fields(kinds[group])}


def checked(settings: Settings) -> Settings:
    """Return settings whose values are all of the right type and in range.

    Raises:
        ConfigError: one is not; the message names it.
    """
    return read_settings(msgspec.to_builtins(settings), "settings")


def read_settings(table: Table, where: str) -> Settings:
    """Read settings from the tables of a file or a message.

    Raises:
        ConfigError: an unknown key, or a value of the wrong kind or out of range; the message names its place.
    """
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{where}: {_located(str(e), table)}") from e


def _located(problem: str, table: Table) -> str:
    """Return what msgspec says of a table, with the value or the name that was probably meant."""
    what, (*groups, name) = placed(problem)
    value: Any = table
    for step in (*groups, name) if name else ():
        value = value[step]
    if isinstance(value, Mapping) and what.startswith("object contains unknown"):
        known = [leaf for leaf, group in leaf_groups().items() if group == name] or [*Settings.__struct_fields__]
        unknown = next((key for key in value if key not in known), "")
        return f"unknown setting {f'[{name}] ' if name else ''}{unknown}{nearest(unknown, known)}"
    kind = type(getattr(Settings(), leaf_groups()[name])) if name in leaf_groups() else Settings
    what += choices_of(get_type_hints(kind)[name])
    return f"{''.join(f'[{group}] ' for group in groups)}{name} = {value!r}: {what}"


def cohort_size(participation: float, clients: int) -> int:
    """Return the number of clients that a round should have: ``participation``, in (0, 1], of all, at least 1."""
    return max(1, math.floor(participation * clients + 1e-9))
