"""The fuzzing itself: what is no refusal is noticed, with the case that repeats it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BODIES = {
    "raise DataError('no')": "",
    "place.joinpath('a').write_text('left')": "",
    "raise ValueError('odd')": "ValueError: odd",
    "raise DataError('x' * 10_000)": "a refusal of 10000 characters",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "exit code -9 in case 0 of seed 3",
    "bytearray(b'x') * (700 << 20)": "MB more than all before",
    "bytearray(4 << 30)": "MemoryError",
}
"""What a case does, and what is said of it; of a refusal and of success nothing is."""
SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from damage import confined
from fedkin.core import DataError

for body in {bodies!r}:
    def case(rng, place):
        exec(body)

    try:
        confined("toy", case, 3, 0.2)
    except AssertionError as e:
        print(e)
    print("-----")
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, in the project's folder."""
    told = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=told, capture_output=True, text=True, check=False)


def test_what_is_no_refusal_is_a_fault() -> None:
    """Errors, long messages, deaths and memory are faults; refusals and success are none."""
    done = python("-c", SCRIPT.format(here=str(Path(__file__).parent), bodies=list(BODIES)))
    assert done.returncode == 0, done.stderr
    found = dict(zip(BODIES, done.stdout.split("-----\n"), strict=False))
    assert len(found) == len(BODIES)
    for body, said in BODIES.items():
        assert said in found[body], body
        assert said or (found[body].startswith("toy: ") and found[body].count("\n") == 1), found[body]


def test_a_module_by_its_name() -> None:
    """`python -m tests.fuzz` runs it with the seed that is given, and says that it held."""
    done = python("-m", "tests.fuzz", "--minutes", "0.01", "--seed", "5", "readers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "readers: seed 5" in done.stdout
    assert "readers: held" in done.stdout
    assert python("-m", "tests.fuzz", "--minutes", "0.01", "nothing").returncode == 1
