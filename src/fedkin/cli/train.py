"""The commands that train: flags first, so that a typo is answered before torch is imported."""

from __future__ import annotations

from fedkin.cli.flags import compare_flags, resume_flags, run_flags, sweep_flags


def run_command(args: list[str]) -> int:
    """Run ``fedkin run METHOD|FILE.toml [flags]``."""
    asked = run_flags(args)
    from fedkin.cli import commands  # after the flags, since this waits for torch

    return commands.run(*asked)


def compare_command(args: list[str]) -> int:
    """Run ``fedkin compare M1 M2 ...|FILE.toml [flags]``."""
    asked = compare_flags(args)
    from fedkin.cli import commands

    return commands.compare(*asked)


def sweep_command(args: list[str]) -> int:
    """Run ``fedkin sweep METHOD|FILE.toml --grid training.lr=0.01,0.1 [flags]``."""
    asked = sweep_flags(args)
    from fedkin.cli import sweep

    return sweep.run(*asked)


def resume_command(args: list[str]) -> int:
    """Run ``fedkin resume FOLDER [flags]``: a run, a comparison or a sweep."""
    asked = resume_flags(args)
    from fedkin.cli import commands

    return commands.resume(*asked)
