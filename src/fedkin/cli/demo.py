"""``fedkin demo``: ten methods on handwritten digits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fedkin.cli import screen
from fedkin.cli.commands import follow_comparison
from fedkin.cli.flags import ShowCompare
from fedkin.cli.options import options
from fedkin.cli.outcome import new_folder
from fedkin.core.settings import Settings
from fedkin.experiment.compare import Comparison
from fedkin.methods import SHOWN

ROUNDS = 100  # enough for every method to converge


@dataclass(frozen=True)
class DemoFlags:
    """Compare ten methods on handwritten digits, in about a minute. Other data and settings: fedkin compare."""

    quiet: bool = False
    """No progress bar and no table."""
    json: bool = False
    """Write the summary as JSON, and nothing else, to standard output."""


def demo_command(args: list[str]) -> int:
    """Run ``fedkin demo [flags]``: the four systems, the safe form of one, and their references."""
    flags = options(DemoFlags, args, "fedkin demo")
    base = Settings().but(
        data="digits", clients=20, partition="dirichlet@alpha=0.5",
        validation=0.2,  # on which clients of the safe form choose their shares
        model="mlp", epochs=2, batch_size=10, lr=0.05, rounds=ROUNDS, participation=0.5,
    )  # fmt: skip
    plan = Comparison(SHOWN, base=base)
    if not (flags.quiet or flags.json):
        screen.say(
            "1,797 handwritten digits on 20 clients whose shares of the ten digits differ (Dirichlet 0.5), "
            "half of them in each of 100 rounds.\nWhich clients should learn from whom, and did it pay?"
        )
    return follow_comparison(plan, new_folder("demo"), ShowCompare(**dataclasses.asdict(flags)))
