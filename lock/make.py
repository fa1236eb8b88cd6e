"""Make the lock files anew: every package of the environment of `make`, by version and by hash.

    python lock/make.py             # keeps the versions that the files name, where they still fit
    python lock/make.py --upgrade   # takes the newest versions that constraints.txt allows

`base.txt` holds all packages for Linux, macOS and Windows and for each Python that fedkin runs on. Of torch, `cpu.txt`
holds the builds without CUDA that are tried first; `cuda.txt` holds what the build of the package index needs on Linux.
Needs uv (pip install uv) and the package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent
CUDA = re.compile(r"(nvidia-|cuda-|triton==)")
# builds of torch without CUDA, from https://download.pytorch.org/whl/cpu: the package index has them for macOS only
CPU_BUILDS = {
    "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl": (
        "sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
    ),
}
HEAD = """# {what}
# Made by lock/make.py of pyproject.toml, lock/build.in and constraints.txt; do not edit it.
"""
BASE = "The environment of `make` by versions and hashes, for pip install --no-deps --require-hashes."
CPU = "The build of torch without CUDA, which is tried first."
BESIDE = "What torch needs beside base.txt where its build is one with CUDA, by versions and hashes."


def main() -> None:
    """Resolves, splits off CUDA, writes both files."""
    found = LOCK / "base.txt"
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--python-version", "3.11"]
    command += ["--extra", "dev", "--constraint", "constraints.txt", "--no-header", "--output-file", str(found)]
    subprocess.run([*command, *sys.argv[1:], "pyproject.toml", "lock/build.in"], cwd=LOCK.parent, check=True)
    base, cuda = list[str](), list[str]()
    for entry in re.split(r"\n(?=\S)", found.read_text(encoding="utf-8").strip()):
        if entry.startswith("torch=="):
            version, *_ = entry.removeprefix("torch==").split()
            fits = [digest for name, digest in CPU_BUILDS.items() if name.startswith(f"torch-{version}+")]
            if not fits:
                sys.exit(f"no hash of a build of torch {version} without CUDA; add one to CPU_BUILDS in {__file__}")
            hashes = " \\\n".join(f"    --hash={digest}" for digest in fits)
            cpu = HEAD.format(what=CPU) + f"torch=={version}+cpu \\\n{hashes}\n"
            (LOCK / "cpu.txt").write_text(cpu, encoding="utf-8")
        if not entry.startswith("#"):
            (cuda if CUDA.match(entry) else base).append(entry)
    found.write_text(HEAD.format(what=BASE) + "\n".join(base) + "\n", encoding="utf-8")
    (LOCK / "cuda.txt").write_text(HEAD.format(what=BESIDE) + "\n".join(cuda) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
