"""Run every module here that has ``run(seed, seconds)``: damaged and hostile input, of which nothing but refusals come.

    python -m tests.fuzz --minutes 4                 # another seed each time, which is printed
    python -m tests.fuzz --minutes 1 --seed 7 cards  # one module, again with the seed of a failure

Each module has a process of its own and an equal share of the time. Exit code 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent


def main() -> int:
    """Reads the flags, runs the modules one after another."""
    flags = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    flags.add_argument("modules", nargs="*", help="names of modules; default: all")
    flags.add_argument("--minutes", type=float, default=4.0, help="of all modules together")
    flags.add_argument("--seed", type=int, default=None, help="default: another one each time")
    flags.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = flags.parse_args()
    names = asked.modules or every()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    seconds = 60 * asked.minutes / len(names)
    if asked.child:
        loaded(names[0]).run(seed, seconds)
        return 0
    failed = []
    for name in names:
        print(f"{name}: seed {seed}, {seconds:.0f} s", flush=True)
        began = time.monotonic()
        share = ["--minutes", str(seconds / 60), "--seed", str(seed), "--child", name]
        done = subprocess.run(
            [sys.executable, __file__, *share], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
        )
        print(f"{name}: {'failed' if done.returncode else 'held'} after {time.monotonic() - began:.0f} s", flush=True)
        failed += [name] if done.returncode else []
    if failed:
        print(f"failed: {', '.join(failed)}; again: python -m tests.fuzz --seed {seed} {' '.join(failed)}", flush=True)
    return int(bool(failed))


def every() -> list[str]:
    """Names of the modules that have ``run``."""
    others = (path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
    return sorted(path.stem for path in others if "\ndef run(seed" in path.read_text("utf-8"))


def loaded(name: str) -> ModuleType:
    """A module of this folder, which finds those beside it and those of the tests."""
    sys.path[:0] = [str(HERE.parent), str(HERE)]
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", HERE / f"{name}.py")
    if spec is None or spec.loader is None or not (HERE / f"{name}.py").is_file():
        raise SystemExit(f"no module {name} in {HERE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
